// Tables that follow their data: rows stay the same elements while their key does, so focus and clicks hold.

import { h, setText, update } from "./dom.js";
import { NOTHING } from "./format.js";

/**
 * `columns`: [{key, title, cell(row), align: "end", sort(row), wide, hint}]; a cell is a text or a node.
 * `kind` "stack": where it is narrow, the first cell of a row stands above the others.
 * `open(row)`: what a click or Enter on a row does.
 */
export class Table {
  constructor({ columns, key, open, empty = "nothing here", label, sorted, descending = true, rowClass, kind }) {
    Object.assign(this, { columns, key, open, emptyText: empty, rowClass });
    this.rows = new Map();
    this.data = [];
    this.sortBy = sorted || null;
    this.isDescending = descending;
    this.body = h("tbody");
    this.heads = columns.map((column) => this.head(column));
    this.empty = h("p", { class: "empty" }, this.emptyText);
    this.element = h("div", { class: "table-box" },
      h("table", { "aria-label": label, class: kind }, h("thead", null, h("tr", null, this.heads)), this.body), this.empty);
    this.showOrder();
  }

  head(column) {
    const inner = column.sort
      ? h("button", { type: "button", onclick: () => this.order(column) }, column.title)
      : column.title;
    return h("th", { scope: "col", class: classes(column), title: column.hint }, inner);
  }

  order(column) {
    this.isDescending = this.sortBy === column.key ? !this.isDescending : typeof column.sort(this.data[0] || {}) !== "string";
    this.sortBy = column.key;
    this.showOrder();
    this.update(this.data);
  }

  showOrder() {
    this.heads.forEach((head, i) => {
      const isOne = this.columns[i].key === this.sortBy;
      if (isOne) head.setAttribute("aria-sort", this.isDescending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  update(data) {
    this.data = data;
    const rows = this.sorted(data);
    const keep = new Map();
    let before = null;
    for (const row of rows) {
      const key = this.key(row);
      const line = this.rows.get(key) || this.make();
      line.row = row;
      this.show(line);
      const place = before ? before.nextSibling : this.body.firstChild;
      if (line.element !== place) this.body.insertBefore(line.element, place);
      before = line.element;
      keep.set(key, line);
    }
    for (const [key, line] of this.rows) if (!keep.has(key)) line.element.remove();
    this.rows = keep;
    this.empty.hidden = rows.length > 0;
  }

  sorted(data) {
    const column = this.columns.find((one) => one.key === this.sortBy);
    if (!column) return data;
    const sign = this.isDescending ? -1 : 1;
    const unknown = (value) => value === null || value === undefined;
    return [...data].sort((a, b) => {
      const [x, y] = [column.sort(a), column.sort(b)];
      if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }

  make() {
    const line = { cells: this.columns.map((column) => h("td", { class: classes(column) })) };
    line.element = h("tr", null, line.cells);
    if (this.open) {
      line.element.tabIndex = 0;
      line.element.classList.add("opens");
      line.element.addEventListener("click", (event) => {
        if (!event.target.closest("a, button") && !getSelection().toString()) this.open(line.row, line.element);
      });
      line.element.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target === line.element) this.open(line.row, line.element);
      });
    }
    return line;
  }

  show(line) {
    if (this.rowClass) line.element.className = `${this.open ? "opens " : ""}${this.rowClass(line.row)}`;
    this.columns.forEach((column, i) => {
      const found = column.cell(line.row);
      if (found instanceof Node || Array.isArray(found)) update(line.cells[i], found);
      else setText(line.cells[i], found === null || found === undefined ? NOTHING : String(found));
    });
  }
}

function classes(column) {
  return [column.align === "end" ? "end" : "", column.wide ? "wide" : "", column.from ? `from-${column.from}` : "", column.name || ""].filter(Boolean).join(" ") || null;
}
