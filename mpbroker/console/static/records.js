// The records of a topic: pages of them, a search, a live tail, and one record in full.

import { ApiError, get, lines, valueOf } from "./api.js";
import { fact, h, marked, option, replace, setText } from "./dom.js";
import { NOTHING, bytes, count, counted, fullStamp, short, stamp, timeFor, zone } from "./format.js";
import { bytesOf, hex, isJson, preview, pretty, visible } from "./value.js";

const PAGE = 50;
const TAIL_ROWS = 400;
const RETRY_MS = [1000, 2000, 5000];
const idOf = (row) => `${row.partition}:${row.offset}`;

export class Records {
  /** `partitions`: how many there are. `partition`: the one whose records are wanted; null for all. */
  constructor(topic, partitions, shell, partition = null) {
    Object.assign(this, { topic, shell });
    this.rows = [];
    this.stop = null;
    this.made = new Map();
    this.build(partitions);
    if (partition !== null) this.partition.value = String(partition);
    this.load();
  }

  build(partitions) {
    this.partition = h("select", { "aria-label": "Partition", onchange: () => this.load() }, option("-1", "All partitions"),
      Array.from({ length: partitions }, (_, number) => option(String(number), `Partition ${number}`)));
    this.from = h("select", { "aria-label": "Where to begin", onchange: () => this.fromChanged() },
      option("newest", "Newest first"), option("beginning", "From the beginning"),
      option("offset", "From offset…"), option("time", "From time…"));
    this.place = h("input", { type: "text", class: "place", "aria-label": "Offset or time", hidden: true, onchange: () => this.load() });
    this.text = h("input", { type: "search", class: "search", placeholder: "Search keys, values and headers", "aria-label": "Search in records",
      onkeydown: (event) => event.key === "Enter" && this.load(), onsearch: () => this.load() });
    this.isolation = h("select", { "aria-label": "Isolation level", onchange: () => this.load() },
      option("read_uncommitted", "Read uncommitted"), option("read_committed", "Read committed"));
    this.tail = h("button", { type: "button", class: "toggle", "aria-pressed": "false", onclick: () => this.toggleTail(), title: "Live tail (t)" }, h("i"), "Live tail");
    this.body = h("tbody");
    this.said = h("p", { class: "said dim", role: "status" });
    this.more = h("button", { type: "button", class: "more", hidden: true, onclick: () => this.load(true) }, "More");
    const head = ["Partition", "Offset", "Time", "Key", "Value", "Size"];
    this.element = h("div", { class: "records" },
      h("div", { class: "tools" }, this.text, this.partition, this.from, this.place, this.isolation, this.tail),
      this.said,
      h("div", { class: "table-box" }, h("table", { class: "fixed", "aria-label": `Records of ${this.topic}` },
        h("thead", null, h("tr", null, head.map((one, i) => h("th", { scope: "col", class: HEADS[i] }, one)))), this.body)),
      this.more);
  }

  fromChanged() {
    const kind = this.from.value;
    this.place.hidden = kind !== "offset" && kind !== "time";
    this.place.placeholder = kind === "time" ? "-15m, -2h or 2026-01-31T12:00" : "Offset";
    this.place.title = kind === "time" ? `Without a zone it is ${zone()}` : "";
    if (this.place.hidden) this.load();
    else this.place.focus();
  }

  params() {
    const kind = this.from.value;
    const from = kind === "offset" ? this.place.value.trim() : kind === "time" ? `@${timeFor(this.place.value.trim())}` : kind;
    return { topic: this.topic, partition: this.partition.value, from, text: this.text.value, isolation: this.isolation.value, limit: PAGE };
  }

  async load(isMore = false) {
    this.endTail();
    const params = this.params();
    if (params.from === "" || params.from === "@") return;
    if (isMore) params.positions = Object.entries(this.positions).map((one) => one.join(":")).join(",");
    const turn = (this.turn = {});
    setText(this.said, this.text.value ? "Searching…" : "Reading…");
    try {
      const found = await get("records", params);
      if (turn !== this.turn) return;
      this.positions = found.positions;
      this.rows = isMore ? [...this.rows, ...found.records] : found.records;
      this.show();
      this.saySeen(found);
      this.more.hidden = found.is_end;
      setText(this.more, this.text.value ? "Search on" : this.from.value === "newest" ? "Older records" : "More records");
    } catch (error) {
      if (turn !== this.turn) return;
      this.shell.failed(error, this.said);
      this.rows = isMore ? this.rows : [];
      this.show();
      this.more.hidden = true;
    }
  }

  saySeen(found) {
    const text = this.text.value;
    const parts = [counted(this.rows.length, "record")];
    if (text) parts.push(`${counted(found.scanned, "offset")} searched (${bytes(found.scanned_bytes)})`);
    if (found.is_end && this.rows.length) parts.push(this.from.value === "newest" ? "that is the beginning" : "that is the end");
    if (!this.rows.length) parts[0] = text ? "Nothing found" : "No records";
    if (found.registry) parts.push(`values are shown as bytes: ${found.registry}`);
    for (const [partition, first, behind] of found.unread) {
      parts.push(`offsets ${count(first)} to ${count(behind - 1)} of partition ${partition} are too much to be read at once: ask for them by offset`);
    }
    setText(this.said, parts.join(" · "));
  }

  show() {
    // Lines have marks where the searched text is.
    if (this.markedFor !== this.text.value) this.made.clear();
    this.markedFor = this.text.value;
    const made = new Map();
    const elements = this.rows.map((row) => {
      const key = idOf(row);
      const line = this.made.get(key) || this.line(row);
      made.set(key, line);
      return line.open ? [line.element, line.open] : [line.element];
    });
    this.made = made;
    replace(this.body, elements);
  }

  line(row) {
    const line = { open: null };
    const kind = row.marker ? `marker ${row.marker}` : row.problem ? "problem" : "";
    line.element = h("tr", { tabindex: "0", class: `opens ${kind}`, "aria-expanded": "false" },
      h("td", { class: HEADS[0] }, String(row.partition)), h("td", { class: HEADS[1] }, count(row.offset)),
      h("td", { class: HEADS[2], title: fullStamp(row.timestamp) }, stamp(row.timestamp)), this.cells(row));
    const toggle = () => this.toggle(row, line);
    line.element.addEventListener("click", () => !getSelection().toString() && toggle());
    line.element.addEventListener("keydown", (event) => event.key === "Enter" && toggle());
    return line;
  }

  cells(row) {
    if (row.marker) {
      const text = `${row.marker === "commit" ? "Transaction committed" : row.marker === "abort" ? "Transaction aborted" : "Control batch"} · producer ${row.producer[0]}, epoch ${row.producer[1]}`;
      return h("td", { colspan: 3, class: "about-marker" }, text);
    }
    if (row.problem) return h("td", { colspan: 3, class: "bad" }, row.problem);
    const wanted = this.text.value;
    const cell = (value, name) => {
      const text = preview(value);
      if (text === null) return h("td", { class: `${name} dim` }, name === "r-value" ? "null (tombstone)" : "null");
      const isBinary = value.b64 !== undefined && value.json === undefined;
      return h("td", { class: `${name}${isBinary ? " binary" : ""}` }, marked(text, wanted));
    };
    return [cell(row.key, HEADS[3]), cell(row.value, HEADS[4]), h("td", { class: HEADS[5] }, row.value ? bytes(row.value.n) : NOTHING)];
  }

  async toggle(row, line) {
    if (row.marker || row.problem) return;
    if (line.open) {
      line.open.remove();
      line.open = null;
      line.element.setAttribute("aria-expanded", "false");
      return;
    }
    const place = h("td", { colspan: 6 }, h("p", { class: "dim" }, "Reading…"));
    line.open = h("tr", { class: "detail" }, place);
    line.element.after(line.open);
    line.element.setAttribute("aria-expanded", "true");
    let whole = row;
    const isCut = [row.key, row.value, ...row.headers.map((one) => one[1])].some((one) => one?.cut || one?.json_cut);
    if (isCut) {
      try {
        whole = (await get("record", { topic: this.topic, partition: row.partition, offset: row.offset })).records[0] || row;
      } catch (error) {
        this.shell.failed(error, this.said);
      }
    }
    replace(place, detail(whole, () => this.save(row)));
  }

  /** Save a value whole, as the file TOPIC-PARTITION-OFFSET. */
  async save(row) {
    try {
      const url = URL.createObjectURL(await valueOf({ topic: this.topic, partition: row.partition, offset: row.offset }));
      h("a", { href: url, download: `${this.topic}-${row.partition}-${row.offset}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  // ---- live tail

  toggleTail() {
    if (this.stop) {
      this.endTail();
      if (this.rows.length) setText(this.said, `Tail ended · ${counted(this.rows.length, "record")}`);
      else this.load();
    } else this.follow();
  }

  endTail() {
    this.stop?.abort();
    this.stop = null;
    this.tail.setAttribute("aria-pressed", "false");
    this.element.classList.remove("is-live");
  }

  async follow() {
    this.turn = {};
    const stop = (this.stop = new AbortController());
    this.tail.setAttribute("aria-pressed", "true");
    this.element.classList.add("is-live");
    this.rows = [];
    this.more.hidden = true;
    this.show();
    this.seen = 0;
    this.skipped = 0;
    const params = this.params();
    delete params.from;
    delete params.limit;
    for (let tries = 0; !stop.signal.aborted; tries += 1) {
      setText(this.said, tries ? "Reconnecting…" : "Waiting for records…");
      try {
        for await (const found of lines("tail", params, stop.signal)) {
          tries = 0;
          this.tailed(found);
        }
        throw new ApiError(0, "the tail has ended");
      } catch (error) {
        if (stop.signal.aborted || error.name === "AbortError") return;
        if (error.status !== 0) {
          this.endTail();
          this.shell.failed(error, this.said);
          return;
        }
        setText(this.said, `${error.message}: trying again…`);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
      }
    }
  }

  tailed(found) {
    if (found.error) throw new ApiError(0, found.error);
    if (found.records?.length) {
      this.seen += found.records.length;
      this.skipped += found.skipped;
      this.rows = [...found.records.reverse(), ...this.rows].slice(0, TAIL_ROWS);
      this.show();
    }
    const parts = [this.seen ? `Live · ${counted(this.seen, "record")}` : "Live · waiting for records"];
    if (found.registry) parts.push(`values are shown as bytes: ${found.registry}`);
    if (this.skipped) parts.push(`${short(this.skipped)} more passed too fast to be shown`);
    setText(this.said, parts.join(" · "));
  }

  close() {
    this.turn = {};
    this.endTail();
  }
}

const HEADS = ["r-part", "r-offset", "r-time", "r-key", "r-value", "r-size"];

/** One record in full. */
function detail(row, save) {
  const facts = [
    ["Partition", String(row.partition)], ["Offset", count(row.offset)],
    [row.is_append_time ? "Append time" : "Create time", `${fullStamp(row.timestamp)}`],
    ["Compression", row.codec], row.producer && ["Producer", `${row.producer[0]}, epoch ${row.producer[1]}`],
    row.transactional && ["Transaction", "yes"],
  ].filter(Boolean);
  const headers = row.headers.length > 0 && h("section", null, h("h4", null, `Headers (${row.header_count})`),
    h("table", { class: "plain" }, h("tbody", null, row.headers.map(([name, value]) =>
      h("tr", null, h("th", { scope: "row" }, visible(name)), h("td", null, value === null ? h("i", { class: "dim" }, "null") : preview(value, 2000)))))));
  return h("div", { class: "record" },
    h("dl", { class: "facts" }, facts.map(fact)),
    headers, h("section", null, h("h4", null, "Key"), shown(row.key)), h("section", null, h("h4", null, "Value"), shown(row.value, save)));
}

/** A value with a choice of how it is written. */
function shown(value, save) {
  if (value === null) return h("p", { class: "dim" }, "null");
  const ways = [];
  const isText = value.text !== undefined;
  const text = value.json !== undefined ? value.json : value.text;
  const isWhole = value.json !== undefined ? !value.json_cut : isText && !value.cut && isJson(value.text);
  const json = isWhole ? pretty(text) : undefined;
  if (json) ways.push(["JSON", () => json]);
  else if (value.json !== undefined) ways.push(["JSON", () => visible(value.json)]);
  if (isText) ways.push(["Text", () => visible(value.text)]);
  ways.push(["Hex", () => hex(bytesOf(value).slice(0, 65536))]);
  const pre = h("pre", { tabindex: "0" });
  const buttons = ways.map(([name, write]) => h("button", { type: "button", "aria-pressed": "false", onclick: () => choose(name, write) }, name));
  function choose(name, write) {
    replace(pre, write());
    buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === name)));
  }
  choose(...ways[0]);
  const copy = h("button", { type: "button", onclick: () => navigator.clipboard?.writeText(pre.textContent) }, "Copy");
  const note = json === null && h("small", { class: "dim" }, "JSON that is nested too deeply, or too long, to be shown in lines");
  const schema = value.schema && h("small", { class: "schema" }, visible(`${value.schema.name || "no name"} · ${value.schema.type} · schema ${value.schema.id}`));
  const size = value.cut ? `the first ${bytes(bytesOf(value).length)} of ${bytes(value.n)}` : bytes(value.n);
  return h("div", { class: "value" }, h("div", { class: "ways" }, h("span", { class: "group" }, buttons), h("small", { class: value.cut ? "cut" : "dim" }, size), schema, note, h("span", { class: "spring" }), save && h("button", { type: "button", onclick: save, title: "Save all of its bytes as a file" }, "Save"), copy), pre);
}
