/** Puts the page together. */
function card(one) {
  const settings = one.settings.map((setting) => [el("dt", {}, setting.name),
    el("dd", {}, `${setting.about} (${setting.type}, default ${setting.default})`)]).flat();
  const splits = Object.entries(one.splits ?? {}).map(([name, about]) => [el("dt", {}, name), el("dd", {}, about)]).flat();
  return el("details", {}, el("summary", {}, `${one.kind} `, el("strong", {}, one.name), ` \u2014 ${one.about[0] ?? ""}`),
    ...one.about.slice(1).map((paragraph) => el("p", {}, paragraph)),
    ...(splits.length ? [el("h3", {}, "Splits"), el("dl", {}, ...splits)] : []),
    ...(settings.length ? [el("h3", {}, "Settings"), el("dl", {}, ...settings)] : []));
}

function start() {
  const overview = JSON.parse(byId("overview").textContent);
  byId("title").textContent = document.title;
  const { runs, groups } = overview;
  byId("summary").textContent = `${runs.length} runs on ${groups.length} sets of examples, made by contextlab ${overview.version}.`
    + (overview.left_out ? ` ${overview.left_out}.` : "");
  const examples = new ExampleTable(overview);
  const open = (run) => examples.show(run);
  new Runs(overview, open);
  new Pareto(overview, open);
  byId("cards").append(...overview.cards.map(card));
  document.addEventListener("submit", (event) => event.preventDefault());
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
