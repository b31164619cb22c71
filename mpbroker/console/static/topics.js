// Topics, and one topic with its records, partitions and settings.

import { ApiError, get } from "./api.js";
import { field, form } from "./dialog.js";
import { fact, h, option, replace, setText } from "./dom.js";
import { bytes, count, counted, settingMeans, short } from "./format.js";
import { missing } from "./missing.js";
import { bar, spark } from "./plot.js";
import { Records } from "./records.js";
import { Table } from "./table.js";

const link = (name) => `#/topics/${encodeURIComponent(name)}`;

export class Topics {
  constructor(shell) {
    this.shell = shell;
    this.search = h("input", { type: "search", class: "search", placeholder: "Search topics", "aria-label": "Search topics", oninput: () => this.refresh() });
    this.withInternal = h("input", { type: "checkbox", onchange: () => this.refresh() });
    this.said = h("p", { class: "said dim", role: "status" });
    this.table = new Table({
      label: "Topics", key: (row) => row.topic, sorted: "topic", descending: false, empty: "No topics",
      open: (row) => { location.hash = link(row.topic); },
      columns: [
        { key: "topic", title: "Topic", cell: (row) => h("a", { href: link(row.topic), class: row.is_internal ? "dim" : "" }, row.topic), sort: (row) => row.topic, wide: true },
        { key: "partitions", title: "Partitions", align: "end", cell: (row) => count(row.partitions), sort: (row) => row.partitions, from: "m" },
        { key: "records", title: "Records", align: "end", cell: (row) => short(row.records), sort: (row) => row.records },
        { key: "size", title: "Size", align: "end", cell: (row) => bytes(row.size_bytes), sort: (row) => row.size_bytes, from: "m" },
        { key: "rate", title: "Records/s", align: "end", cell: (row) => short(row.records_per_s), sort: (row) => row.records_per_s },
        { key: "trend", title: "Trend", cell: (row) => spark(row.trend), name: "trend" },
      ],
    });
    this.create = h("button", { type: "button", class: "primary", hidden: !shell.mayWrite, onclick: () => this.askCreate() }, "New topic");
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Topics"), h("span", { class: "spring" }), this.create),
      h("div", { class: "tools" }, this.search, h("label", { class: "check" }, this.withInternal, "Internal topics")),
      this.said, h("section", { class: "card" }, this.table.element));
  }

  live() { this.refresh(); }

  async refresh() {
    const turn = (this.turn = {});
    try {
      const found = await get("topics", { q: this.search.value });
      if (turn !== this.turn) return;
      const rows = found.rows.filter((row) => (this.withInternal.checked || !row.is_internal) && !this.shell.isGone(row.topic));
      this.table.update(rows);
      setText(this.said, found.found > found.rows.length ? `The first ${count(found.rows.length)} of ${count(found.found)} topics: search for others` : counted(rows.length, "topic"));
      this.isCut = found.total > found.rows.length;
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  askCreate() {
    const name = h("input", { type: "text", required: true, maxlength: 249, autocomplete: "off", name: "topic" });
    const partitions = h("input", { type: "number", min: 1, placeholder: "default", name: "partitions" });
    const settings = h("textarea", { rows: 3, placeholder: "retention.ms=7d", spellcheck: "false", name: "settings" });
    form({
      title: "New topic", action: "Create topic",
      done: () => {
        this.shell.gone.delete(name.value);
        // Of very many topics the first ones are listed.
        if (this.isCut) this.search.value = name.value;
        this.refresh();
      },
      fields: [field("Name", name), field("Partitions", partitions), field("Settings", settings, "One KEY=VALUE in a line; durations as 90s, 15m, 1h or 7d")],
      read: () => ["create-topic", { topic: name.value, partitions: Number(partitions.value) || -1, settings: settingsOf(settings.value) }],
    });
  }
}

function headersOf(text) {
  return text.split("\n").filter(Boolean).map((one) => {
    const at = one.indexOf("=");
    return at < 0 ? [one, null] : [one.slice(0, at), one.slice(at + 1)];
  });
}

function settingsOf(text) {
  const lines = text.split("\n").map((one) => one.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((one) => {
    const at = one.indexOf("=");
    return at < 0 ? [one, ""] : [one.slice(0, at).trim(), one.slice(at + 1).trim()];
  }));
}

const TABS = [["records", "Records"], ["partitions", "Partitions"], ["settings", "Settings"]];

export class Topic {
  /** `tab`: one of TABS, or the number of a partition whose records are wanted. */
  constructor(shell, name, tab = "records") {
    const partition = /^\d+$/.test(tab) ? Number(tab) : null;
    Object.assign(this, { shell, name, partition, tab: partition === null ? tab : "records" });
    this.facts = h("dl", { class: "facts" });
    this.place = h("div");
    this.tabs = TABS.map(([key, title]) =>
      h("a", { href: `${link(name)}/${key}`, class: "tab", "aria-current": key === this.tab ? "page" : null }, title));
    this.actions = h("span", { class: "actions", hidden: true },
      h("button", { type: "button", onclick: () => this.askProduce() }, "Produce"),
      h("button", { type: "button", onclick: () => this.askPartitions() }, "Add partitions"),
      h("button", { type: "button", class: "danger", onclick: () => this.askDeleteRecords() }, "Delete records"),
      h("button", { type: "button", class: "danger", onclick: () => this.askDelete() }, "Delete"));
    this.internal = h("span", { class: "badge", hidden: true, title: "The broker keeps it for itself: the console does not delete it, or add partitions to it" }, "internal");
    this.said = h("p", { class: "said dim", role: "status" });
    this.element = h("div", { class: "view" },
      h("div", { class: "title" }, h("h1", null, h("a", { href: "#/topics", class: "up" }, "Topics"), h("span", { class: "dim" }, " / "), name), this.internal, h("span", { class: "spring" }), this.actions),
      this.facts, h("div", { class: "tabs", role: "navigation", "aria-label": "Parts of the topic" }, this.tabs), this.said, this.place);
    this.whole = [...this.element.childNodes];
    this.refresh();
  }

  /** Show the tab, when the topic is known to be there. */
  begin() {
    this.hasBegun = true;
    if (!TABS.some((one) => one[0] === this.tab)) this.showMissing(`Topic ${this.name} has no part ${this.tab}`, link(this.name), this.name);
    else if (this.partition !== null && this.partition >= this.total) {
      this.showMissing(`Topic ${this.name} has no partition ${this.partition}`, `${link(this.name)}/partitions`, `Partitions of ${this.name}`);
    } else if (this.tab === "records") {
      this.records = new Records(this.name, this.total, this.shell, this.partition);
      replace(this.place, this.records.element);
      this.search = this.records.text;
    } else if (this.tab === "settings") this.showSettings();
    else if (this.tab === "partitions") this.showPartitions();
  }

  showMissing(...words) {
    this.isMissing = true;
    replace(this.element, missing(...words));
  }

  live() { this.refresh(); }

  async refresh() {
    try {
      const found = await get("topic", { topic: this.name });
      if (this.isClosed) return;
      const { topic } = found;
      this.rows = found.rows;
      this.total = topic.partitions;
      setText(this.said, this.tab === "partitions" && this.rows.length < this.total ? `The first ${count(this.rows.length)} of ${count(this.total)} partitions` : "");
      // One that has just been made is there at the next look.
      if (this.isMissing && !this.hasBegun) replace(this.element, this.whole);
      this.isMissing = false;
      this.internal.hidden = !topic.is_internal;
      this.actions.hidden = !this.shell.mayWrite || topic.is_internal;
      if (!this.hasBegun) this.begin();
      const facts = [
        ["Partitions", count(topic.partitions)], ["Records", count(topic.records)],
        ["Size", bytes(topic.size_bytes)], ["Segments", count(topic.segments)], ["Records/s", short(topic.records_per_s)],
      ];
      replace(this.facts, facts.map(fact));
      this.table?.update(found.rows);
    } catch (error) {
      const isGone = error instanceof ApiError && error.status === 404;
      if (isGone && !this.isMissing) {
        this.records?.close();
        this.hasBegun = false;
        this.showMissing(`There is no topic ${this.name}`, "#/topics", "Topics");
      } else if (!isGone) this.shell.failed(error, this.said);
    }
  }

  showPartitions() {
    this.table = new Table({
      label: "Partitions", key: (row) => row.partition, sorted: "partition", descending: false,
      open: (row) => { location.hash = `${link(this.name)}/${row.partition}`; },
      columns: [
        { key: "partition", title: "Partition", align: "end", cell: (row) => row.partition, sort: (row) => row.partition },
        { key: "start", title: "Log start", align: "end", cell: (row) => count(row.log_start_offset), sort: (row) => row.log_start_offset, from: "m" },
        { key: "end", title: "Log end", align: "end", cell: (row) => count(row.log_end_offset), sort: (row) => row.log_end_offset },
        { key: "size", title: "Size", align: "end", cell: (row) => bytes(row.size_bytes), sort: (row) => row.size_bytes },
        { key: "share", title: "", cell: (row) => bar((100 * row.size_bytes) / Math.max(...this.rows.map((one) => one.size_bytes || 0), 1)), name: "bar", from: "m" },
        { key: "segments", title: "Segments", align: "end", cell: (row) => count(row.segments), sort: (row) => row.segments, from: "m" },
        { key: "rate", title: "Records/s", align: "end", cell: (row) => short(row.records_per_s), sort: (row) => row.records_per_s },
        { key: "trend", title: "Trend", cell: (row) => spark(row.trend), name: "trend", from: "m" },
      ],
    });
    this.table.update(this.rows || []);
    replace(this.place, h("section", { class: "card" }, this.table.element));
  }

  async showSettings() {
    const said = h("p", { class: "said dim" });
    replace(this.place, said);
    try {
      const rows = await get("topic-settings", { topic: this.name });
      const table = new Table({
        label: "Settings of the topic", kind: "stack", key: (row) => row.name, open: this.shell.mayWrite ? (row) => this.askSetting(row) : null,
        columns: [
          { key: "name", title: "Setting", cell: (row) => h("code", null, row.name), sort: (row) => row.name, name: "s-name" },
          { key: "value", title: "Value", cell: (row) => (row.value ? [h("code", null, row.value), " ", h("small", { class: "dim" }, settingMeans(row.name, row.value))] : h("i", { class: "dim" }, row.value === "" ? "empty" : "not set")), wide: true },
          { key: "source", title: "From", cell: (row) => h("span", { class: `badge ${row.source}` }, row.source), sort: (row) => row.source },
        ],
      });
      table.update(rows);
      replace(this.place, this.shell.mayWrite && h("p", { class: "said dim" }, "A click on a setting alters it."), h("section", { class: "card" }, table.element));
    } catch (error) {
      this.shell.failed(error, said);
    }
  }

  askSetting(row) {
    const value = h("input", { type: "text", value: row.value ?? "", spellcheck: "false", autocomplete: "off", name: "value" });
    const isUnset = h("input", { type: "checkbox", name: "unset", disabled: !row.is_own });
    form({
      title: row.name, about: row.documentation, action: "Alter topic", done: () => this.showSettings(),
      fields: [field("Value", value, row.name.endsWith(".ms") && "Milliseconds, or as 90s, 15m, 1h or 7d"), h("label", { class: "check" }, isUnset, "Take it back: the broker's own value holds again")],
      read: () => ["alter-topic", { topic: this.name, settings: { [row.name]: isUnset.checked ? null : value.value } }],
    });
  }

  askPartitions() {
    const now = this.total || 0;
    const wanted = h("input", { type: "number", min: now + 1, value: String(now + 1), required: true, name: "partitions" });
    form({
      title: `Add partitions to ${this.name}`, action: "Add partitions", done: () => this.refresh(), isDanger: true,
      about: "Partitions cannot be taken away again, and records with a key may go to another one than before.",
      fields: [field("Partitions in all", wanted, `now ${now}`)],
      read: () => ["add-partitions", { topic: this.name, partitions: Number(wanted.value) }],
    });
  }

  /** A choice of a partition, or of all. */
  partitionChoice(all) {
    return h("select", { name: "partition" }, option("-1", all), Array.from({ length: this.total || 0 }, (_, number) => option(String(number), `Partition ${number}`)));
  }

  askProduce() {
    const key = h("input", { type: "text", autocomplete: "off", spellcheck: "false", name: "key" });
    const value = h("textarea", { rows: 6, spellcheck: "false", name: "value" });
    const isNull = h("input", { type: "checkbox", name: "null", onchange: () => { value.disabled = isNull.checked; } });
    const headers = h("textarea", { rows: 2, spellcheck: "false", name: "headers" });
    const partition = this.partitionChoice("By the key; without one any");
    form({
      title: `Produce to ${this.name}`, action: "Produce record", done: () => this.records?.load(),
      fields: [field("Value", value), h("label", { class: "check" }, isNull, "null: with a key a tombstone"), field("Key", key, "Empty: no key"),
        field("Headers", headers, "One NAME=VALUE in a line; without = it is null"), field("Partition", partition)],
      read: () => ["produce", { topic: this.name, value: isNull.checked ? null : value.value, key: key.value || null, headers: headersOf(headers.value), partition: Number(partition.value) }],
    });
  }

  askDeleteRecords() {
    const before = h("input", { type: "text", required: true, autocomplete: "off", name: "before", placeholder: "an offset, or latest for all" });
    const partition = this.partitionChoice("All partitions");
    form({
      title: `Delete records of ${this.name}`, about: "The records before the offset are deleted. Nothing brings them back.", action: "Delete records",
      isDanger: true, typed: this.name, fields: [field("Before offset", before), field("Partition", partition)], done: () => this.records?.load(),
      read: () => ["delete-records", { topic: this.name, before: before.value.trim(), partition: Number(partition.value) }],
    });
  }

  askDelete() {
    form({
      title: `Delete ${this.name}`, about: "All of its records are deleted. Nothing brings them back.", action: "Delete topic",
      isDanger: true, typed: this.name, fields: [],
      done: () => {
        this.shell.gone.set(this.name, Date.now());
        location.hash = "#/topics";
      },
      read: () => ["delete-topic", { topic: this.name }],
    });
  }

  toggleTail() { this.records?.toggleTail(); }

  close() {
    this.isClosed = true;
    this.records?.close();
  }
}
