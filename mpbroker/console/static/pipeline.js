// The pipeline as a picture: processes that share memory, what waits in the rings between them, the disk.

import { fact, h, replace, s } from "./dom.js";
import { NOTHING, bytes, byteRate, count, ms, percent, rate, short } from "./format.js";
import { Table } from "./table.js";
import { bar } from "./plot.js";

// Boxes by place: x, y, width, height. Wide screens read from left to right, narrow ones downwards.
// `routes`: arrows around other boxes, as corners from border to border, and where their labels stand.
const WIDE = {
  size: [1100, 432],
  routes: {
    "log processor": { corners: [[787, 140], [787, 106], [350, 106], [350, 140]], label: [568, 99, "middle"] },
    "coordinator log": { corners: [[600, 340], [600, 286], [722, 286], [722, 250]], label: [661, 279, "middle"] },
    "log coordinator": { corners: [[742, 250], [742, 306], [618, 306], [618, 340]], label: [680, 322, "middle"] },
  },
  clients: [4, 140, 146, 110], acceptor: [224, 14, 166, 66], processor: [224, 140, 166, 110], handler: [464, 140, 166, 110],
  log: [704, 140, 166, 110], disk: [950, 140, 146, 110], coordinator: [464, 340, 166, 84], background: [704, 340, 166, 84],
};
const TALL = {
  size: [366, 838],
  routes: {
    "log processor": { corners: [[26, 590], [10, 590], [10, 222], [26, 222]], label: [15, 318, "start"] },
    "coordinator log": { corners: [[250, 460], [250, 484], [148, 484], [148, 534]], label: [205, 478, "middle"] },
    "log coordinator": { corners: [[160, 534], [160, 502], [272, 502], [272, 460]], label: [205, 518, "middle"] },
  },
  clients: [26, 4, 140, 90], acceptor: [222, 166, 136, 110], processor: [26, 166, 140, 110], handler: [26, 350, 140, 110],
  log: [26, 534, 140, 110], disk: [26, 732, 140, 92], coordinator: [222, 350, 136, 110], background: [212, 534, 136, 110],
};
const TITLES = {
  clients: "Kafka clients", acceptor: "acceptor", processor: "processors", handler: "handlers", log: "log workers",
  coordinator: "coordinator", background: "background", disk: "log.dirs",
};
// Arrows without a ring. All others are those of the rings, one for each way.
const WITHOUT_RING = [["clients", "processor"], ["processor", "clients"], ["log", "disk"], ["acceptor", "processor"]];
const STEP = 5;

export class Pipeline {
  constructor(shell) {
    this.shell = shell;
    this.svg = s("svg", { class: "pipeline", role: "img" });
    this.commit = h("dl", { class: "facts" });
    this.native = h("dl", { class: "facts" });
    this.rings = new Table({
      label: "Rings", key: (row) => `${row.from} ${row.to}`, empty: "no ring is known",
      columns: [
        { key: "from", title: "Ring", cell: (row) => `${row.from} → ${row.to}`, sort: (row) => row.from, wide: true },
        { key: "rings", title: "Rings", align: "end", cell: (row) => count(row.rings), from: "m" },
        { key: "slots", title: "Slots each", align: "end", cell: (row) => count(row.slots), from: "m" },
        { key: "waiting", title: "Waiting", align: "end", cell: (row) => count(row.waiting), sort: (row) => row.waiting },
        { key: "fill", title: "Fullest", align: "end", cell: (row) => percent(100 * row.fill), sort: (row) => row.fill },
        { key: "bar", title: "", cell: (row) => bar(100 * row.fill, row.fill > 0.5 ? "warn" : ""), name: "bar" },
      ],
    });
    this.arenas = new Table({
      label: "Arenas", key: (row) => row.name, empty: "no arena is known",
      columns: [
        { key: "name", title: "Arena of", cell: (row) => row.name, wide: true },
        { key: "used", title: "In use", align: "end", cell: (row) => bytes(row.arena_bytes), sort: (row) => row.arena_bytes },
        { key: "limit", title: "Limit", align: "end", cell: (row) => bytes(row.arena_limit_bytes), from: "m" },
        { key: "bar", title: "", cell: (row) => bar(row.arena_percent, row.arena_percent > 80 ? "warn" : ""), name: "bar" },
        { key: "waiting", title: "Waiting", hint: "Requests that wait there", align: "end", cell: (row) => count(row.queued ?? row.waiting) },
        { key: "ring_full", title: "Ring full", align: "end", cell: (row) => count(row.ring_full), from: "l" },
        { key: "memory_full", title: "Memory full", align: "end", cell: (row) => count(row.memory_full), from: "l" },
      ],
    });
    this.box = h("div", { class: "card picture" }, this.svg);
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Pipeline")), this.box,
      h("section", { class: "card" }, h("header", null, h("h3", null, "Commit rounds"), h("span", { class: "dim" }, "last 10 s")), this.commit),
      h("section", { class: "card" }, h("header", null, h("h3", null, "Taken by the native turn"), h("span", { class: "dim" }, "last 10 s")), this.native,
        h("p", { class: "dim" }, "Handlers answer the common produces and fetches natively, and leave others to Python. Fetches that find no records yet wait for them, which is always Python's: they have no part in the share.")),
      h("div", { class: "halves" },
        h("section", { class: "card" }, h("header", null, h("h3", null, "Rings")), this.rings.element),
        h("section", { class: "card" }, h("header", null, h("h3", null, "Arenas")), this.arenas.element)));
    new ResizeObserver(() => this.data && this.draw()).observe(this.box);
  }

  live(data, history) {
    this.data = data;
    this.last = history.last();
    this.draw();
    this.rings.update(data.rings);
    this.arenas.update(data.memory);
    const { commits, paths } = data;
    const facts = [
      ["Rounds/s", short(commits.rounds_per_s)], ["Batches a round", short(commits.batches)], ["Write and sync, p50", ms(commits.p50_ms)],
      ["p99", ms(commits.p99_ms)], ["Append, p99", ms(commits.append_p99_ms)], ["Produces waiting", count(commits.waiting)],
      ["Journal", bytes(data.journal_bytes)], ["Flush policy", data.flush_policy],
    ];
    replace(this.commit, facts.map(fact));
    replace(this.native, [
      ["Produces", share(paths.produce_native, paths.produce_native + paths.produce_python)],
      ["Fetches answered at once", share(paths.fetch_native, paths.fetch_native + paths.fetch_python)],
      ["Fetches that waited", rate(paths.fetch_waited)],
    ].map(fact));
  }

  draw() {
    const layout = this.box.clientWidth < 700 ? TALL : WIDE;
    const [width, height] = layout.size;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const kinds = new Map();
    for (const one of this.data.processes) kinds.set(one.kind, [...(kinds.get(one.kind) || []), one]);
    const names = [...kinds].map(([kind, all]) => `${all.length} ${kind}`).join(", ");
    this.svg.setAttribute("aria-label", `Processes and rings: ${names}`);
    this.behind = Object.fromEntries(Object.keys(TITLES).map((kind) => [kind, Math.max(0, Math.min((kinds.get(kind) || []).length - 1, 2))]));
    const boxes = Object.keys(TITLES).map((kind) => this.node(kind, layout[kind], kinds.get(kind) || []));
    const rings = this.data.rings.map((ring) => [ring.from, ring.to, ring]);
    this.ways = [...WITHOUT_RING, ...rings].filter(([from, to]) => layout[from] && layout[to]);
    replace(this.svg, boxes, this.ways.map((way) => this.way(way, layout)));
  }

  node(kind, [x, y, width, height], processes) {
    const isOutside = kind === "clients" || kind === "disk";
    const isDown = processes.some((one) => one.state === "down");
    const parts = [];
    for (let i = this.behind[kind]; i > 0; i -= 1) parts.push(s("rect", { class: "box", x: x + STEP * i, y: y - STEP * i, width, height, rx: 10 }));
    parts.push(s("rect", { class: `box${isOutside ? " outside" : ""}${isDown ? " down" : ""}`, x, y, width, height, rx: 10 }));
    const title = processes.length > 1 && kind !== "background" ? `${processes.length} ${TITLES[kind]}` : kind === "handler" || kind === "processor" || kind === "log" ? TITLES[kind].replace(/s$/, "") : TITLES[kind];
    parts.push(s("text", { class: "box-title", x: x + 12, y: y + 22 }, title));
    this.linesOf(kind, processes).slice(0, Math.floor((height - 30) / 16)).forEach((line, i) => {
      const at = y + 41 + 16 * i;
      parts.push(s("text", { class: "box-line", x: x + 12, y: at }, line[0]),
        s("text", { class: `box-value${line[2] ? ` ${line[2]}` : ""}`, x: x + width - 12, y: at, "text-anchor": "end" }, line[1]));
    });
    return s("g", null, parts);
  }

  linesOf(kind, processes) {
    const { data, last } = this;
    if (kind === "clients") return [["connections", count(data.broker.connections)], ["in", byteRate(last.bytes_in_per_s)], ["out", byteRate(last.bytes_out_per_s)]];
    if (kind === "disk") return [["sync p99", ms(data.commits.p99_ms)], ["rounds", rate(data.commits.rounds_per_s)], ["journal", bytes(data.journal_bytes)]];
    if (!processes.length) return [["not running", ""]];
    if (kind === "background") return processes.map((one) => [one.name, percent(one.cpu_percent)]);
    const sum = (key) => processes.reduce((all, one) => all + (one[key] || 0), 0);
    const cpu = sum("cpu_percent");
    const memory = data.memory.filter((row) => row.kind === kind);
    const found = [["CPU", percent(cpu), cpu > 80 * processes.length ? "bad" : ""], ["memory", bytes(sum("pss_bytes"))]];
    if (memory.length) found.push(["arena", bytes(memory.reduce((all, one) => all + one.arena_bytes, 0))]);
    if (kind !== "acceptor" && sum("requests_per_s")) found.push(["requests", rate(sum("requests_per_s"))]);
    return found;
  }

  way([from, to, ring], layout) {
    const path = layout.routes[`${from} ${to}`] ? this.around(from, to, layout) : this.straight(from, to, layout);
    const [before, end] = path.corners.slice(-2);
    const [dx, dy] = [Math.sign(end[0] - before[0]), Math.sign(end[1] - before[1])];
    const back = [end[0] - 8 * dx, end[1] - 8 * dy];
    const tip = [end, [back[0] - 4.5 * dy, back[1] - 4.5 * dx], [back[0] + 4.5 * dy, back[1] + 4.5 * dx]];
    const line = [...path.corners.slice(0, -1), [end[0] - 7 * dx, end[1] - 7 * dy]];
    const label = ring ? count(ring.waiting) : to === "disk" ? ms(this.data.commits.p50_ms) : "";
    return s("g", { class: `way${this.flows(from, to) ? " flows" : ""}${ring?.fill > 0.5 ? " full" : ""}` },
      s("polyline", { points: line.join(" ") }), s("polygon", { points: tip.join(" ") }),
      label && this.label(path.label, label, ring));
  }

  /** Return the corners of an arrow between two boxes side by side, and its label's place. */
  straight(from, to, layout) {
    const [a, b] = [layout[from], layout[to]];
    const isAcross = Math.abs(a[0] + a[2] / 2 - (b[0] + b[2] / 2)) > Math.abs(a[1] + a[3] / 2 - (b[1] + b[3] / 2));
    const isForward = isAcross ? a[0] < b[0] : a[1] < b[1];
    const shift = this.ways.some((one) => one[0] === to && one[1] === from) ? (isForward ? -14 : 14) : 0;
    // Boxes behind the first one stand out to the right and above.
    const [outA, outB] = [STEP * this.behind[from], STEP * this.behind[to]];
    const [x, y] = [middle(a, b) + shift, middleY(a, b) + shift];
    if (isAcross) {
      const [x1, x2] = isForward ? [a[0] + a[2] + outA, b[0]] : [a[0], b[0] + b[2] + outB];
      return { corners: [[x1, y], [x2, y]], label: [(x1 + x2) / 2, y + (isForward ? -8 : 17), "middle"] };
    }
    const [y1, y2] = isForward ? [a[1] + a[3], b[1] - outB] : [a[1] - outA, b[1] + b[3]];
    return { corners: [[x, y1], [x, y2]], label: [x + (isForward ? -8 : 8), (y1 + y2) / 2 + 4, isForward ? "end" : "start"] };
  }

  /** Return the corners of an arrow that goes around other boxes, and its label's place. */
  around(from, to, layout) {
    const { corners, label } = layout.routes[`${from} ${to}`];
    // An end at the upper border of a box is at that of the last one behind it.
    const ends = [corners[0], corners.at(-1)].map(([x, y], i) => {
      const kind = i ? to : from;
      return [x, y === layout[kind][1] ? y - STEP * this.behind[kind] : y];
    });
    return { corners: [ends[0], ...corners.slice(1, -1), ends[1]], label };
  }

  label([x, y, anchor], text, ring) {
    const shown = s("text", { class: ring?.waiting ? "way-label busy" : "way-label", x, y, "text-anchor": anchor }, text);
    if (ring) shown.append(s("title", null, `${ring.from} → ${ring.to}: ${ring.waiting} waiting in ${ring.rings} rings of ${ring.slots} slots`));
    return shown;
  }

  flows(from, to) {
    const { last, data } = this;
    const isBetween = (kind) => from === kind || to === kind;
    if (isBetween("background") || isBetween("acceptor")) return false;
    if (isBetween("coordinator")) return data.processes.some((one) => one.kind === "coordinator" && one.requests_per_s > 0);
    if (isBetween("log")) return (last.messages_in_per_s || 0) > 0;
    return (last.requests_per_s || 0) > 0;
  }
}

const share = (part, whole) => (whole > 0 ? percent((100 * part) / whole) : NOTHING);
const middle = (a, b) => (Math.max(a[0], b[0]) + Math.min(a[0] + a[2], b[0] + b[2])) / 2;
const middleY = (a, b) => (Math.max(a[1], b[1]) + Math.min(a[1] + a[3], b[1] + b[3])) / 2;
