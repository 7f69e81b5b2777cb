// Heat maps: rows x columns of cells, darker with the value, with the names of rows and columns.

const LEVELS = 32; // of darkness: one path each, so that twenty thousand cells stay light
const LETTER = 7.2; // the width of a letter, about
const MOST_TICKS = 25;
const MOST_NUMBERS = 12; // with more columns a cell has no room for its number

const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

// At most `most` places of n, evenly from the first.
function tickPlaces(n, most) {
  const every = Math.ceil(n / Math.max(1, Math.min(most, MOST_TICKS)));
  return [...Array(n).keys()].filter((at) => at % every === 0);
}

// Arrows move the cell that is read. options: {id, rows, rowNames, columnNames, rowTitle,
// columnTitle, describe(r, c), label, caption, share(value), number(value), scale, width, cell}
function heatMap(options) {
  const { rows, rowNames, columnNames } = options;
  const [height, width] = [rows.length, rows[0].length];
  const letters = innerWidth <= 700 ? 9 : 14;
  const longest = (names) => Math.min(letters, Math.max(...names.map((name) => name.length)));
  const across = LETTER * (longest(columnNames) + 1);
  const room = options.width - 32 - LETTER * longest(rowNames) - 14;
  const level = across <= room / Math.min(width, MOST_TICKS); // else the names are slanted
  const left = Math.max(32 + LETTER * longest(rowNames), level ? 0 : 0.72 * across);
  const w = (options.width - left - 14) / width;
  const h = options.cell ? Math.min(options.cell, Math.max(2, 560 / height)) : w * 0.82;
  const under = level ? 22 : 14 + 0.72 * across;
  const top = 4, bottom = top + h * height, total = bottom + under + 20;
  const x = (c) => left + w * c, y = (r) => top + h * r;

  const paths = Array(LEVELS + 1).fill("");
  rows.forEach((row, r) => row.forEach((value, c) => {
    const at = Math.round(LEVELS * Math.min(1, Math.max(0, options.share(value))));
    if (at) paths[at] += `M${x(c).toFixed(2)},${y(r).toFixed(2)}h${w.toFixed(2)}v${h.toFixed(2)}h-${w.toFixed(2)}z`;
  }));
  const cells = paths.map((d, at) => (d ? svg("path", { d, fill: "var(--heat-high)", "fill-opacity": at / LEVELS }) : null));
  const numbers = options.number && width <= MOST_NUMBERS && w > 24 ? rows.flatMap((row, r) => row.map((value, c) => {
    const text = options.number(value);
    return text ? svg("text", { x: x(c + 0.5), y: y(r + 0.5) + 4, "text-anchor": "middle", class: options.share(value) > 0.5 ? "on-dark" : "on-light" }, text) : null;
  })) : [];
  const rowTicks = tickPlaces(height, (h * height) / 13).map((r) =>
    svg("text", { class: "row-tick", x: left - 6, y: y(r + 0.5) + 4, "text-anchor": "end" }, cut(rowNames[r], letters)));
  const columnTicks = tickPlaces(width, (w * width) / (level ? across : 15)).map((c) => {
    const at = { class: "column-tick", x: x(c + 0.5), y: bottom + (level ? 15 : 12) };
    const slant = level ? { "text-anchor": "middle" } : { "text-anchor": "end", transform: `rotate(-45 ${at.x} ${at.y})` };
    return svg("text", { ...at, ...slant }, cut(columnNames[c], letters));
  });
  const middle = (top + bottom) / 2;
  const mark = svg("rect", { class: "cursor", width: w, height: h, visibility: "hidden" });
  const picture = svg("svg", { id: options.id, viewBox: `0 0 ${options.width} ${total.toFixed(1)}`, tabindex: 0, role: "img", "aria-label": `${options.label}. Arrow keys read the cells.` },
    svg("rect", { class: "heat-low", x: left, y: top, width: w * width, height: h * height }), cells, numbers, mark, rowTicks, columnTicks,
    svg("text", { x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, options.rowTitle),
    svg("text", { x: left + (w * width) / 2, y: total - 4, "text-anchor": "middle" }, options.columnTitle));

  const readout = el("p", { class: "readout", "aria-live": "polite" }, " ");
  const inside = (value, most) => Math.min(most - 1, Math.max(0, Math.floor(value)));
  let cell = [0, 0];
  const read = (r, c) => {
    cell = [r, c];
    fill(mark, { x: x(c), y: y(r), visibility: "visible" }, []);
    readout.textContent = options.describe(r, c);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const scale = options.width / box.width;
    read(inside(((event.clientY - box.top) * scale - top) / h, height), inside(((event.clientX - box.left) * scale - left) / w, width));
  });
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    read(inside(cell[0] + step[0], height), inside(cell[1] + step[1], width));
  });
  return figure(options.id, options.caption, picture, readout,
    el("div", { class: "scale", "aria-hidden": "true" }, el("span", {}, options.scale[0]), el("i"), el("span", {}, options.scale[1])));
}
