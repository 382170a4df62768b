/** Quality against a cost, with the Pareto front. */
const WIDTH = 720, HEIGHT = 380, LEFT = 70, RIGHT = 200, TOP = 12, BOTTOM = 48;
const MOST = 8, ROW = 17, LETTERS = 26;
const SHAPES = {
  o: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z", s: "M-4.5-4.5h9v9h-9Z", "^": "M0-5.5L5.5 4.5H-5.5Z",
  v: "M0 5.5L5.5-4.5H-5.5Z", D: "M0-6L6 0L0 6L-6 0Z", d: "M0-6.5L4 0L0 6.5L-4 0Z", "<": "M-5.5 0L4.5-5.5V5.5Z",
  ">": "M5.5 0L-4.5-5.5V5.5Z", P: "M-2-5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5Z",
  X: "M-5.5-3L-3-5.5L0-2.5L3-5.5L5.5-3L2.5 0L5.5 3L3 5.5L0 2.5L-3 5.5L-5.5 3L-2.5 0Z",
  p: "M0-5.5L5.2-1.7L3.2 4.5H-3.2L-5.2-1.7Z", h: "M0-5.5L4.8-2.8V2.8L0 5.5L-4.8 2.8V-2.8Z",
  "*": "M0-6L1.5-2L5.7-1.9L2.3.8L3.5 4.9L0 2.4L-3.5 4.9L-2.3.8L-5.7-1.9L-1.5-2Z",
  H: "M-2.8-4.8H2.8L5.5 0L2.8 4.8H-2.8L-5.5 0Z",
  8: "M-2.2-5.3H2.2L5.3-2.2V2.2L2.2 5.3H-2.2L-5.3 2.2V-2.2Z",
};

class Pareto {
  constructor(overview, open) {
    Object.assign(this, { overview, open, cost: Object.keys(overview.costs)[0] });
    const counts = overview.groups.map((_, number) => overview.runs.filter((run) => run.group === number).length);
    this.group = counts.indexOf(Math.max(...counts));
    const tasks = overview.groups.map((group, number) => [number, `${group.task}, n = ${group.examples}`]);
    this.paired = true;
    byId("picture-controls").append(
      choice("Task", "picture-task", tasks, (value) => { this.group = Number(value); this.draw(); }),
      choice("Height", "picture-height", [["paired", "paired difference"], ["value", "value"]],
        (value) => { this.paired = value === "paired"; this.draw(); }),
      choice("Cost", "picture-cost", Object.entries(overview.costs), (value) => { this.cost = value; this.draw(); }));
    byId("picture-task").value = this.group;
    this.draw();
  }

  points() {
    const own = this.overview.runs.filter((run) => run.group === this.group && run.context === "own" && run.costs[this.cost] > 0);
    return own.map((run) => ({ run, x: run.costs[this.cost], metric: this.metric(run) })).filter((point) => point.metric !== null);
  }

  /** The height of a run with its bounds: its difference, which is nothing for the method to which differences are. */
  metric(run) {
    if (!this.paired) return run.metrics[run.measure];
    return run.difference ?? (run.against === run.short ? [0, null, null, run.examples] : null);
  }

  draw() {
    const place = byId("picture-drawing"), points = this.points();
    if (!points.length) {
      place.replaceChildren(el("p", { class: "quiet" }, "No run of this task has this cost."));
      return;
    }
    const ends = points.flatMap(({ metric }) => metric.slice(0, 3).filter((value) => value !== null));
    const x = scale(points.map((point) => point.x), LEFT, WIDTH - RIGHT, true);
    const y = scale(ends, HEIGHT - BOTTOM, TOP, false);
    const svg = el("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Quality against cost" });
    svg.append(...axes(x, y, this.overview.costs[this.cost], this.label(points)));
    const front = this.front(points);
    if (front.length > 1) {
      const path = front.map((point, n) => n ? `H${x.at(point.x)}V${y.at(point.metric[0])}` : `M${x.at(point.x)} ${y.at(point.metric[0])}`);
      svg.append(el("svg:path", { class: "front", d: path.join("") }));
    }
    const hover = el("div", { class: "hover", hidden: true });
    const named = this.named(points, front);
    // Grey points are behind those with a name, whose names stand on the right.
    const grey = points.filter((point) => !named.includes(point));
    svg.append(...names(named, x, y), ...[...grey, ...named].map((point) => this.point(point, x, y, hover, named.includes(point))));
    place.replaceChildren(svg, hover, el("p", { class: "quiet" }, this.caption(points, grey.length)));
  }

  /** What the picture shows, and how many runs of the task it does not. */
  caption(points, grey) {
    const group = this.overview.groups[this.group];
    const all = this.overview.runs.filter((run) => run.group === this.group).length, rest = all - points.length;
    const bars = this.paired ? "Differences are paired over the same examples; bars are" : "Bars are";
    return `${group.note} (${group.source}), n = ${group.examples} examples. ${bars} 95 % intervals; no method beats those on the `
      + `dashed line in both.${grey ? ` Grey: ${grey} further runs.` : ""}${rest ? ` Left out: ${rest} of ${all} runs without this cost, with another context, or without a pair.` : ""}`;
  }

  label(points) {
    const others = [...new Set(points.map(({ run }) => run.against))];
    const to = this.paired && others.length === 1 ? ` \u2212 ${others[0]}` : this.paired ? ", difference" : "";
    return measured(points[0].run, to);
  }

  /** The points that no other beats, by cost; none where the better direction is unknown. */
  front(points) {
    const higher = points[0].run.higher;
    if (higher === null) return [];
    const better = (a, b) => higher ? a > b : a < b;
    const ranked = [...points].sort((a, b) => a.x - b.x || (better(a.metric[0], b.metric[0]) ? -1 : 1));
    return ranked.filter((point, n) => ranked.slice(0, n).every((before) => better(point.metric[0], before.metric[0])));
  }

  /** The points with a name: that to which differences are, the front, the best of every method, and then the best. */
  named(points, front) {
    const sign = points[0].run.higher ? -1 : 1;
    const ranked = points[0].run.higher === null ? points : [...points].sort((a, b) => sign * (a.metric[0] - b.metric[0]));
    const best = ranked.filter(({ run }, n) => ranked.findIndex((other) => other.run.name === run.name) === n);
    const zero = points.filter(({ run }) => run.against === run.short);
    return [...new Set([...zero, ...[...front].reverse(), ...best, ...ranked])].slice(0, MOST);
  }

  point({ run, x: cost, metric }, x, y, hover, named) {
    const words = `${run.method}: ${run.measure} ${this.paired ? `difference ${signed(metric[0])}` : dec(metric[0])} ${interval(metric)}, ${dec(cost)} ${this.overview.costs[this.cost]}`;
    const show = () => {
      hover.textContent = words;
      hover.hidden = false;
      hover.style.left = `${Math.min(x.at(cost) / WIDTH * 100 + 2, 60)}%`;
      hover.style.top = `${y.at(metric[0]) / HEIGHT * 100}%`;
    };
    const hide = () => { hover.hidden = true; };
    const open = (event) => { if (event.type === "click" || event.key === "Enter") this.open(run); };
    const made = el("svg:g", { class: "point", tabindex: 0, role: "button", "aria-label": words, onmouseenter: show,
      onmouseleave: hide, onfocus: show, onblur: hide, onclick: open, onkeydown: open });
    if (named && metric[1] !== null && metric[2] !== null) {
      made.append(el("svg:path", { stroke: run.look.colour, "pointer-events": "none", d: `M${x.at(cost)} ${y.at(metric[1])}V${y.at(metric[2])}` }));
    }
    const at = `translate(${x.at(cost)} ${y.at(metric[0])})`;
    made.append(named ? marker(run.look, at) : el("svg:path", { class: "grey", d: SHAPES.o, transform: `${at} scale(.7)` }));
    return made;
  }
}

const measured = (run, to) => run.measure.replaceAll("_", " ") + to + (run.higher === null ? "" : run.higher ? " (higher is better)" : " (lower is better)");

function marker(look, transform) {
  const fill = look.fill === "none" ? "#fff" : look.colour;
  return el("svg:path", { d: look.path || SHAPES[look.marker], transform, fill, stroke: look.colour, "stroke-width": 1.4 });
}

/** Names in a column on the right, in the order of their points, each with a line to it. */
function names(points, x, y) {
  const sorted = [...points].sort((a, b) => y.at(a.metric[0]) - y.at(b.metric[0]));
  const heights = [];
  for (const { metric } of sorted) heights.push(Math.max(y.at(metric[0]), (heights.at(-1) ?? TOP - ROW) + ROW));
  for (let n = heights.length - 1, last = HEIGHT - BOTTOM; n >= 0; n--, last = heights[n + 1] - ROW) heights[n] = Math.min(heights[n], last);
  const left = WIDTH - RIGHT + 14;
  return sorted.flatMap(({ run, x: cost, metric }, n) => [
    el("svg:path", { class: "lead", d: `M${x.at(cost)} ${y.at(metric[0])}L${left - 7} ${heights[n]}` }),
    marker(run.look, `translate(${left} ${heights[n]})`),
    el("svg:text", { class: "name", x: left + 10, y: heights[n] + 4, "aria-hidden": "true" }, el("svg:title", {}, run.method),
      run.short.length > LETTERS ? `${run.short.slice(0, LETTERS - 1)}\u2026` : run.short)]);
}

/** Positions on an axis and its ticks; logarithmic where costs differ a lot. */
function scale(values, start, end, mayBeLog) {
  let low = Math.min(...values), high = Math.max(...values);
  const log = mayBeLog && high >= 8 * low;
  const to = log ? Math.log10 : (value) => value;
  const room = (to(high) - to(low) || Math.abs(to(high)) || 1) * 0.06;
  low = to(low) - room; high = to(high) + room;
  const at = (value) => Math.round((start + (to(value) - low) / (high - low) * (end - start)) * 10) / 10;
  return { at, ticks: log ? powers(low, high) : steps(low, high) };
}

function steps(low, high) {
  const raw = (high - low) / 7, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, n) => Number(((Math.ceil(low / step) + n) * step).toPrecision(12)));
}

function powers(low, high) {
  const subs = high - low > 2.5 ? [1] : [1, 2, 5], ticks = [];
  for (let power = Math.floor(low); power <= high; power++) ticks.push(...subs.map((n) => n * 10 ** power));
  return ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
}

function axes(x, y, xLabel, yLabel) {
  const short = (value) => String(Number(value.toPrecision(6)));
  const bottom = HEIGHT - BOTTOM, middle = (TOP + bottom) / 2;
  return [
    ...x.ticks.flatMap((tick) => [el("svg:path", { class: "grid", d: `M${x.at(tick)} ${TOP}V${bottom}` }),
      el("svg:text", { x: x.at(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick))]),
    ...y.ticks.flatMap((tick) => [el("svg:path", { class: "grid", d: `M${LEFT} ${y.at(tick)}H${WIDTH - RIGHT}` }),
      el("svg:text", { x: LEFT - 6, y: y.at(tick) + 4, "text-anchor": "end" }, short(tick))]),
    el("svg:text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 10, "text-anchor": "middle" }, xLabel),
    el("svg:text", { transform: `translate(14 ${middle}) rotate(-90)`, "text-anchor": "middle" }, yLabel),
  ];
}
