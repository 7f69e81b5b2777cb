// Features on a map, and the lengths of the classifier's vectors; only where they were asked for.

const MAP = { width: 560, height: 430 };
const SMALL_MAP = { width: 400, height: 330 };
const NAMED = 20;
// Many or majority: a disc; medium or minority: a triangle; few or missing: a cross.
const MARKS = [
  (x, y, r) => `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
  (x, y, r) => `M${x},${y - 1.2 * r}l${1.15 * r},${2.1 * r}h${-2.3 * r}z`,
  (x, y, r) => `M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`,
];
const CROSS = 2;

// Round the wheel from head to tail, light and dark in turn.
const dotColour = (place, classes) => `hsl(${Math.round((360 * place) / classes)} 62% var(--dot-${place % 2}))`;

function dot(mark, d, colour, more) {
  const paint = mark === CROSS ? { fill: "none", stroke: colour } : { fill: colour };
  return svg("path", { d, class: "dot", ...paint, ...more });
}

function markSign(mark, colour) {
  return svg("svg", { class: "sign", viewBox: "0 0 12 12", "aria-hidden": "true" }, dot(mark, MARKS[mark](6, 6, 4), colour));
}

// What all maps share: the order of the classes, their colours and names, and how they are marked.
function mapKey(data, state, views) {
  const order = byFrequency(views[0].counts);
  const place = new Map(order.map((c, at) => [c, at]));
  const name = (c) => className(data, data.lines[views[0].line], c);
  const client = state.client === "" ? null : state.client;
  const markNames = client === null ? data.marks.groups : data.marks.sides;
  const digit = (view, c) => Number((client === null ? view.groups : view.sides[client] || "")[c] ?? 3);
  const told = client === null ? (mark) => `${mark}-shot` : (mark) => `${mark} of client ${client}`;
  return {
    order, name, markNames,
    sorted: state.order === "name" ? [...order].sort((a, b) => name(a).localeCompare(name(b), "en", { numeric: true })) : order,
    colour: (c) => dotColour(place.get(c), order.length),
    mark: (view, c) => Math.min(digit(view, c), 3) % 3,
    says: (view, c) => (markNames[digit(view, c)] ? told(markNames[digit(view, c)]) : "in no group"),
    visible: (c) => !state.off.has(c),
  };
}

function featurePanel(data, state, shown, redraw) {
  const numbers = new Set(shown.map((line) => line.number));
  const all = data.features.filter((view) => numbers.has(view.line));
  if (!all.length) return [el("p", { class: "note" }, "No method with features is chosen.")];
  const views = all.filter((view) => view.counts.length === all[0].counts.length);
  const key = mapKey(data, state, views);
  const left = all.length > views.length ? el("p", { class: "note" }, "Methods on data with another number of classes are left out; choose them alone.") : null;
  return [left, mapTools(data, state, views, key, redraw), classLegend(state, views, key, redraw),
    el("div", { class: views.length > 1 ? "two maps" : "maps" }, views.map((view) => featureMap(data, view, key)))].filter(known);
}

function mapTools(data, state, views, key, redraw) {
  const clients = Object.keys(views[0].sides);
  const marks = ["", ...clients];
  const titles = ["many, medium and few", ...clients.map((k) => `client ${k}: majority, minority, missing`)];
  const orders = ["frequency", "name"];
  const signs = key.markNames.map((name, mark) => el("span", { class: "mark" }, markSign(mark, "var(--soft)"), name));
  const turn = (off) => { state.off = new Set(off); redraw(); };
  return el("div", { class: "bar map-tools" },
    chooser("marks-choice", "Marks", titles, Math.max(0, marks.indexOf(state.client)), (i) => { state.client = marks[i]; redraw(); }),
    chooser("order-choice", "Order", ["head to tail", "by name"], orders.indexOf(state.order), (i) => { state.order = orders[i]; redraw(); }),
    el("button", { type: "button", id: "classes-all", onclick: () => turn([]) }, "All classes"),
    el("button", { type: "button", id: "classes-none", onclick: () => turn(key.order) }, "None"),
    ...key.markNames.map((name, mark) => {
      const members = key.order.filter((c) => key.mark(views[0], c) === mark);
      return el("button", { type: "button", id: `classes-${mark}`, onclick: () => turn(key.order.filter((c) => !members.includes(c))) }, `Only ${name}`);
    }),
    el("span", { class: "marks" }, signs));
}

function classLegend(state, views, key, redraw) {
  const buttons = key.sorted.map((c) => {
    const on = key.visible(c);
    const press = () => { if (on) state.off.add(c); else state.off.delete(c); redraw(); };
    return el("button", { type: "button", id: `class-${c}`, "aria-pressed": String(on), title: key.says(views[0], c), onclick: press },
      markSign(key.mark(views[0], c), key.colour(c)), key.name(c));
  });
  return el("div", { class: "legend", role: "group", "aria-label": "Classes shown" }, buttons);
}

function featureMap(data, view, key) {
  const area = innerWidth <= 700 ? SMALL_MAP : MAP;
  const points = placed(view, area, 16).filter((p) => key.visible(p.c));
  const radius = view.labels.length > 500 ? 2.6 : 3.4;
  const groups = key.order.map((c) => ({ c, points: points.filter((p) => p.c === c) })).filter((one) => one.points.length);
  const drawn = groups.map((one) => {
    const mark = key.mark(view, one.c);
    return dot(mark, one.points.map((p) => MARKS[mark](p.x, p.y, radius)).join(""), key.colour(one.c), { "data-class": one.c });
  });
  const names = groups.length > NAMED ? [] : groups.map((one) => {
    const at = central(one.points);
    return svg("text", { class: "dot-name", x: at.x, y: at.y + 4, "text-anchor": "middle" }, cut(key.name(one.c), 12));
  });
  const { label } = data.lines[view.line];
  const picture = svg("svg", {
    id: `map-${view.line}`, viewBox: `0 0 ${area.width} ${area.height}`, tabindex: 0, role: "group",
    "aria-label": `Features of ${label}. Arrows read class by class, Escape shows all.`,
  }, svg("rect", { class: "frame", x: 0.5, y: 0.5, width: area.width - 1, height: area.height - 1 }), drawn, names);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, " ");
  readMap({ picture, readout, area, points, groups, view, key });
  return figure(`features-${view.line}`, `${label}, seed ${view.seed}`, picture, readout);
}

// The point with the least way to all others: a mean may lie between two clusters, where there is none.
function central(points) {
  const way = (p) => points.reduce((sum, q) => sum + Math.hypot(p.x - q.x, p.y - q.y), 0);
  return points.map((p) => ({ p, far: way(p) })).reduce((best, one) => (one.far < best.far ? one : best)).p;
}

// One scale for both axes: a map has no directions.
function placed(view, area, pad) {
  const [left, right, low, high] = [Math.min(...view.x), Math.max(...view.x), Math.min(...view.y), Math.max(...view.y)];
  const scale = Math.min((area.width - 2 * pad) / (right - left || 1), (area.height - 2 * pad) / (high - low || 1));
  return view.labels.map((c, i) => ({
    c, guess: view.predicted[i],
    x: +(area.width / 2 + (view.x[i] - (left + right) / 2) * scale).toFixed(1),
    y: +(area.height / 2 - (view.y[i] - (low + high) / 2) * scale).toFixed(1),
  }));
}

// Hover reads a sample; the arrows read a class and dim the others.
function readMap({ picture, readout, area, points, groups, view, key }) {
  let cursor = -1;
  const dim = (c) => {
    for (const path of picture.querySelectorAll(".dot")) path.classList.toggle("dim", c !== null && Number(path.dataset.class) !== c);
  };
  const clear = () => { cursor = -1; dim(null); hideTip(); readout.textContent = " "; };
  const row = (name, value) => el("div", {}, el("span", {}, name), el("span", {}, value));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const at = { x: ((event.clientX - box.left) / box.width) * area.width, y: ((event.clientY - box.top) / box.height) * area.height };
    const far = (p) => Math.hypot(p.x - at.x, p.y - at.y);
    const near = points.reduce((best, p) => (best === null || far(p) < far(best) ? p : best), null);
    if (near === null || far(near) > 14) { hideTip(); return; }
    const right = near.guess === near.c;
    showTip(event.clientX, event.clientY, `class ${key.name(near.c)}`, [
      row(key.says(view, near.c), `${count(view.counts[near.c])} training samples`),
      row(right ? "recognised" : "taken for", right ? "✓" : key.name(near.guess)),
    ]);
  });
  picture.addEventListener("pointerleave", hideTip);
  picture.addEventListener("blur", clear);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") clear();
    else if (step && groups.length) {
      cursor = cursor < 0 ? (step > 0 ? 0 : groups.length - 1) : Math.min(groups.length - 1, Math.max(0, cursor + step));
      const { c, points: own } = groups[cursor];
      dim(c);
      const right = own.filter((p) => p.guess === c).length;
      readout.textContent = `class ${key.name(c)} (${key.says(view, c)}, ${count(view.counts[c])} training samples): ${right} of ${own.length} recognised`;
    } else return;
    event.preventDefault();
  });
}

function normPanel(data, shown) {
  const byLine = new Map(data.features.map((view) => [view.line, view]));
  const all = shown.filter((line) => byLine.has(line.number));
  if (!all.length) return [el("p", { class: "note" }, "No method with features is chosen.")];
  const view = byLine.get(all[0].number);
  const lines = all.filter((line) => byLine.get(line.number).counts.length === view.counts.length);
  const norms = (line, c) => byLine.get(line.number).norms.map((head) => head[c]);
  const mean = (line, c) => norms(line, c).reduce((a, b) => a + b, 0) / norms(line, c).length;
  const full = Math.max(...lines.flatMap((line) => view.counts.map((_, c) => mean(line, c)))) || 1;
  const told = (line, c) => {
    const each = norms(line, c);
    const range = each.length > 1 ? ` (${Math.min(...each).toFixed(3)} to ${Math.max(...each).toFixed(3)} in ${each.length} heads)` : "";
    return mean(line, c).toFixed(3) + range;
  };
  const measure = { file: "norms", caption: "Length of the class vectors", full, title: "length of w", tick: (v) => +v.toPrecision(3), value: mean, told };
  const order = byFrequency(view.counts);
  const names = view.counts.map((_, c) => className(data, all[0], c));
  const groups = Object.fromEntries(GROUPS.map((name, at) => [name, order.filter((c) => Number(view.groups[c]) === at)]));
  const label = "Length of the classifier's vector of each class, from the most to the least frequent";
  const table = el("details", {}, el("summary", {}, "As a table"), classTable(names, lines, order, view.counts, (line, c) => el("td", {}, told(line, c)), label));
  return [classChart(innerWidth <= 700 ? PHONE : WIDE, lines, order, view.counts, names, borders(order, groups), label, measure), table];
}
