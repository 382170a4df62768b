"use strict";
/**
 * Elements, numbers and stored blocks. Text from results only ever becomes a text node.
 *
 * @typedef {[number|null, number|null, number|null, number|null]} Metric value, low, high, n
 * @typedef {{run: string, method: string, short: string, name: string, task: string, benchmark: string,
 *   context: string, backbone: string, device: string, dtype: string, seed: number, examples: number, group: number,
 *   measure: string, higher: boolean|null, metrics: Object<string, Metric>, difference: Metric|null, against: string|null,
 *   costs: Object<string, number|null>,
 *   trained: number|null, look: {colour: string, marker: string, fill: string}}} Run
 * @typedef {{id?: string, said?: string|number, right?: number, score?: number, nats?: number[]}} Item
 * @typedef {{items?: Item[], segments?: number[], facts?: Object<string, string|number>}} Answers
 * @typedef {{ids: string[], qualities: (number|null)[], answers: Answers[]}} Examples
 */

/** An element with attributes, listeners (`onclick`) and children. */
function el(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The element of an id. */
const byId = (id) => document.getElementById(id);

/** A number in few digits; nothing for a missing one. */
function num(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : value.toFixed(size >= 100 ? 0 : digits);
}

/** A measured number, with its decimals also where it is whole. */
const dec = (value) => Number.isInteger(value) && Math.abs(value) < 1000 ? value.toFixed(3) : num(value);

const blocks = new Map();

/** What a compressed block holds; null when there is no such block. */
function unpacked(id) {
  if (!blocks.has(id)) {
    const element = byId(id);
    blocks.set(id, element === null ? Promise.resolve(null) : decompressed(element.textContent));
  }
  return blocks.get(id);
}

async function decompressed(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** A labelled select; `options` are pairs of value and text. */
function choice(label, id, options, onchange) {
  const select = el("select", { id, onchange: () => onchange(select.value) });
  fill(select, options);
  return el("label", {}, label, select);
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
}

/** A labelled field to search in. */
function search(label, id, oninput) {
  const input = el("input", { id, type: "search", autocomplete: "off", oninput: () => oninput(input.value) });
  return el("label", {}, label, input);
}

/** Whether every word stands somewhere in a text. */
function holds(text, words) {
  const lower = text.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

/** Values in order, missing ones last in both directions. */
function ordered(rows, key, descending) {
  const missing = (value) => value === null || value === undefined;
  return rows.map((row) => [key(row), row]).sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
    return descending ? -order : order;
  }).map(([, row]) => row);
}

/**
 * A table whose columns are sorted by the buttons in its head.
 *
 * @param {{title: string, key: Function, cell: Function, number?: boolean}[]} columns
 * @param {Function} chosen whether a row is marked
 */
class SortedTable {
  constructor(place, caption, columns, chosen) {
    Object.assign(this, { place, caption, columns, chosen, sort: null, descending: false, rows: [], most: 200 });
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  sorted() {
    return this.sort === null ? this.rows : ordered(this.rows, this.columns[this.sort].key, this.descending);
  }

  by(number) {
    // The first click shows large numbers first, and words from A to Z; the second turns this round.
    this.descending = this.sort === number ? !this.descending : Boolean(this.columns[number].number);
    this.sort = number;
    this.draw();
    this.place.querySelectorAll("th button")[number].focus();
  }

  draw() {
    const rows = this.sorted();
    const head = this.columns.map((column, number) => {
      const direction = this.sort !== number ? "none" : this.descending ? "descending" : "ascending";
      const button = el("button", { type: "button", onclick: () => this.by(number) }, column.title);
      return el("th", { scope: "col", "aria-sort": direction, class: column.number ? "number" : null }, button);
    });
    const body = rows.slice(0, this.most).map((row) =>
      el("tr", { class: this.chosen(row) ? "chosen" : null }, ...this.columns.map((column) =>
        el("td", { class: column.number ? "number" : null }, column.cell(row)))));
    const first = rows.length > this.most ? ` Only the first ${this.most} rows are here; the button below shows more.` : "";
    const table = el("table", {}, el("caption", {}, el("span", {}, this.caption(rows.length) + first)), el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...body));
    const more = rows.length > this.most
      ? el("button", { type: "button", class: "more", onclick: () => { this.most *= 4; this.draw(); } },
        `Show more of ${rows.length}`)
      : null;
    this.place.replaceChildren(table, ...(more ? [more] : []));
  }
}
