// The broker at a glance: rates and latencies over time, requests by API, processes.

import { h } from "./dom.js";
import { NOTHING, byteRate, bytes, count, ms, percent, rate, short } from "./format.js";
import { bar, Plot } from "./plot.js";
import { Table } from "./table.js";

const PLOTS = [
  { title: "Throughput", series: [["in", 1, "bytes_in_per_s"], ["out", 2, "bytes_out_per_s"]], text: byteRate },
  { title: "Records in", series: [["records", 1, "messages_in_per_s"]], text: rate },
  { title: "Requests", series: [["requests", 4, "requests_per_s"]], text: rate },
  { title: "Produce time", series: [["p50", 2, "produce_p50_ms"], ["p99", 3, "produce_p99_ms"]], text: ms },
  { title: "Disk commit", series: [["p50", 2, "fsync_p50_ms"], ["p99", 3, "fsync_p99_ms"]], text: ms },
  { title: "CPU, all processes", series: [["of one CPU", 1, "cpu_percent"]], text: percent },
];

export class Overview {
  constructor(shell) {
    this.shell = shell;
    this.plots = PLOTS.map(({ title, series, text }) => ({
      names: series.map((one) => one[2]),
      plot: new Plot({ title, text, series: series.map(([name, colour]) => ({ name, colour })), height: 140 }),
    }));
    this.tiles = ["Connections", "Memory (PSS)", "Partitions offline", "Restarts"].map((name) => ({ name, value: h("b", null, NOTHING) }));
    this.requests = new Table({
      label: "Requests by API", key: (row) => row.api, sorted: "rate", empty: "no requests yet",
      columns: [
        { key: "api", title: "API", cell: (row) => breakable(row.api), sort: (row) => row.api, wide: true },
        { key: "rate", title: "Requests/s", align: "end", cell: (row) => short(row.requests_per_s), sort: (row) => row.requests_per_s },
        { key: "share", title: "", cell: (row) => bar(this.share(row)), from: "l", name: "bar" },
        { key: "total", title: "Total", align: "end", cell: (row) => count(row.total), sort: (row) => row.total, from: "l" },
        { key: "bytes", title: "Bytes in/s", align: "end", cell: (row) => bytes(row.bytes_per_s), sort: (row) => row.bytes_per_s, from: "l" },
        { key: "errors", title: "Errors/s", align: "end", cell: (row) => (row.errors_per_s ? h("span", { class: "bad" }, short(row.errors_per_s)) : short(row.errors_per_s)), sort: (row) => row.errors_per_s, from: "m" },
        { key: "p50", title: "p50", align: "end", cell: (row) => ms(row.p50_ms), sort: (row) => row.p50_ms },
        { key: "p99", title: "p99", align: "end", cell: (row) => ms(row.p99_ms), sort: (row) => row.p99_ms },
      ],
    });
    this.processes = new Table({
      label: "Processes", key: (row) => row.name, empty: "no process is known",
      columns: [
        { key: "name", title: "Process", cell: (row) => row.name, wide: true },
        { key: "pid", title: "PID", align: "end", cell: (row) => row.pid, from: "l" },
        { key: "cpu", title: "CPU", align: "end", cell: (row) => percent(row.cpu_percent), sort: (row) => row.cpu_percent },
        { key: "bar", title: "", cell: (row) => bar(row.cpu_percent, row.cpu_percent > 80 ? "warn" : ""), name: "bar" },
        { key: "pss", title: "PSS", align: "end", cell: (row) => bytes(row.pss_bytes), sort: (row) => row.pss_bytes },
        { key: "requests", title: "Requests/s", align: "end", cell: (row) => short(row.requests_per_s), sort: (row) => row.requests_per_s, from: "l" },
        { key: "restarts", title: "Restarts", align: "end", cell: (row) => count(row.restarts), sort: (row) => row.restarts, from: "m" },
        { key: "state", title: "State", cell: (row) => h("span", { class: row.state === "down" ? "bad" : "dim" }, row.state) },
      ],
    });
    this.element = h("div", { class: "view" }, h("h1", { class: "sr" }, "Overview"),
      h("div", { class: "tiles" }, this.tiles.map((one) => h("div", { class: "tile" }, h("span", null, one.name), one.value))),
      h("div", { class: "plots" }, this.plots.map((one) => one.plot.element)),
      h("div", { class: "halves" },
        h("section", { class: "card" }, h("header", null, h("h3", null, "Requests by API"), h("span", { class: "dim" }, "last 10 s")), this.requests.element),
        h("section", { class: "card" }, h("header", null, h("h3", null, "Processes")), this.processes.element)));
  }

  share(row) {
    const all = this.most || 0;
    return all && row.requests_per_s ? (100 * row.requests_per_s) / all : 0;
  }

  live(data, history) {
    for (const { names, plot } of this.plots) plot.update(history.of(names));
    const last = history.last();
    const restarts = data.processes.reduce((sum, one) => sum + (one.restarts || 0), 0);
    [count(data.broker.connections), bytes(last.pss_bytes), count(data.broker.offline_partitions), count(restarts)].forEach((text, i) => {
      this.tiles[i].value.textContent = text;
      this.tiles[i].value.className = i >= 2 && text !== "0" && text !== NOTHING ? "bad" : "";
    });
    const rows = data.requests.filter((row) => row.total > 0);
    this.most = Math.max(...rows.map((row) => row.requests_per_s || 0), 0);
    this.requests.update(rows);
    this.processes.update(data.processes);
  }
}

/** A name such as AlterUserScramCredentials, which may be broken before each of its words. */
function breakable(name) {
  return name.split(/(?=[A-Z])/).flatMap((word, i) => (i ? [h("wbr"), word] : [word]));
}
