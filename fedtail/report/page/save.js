// A picture of the page as a file of its own, as it is seen: zoomed, in the theme, with the names.

const FILE_TYPE = { type: "image/svg+xml" };

function figure(name, caption, picture, ...more) {
  const save = el("button", { type: "button", class: "save", title: "Save this picture as an SVG file", "aria-label": `Save ${caption || name} as SVG`, onclick: () => download(`${name}.svg`, standAlone(picture)) }, "SVG");
  const [buttons, rest] = [more.filter((one) => one instanceof HTMLButtonElement), more.filter((one) => !(one instanceof HTMLButtonElement))];
  return el("figure", {}, el("figcaption", {}, el("span", {}, caption || ""), ...buttons, save), picture, ...rest);
}

// The page's rules for pictures come along, and colours are those of the theme.
function standAlone(picture) {
  const { width, height } = picture.viewBox.baseVal;
  const rules = [...document.styleSheets[0].cssRules].filter((rule) => (rule.selectorText || "").startsWith("svg "));
  const style = svg("style", {}, rules.map((rule) => rule.cssText).join("\n"), "\nsvg text { font-family: sans-serif; }");
  const copy = fill(picture.cloneNode(true), { width, height }, []);
  copy.prepend(style, svg("rect", { width, height, fill: "var(--paper)" }));
  const colours = getComputedStyle(document.documentElement);
  return new XMLSerializer().serializeToString(copy).replace(/var\((--[\w-]+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], FILE_TYPE));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
