// Consumer groups: lag over time, members, offsets by partition.

import { get } from "./api.js";
import { field, form } from "./dialog.js";
import { h, replace, setText } from "./dom.js";
import { count, short } from "./format.js";
import { bar, Plot, spark } from "./plot.js";
import { Table } from "./table.js";

const PLOTTED = 5;
const link = (name) => `#/groups/${encodeURIComponent(name)}`;

/** Join histories [[t, v]…] of several groups to rows [t, v0, v1, …]. */
export function joined(histories) {
  const rows = new Map();
  histories.forEach((history, i) => {
    for (const [t, value] of history) {
      if (!rows.has(t)) rows.set(t, [t, ...histories.map(() => null)]);
      rows.get(t)[i + 1] = value;
    }
  });
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

export class Groups {
  constructor(shell) {
    this.shell = shell;
    this.search = h("input", { type: "search", class: "search", placeholder: "Search groups", "aria-label": "Search groups", oninput: () => this.refresh() });
    this.said = h("p", { class: "said dim", role: "status" });
    this.place = h("div");
    this.table = new Table({
      label: "Consumer groups", key: (row) => row.group, sorted: "lag", empty: "No group has committed anything",
      open: (row) => { location.hash = link(row.group); },
      columns: [
        { key: "group", title: "Group", cell: (row) => h("a", { href: link(row.group) }, row.group), sort: (row) => row.group, wide: true },
        { key: "members", title: "Members", align: "end", cell: (row) => count(row.members), sort: (row) => row.members },
        { key: "topics", title: "Topics", cell: (row) => row.topics.join(", "), from: "m", name: "clip" },
        { key: "partitions", title: "Partitions", align: "end", cell: (row) => count(row.partitions), sort: (row) => row.partitions, from: "m" },
        { key: "lag", title: "Lag", align: "end", cell: (row) => count(row.lag), sort: (row) => row.lag },
        { key: "trend", title: "Lag over time", cell: (row) => spark(row.history.map((one) => one[1]), { colour: 3 }), name: "trend" },
      ],
    });
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Consumer groups")),
      this.place, h("div", { class: "tools" }, this.search), this.said, h("section", { class: "card" }, this.table.element));
  }

  live() { this.refresh(); }

  async refresh() {
    const turn = (this.turn = {});
    try {
      const found = await get("groups", { q: this.search.value });
      if (turn !== this.turn) return;
      this.table.update(found.rows);
      this.draw(found.rows.slice(0, PLOTTED));
      setText(this.said, found.found > found.rows.length ? `${count(found.rows.length)} of ${count(found.found)} groups, those with the most lag: search for others` : `${count(found.found)} groups`);
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  draw(rows) {
    const names = rows.map((row) => row.group).sort();
    if (!names.length) {
      replace(this.place);
      this.plotted = "";
      return;
    }
    if (this.plotted !== JSON.stringify(names)) {
      this.plotted = JSON.stringify(names);
      this.plot = new Plot({ title: "Lag", text: short, height: 170, fill: names.length === 1, series: names.map((name, i) => ({ name, colour: i + 1 })) });
      replace(this.place, this.plot.element);
    }
    this.plot.update(joined(names.map((name) => rows.find((row) => row.group === name).history)));
  }
}

export class Group {
  constructor(shell, name) {
    Object.assign(this, { shell, name });
    this.facts = h("dl", { class: "facts" });
    this.said = h("p", { class: "said dim", role: "status" });
    this.plot = new Plot({ title: "Lag", text: short, height: 170, series: [{ name: "records", colour: 3 }] });
    this.members = new Table({
      label: "Members", key: (row) => row.id, empty: "No members now",
      columns: [
        { key: "client", title: "Client", cell: (row) => h("span", { title: row.id }, row.client || row.id), sort: (row) => row.client },
        { key: "host", title: "Host", cell: (row) => row.host, sort: (row) => row.host },
        { key: "instance", title: "Instance", cell: (row) => row.instance, from: "m" },
        { key: "partitions", title: "Partitions", cell: (row) => partitionsText(row.partitions), wide: true, name: "clip" },
      ],
    });
    this.offsets = new Table({
      label: "Committed offsets", key: (row) => `${row.topic} ${row.partition}`, sorted: "lag", empty: "Nothing is committed",
      columns: [
        { key: "topic", title: "Topic", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic), sort: (row) => row.topic, wide: true },
        { key: "partition", title: "Partition", align: "end", cell: (row) => row.partition, sort: (row) => row.partition },
        { key: "committed", title: "Committed", align: "end", cell: (row) => count(row.committed), sort: (row) => row.committed, from: "m" },
        { key: "end", title: "End", align: "end", cell: (row) => count(row.end), sort: (row) => row.end, from: "m" },
        { key: "lag", title: "Lag", align: "end", cell: (row) => count(lagOf(row)), sort: lagOf },
        { key: "bar", title: "", cell: (row) => bar((100 * lagOf(row)) / (this.most || 1), "lag"), name: "bar" },
        { key: "member", title: "Member", cell: (row) => this.owner(row), from: "m", name: "clip" },
      ],
    });
    const reset = shell.mayWrite && h("button", { type: "button", onclick: () => this.askReset() }, "Reset offsets");
    this.element = h("div", { class: "view" },
      h("div", { class: "title" }, h("h1", null, h("a", { href: "#/groups", class: "up" }, "Groups"), h("span", { class: "dim" }, " / "), name), h("span", { class: "spring" }), reset),
      this.facts, this.said, this.plot.element,
      h("section", { class: "card" }, h("header", null, h("h3", null, "Partitions")), this.offsets.element),
      h("section", { class: "card" }, h("header", null, h("h3", null, "Members")), this.members.element));
    this.refresh();
  }

  owner(row) {
    const member = this.group?.members.find((one) => one.partitions.some(([topic, number]) => topic === row.topic && number === row.partition));
    return member ? member.client || member.id : "–";
  }

  live() { this.refresh(); }

  async refresh() {
    try {
      const found = await get("group", { group: this.name });
      this.group = found.group;
      this.rows = found.offsets;
      this.most = Math.max(...found.offsets.map((row) => lagOf(row) || 0), 0);
      const lag = found.offsets.reduce((sum, row) => sum + (lagOf(row) || 0), 0);
      const facts = [["State", found.group.state], ["Lag", count(lag)], ["Members", count(found.group.members.length)], ["Partitions", count(found.offsets.length)], ["Protocol", `${found.group.type}${found.group.assignor ? `, ${found.group.assignor}` : ""}`]];
      replace(this.facts, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", { class: value === "Stable" ? "good" : "" }, value))));
      this.plot.update(found.history);
      this.members.update(found.group.members);
      this.offsets.update(found.offsets);
      setText(this.said, "");
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  askReset() {
    const option = (value, text) => h("option", { value }, text);
    const to = h("select", { name: "to", onchange: () => { value.parentElement.hidden = NEEDS_NONE.has(to.value); } },
      option("to-earliest", "To the earliest"), option("to-latest", "To the latest"), option("to-offset", "To an offset"),
      option("to-datetime", "To a time"), option("by-duration", "Back by a duration"), option("shift-by", "Shift by a number"));
    const value = h("input", { type: "text", autocomplete: "off", name: "value", placeholder: "42, 2026-01-31T12:00, 2h or -100" });
    const topics = [...new Set((this.rows || []).map((row) => row.topic))];
    const topic = h("select", { name: "topic" }, option("", "All topics"), topics.map((one) => option(one, one)));
    const valueField = field("Value", value);
    form({
      title: `Reset offsets of ${this.name}`, action: "Set these offsets", isDanger: true, done: () => this.refresh(),
      about: "The group must have no members: stop its consumers first.",
      fields: [field("Where to", to), valueField, field("Topic", topic)],
      preview: previewOf,
      read: () => ["reset-offsets", { group: this.name, to: to.value, value: NEEDS_NONE.has(to.value) ? "" : value.value.trim(), topic: topic.value }],
    });
    valueField.hidden = true;
  }
}

const NEEDS_NONE = new Set(["to-earliest", "to-latest", "to-current"]);
const lagOf = (row) => (row.end === null ? null : Math.max(row.end - row.committed, 0));

function previewOf(answer) {
  const table = new Table({
    label: "What would be set", key: (row) => `${row.topic} ${row.partition}`, empty: "Nothing would be set",
    columns: [
      { key: "topic", title: "Topic", cell: (row) => row.topic, wide: true },
      { key: "partition", title: "Partition", align: "end", cell: (row) => row.partition },
      { key: "committed", title: "Now", align: "end", cell: (row) => count(row.committed) },
      { key: "new", title: "New", align: "end", cell: (row) => h("b", null, count(row.new_offset)) },
    ],
  });
  table.update(answer.rows);
  return [table.element, answer.remarks.map((one) => h("p", { class: "dim" }, one))];
}

function partitionsText(places) {
  const byTopic = new Map();
  for (const [topic, number] of places) byTopic.set(topic, [...(byTopic.get(topic) || []), number]);
  return [...byTopic].map(([topic, numbers]) => `${topic}: ${numbers.join(", ")}`).join("; ") || "none";
}
