// The broker's settings, and where each comes from.

import { get } from "./api.js";
import { h, marked, setText } from "./dom.js";
import { count, settingMeans } from "./format.js";
import { Table } from "./table.js";

const SOURCES = [["", "All"], ["set", "Set by somebody"], ["file", "File"], ["flag", "Flag"], ["dynamic", "Dynamic"], ["default", "Default"]];
const isOf = (row, source) => !source || (source === "set" ? row.source !== "default" : row.source === source);

export class Settings {
  constructor(shell) {
    this.shell = shell;
    this.rows = [];
    this.source = "";
    this.search = h("input", { type: "search", class: "search", placeholder: "Search settings", "aria-label": "Search settings", oninput: () => this.show() });
    this.chips = SOURCES.map(([key, title]) => h("button", { type: "button", "aria-pressed": String(key === ""), onclick: () => this.choose(key) }, title));
    this.said = h("p", { class: "said dim", role: "status" });
    this.table = new Table({
      label: "Settings of the broker", kind: "stack", key: (row) => row.name, empty: "No setting is like that",
      columns: [
        { key: "name", title: "Setting", cell: (row) => [h("code", null, marked(row.name, this.search.value)), h("small", { class: "doc" }, row.documentation)], sort: (row) => row.name, name: "s-name" },
        { key: "value", title: "Value", cell: (row) => this.value(row), wide: true },
        { key: "source", title: "From", cell: (row) => [h("span", { class: `badge ${row.source}`, title: row.config_source }, row.source), row.origin && h("small", { class: "doc" }, row.origin), row.source !== "default" && row.default !== null && h("small", { class: "doc" }, `default: ${row.default || "(empty)"}`)], sort: (row) => row.source },
        { key: "change", title: "How to change it", hint: "mpbroker ctl reload takes over from the file what a running broker can; the rest waits for the next start", cell: (row) => h("span", { class: "dim" }, row.change), name: "s-change", from: "l" },
      ],
    });
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Settings")),
      h("div", { class: "tools" }, this.search, h("span", { class: "group", role: "group", "aria-label": "Source" }, this.chips)), this.said,
      h("section", { class: "card" }, this.table.element));
    this.load();
  }

  value(row) {
    if (row.is_sensitive) return h("i", { class: "dim" }, "hidden");
    if (row.value === null || row.value === "") return h("i", { class: "dim" }, row.value === null ? "not set" : "empty");
    const means = settingMeans(row.name, row.value);
    return [h("code", { class: row.source === "default" ? "" : "is-set" }, row.value), means && h("small", { class: "dim" }, ` ${means}`)];
  }

  choose(key) {
    this.source = key;
    this.chips.forEach((chip, i) => chip.setAttribute("aria-pressed", String(SOURCES[i][0] === key)));
    this.show();
  }

  async load() {
    try {
      this.rows = await get("settings");
      this.show();
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  show() {
    const wanted = this.search.value.toLowerCase();
    const found = this.rows.filter((row) => isOf(row, this.source) && `${row.name} ${row.documentation} ${row.value}`.toLowerCase().includes(wanted));
    this.table.update(found);
    setText(this.said, `${count(found.length)} of ${count(this.rows.length)} settings, ${count(this.rows.filter((row) => row.source !== "default").length)} set by somebody`);
  }
}
