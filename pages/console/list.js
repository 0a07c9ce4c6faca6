// A list of any length, of which only the rows in sight are in the document. Rows have one height, by the sheet's
// `--row`. With the keyboard: arrows, page keys, Home and End move between the rows' links.

import { element } from "./dom.js";

/** Rows that are there beyond those in sight, above and below. */
const MARGIN = 6;

export class List {
  /**
   * `label`: what it lists. `columns`: `{ title, className }`. `make()` gives a row's cells, `show(cells, item)` puts an
   * item into them. `onKey(event, item, at)` takes a key at the row of an item, if it returns true. The `element` is to be put
   * into the page; its `role` is that of a table, or another with rows.
   */
  constructor({ label, className, columns, make, show, empty, onKey = () => false, role = "table" }) {
    Object.assign(this, { make, show, onKey });
    this.items = [];
    this.rows = [];
    this.space = element("div", { className: "space", role: "presentation" });
    this.head = element(
      "div",
      { className: "row head", role: "row", "aria-rowindex": "1" },
      columns.map(({ title, className: name }) => element("span", { className: name, role: "columnheader" }, title)),
    );
    this.saysEmpty = empty;
    this.saying = element("div", { role: "cell" });
    this.empty = element("div", { className: "empty", role: "row", hidden: true }, this.saying);
    this.body = element(
      "div",
      { className: "body", role: "rowgroup", tabIndex: 0, "aria-label": label, onscroll: () => this.#later(), onkeydown: (event) => this.#key(event) },
      this.space,
      this.empty,
    );
    this.element = element(
      "div",
      { className: `list ${className}`, role, "aria-label": label },
      element("div", { className: "heads", role: "rowgroup" }, this.head),
      this.body,
    );
    this.resized = new ResizeObserver(() => this.#measure());
    this.resized.observe(this.body);
  }

  /** Shows these. */
  set(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", String(items.length + 1));
    this.empty.hidden = items.length > 0;
    if (items.length === 0) this.saying.replaceChildren(...[this.saysEmpty()].flat());
    this.refresh();
  }

  /** Shows what is in sight as it is now. */
  refresh() {
    if (!this.height) this.#measure();
    const { height, items, body } = this;
    const total = `${items.length * height}px`;
    if (this.space.style.height !== total) this.space.style.height = total;
    const first = Math.max(0, Math.floor(body.scrollTop / height) - MARGIN);
    const count = Math.min(items.length - first, Math.ceil(this.sight / height) + 2 * MARGIN);
    while (this.rows.length < count) this.#more();
    for (const [index, row] of this.rows.entries()) {
      // A row keeps its element for as long as it is in sight: index by place, not by order.
      const at = first + ((index - (first % this.rows.length) + this.rows.length) % this.rows.length);
      const hidden = at >= first + count;
      if (row.element.hidden !== hidden) row.element.hidden = hidden;
      if (hidden) continue;
      if (row.at !== at) {
        row.at = at;
        row.element.style.transform = `translateY(${at * height}px)`;
        row.element.setAttribute("aria-rowindex", String(at + 2));
      }
      this.show(row.cells, items[at], row.element);
    }
  }

  /** Ends what it watches. */
  close() {
    this.resized.disconnect();
  }

  #more() {
    const cells = this.make();
    const row = element("div", { className: "row", role: "row" }, Object.values(cells));
    this.rows.push({ element: row, cells, at: -1 });
    for (const one of this.rows) one.at = -1;
    this.space.append(row);
  }

  #measure() {
    const height = parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) || 36;
    const sight = this.body.clientHeight || 600;
    if (height === this.height && sight === this.sight) return;
    Object.assign(this, { height, sight });
    for (const row of this.rows) row.at = -1;
    this.#later();
  }

  /** Once for each frame. */
  #later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.refresh();
    });
  }

  #key(event) {
    const row = this.rows.find((one) => one.element.contains(document.activeElement));
    if (row && this.onKey(event, this.items[row.at], row.at)) return event.preventDefault();
    const page = Math.max(1, Math.floor(this.sight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || this.items.length === 0) return;
    event.preventDefault();
    const from = row ? row.at : Math.ceil(this.body.scrollTop / this.height) - 1;
    this.goTo(Math.min(this.items.length - 1, Math.max(0, from + step)));
  }

  /** Shows the row at this place, and focuses its link. */
  goTo(to) {
    const top = to * this.height;
    const { body } = this;
    if (top < body.scrollTop) body.scrollTop = top;
    else if (top + this.height > body.scrollTop + this.sight) body.scrollTop = top + this.height - this.sight;
    this.refresh();
    const row = this.rows.find((one) => one.at === to && !one.element.hidden)?.element;
    (row?.querySelector("a") ?? row?.querySelector("button"))?.focus({ preventScroll: true });
  }
}
