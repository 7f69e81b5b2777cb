"use strict";
// Elements, numbers and axes: what every chart needs. Text only ever enters as text nodes.

const COLOURS = 8;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

const byId = (id) => document.getElementById(id);
const colour = (number) => `var(--c${number % COLOURS})`;
const dash = (number) => DASHES[Math.floor(number / COLOURS) % DASHES.length];
const known = (value) => value !== null && value !== undefined;
const byFrequency = (counts) => counts.map((_, c) => c).sort((a, b) => counts[b] - counts[a] || a - b);

function swatch(number) {
  const line = svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, "stroke-width": 3, stroke: colour(number), "stroke-dasharray": dash(number) });
  return svg("svg", { class: "swatch", viewBox: "0 0 18 10", "aria-hidden": "true" }, line);
}

// Numbers for people ------------------------------------------------------------------------

const RAW = new Set(["loss", "ece"]);
const isPercent = (key) => !RAW.has(key);

function score(key, value) {
  if (!known(value)) return "–";
  return isPercent(key) ? (100 * value).toFixed(1) : value.toFixed(3);
}

function size(bytes) {
  if (!known(bytes)) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = bytes, unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${trim(value)} ${units[unit]}`;
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 60) return `${trim(seconds)} s`;
  if (seconds < 3600) return `${trim(seconds / 60)} min`;
  return `${trim(seconds / 3600)} h`;
}

function trim(value) {
  return String(Number(value >= 100 ? value.toFixed(0) : value.toPrecision(3)));
}

function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en") : "–";
}

// Axes --------------------------------------------------------------------------------------

// Round steps of 1, 2 or 5 times a power of the base (1024 for bytes, 60 for long times).
function ticks(low, high, wanted, unit) {
  const span = Math.max(high - low, 1e-12);
  const scale = unit || 1;
  const rough = span / scale / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = scale * power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function byteUnit(most) {
  let unit = 1;
  while (most / unit >= 1024) unit *= 1024;
  return unit;
}

function timeUnit(most) {
  return most >= 7200 ? 3600 : most >= 120 ? 60 : 1;
}

// The tooltip -------------------------------------------------------------------------------

function showTip(x, y, title, rows) {
  const tip = byId("tip");
  tip.replaceChildren(el("b", {}, title), ...rows);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth ? x - box.width - 14 : x + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function tipRow(number, label, value) {
  return el("div", {}, el("span", {}, swatch(number), " ", label), el("span", {}, value));
}
