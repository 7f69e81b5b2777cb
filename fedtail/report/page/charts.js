// Curves with bands, bars and classes.

const WIDE = { width: 1140, height: 380 };
const HALF = { width: 560, height: 300 };
const THIRD = { width: 370, height: 260 };
const PHONE = { width: 400, height: 290 };
const MARGIN = { left: 46, right: 14, top: 12, bottom: 40 };

function frame(shape) {
  return {
    ...shape,
    x0: MARGIN.left, x1: shape.width - MARGIN.right,
    y0: shape.height - MARGIN.bottom, y1: MARGIN.top,
  };
}

const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function yAxis(area, low, high, format, title) {
  const y = linear(low, high, area.y0, area.y1);
  const marks = ticks(low, high, 5).flatMap((at) => [
    svg("line", { class: "grid", x1: area.x0, x2: area.x1, y1: y(at), y2: y(at) }),
    svg("text", { x: area.x0 - 7, y: y(at) + 4, "text-anchor": "end" }, format(at)),
  ]);
  const middle = (area.y0 + area.y1) / 2;
  marks.push(svg("text", { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, title));
  return { y, marks };
}

function xTitle(area, title) {
  return svg("text", { x: (area.x0 + area.x1) / 2, y: area.height - 6, "text-anchor": "middle" }, title);
}

// A chart of curves. options: {id, shape, curve(line), xs(line), unit(most), xTitle, xFormat, key, title, label}
function lineChart(options, lines, zooms) {
  const area = frame(options.shape);
  const series = lines
    .map((line) => ({ line, points: curvePoints(line, options) }))
    .filter((one) => one.points.length);
  if (!series.length) return el("p", { class: "note" }, "No round has this score yet.");
  const all = series.flatMap((one) => one.points);
  const tested = new Set(series.flatMap((one) => one.points.map((p) => p.round)));
  if (tested.size < 2) return el("p", { class: "note empty" }, `One tested round so far, round ${[...tested][0]}: a curve begins with the second. Its numbers are in the summary.`);
  const whole = [Math.min(...all.map((p) => p.x)), Math.max(...all.map((p) => p.x))];
  if (options.unit) whole[0] = 0;
  if (whole[0] === whole[1]) { whole[0] -= 0.5; whole[1] += 0.5; }
  const zoom = zooms[options.id];
  const [low, high] = zoom || whole;
  const x = linear(low, high, area.x0, area.x1);
  const seen = all.filter((p) => p.x >= low && p.x <= high);
  const [bottom, top] = extent(seen.length ? seen : all, options.key);
  const percent = isPercent(options.key);
  const { y, marks } = yAxis(area, bottom, top, (v) => (percent ? +(100 * v).toFixed(1) : +v.toPrecision(3)), options.title);
  const unit = options.unit ? options.unit(whole[1]) : 1;
  const wanted = Math.max(4, Math.floor(area.width / 90));
  const xs = ticks(low, high, wanted, unit).filter((at) => options.unit || Number.isInteger(+at.toFixed(6)));
  for (const at of xs) marks.push(svg("text", { x: x(at), y: area.y0 + 18, "text-anchor": "middle" }, options.xFormat(at)));

  const clip = `clip-${options.id}`;
  const drawn = series.flatMap(({ line, points }) => curve(line, points, x, y, bottom, top));
  const guide = svg("line", { class: "guide", y1: area.y1, y2: area.y0, visibility: "hidden" });
  const pick = svg("rect", { class: "pick", y: area.y1, height: area.y0 - area.y1, visibility: "hidden" });
  const picture = svg("svg", {
    id: options.id, viewBox: `0 0 ${area.width} ${area.height}`, tabindex: 0, role: "group",
    "aria-label": `${options.label}. Arrows read the values, plus and minus zoom, 0 shows all.`,
  },
    svg("clipPath", { id: clip }, svg("rect", { x: area.x0, y: area.y1 - 4, width: area.x1 - area.x0, height: area.y0 - area.y1 + 8 })),
    marks, svg("g", { "clip-path": `url(#${clip})` }, drawn), guide, pick, xTitle(area, options.xTitle));
  const readout = el("p", { class: "hidden-text", "aria-live": "polite" });
  const reset = el("button", { type: "button", class: "reset", id: `${options.id}-reset`, hidden: !zoom, onclick: () => options.zoom(null) }, "Show all");
  interact({ picture, guide, pick, readout, area, series, low, high, whole, options });
  return figure(options.id, options.caption, picture, reset, readout);
}

function curvePoints(line, options) {
  const { rounds, curves } = options.curve ? options.curve(line) : line;
  const { mean, std } = curves[options.key];
  return options.xs(line)
    .map((x, i) => ({ x, y: mean[i], s: std[i] || 0, seeds: known(std[i]), round: rounds[i] }))
    .filter((p) => known(p.x) && known(p.y));
}

function extent(points, key) {
  let low = Math.min(...points.map((p) => p.y - p.s));
  let high = Math.max(...points.map((p) => p.y + p.s));
  const pad = Math.max((high - low) * 0.06, isPercent(key) ? 0.005 : 1e-3);
  low -= pad; high += pad;
  return isPercent(key) ? [Math.max(0, low), Math.min(1, high)] : [Math.max(0, low), high];
}

function curve(line, points, x, y, bottom, top) {
  const inside = (value) => Math.min(top, Math.max(bottom, value));
  const at = (p, value) => `${x(p.x).toFixed(1)},${y(value).toFixed(1)}`;
  const upper = points.map((p) => at(p, inside(p.y + p.s)));
  const lower = points.map((p) => at(p, inside(p.y - p.s))).reverse();
  const path = points.map((p) => at(p, p.y)).join("L");
  const style = { stroke: colour(line.number), "stroke-dasharray": dash(line.number) };
  const dots = points.length > 30 ? [] : points.map((p) => svg("circle", { cx: x(p.x).toFixed(1), cy: y(p.y).toFixed(1), r: 2.6, fill: colour(line.number) }));
  return [
    svg("polygon", { class: "band", points: [...upper, ...lower].join(" "), fill: colour(line.number) }),
    svg("path", { class: "curve", d: `M${path}`, "data-line": line.label, ...style }),
    ...dots,
  ];
}

// Hover, drag to zoom, and the same with the keyboard.
function interact({ picture, guide, pick, readout, area, series, low, high, whole, options }) {
  const places = [...new Set(series.flatMap((one) => one.points.map((p) => p.x)))].sort((a, b) => a - b).filter((at) => at >= low && at <= high);
  const toX = linear(low, high, area.x0, area.x1);
  let start = null, cursor = -1;
  const value = (event) => {
    const box = picture.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * area.width;
    return Math.min(high, Math.max(low, low + ((px - area.x0) / (area.x1 - area.x0)) * (high - low)));
  };
  const nearest = (at) => places.reduce((best, p, i) => (Math.abs(p - at) < Math.abs(places[best] - at) ? i : best), 0);
  const rowsAt = (at) => series
    .map(({ line, points }) => ({ line, p: points.reduce((best, p) => (Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best)) }))
    .sort((a, b) => b.p.y - a.p.y);
  const shown = ({ p }) => score(options.key, p.y) + (p.seeds ? ` ± ${score(options.key, p.s)}` : "");
  const show = (index, px, py) => {
    if (!places.length) return;
    cursor = index;
    const at = places[index];
    fill(guide, { x1: toX(at), x2: toX(at), visibility: "visible" }, []);
    const heading = `${options.xTitle} ${options.xFormat(at, true)}`;
    const rows = rowsAt(at);
    showTip(px, py, heading, rows.map((row) => tipRow(row.line.number, row.line.label, shown(row))));
    return `${heading}: ${rows.map((row) => `${row.line.label} ${shown(row)}`).join(", ")}`;
  };
  const leave = () => { guide.setAttribute("visibility", "hidden"); hideTip(); };
  const shrink = (factor) => {
    const middle = places[cursor] ?? (low + high) / 2;
    const span = (high - low) * factor;
    const from = Math.max(whole[0], middle - span / 2), to = Math.min(whole[1], middle + span / 2);
    options.zoom(from <= whole[0] && to >= whole[1] ? null : [from, to]);
  };
  picture.addEventListener("pointerdown", (event) => { start = value(event); });
  picture.addEventListener("pointermove", (event) => {
    const at = value(event);
    show(nearest(at), event.clientX, event.clientY);
    if (start === null) return;
    const [a, b] = [toX(start), toX(at)].sort((one, other) => one - other);
    fill(pick, { x: a, width: b - a, visibility: "visible" }, []);
  });
  picture.addEventListener("pointerup", (event) => {
    const [from, to] = [start, value(event)].sort((a, b) => a - b);
    const wide = start !== null && toX(to) - toX(from) > 12;
    start = null;
    pick.setAttribute("visibility", "hidden");
    if (wide) { leave(); options.zoom([from, to]); }
  });
  picture.addEventListener("pointerleave", () => { start = null; pick.setAttribute("visibility", "hidden"); leave(); });
  picture.addEventListener("dblclick", () => options.zoom(null));
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps) {
      const index = cursor < 0 ? (steps[event.key] > 0 ? 0 : places.length - 1) : Math.min(places.length - 1, Math.max(0, cursor + steps[event.key]));
      const box = picture.getBoundingClientRect();
      readout.textContent = show(index, box.left + (toX(places[index]) / area.width) * box.width, box.top + 20) || "";
    } else if (event.key === "+" || event.key === "=") shrink(0.5);
    else if (event.key === "-") shrink(2);
    else if (event.key === "0" || event.key === "Escape") { leave(); options.zoom(null); }
    else return;
    event.preventDefault();
  });
}

// Bars in groups: many, medium and few beside each other.
function barChart(shape, lines, keys, titles, label) {
  const area = frame(shape);
  const { y, marks } = yAxis(area, 0, 1.06, (v) => Math.round(100 * v), "accuracy (%)");
  const slot = (area.x1 - area.x0) / keys.length;
  const width = Math.min(64, (slot * 0.84) / Math.max(lines.length, 1));
  const bars = keys.flatMap((key, k) => {
    const left = area.x0 + slot * (k + 0.5) - (width * lines.length) / 2;
    marks.push(svg("text", { x: area.x0 + slot * (k + 0.5), y: area.y0 + 18, "text-anchor": "middle" }, titles[k]));
    return lines.flatMap((line, i) => {
      const [mean, std] = line.scores[key];
      if (!known(mean)) return [];
      const middle = left + width * (i + 0.5);
      const text = score(key, mean) + (known(std) ? ` ± ${score(key, std)}` : "");
      const row = () => [tipRow(line.number, line.label, text)];
      const bar = svg("rect", {
        x: left + width * i + 1, width: Math.max(1, width - 2), y: y(mean), height: Math.max(1, area.y0 - y(mean)), fill: colour(line.number),
        onpointermove: (event) => showTip(event.clientX, event.clientY, titles[k], row()), onpointerleave: hideTip,
      });
      const whisker = known(std) ? svg("line", { class: "whisker", x1: middle, x2: middle, y1: y(Math.max(0, mean - std)), y2: y(Math.min(1, mean + std)) }) : null;
      const number = width > 30 ? svg("text", { x: middle, y: Math.min(y(Math.min(1, mean + (std || 0))) - 5, area.y0 - 5), "text-anchor": "middle" }, score(key, mean)) : null;
      return [bar, whisker, number].filter(known);
    });
  });
  return figure("groups", "Of the model that is shipped", svg("svg", { viewBox: `0 0 ${area.width} ${area.height}`, role: "img", "aria-label": label }, marks, bars));
}

// One column a class, most frequent first: samples as grey bars, a value as a curve a method.
// measure: {file, caption, full, title, tick(value), value(line, c), told(line, c)}
function classChart(shape, lines, order, counts, names, borders, label, measure) {
  const area = frame(shape);
  // Room above the top value for the names of the groups.
  const { y, marks } = yAxis(area, 0, 1.09 * measure.full, measure.tick, measure.title);
  const slot = (area.x1 - area.x0) / order.length;
  const middle = (place) => area.x0 + slot * (place + 0.5);
  const most = Math.log1p(Math.max(...counts, 1));
  const bars = order.map((c, place) => {
    const height = ((area.y0 - y(measure.full)) * Math.log1p(counts[c] || 0)) / most;
    return svg("rect", { x: middle(place) - slot * 0.42, width: slot * 0.84, y: area.y0 - height, height, fill: "var(--count)" });
  });
  const letters = Math.min(9, Math.max(...order.map((c) => (names[c] ?? String(c)).length)));
  const every = Math.ceil(order.length / Math.max(4, Math.floor((area.x1 - area.x0) / (LETTER * (letters + 1.5)))));
  order.forEach((c, place) => {
    if (place % every) return;
    const name = names[c] ?? String(c);
    const out = middle(place) + (LETTER * Math.min(9, name.length)) / 2 > area.width;
    marks.push(svg("text", { x: out ? area.width - 1 : middle(place), y: area.y0 + 16, "text-anchor": out ? "end" : "middle" }, cut(name, 9)));
  });
  const split = borders.flatMap(({ place, title }) => [
    place > 0 ? svg("line", { class: "group-line", x1: area.x0 + slot * place, x2: area.x0 + slot * place, y1: area.y1, y2: area.y0 }) : null,
    svg("text", { x: area.x0 + slot * place + 5, y: area.y1 + 11 }, title),
  ]).filter(known);
  const curves = lines.flatMap((line) => {
    const points = order.map((c, place) => [middle(place), measure.value(line, c)]).filter(([, value]) => known(value));
    const path = points.map(([at, value]) => `${at.toFixed(1)},${y(value).toFixed(1)}`).join("L");
    const dots = order.length > 40 ? [] : points.map(([at, value]) => svg("circle", { cx: at, cy: y(value), r: 3.2, fill: colour(line.number) }));
    return points.length ? [svg("path", { class: "curve", d: `M${path}`, stroke: colour(line.number), "stroke-dasharray": dash(line.number) }), ...dots] : [];
  });
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const place = Math.floor((((event.clientX - box.left) / box.width) * area.width - area.x0) / slot);
    if (place < 0 || place >= order.length) { hideTip(); return; }
    const c = order[place];
    const rows = lines.map((line) => tipRow(line.number, line.label, measure.told(line, c)));
    showTip(event.clientX, event.clientY, `class ${names[c] ?? c}: ${count(counts[c])} samples`, rows);
  };
  return figure(measure.file, measure.caption, svg("svg", { viewBox: `0 0 ${area.width} ${area.height}`, role: "img", "aria-label": label, onpointermove: move, onpointerleave: hideTip }, bars, marks, split, curves, xTitle(area, "class, from the most to the least frequent")));
}
