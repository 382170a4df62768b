/** The table of all runs. */
class Runs {
  constructor(overview, open) {
    Object.assign(this, { runs: overview.runs, metric: "", words: "", open });
    const names = [...new Set(this.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
    byId("runs-controls").append(
      search("Filter by words", "runs-filter", (words) => { this.words = words; this.draw(); }),
      choice("Metric", "runs-metric", [["", "measure of the task"], ...names.map((name) => [name, name])],
        (metric) => { this.metric = metric; this.draw(); }));
    this.table = new SortedTable(byId("runs-table"), (count) => this.caption(count), this.columns(overview.costs), () => false);
    this.draw();
  }

  /** What the table shows, and what it does not. */
  caption(count) {
    const shown = count === this.runs.length ? `${count} runs` : `${count} of ${this.runs.length} runs`;
    return `${shown}; a method opens its examples. Differences are paired over the same examples, in the measure of the task, `
      + "with 95 % intervals over independent works, texts or conversations.";
  }

  columns(costs) {
    const word = (title, name) => ({ title, key: (run) => run[name], cell: (run) => String(run[name] ?? "") });
    const value = (run) => this.shown(run)?.[0];
    const method = (run) => el("button", { type: "button", title: run.method, onclick: () => this.open(run) }, run.short);
    const others = [...new Set(this.runs.map((run) => run.against).filter((other) => other !== null))];
    const to = others.length === 1 ? ` to ${others[0]}` : "";
    return [
      { title: "method", key: (run) => run.short, cell: method },
      { title: "value", number: true, key: value, cell: (run) => dec(value(run)) },
      { title: `difference${to}`, number: true, key: (run) => run.difference?.[0], cell: (run) => this.difference(run) },
      ...Object.entries(costs).map(([cost, title]) => (
        { title, number: true, key: (run) => run.costs[cost], cell: (run) => num(run.costs[cost]) })),
      ...(to ? [] : [word("difference to", "against")]),
      word("task", "task"),
      { title: "metric", key: (run) => this.name(run), cell: (run) => this.shown(run) ? this.name(run) : "" },
      { title: "95 % interval", number: true, key: (run) => this.shown(run)?.[1], cell: (run) => interval(this.shown(run)) },
      { title: "examples", number: true, key: (run) => run.examples, cell: (run) => num(run.examples) },
      word("context", "context"), word("backbone", "backbone"),
      { title: "tokens trained on", number: true, key: (run) => run.trained, cell: (run) => num(run.trained) },
      { title: "seed", number: true, key: (run) => run.seed, cell: (run) => num(run.seed) },
    ];
  }

  /** A paired difference with its interval. */
  difference(run) {
    if (run.difference === null || this.name(run) !== run.measure) return "";
    return el("span", {}, el("span", { class: "change" }, signed(run.difference[0])), ` ${interval(run.difference)}`);
  }

  name(run) { return this.metric || run.measure; }

  shown(run) { return run.metrics[this.name(run)]; }

  draw() {
    const text = (run) => [run.method, run.task, run.context, run.backbone, run.device, run.dtype].join(" ");
    this.table.show(this.runs.filter((run) => holds(text(run), this.words)));
  }
}

/** A difference with its sign. */
const signed = (value) => (value > 0 ? "+" : "") + dec(value);

/** `[low, high]` of a metric; nothing without one. */
function interval(metric) {
  return metric && metric[1] !== null && metric[2] !== null ? `[${dec(metric[1])}, ${dec(metric[2])}]` : "";
}
