/** One run's examples, beside another run's on the same data. */
class ExampleTable {
  constructor(overview) {
    Object.assign(this, { runs: overview.runs, words: "", kept: "all", rows: [], id: null, turn: 0 });
    const outcomes = [["all", "all"], ["a", "A is better"], ["b", "B is better"], ["differ", "A and B differ"]];
    byId("examples-controls").append(
      choice("A", "run-a", this.runs.map((run, n) => [n, this.title(run)]), () => this.load()),
      choice("B", "run-b", [], () => this.load(false)),
      choice("Show", "examples-kept", outcomes, (kept) => { this.kept = kept; this.draw(); }),
      search("Filter by id", "examples-filter", (words) => { this.words = words; this.draw(); }));
    const open = (row) => el("button", { type: "button", onclick: () => this.open(row) }, row.id);
    const number = (title, name) => ({ title, number: true, key: (row) => row[name], cell: (row) => num(row[name]) });
    this.table = new SortedTable(byId("examples-table"), (count) => `${count} of ${this.rows.length} examples`,
      [{ title: "example", key: (row) => row.id, cell: open }, number("A", "a"), number("B", "b"), number("A \u2212 B", "difference")],
      (row) => row.id === this.id);
    this.load();
  }

  title(run) { return `${run.short} \u00b7 ${run.task}${run.context === "own" ? "" : ` \u00b7 context ${run.context}`}`; }

  /** Show a run, as A. */
  show(run) {
    byId("run-a").value = this.runs.indexOf(run);
    this.load();
    byId("examples").focus();
    byId("examples").scrollIntoView();
  }

  async load(another = true) {
    const turn = ++this.turn;
    this.a = this.runs[Number(byId("run-a").value)];
    if (another) {
      const others = this.runs.map((run, n) => [n, run]).filter(([, run]) => run.group === this.a.group && run !== this.a);
      fill(byId("run-b"), [["", "none"], ...others.map(([n, run]) => [n, this.title(run)])]);
      byId("run-b").value = others.length ? others[0][0] : "";
    }
    const chosen = byId("run-b").value;
    this.b = chosen === "" ? null : this.runs[Number(chosen)];
    const names = [`run-${this.runs.indexOf(this.a)}`, `run-${this.runs.indexOf(this.b)}`, `texts-${this.a.group}`];
    const [a, b, texts] = await Promise.all(names.map(unpacked));
    // Another choice may have been made while these were unpacked.
    if (turn !== this.turn) return;
    this.texts = texts;
    const places = new Map((b?.ids ?? []).map((id, n) => [id, n]));
    this.rows = a.ids.map((id, n) => this.row(id, a, n, b, places.get(id)));
    this.draw();
    const same = this.rows.find((row) => row.id === this.id);
    if (same) this.detail(same);
    else byId("example").replaceChildren();
  }

  row(id, a, n, b, m) {
    const mine = a.qualities[n], theirs = m === undefined ? null : b.qualities[m];
    const difference = mine === null || theirs === null ? null : mine - theirs;
    return { id, a: mine, b: theirs, difference, mine: a.answers[n], theirs: m === undefined ? null : b.answers[m] };
  }

  /** 1 where A is better, -1 where B is, 0 where neither is; null where it is unknown. */
  winner(row) {
    if (row.difference === null || this.a.higher === null) return null;
    return Math.sign(row.difference) * (this.a.higher ? 1 : -1);
  }

  draw() {
    const count = (wanted) => this.rows.filter((row) => this.winner(row) === wanted).length;
    const known = this.rows.some((row) => this.winner(row) !== null);
    byId("examples-summary").textContent = known
      ? `A is better in ${count(1)}, B in ${count(-1)}, neither in ${count(0)} of ${this.rows.length} examples (${this.a.measure}).`
      : `${this.rows.length} examples (${this.a.measure}).`;
    const keeps = { all: () => true, a: (row) => this.winner(row) === 1, b: (row) => this.winner(row) === -1,
      differ: (row) => row.difference !== null && row.difference !== 0 };
    this.table.show(this.rows.filter((row) => keeps[this.kept](row) && holds(row.id, this.words)));
  }

  open(row) {
    this.detail(row);
    this.table.draw();
    byId("example").focus();
  }

  detail(row) {
    this.id = row.id;
    const text = this.texts?.[row.id] ?? {};
    const parts = [el("h3", {}, `Example ${row.id}`)];
    if (text.end) parts.push(el("h3", {}, "End of the context"), el("pre", {}, text.end));
    if (text.text) parts.push(el("h3", {}, "Text"), el("pre", {}, text.text));
    if (row.mine.items) parts.push(...questions(row, text));
    if (row.mine.segments) parts.push(along(row));
    parts.push(facts(row));
    if (!this.texts) parts.push(el("p", { class: "quiet" }, "The texts are not in this page: make it with --data."));
    byId("example").replaceChildren(...parts);
  }
}

/** A table from rows of cells; the first row is the head. */
function plain(caption, [head, ...rows]) {
  const cells = (tag, row) => row.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell));
  return el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...cells("th", head))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row)))));
}

/** Every question with what is right and what A and B answered; a single choice with all its candidates. */
function questions(row, text) {
  const theirs = new Map((row.theirs?.items ?? []).map((item) => [item.id, item]));
  const items = row.mine.items, about = (item) => text.questions?.[item.id] ?? (items.length === 1 ? text : {});
  const single = items.length === 1 && items[0].nats ? [candidates(items[0], theirs.get(items[0].id), about(items[0]))] : [];
  const rows = items.map((item) => {
    const other = theirs.get(item.id), known = about(item);
    const right = known.answers ? known.answers.join(" / ") : said(item.right, known);
    return [known.text ?? item.id ?? "", right, answer(item, known), other ? answer(other, known) : "", score(item), score(other)];
  });
  return [...single, plain("Answers", [["question", "right", "A", "B", "A's score", "B's score"], ...rows])];
}

const said = (value, known) => typeof value === "number" ? known.options?.[value] ?? `candidate ${value}` : value ?? "";
const answer = (item, known) => el("span", { class: item.score >= 0.5 ? "good" : item.score === 0 ? "bad" : null }, said(item.said, known));
const score = (item) => num(item?.score);

function candidates(item, other, known) {
  const marks = (mine, n) => mine && mine.said === n ? " \u2190 chosen" : "";
  const rows = item.nats.map((nats, n) => [
    el("span", { class: item.right === n ? "good" : null }, said(n, known) + (item.right === n ? " (right)" : "")),
    dec(nats) + marks(item, n), (other?.nats ? dec(other.nats[n]) : "") + marks(other, n)]);
  return plain("Nats of every candidate, the lowest is chosen", [["candidate", "A", "B"], ...rows]);
}

function along(row) {
  const other = row.theirs?.segments;
  const rows = row.mine.segments.map((nats, n) => [String(n + 1), dec(nats), other ? dec(other[n]) : "",
    other && other[n] !== undefined ? dec(nats - other[n]) : ""]);
  return plain("Nats per token along the text, by segment", [["segment", "A", "B", "A \u2212 B"], ...rows]);
}

function facts(row) {
  const names = [...new Set([row.mine, row.theirs].flatMap((one) => Object.keys(one?.facts ?? {})))];
  const value = (one, name) => { const fact = one?.facts?.[name]; return typeof fact === "number" ? num(fact) : String(fact ?? ""); };
  return plain("Further fields", [["field", "A", "B"], ["quality", num(row.a), num(row.b)],
    ...names.map((name) => [name, value(row.mine, name), value(row.theirs, name)])]);
}
