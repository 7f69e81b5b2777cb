// The panel by client: who held what, took part how often, and how well the model serves each.

const STRIP = { width: 1140, left: 210, row: 34 };
const SMALL_STRIP = { width: 400, left: 110, row: 34 };
const LEFT_OUT = 5; // the column; it is shown where somebody was

function clientPanel(data, state, shown, redraw) {
  if (!data.clients.length) return el("p", { class: "note" }, "No counts of clients in these runs: there is no split.json, or it has too many cells.");
  const chosen = Math.min(state.clients, data.clients.length - 1);
  const one = data.clients[chosen];
  const titles = data.clients.map((each) => `${data.lines[each.line].label}, seed ${each.seed}`);
  const strip = spreadChart(data, shown);
  return el("div", {}, strip ?? el("p", { class: "note" }, "Accuracy by client is here when the data say whose each test sample is (client_test)."),
    chooser("clients-choice", "Run", titles, chosen, (i) => { state.clients = i; redraw(); }),
    known(one.worst) ? el("p", {}, worstClient(one)) : null,
    clientTable(one));
}

function worstClient(one) {
  const row = one.rows.find(([name]) => name === one.worst);
  const at = known(one.spread) ? one.spread.map((value) => score("accuracy", value)) : null;
  return `Worst client: ${one.worst}${row && known(row[1]) ? ` (${score("accuracy", row[1])} %)` : ""}.${at ? ` Half of the clients are between ${at[1]} and ${at[3]} %, the median is ${at[2]} %, the best ${at[4]} %.` : ""}`;
}

function clientTable(one) {
  const columns = [
    ["Client", (v) => v], ["Accuracy", (v) => score("accuracy", v)], ["Samples", count],
    ["Classes", count], ["Rounds", count], ["Left out", count], ["Traffic", size],
  ];
  const there = columns.map((column, at) => at).filter((at) => one.rows.some((row) => known(row[at])) && (at !== LEFT_OUT || one.rows.some((row) => row[at])));
  const most = there.map((at) => (at === 0 ? null : at === 1 ? 1 : Math.max(1, ...one.rows.map((row) => row[at] || 0))));
  const body = one.rows.map((row) => el("tr", {}, there.map((at, i) => (at === 0
    ? el("th", { scope: "row" }, row[0])
    : el("td", { class: "barred" }, bar((row[at] || 0) / most[i]), columns[at][1](row[at]))))));
  const note = one.clients > one.rows.length ? el("p", { class: "note" }, `${count(one.rows.length)} of ${count(one.clients)} clients are shown.`) : null;
  return el("div", {}, el("div", { class: "scroll tall", id: "clients-table", tabindex: 0, role: "region", "aria-label": "Clients" },
    el("table", {}, el("thead", {}, el("tr", {}, there.map((at) => el("th", { scope: "col" }, columns[at][0])))), el("tbody", {}, body))), note);
}

function bar(part) {
  return svg("svg", { class: "cell-bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: 100 * part, height: 4, fill: "var(--bar)" }));
}

// One row a run: a dot a client, the box of the quartiles, whiskers to the least and the greatest.
function spreadChart(data, shown) {
  const numbers = new Set(shown.map((line) => line.number));
  const boxed = data.clients.filter((one) => numbers.has(one.line) && known(one.spread || one.personal));
  if (!boxed.length) return null;
  const { width, left, row } = innerWidth <= 700 ? SMALL_STRIP : STRIP;
  const height = row * boxed.length + 44;
  const x = linear(0, 1, left, width - 16);
  const axis = ticks(0, 1, 5).flatMap((at) => [
    svg("line", { class: "grid", x1: x(at), x2: x(at), y1: 4, y2: height - 38 }),
    svg("text", { x: x(at), y: height - 22, "text-anchor": "middle" }, Math.round(100 * at)),
  ]);
  const rows = boxed.flatMap((one, i) => {
    const line = data.lines[one.line], y = 4 + row * (i + 0.5), paint = colour(line.number);
    const [least, first, median, third, greatest] = one.spread || one.personal;
    const dots = one.rows.filter((each) => known(each[1])).map((each) => svg("circle", { cx: x(each[1]).toFixed(1), cy: y, r: 3, fill: paint, "fill-opacity": 0.55 }));
    const told = `${line.label}, seed ${one.seed}`;
    const tip = [least, first, median, third, greatest].map((value) => score("accuracy", value)).join(" / ");
    const box = svg("rect", { x: x(first), width: Math.max(1, x(third) - x(first)), y: y - 9, height: 18, fill: paint, "fill-opacity": 0.2, stroke: paint });
    const cover = svg("rect", { x: 0, width, y: y - row / 2, height: row, fill: "transparent", onpointerleave: hideTip,
      onpointermove: (event) => showTip(event.clientX, event.clientY, "least / quartile / median / quartile / greatest", [tipRow(line.number, told, tip)]) });
    const room = Math.floor((left - 12) / LETTER), seed = boxed.some((other) => other.line === one.line && other !== one) ? `, seed ${one.seed}` : "";
    return [svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, cut(line.label, room - seed.length) + seed),
      svg("line", { x1: x(least), x2: x(greatest), y1: y, y2: y, stroke: paint }), box,
      svg("line", { x1: x(median), x2: x(median), y1: y - 9, y2: y + 9, stroke: paint, "stroke-width": 2.5 }), ...dots, cover];
  });
  const own = boxed.filter((one) => !known(one.spread)).length;
  const label = own === boxed.length ? "Accuracy of the clients' own models" : own ? "Accuracy by client, or of the clients' own models" : "Accuracy by client";
  return figure("clients", label, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, axis, rows,
    svg("text", { x: (left + width) / 2, y: height - 5, "text-anchor": "middle" }, "accuracy (%)")));
}
