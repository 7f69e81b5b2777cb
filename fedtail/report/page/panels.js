// The sections of the page, each made anew from the data and what the reader has chosen.

const GROUPS = ["many", "medium", "few"];

const className = (data, line, c) => (line.classes ?? data.classes)[c] ?? String(c);

function factList(data) {
  return data.facts.flatMap(({ title, value }) => [el("dt", {}, title), el("dd", {}, value)]);
}

function summaryTable(data, state, redraw) {
  const columns = [
    { key: "label", title: "Method", sort: (line) => line.label },
    { key: "seeds", title: "Seeds", sort: (line) => line.seeds.length },
    ...data.scores.map(({ key, title }) => ({ key, title, sort: (line) => line.scores[key][0], lower: !isPercent(key) })),
    { key: "bytes", title: "Traffic", sort: (line) => line.total_bytes },
    { key: "seconds", title: "Time", sort: (line) => line.total_seconds },
    { key: "done", title: "Rounds", sort: (line) => line.done },
  ];
  const head = columns.map((column) => {
    const sorted = state.sort && state.sort.key === column.key ? state.sort.direction : "none";
    const press = () => {
      const next = sorted === "descending" ? "ascending" : sorted === "ascending" ? "descending" : column.key === "label" || column.lower ? "ascending" : "descending";
      state.sort = { key: column.key, direction: next };
      redraw();
    };
    return el("th", { scope: "col", "aria-sort": sorted }, el("button", { type: "button", id: `sort-${column.key}`, onclick: press }, column.title));
  });
  const rows = [...data.lines];
  const chosen = state.sort && columns.find((column) => column.key === state.sort.key);
  if (chosen) rows.sort((a, b) => compare(chosen.sort(a), chosen.sort(b), state.sort.direction === "ascending" ? 1 : -1));
  const body = rows.map((line) => el("tr", { class: state.hidden.has(line.label) ? "off" : null },
    el("th", { scope: "row" }, swatch(line.number), " ", line.label),
    el("td", {}, line.seeds.length),
    data.scores.map(({ key }) => scoreCell(key, line.scores[key], line.better.includes(key))),
    el("td", {}, size(line.total_bytes)),
    el("td", {}, duration(line.total_seconds)),
    el("td", {}, progress(data, line))));
  return el("table", {}, el("caption", { class: "hidden-text" }, "Summary of methods"), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}

// What is not known stands last, whichever way the rest is sorted.
function compare(a, b, way) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  return way * (typeof a === "string" ? a.localeCompare(b) : a - b);
}

function scoreCell(key, [mean, std], better) {
  const shown = score(key, mean);
  const more = known(std) ? el("small", {}, ` ± ${score(key, std)}`) : null;
  return el("td", { class: better ? "best" : null }, shown, more);
}

function progress(data, line) {
  const runs = data.runs.filter((run) => run.line === line.number);
  const least = Math.min(...runs.map((run) => run.done));
  return runs.every((run) => run.finished) ? String(least) : `${least} of ${known(runs[0].rounds) ? runs[0].rounds : "?"}`;
}

function methodChips(data, state, redraw) {
  return data.lines.map((line) => {
    const on = !state.hidden.has(line.label);
    const press = () => {
      if (on) state.hidden.add(line.label); else state.hidden.delete(line.label);
      redraw();
    };
    return el("button", { type: "button", id: `method-${line.number}`, "aria-pressed": String(on), onclick: press }, swatch(line.number), line.label);
  });
}

function scoreButtons(data, state, redraw) {
  return data.scores.map(({ key, title }) => el("button", {
    type: "button", id: `score-${key}`, "aria-pressed": String(state.score === key), onclick: () => { state.score = key; redraw(); },
  }, title));
}

function costCharts(data, state, shown, redraw) {
  const { title } = data.scores.find(({ key }) => key === state.score);
  const name = isPercent(state.score) ? `accuracy, ${title.toLowerCase()} (%)` : title;
  const common = (id, more) => ({
    id, key: state.score, title: name, label: `${title} against ${more.xTitle}`, zoom: zoomer(state, id, redraw), ...more,
  });
  const narrow = innerWidth <= 700, wide = narrow ? PHONE : WIDE, half = narrow ? PHONE : HALF;
  const put = (id, options, lines = shown) => byId(id).replaceChildren(lineChart(options, lines, state.zooms));
  put("chart-rounds", common("rounds", { shape: wide, xs: (line) => line.rounds, ...ROUNDS, caption: `${title} over rounds` }));
  put("chart-bytes", common("bytes", { shape: half, xs: (line) => line.bytes, unit: byteUnit, xTitle: "traffic", xFormat: size, caption: `${title} against traffic` }));
  put("chart-seconds", common("seconds", { shape: half, xs: (line) => line.seconds, unit: timeUnit, xTitle: "time", xFormat: duration, caption: `${title} against time` }));
  byId("cost-section").hidden = !shown.some((line) => line.rounds.length > 1);
  const validated = shown.filter((line) => line.validation);
  byId("validation-section").hidden = !data.lines.some((line) => line.validation);
  put("chart-validation", common("validation", { shape: wide, curve: (line) => line.validation, xs: (line) => line.validation.rounds, ...ROUNDS, caption: `${title} on validation` }), validated);
}

const ROUNDS = { xTitle: "round", xFormat: (at) => String(Math.round(at)) };

const zoomer = (state, id, redraw) => (range) => {
  if (range) state.zooms[id] = range; else delete state.zooms[id];
  redraw();
};

function groupChart(data, shown) {
  const tested = shown.filter((line) => GROUPS.some((key) => known(line.scores[key][0])));
  if (!tested.length) return el("p", { class: "note" }, "No round was tested on such groups.");
  const counts = tested[0].groups, narrow = innerWidth <= 700;
  const titles = GROUPS.map((key) => (counts[key] && !narrow ? `${key} (${counts[key].length} classes)` : key));
  return barChart(narrow ? PHONE : WIDE, tested, GROUPS, titles, "Accuracy on many-, medium- and few-shot classes; the numbers are in the summary");
}

function groupCurves(data, state, shown, redraw) {
  const found = GROUPS.filter((key) => shown.some((line) => line.curves[key].mean.filter(known).length > 1));
  return found.map((key) => lineChart({
    id: `rounds-${key}`, key, title: "accuracy (%)", label: `${key} over rounds`, caption: `${key} over rounds`,
    shape: innerWidth <= 700 ? PHONE : THIRD, xs: (line) => line.rounds, ...ROUNDS, zoom: zoomer(state, `rounds-${key}`, redraw),
  }, shown, state.zooms));
}

const CLASS_ACCURACY = {
  file: "classes", caption: "Accuracy of the model that is shipped", full: 1, title: "accuracy (%)", tick: (v) => Math.round(100 * v), value: (line, c) => line.per_class.mean[c],
  told: (line, c) => score("accuracy", line.per_class.mean[c]) + (known(line.per_class.std[c]) ? ` ± ${score("accuracy", line.per_class.std[c])}` : ""),
};

function classPanel(data, shown) {
  const tested = shown.filter((line) => line.per_class.mean.length);
  if (!tested.length) return el("p", { class: "note" }, "No tested round yet.");
  const classes = tested[0].per_class.mean.length;
  const counts = tested[0].counts.length === classes ? tested[0].counts : Array(classes).fill(0);
  const order = byFrequency(counts);
  const names = order.map((_, c) => className(data, tested[0], c));
  const same = tested.filter((line) => line.per_class.mean.length === classes && names.every((name, c) => name === className(data, line, c)));
  const left = same.length < tested.length ? el("p", { class: "note" }, "Methods on data with other classes are left out; choose them alone.") : null;
  const label = "Accuracy of each class from the most to the least frequent";
  const table = el("details", {}, el("summary", {}, "As a table"), classTable(names, same, order, counts, (line, c) => scoreCell("accuracy", [line.per_class.mean[c], line.per_class.std[c]], null), "Accuracy of each class"));
  return el("div", {}, left, classChart(innerWidth <= 700 ? PHONE : WIDE, same, order, counts, names, borders(order, tested[0].groups), label, CLASS_ACCURACY), table);
}

// Where a shot group begins, if the groups are ranges of the order.
function borders(order, groups) {
  const found = [];
  for (const title of GROUPS) {
    const places = (groups[title] || []).map((c) => order.indexOf(c)).sort((a, b) => a - b);
    if (!places.length) continue;
    if (places[places.length - 1] - places[0] !== places.length - 1) return [];
    found.push({ place: places[0], title });
  }
  return found;
}

function classTable(names, lines, order, counts, cell, label) {
  const head = ["Class", "Samples", ...lines.map((line) => line.label)].map((title) => el("th", { scope: "col" }, title));
  const rows = order.map((c) => el("tr", {}, el("th", { scope: "row" }, names[c]), el("td", {}, count(counts[c])),
    lines.map((line) => cell(line, c))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

function chooser(id, label, options, chosen, choose) {
  if (options.length < 2) return null;
  const items = options.map((title, i) => el("option", { value: i, selected: i === chosen }, title));
  return el("p", {}, el("label", { for: id }, `${label} `), el("select", { id, onchange: (event) => choose(Number(event.target.value)) }, items));
}

function splitPanel(data, state, redraw) {
  if (!data.splits.length) return el("p", { class: "note" }, "No counts of clients and classes: there is no split.json, or it has too many cells.");
  const chosen = Math.min(state.split, data.splits.length - 1);
  const split = data.splits[chosen];
  const titles = data.splits.map((one) => `seed ${one.seed} (${one.lines.join("; ")})`);
  const rows = split.counts;
  const totals = rows[0].map((_, c) => rows.reduce((sum, row) => sum + row[c], 0));
  const order = byFrequency(totals);
  const most = Math.max(1, ...rows.map((row) => Math.max(...row)));
  const name = (c) => className(data, data.lines[split.line], c);
  const clients = rows.map((_, r) => split.names[r] ?? String(r));
  const facts = split.statistics;
  const text = [`${count(split.clients)} clients`, known(facts.samples) ? `${count(facts.samples)} samples` : null,
    known(facts.size_min) ? `${count(facts.size_min)} to ${count(facts.size_max)} a client` : null,
    known(facts.classes_per_client_mean) ? `${trim(facts.classes_per_client_mean)} classes a client` : null,
    rows.length < split.clients ? `the first ${count(rows.length)} are shown` : null].filter(known).join(", ");
  return el("div", {}, chooser("split-choice", "Split", titles, chosen, (i) => { state.split = i; redraw(); }), el("p", { class: "note" }, text),
    heatMap({
      id: "split-map", rows: rows.map((row) => order.map((c) => row[c])), rowNames: clients, columnNames: order.map(name),
      rowTitle: "client", columnTitle: "class, most frequent first", label: `Samples of each class at each client: ${text}`, caption: "Training samples",
      share: (n) => Math.log1p(n) / Math.log1p(most), number: (n) => (n ? count(n) : ""), scale: ["0", `${count(most)} samples, log scale`],
      width: innerWidth <= 700 ? 400 : 1140, cell: 22,
      describe: (r, c) => `client ${clients[r]}, class ${name(order[c])}: ${count(rows[r][order[c]])} samples`,
    }));
}

function confusionPanel(data, state, redraw) {
  const lines = data.lines.filter((line) => line.confusion);
  if (!lines.length) return el("p", { class: "note" }, "No confusion.json in these runs: a run of at most 200 classes writes one when it ends, and the page shows up to 141 classes.");
  const chosen = Math.min(state.confusion, lines.length - 1);
  const line = lines[chosen];
  const { counts, seeds } = line.confusion;
  const sums = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const order = byFrequency(counts.map((_, c) => line.counts[c] || 0));
  const name = (c) => className(data, line, c);
  const share = (r, c) => counts[order[r]][order[c]] / (sums[order[r]] || 1);
  const names = order.map(name);
  return el("div", {}, chooser("confusion-choice", "Method", lines.map((each) => each.label), chosen, (i) => { state.confusion = i; redraw(); }),
    el("p", { class: "note" }, `Rows are true classes, columns what the shipped model says, most frequent class first; shares of the row${seeds > 1 ? `, ${seeds} seeds added` : ""}. A class that it never says has no precision, and counts as 0 in the mean.`),
    el("div", { class: "two confusion" }, heatMap({
      id: "confusion-map", rows: order.map((_, r) => order.map((__, c) => share(r, c))), rowNames: names, columnNames: names,
      rowTitle: "true class", columnTitle: "predicted class", label: `Confusion of ${line.label}`, caption: line.label,
      share: (value) => value, number: (value) => (value >= 0.005 ? Math.round(100 * value) : ""), scale: ["0", "100 % of the row"],
      width: innerWidth <= 700 ? 400 : 640,
      describe: (r, c) => `${names[r]} taken for ${names[c]}: ${(100 * share(r, c)).toFixed(1)} % (${count(counts[order[r]][order[c]])} samples)`,
    }), classScores(counts, sums, order, name)));
}

// Precision, recall and F1 of each class, and their means over the classes that were tested.
function classScores(counts, sums, order, name) {
  const called = counts.map((_, c) => counts.reduce((sum, row) => sum + row[c], 0));
  const share = (part, whole) => (whole ? part / whole : null);
  const rows = order.map((c) => ({ c, values: [share(counts[c][c], called[c]), share(counts[c][c], sums[c]), share(2 * counts[c][c], called[c] + sums[c])] }));
  const tested = rows.filter(({ c }) => sums[c]);
  const mean = [0, 1, 2].map((at) => share(tested.reduce((sum, { values }) => sum + (values[at] || 0), 0), tested.length));
  const cells = (values) => values.map((value) => el("td", {}, score("accuracy", value)));
  return el("div", { class: "scroll tall", id: "class-scores", tabindex: 0, role: "region", "aria-label": "Precision, recall and F1 by class" },
    el("table", {}, el("thead", {}, el("tr", {}, ["Class", "Tested", "Precision", "Recall", "F1"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, rows.map(({ c, values }) => el("tr", {}, el("th", { scope: "row" }, name(c)), el("td", {}, count(sums[c])), cells(values))),
        el("tr", { class: "mean" }, el("th", { scope: "row" }, "Mean of classes"), el("td", {}, count(sums.reduce((a, b) => a + b, 0))), cells(mean)))));
}

function plainTable(head, rows, label) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    el("table", { class: "plain" }, el("thead", {}, el("tr", {}, head.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((value) => el("td", {}, value)))))));
}

const told = (value) => (known(value) ? String(value) : "–");

function settingsPanel(data) {
  const row = ({ key, values }) => [key, ...values.map(told)];
  // What some methods do not have at all is theirs, not a difference in the protocol.
  const common = data.differences.filter(({ values }) => values.every(known)).map(row);
  const own = data.differences.filter(({ values }) => !values.every(known)).map(row);
  const shared = Object.entries(data.shared).map(([key, value]) => [key, told(value)]);
  const head = ["Setting", ...data.lines.map((line) => line.label)];
  const none = data.lines.length > 1 ? "Nothing that all methods have." : "There is one method, with one set of hyper-parameters.";
  return el("div", {},
    el("h3", {}, "What differs"),
    common.length ? plainTable(head, common, "Settings that differ") : el("p", { class: "note" }, none),
    own.length ? el("details", {}, el("summary", {}, `Hyper-parameters that only some methods have (${own.length})`), plainTable(head, own, "Hyper-parameters of single methods")) : null,
    el("details", {}, el("summary", {}, `What is the same in all runs (${shared.length} settings)`), plainTable(["Setting", "Value"], shared, "Settings that are the same")));
}

function runsPanel(data) {
  const rows = data.runs.map((run) => [run.folder, data.lines[run.line].label, run.seed, `${run.done} of ${told(run.rounds)}`, run.finished ? "finished" : run.done ? "not finished" : "no round yet"]);
  const environments = data.environments.map(({ runs, values, commands }) => el("div", {},
    el("h3", {}, data.environments.length > 1 ? `Environment of ${runs} run${runs > 1 ? "s" : ""}` : "Environment"),
    plainTable(["", "Value"], [...Object.entries(values).map(([key, value]) => [key, told(value)]), ...commands.map((command) => ["command", el("code", {}, command)])], "Environment")));
  return el("div", {}, el("details", {}, el("summary", {}, `${data.runs.length} run${data.runs.length === 1 ? "" : "s"}`), plainTable(["Folder", "Method", "Seed", "Rounds", "State"], rows, "Runs")), environments);
}
