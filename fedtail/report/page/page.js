// The page itself: what the reader has chosen, drawing, the theme, and new data while runs train.

(function () {
  const POLL = 2000;
  let data = JSON.parse(byId("data").textContent);
  const state = {
    hidden: new Set(), score: "accuracy", sort: null, split: 0, confusion: 0, clients: 0, zooms: {},
    off: new Set(), order: "frequency", client: known(data.marks.client) ? String(data.marks.client) : "",
  };

  function redraw() {
    // What is drawn anew keeps the focus, an open table stays open, a long legend where it was.
    const legend = () => document.querySelector(".legend");
    const scrolled = legend() ? legend().scrollTop : 0;
    const focused = document.activeElement && document.activeElement.id;
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    hideTip();
    data.lines.forEach((line, number) => {
      line.number = number;
      line.done = Math.min(...data.runs.filter((run) => run.line === number).map((run) => run.done));
    });
    const shown = data.lines.filter((line) => !state.hidden.has(line.label));
    byId("error").hidden = !data.error;
    byId("error").textContent = data.error || "";
    byId("about").textContent = about();
    byId("facts").replaceChildren(...factList(data));
    byId("cautions").replaceChildren(...data.cautions.map((caution) => el("p", {}, caution)));
    byId("cautions").hidden = !data.cautions.length;
    byId("version").textContent = `Made by fedtail ${data.fedtail}`;
    if (data.lines.length) panels(shown);
    const details = document.querySelectorAll("details");
    if (details.length === open.length) details.forEach((one, i) => { one.open = open[i]; });
    if (legend()) legend().scrollTop = scrolled;
    if (focused && byId(focused)) byId(focused).focus({ preventScroll: true });
  }

  function panels(shown) {
    const put = (id, ...nodes) => byId(id).replaceChildren(...nodes);
    put("methods", ...methodChips(data, state, redraw));
    put("summary", summaryTable(data, state, redraw));
    put("score-choice", ...scoreButtons(data, state, redraw));
    costCharts(data, state, shown, redraw);
    put("chart-groups", groupChart(data, shown));
    put("curves-groups", ...groupCurves(data, state, shown, redraw));
    put("chart-classes", classPanel(data, shown));
    put("split", splitPanel(data, state, redraw));
    put("clients", clientPanel(data, state, shown, redraw));
    put("confusion", confusionPanel(data, state, redraw));
    for (const id of ["features-section", "norms-section"]) byId(id).hidden = !data.features.length;
    if (data.features.length) {
      put("features", ...featurePanel(data, state, shown, redraw));
      put("norms", ...normPanel(data, shown));
    }
    put("settings", settingsPanel(data));
    put("runs", runsPanel(data));
  }

  function about() {
    const unfinished = data.runs.filter((run) => !run.finished).length;
    const many = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
    const parts = [many(data.lines.length, "method"), many(data.runs.length, "run")];
    if (unfinished) parts.push(`${unfinished} not finished`);
    return parts.join(", ");
  }

  function theme() {
    const wanted = matchMedia("(prefers-color-scheme: dark)");
    const stored = () => { try { return localStorage.getItem("fedtail-theme"); } catch { return null; } };
    const apply = (name) => {
      document.documentElement.dataset.theme = name;
      byId("theme").textContent = name === "dark" ? "Light" : "Dark";
      byId("theme").setAttribute("aria-label", `Use the ${name === "dark" ? "light" : "dark"} theme`);
    };
    apply(stored() || (wanted.matches ? "dark" : "light"));
    wanted.addEventListener("change", (event) => { if (!stored()) { apply(event.matches ? "dark" : "light"); redraw(); } });
    byId("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try { localStorage.setItem("fedtail-theme", next); } catch { /* a page from disk may have no storage */ }
      apply(next);
      redraw();
    });
  }

  function follow() {
    const status = byId("status");
    const say = (text, off) => { status.hidden = false; status.textContent = text; status.className = off ? "off" : ""; };
    let last = byId("data").textContent;
    const ask = async () => {
      try {
        const answer = await fetch("data.json", { cache: "no-store" });
        if (!answer.ok) throw new Error(answer.status);
        const text = await answer.text();
        if (text !== last) { data = JSON.parse(text); redraw(); }
        last = text;
        say("live", false);
      } catch {
        say("not connected, trying again", true);
      }
      setTimeout(ask, POLL);
    };
    ask();
  }

  let narrow = innerWidth <= 700;
  addEventListener("resize", () => {
    if (innerWidth <= 700 === narrow) return;
    narrow = !narrow;
    redraw();
  });
  theme();
  redraw();
  if (document.body.dataset.live === "true") follow();
})();
