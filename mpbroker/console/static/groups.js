// Consumer groups: lag over time, members, offsets by partition. Tables, which have a group each.

import { ApiError, get } from "./api.js";
import { field, form } from "./dialog.js";
import { fact, h, option, replace, setText } from "./dom.js";
import { NOTHING, bytes, count, counted, short, stamp, timeFor, zone } from "./format.js";
import { missing } from "./missing.js";
import { bar, Plot, spark } from "./plot.js";
import { Table } from "./table.js";

const PLOTTED = 5;
const link = (name) => `#/groups/${encodeURIComponent(name)}`;

/** Join histories [[t, v]…] of several groups to rows [t, v0, v1, …]. */
function joined(histories) {
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
    this.legend = h("p", { class: "said dim", hidden: true }, "After a +: partitions of the group's topics without a commit, which have no lag that could be counted.");
    this.place = h("div");
    this.table = new Table({
      label: "Consumer groups", key: (row) => row.group, sorted: "lag", empty: "No group has members, or has committed anything",
      open: (row) => { location.hash = link(row.group); },
      columns: [
        { key: "group", title: "Group", cell: (row) => h("a", { href: link(row.group) }, row.group), sort: (row) => row.group, wide: true },
        { key: "type", title: "Type", cell: (row) => row.type, sort: (row) => row.type, from: "m" },
        { key: "members", title: "Members", align: "end", cell: (row) => count(row.members), sort: (row) => row.members },
        { key: "topics", title: "Topics", cell: (row) => row.topics.join(", "), from: "m", name: "clip" },
        { key: "partitions", title: "Partitions", align: "end", cell: (row) => count(row.partitions), sort: (row) => row.partitions, from: "m" },
        { key: "lag", title: "Lag", align: "end", cell: (row) => [count(row.lag), row.uncommitted > 0 && h("span", { class: "dim", title: `In ${counted(row.partitions - row.uncommitted, "partition")}; ${noCommit(row.uncommitted)}` }, ` + ${count(row.uncommitted)} without`)], sort: (row) => row.lag },
        { key: "trend", title: "Lag over time", cell: (row) => spark(row.history.map((one) => one[1]), { colour: 3 }), name: "trend" },
      ],
    });
    this.tables = new Table({
      label: "Tables", key: (row) => row.table, sorted: "table", descending: false,
      columns: [
        { key: "table", title: "Table", cell: (row) => h("a", { href: link(row.group) }, row.table), sort: (row) => row.table, wide: true },
        { key: "topics", title: "Topic", cell: (row) => row.topics.join(", "), from: "m", name: "clip" },
        { key: "rows", title: "Rows", align: "end", cell: (row) => count(row.rows), sort: (row) => row.rows },
        { key: "size", title: "Size", align: "end", cell: (row) => `${bytes(row.bytes)} in ${counted(row.files, "file")}`, sort: (row) => row.bytes, from: "m" },
        { key: "lag", title: "Lag", align: "end", cell: (row) => count(row.lag), sort: (row) => row.lag },
        { key: "errors", title: "Error rows", hint: "Since the tables job began", align: "end", cell: (row) => count(row.error_rows), sort: (row) => row.error_rows },
        { key: "committed", title: "Committed", cell: (row) => (row.problem ? h("span", { class: "bad" }, row.problem) : stamp(row.committed_ms || null)), sort: (row) => row.committed_ms },
      ],
    });
    this.ofTables = h("section", { class: "card", hidden: true }, h("header", null, h("h3", null, "Tables")), this.tables.element);
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Consumer groups")),
      this.place, this.ofTables, h("div", { class: "tools" }, this.search), this.said, this.legend, h("section", { class: "card" }, this.table.element));
  }

  live() { this.refresh(); }

  async refresh() {
    const turn = (this.turn = {});
    try {
      const found = await get("groups", { q: this.search.value });
      if (turn !== this.turn) return;
      this.table.update(found.rows);
      this.tables.update(found.tables);
      this.ofTables.hidden = !found.tables.length;
      this.draw(found.rows.slice(0, PLOTTED));
      this.legend.hidden = !found.rows.some((row) => row.uncommitted > 0);
      setText(this.said, found.found > found.rows.length ? `${count(found.rows.length)} of ${count(found.found)} groups, those with the most lag: search for others` : counted(found.found, "group"));
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  draw(rows) {
    const names = rows.filter((row) => row.lag !== null).map((row) => row.group).sort();
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
        { key: "protocol", title: "Protocol", cell: (row) => (row.is_upgraded === null ? NOTHING : row.is_upgraded ? "consumer" : "classic"), from: "m", name: "of-consumer" },
        { key: "epoch", title: "Epoch", align: "end", cell: (row) => count(row.epoch), from: "m", name: "of-consumer" },
        { key: "state", title: "State", cell: (row) => h("span", { title: STATES[row.state] }, row.state || NOTHING), name: "of-consumer" },
        { key: "subscription", title: "Subscribes to", cell: (row) => [...row.topics, row.pattern && `pattern ${row.pattern}`].filter(Boolean).join(", "), from: "m", name: "clip of-consumer" },
        { key: "partitions", title: "Partitions", cell: (row) => partitionsText(row.partitions), wide: true, name: "clip" },
        { key: "target", title: "Target", cell: (row) => (row.target ? partitionsText(row.target) : NOTHING), from: "m", name: "clip of-consumer" },
      ],
    });
    this.offsets = new Table({
      label: "Committed offsets", key: (row) => `${row.topic} ${row.partition}`, sorted: "lag", empty: "Nothing is committed, and no member has a partition",
      columns: [
        { key: "topic", title: "Topic", cell: (row) => h("a", { href: `#/topics/${encodeURIComponent(row.topic)}` }, row.topic), sort: (row) => row.topic, wide: true },
        { key: "partition", title: "Partition", align: "end", cell: (row) => row.partition, sort: (row) => row.partition },
        { key: "committed", title: "Committed", align: "end", cell: (row) => (row.committed === null ? h("span", { class: "dim", title: NO_COMMIT }, NOTHING) : count(row.committed)), sort: (row) => row.committed, from: "m" },
        { key: "end", title: "End", align: "end", cell: (row) => count(row.end), sort: (row) => row.end, from: "m" },
        { key: "lag", title: "Lag", align: "end", cell: (row) => (row.committed === null ? h("span", { class: "dim", title: NO_COMMIT }, NOTHING) : count(row.lag)), sort: (row) => row.lag },
        { key: "bar", title: "", cell: (row) => bar((100 * row.lag) / (this.most || 1), "lag"), name: "bar" },
        { key: "member", title: "Member", cell: (row) => this.owner(row), from: "m", name: "clip" },
      ],
    });
    this.reset = h("button", { type: "button", hidden: true, onclick: () => this.askReset(), "aria-describedby": "why-not" }, "Reset offsets");
    this.remove = h("button", { type: "button", class: "danger", hidden: true, onclick: () => this.askDelete(), "aria-describedby": "why-not" }, "Delete");
    this.whyNot = h("span", { class: "dim why-not", id: "why-not" });
    this.element = h("div", { class: "view" },
      h("div", { class: "title" }, h("h1", null, h("a", { href: "#/groups", class: "up" }, "Groups"), h("span", { class: "dim" }, " / "), name), h("span", { class: "spring" }), this.whyNot, h("span", { class: "actions" }, this.reset, this.remove)),
      this.facts, this.said, this.plot.element,
      h("section", { class: "card" }, h("header", null, h("h3", null, "Partitions")), this.offsets.element),
      h("section", { class: "card" }, h("header", null, h("h3", null, "Members")), this.members.element));
    this.refresh();
  }

  owner(row) {
    const member = this.group?.members.find((one) => one.partitions.some(([topic, number]) => topic === row.topic && number === row.partition));
    return member ? member.client || member.id : NOTHING;
  }

  // To ask the broker for what it does not have would count as an error there each time.
  live() {
    if (!this.isMissing) this.refresh();
  }

  async refresh() {
    try {
      const found = await get("group", { group: this.name });
      this.group = found.group;
      this.rows = found.offsets;
      this.most = Math.max(...found.offsets.map((row) => row.lag || 0), 0);
      const lags = found.offsets.map((row) => row.lag).filter((one) => one !== null);
      const lag = lags.length ? lags.reduce((sum, one) => sum + one, 0) : null;
      const uncommitted = found.offsets.filter((row) => row.committed === null).length;
      this.offerReset(found);
      const facts = [["State", found.group.state, found.group.state === "Stable" ? "good" : null], ["Lag", [count(lag), uncommitted > 0 && h("small", { class: "dim" }, ` in ${counted(found.offsets.length - uncommitted, "partition")}; ${noCommit(uncommitted)}`)]], ["Members", count(found.group.members.length)], ["Partitions", count(found.offsets.length)], ["Protocol", `${found.group.type}${found.group.assignor ? `, ${found.group.assignor}` : ""}`]];
      if (found.group.epoch !== null) facts.push(["Epoch", [count(found.group.epoch), found.group.target_epoch < found.group.epoch && h("small", { class: "dim" }, `; the target is of ${count(found.group.target_epoch)}`)]]);
      replace(this.facts, facts.map(fact));
      this.plot.update(found.history);
      this.members.element.classList.toggle("of-classic", found.group.type !== "consumer");
      this.members.update(found.group.members);
      this.offsets.update(found.offsets);
      setText(this.said, uncommitted ? "A partition without a commit has no lag: where its consumer begins is up to its auto.offset.reset." : "");
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        this.isMissing = true;
        replace(this.element, missing(`There is no group ${this.name}`, "#/groups", "Groups"));
      } else this.shell.failed(error, this.said);
    }
  }

  /** Offer a reset of a group without members alone: others would commit over what is set. */
  offerReset({ group, may_reset: may }) {
    for (const one of [this.reset, this.remove]) {
      one.hidden = !this.shell.mayWrite;
      one.disabled = !may;
    }
    setText(this.whyNot, may || !this.shell.mayWrite ? "" : `The group is ${group.state}: stop its consumers to reset offsets or delete it`);
  }

  askDelete() {
    form({
      title: `Delete ${this.name}`, about: "Its committed offsets are deleted: consumers of this group begin where auto.offset.reset says.", action: "Delete group",
      isDanger: true, typed: this.name, fields: [], done: () => { location.hash = "#/groups"; },
      read: () => ["delete-group", { group: this.name }],
    });
  }

  askReset() {
    const to = h("select", { name: "to", onchange: () => { value.parentElement.hidden = NEEDS_NONE.has(to.value); } },
      option("to-earliest", "To the earliest"), option("to-latest", "To the latest"), option("to-offset", "To an offset"),
      option("to-datetime", "To a time"), option("by-duration", "Back by a duration"), option("shift-by", "Shift by a number"));
    const value = h("input", { type: "text", autocomplete: "off", name: "value", placeholder: "42, 2026-01-31T12:00, 2h or -100", title: `A time without a zone is ${zone()}` });
    const topics = [...new Set((this.rows || []).map((row) => row.topic))];
    const topic = h("select", { name: "topic" }, option("", "All committed partitions"), topics.map((one) => option(one, one)));
    const valueField = field("Value", value);
    form({
      title: `Reset offsets of ${this.name}`, action: "Set these offsets", isDanger: true, done: () => this.refresh(),
      about: "The group must have no members: stop its consumers first.",
      fields: [field("Where to", to), valueField, field("Topic", topic)],
      preview: previewOf,
      read: () => ["reset-offsets", { group: this.name, to: to.value, value: valueFor(to.value, value.value.trim()), topic: topic.value }],
    });
    valueField.hidden = true;
  }
}

const STATES = {
  stable: "It has the partitions that it shall have", behind: "It has not learnt of the newest target", revoking: "It has partitions to give up",
  waiting: "Others have still to give up partitions of its target", away: "A static member that has left, and may return",
};
const noCommit = (number) => `${counted(number, "partition")} ${number === 1 ? "has" : "have"} no commit`;
const NO_COMMIT = "Nothing is committed: where a consumer begins is up to its auto.offset.reset";
const valueFor = (to, text) => (NEEDS_NONE.has(to) ? "" : to === "to-datetime" ? timeFor(text) : text);
const NEEDS_NONE = new Set(["to-earliest", "to-latest"]);

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
