// Readiness, recovery, scrubbing and log directories.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, count, counted, duration, percent, stamp } from "./format.js";
import { bar } from "./plot.js";

export class Health {
  constructor(shell) {
    this.shell = shell;
    this.said = h("p", { class: "said dim", role: "status" });
    this.place = h("div", { class: "cards" });
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Health")), this.said, this.place);
    this.refresh();
  }

  live() { this.refresh(); }

  async refresh() {
    try {
      const found = await get("health");
      replace(this.said);
      replace(this.place, this.ready(found), this.recovery(found), this.directories(found), this.scrub(found), this.remote(found));
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  card(title, state, kind, ...content) {
    return h("section", { class: "card" }, h("header", null, h("h3", null, title), h("span", { class: `state ${kind}` }, state)), content);
  }

  ready({ problems, silent, restarts }) {
    const wrong = [...problems, ...silent];
    return this.card("Readiness", wrong.length ? "not ready" : "ready", wrong.length ? "bad" : "good",
      wrong.length ? h("ul", { class: "list" }, wrong.map((one) => h("li", { class: "bad" }, one))) : h("p", { class: "dim" }, "Recovery is over, each listener answers, every process moves, and each disk takes what producers send."),
      h("p", { class: "dim" }, `${counted(restarts, "process", "processes")} replaced since the start.`));
  }

  recovery({ recovery }) {
    if (!recovery.length) return this.card("Recovery", "over", "good", h("p", { class: "dim" }, "All log directories are open."));
    return this.card("Recovery", "going on", "warn", recovery.map((one) => {
      const share = one.bytes ? one.bytes_done / one.bytes : one.partitions ? one.partitions_done / one.partitions : 0;
      return h("div", { class: "progress" }, h("div", { class: "row" }, h("code", null, one.log_dir), h("b", null, percent(100 * share))), bar(100 * share, "wide"),
        h("p", { class: "dim" }, `${count(one.partitions_done)} of ${counted(one.partitions, "partition")}`, one.bytes ? `, ${bytes(one.bytes_done)} of ${bytes(one.bytes)}` : "",
          one.seconds_left === null ? "" : `, about ${duration(one.seconds_left)} left`));
    }));
  }

  directories({ log_dirs: dirs, offline_partitions: offline }) {
    const state = dirs.find((one) => one.state !== "online")?.state || (offline ? `${counted(offline, "partition")} offline` : "online");
    const without = offline > 0 && h("p", { class: "bad" }, `${counted(offline, "partition has", "partitions have")} no leader and can be neither read nor written; the broker's log names them, and what to do.`);
    return this.card("Log directories", state, state === "online" ? "good" : "bad", without, dirs.map((one) => {
      return h("div", { class: "progress" }, h("div", { class: "row" }, h("code", null, one.log_dir), one.state !== "online" && h("b", { class: "bad" }, one.state)),
        one.total_bytes > 0 ? fileSystem(one) : h("p", { class: "dim" }, bytes(one.size_bytes)));
    }));
  }

  remote({ remote: one }) {
    if (!one || !one.enabled) return null;
    const isWell = one.state === "ok" || one.state === "behind";
    return this.card("Object store", one.state, isWell ? "good" : "bad",
      h("p", { class: "dim" }, h("code", null, one.url), ` has ${counted(one.segments, "segment")}, ${bytes(one.bytes)}.`),
      h("p", { class: "dim" }, `${counted(one.pending_segments, "segment")}, ${bytes(one.pending_bytes)}, ${one.pending_segments === 1 ? "waits" : "wait"} for the upload${one.pending_since_ms ? `, the oldest since ${stamp(one.pending_since_ms)}` : ""}.`),
      h("p", { class: isWell ? "dim" : "bad" }, isWell ? `The tier: ${one.status}` : one.last_error));
  }

  scrub({ scrub, scrub_problem: problem }) {
    if (!scrub) return this.card("Scrubber", "not known", "warn", h("p", { class: "dim" }, problem));
    const damage = scrub.damaged_ranges;
    const ends = scrub.directories.map((one) => h("li", null, h("code", null, one.directory), h("div", null, one.error ? h("span", { class: "bad" }, one.error) : passText(one))));
    return this.card("Scrubber", damage ? `${count(damage)} damaged` : scrub.running ? "running" : "no damage", damage ? "bad" : "good",
      scrub.running && h("div", { class: "progress" }, bar(scrub.pass_total_bytes ? (100 * scrub.pass_bytes) / scrub.pass_total_bytes : 0, "wide"),
        h("p", { class: "dim" }, `${bytes(scrub.pass_bytes)} of ${bytes(scrub.pass_total_bytes)}`)),
      h("ul", { class: "list" }, ends),
      scrub.findings.length > 0 && h("table", { class: "plain" }, h("tbody", null, scrub.findings.slice(0, 100).map((one) => h("tr", null,
        h("th", { scope: "row" }, one.partition), h("td", null, `offsets ${count(one.first)} to ${count(one.behind - 1)} cannot be read: ${one.reason}`))))));
  }
}

/** The file system of a log directory: what this broker has of it, what others have, what is free. */
function fileSystem(one) {
  const own = Math.max(one.size_bytes || 0, 0);
  const others = Math.max(one.total_bytes - one.usable_bytes - own - one.kept_bytes, 0);
  const parts = [["own", "segments", own], ["kept", "commit journal and reserve", one.kept_bytes], ["others", "everything else", others], ["free", "free", one.usable_bytes]];
  const isFull = one.usable_bytes < 0.1 * one.total_bytes;
  const meter = h("span", { class: `meter parts${isFull ? " full" : ""}`, "aria-hidden": "true" }, parts.slice(0, -1).map(([kind, , size]) => {
    const part = h("i", { class: kind });
    part.style.width = `${(100 * size) / one.total_bytes}%`;
    return part;
  }));
  return [h("p", { class: "dim" }, `Its file system has ${bytes(one.total_bytes)}:`), meter,
    h("p", { class: "legend" }, parts.map(([kind, name, size]) => h("span", { class: `key ${kind}` }, `${name} `, h("b", { class: kind === "free" && isFull ? "bad" : null }, bytes(size)))))];
}

function passText(one) {
  if (!one.last_ended_ms) return h("span", { class: "dim" }, "no pass has ended yet");
  return h("span", { class: "dim" }, `last pass ended ${stamp(one.last_ended_ms)}: ${bytes(one.last_bytes)} in ${count(one.last_batches)} batches`);
}
