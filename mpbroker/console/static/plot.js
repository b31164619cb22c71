// Plots over time, as SVG. A line breaks where nobody has looked for a while.

import { h, replace, s, setText } from "./dom.js";
import { NOTHING, timeOfDay, timeWithSeconds } from "./format.js";

const PAD = { right: 8, top: 8, bottom: 18 };
const CHARACTER = 6.1;
const GAP_S = 9;
const MIN_SPAN_S = 60;
const TICKS_Y = 3;
let plots = 0;

/** Return steps from 0 to at least `most`, at round numbers. */
function ticks(most, wanted = TICKS_Y) {
  if (!(most > 0)) return [0, 1];
  const raw = most / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = 0; at < most + step * 0.999; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

/** Split points [t, v] where v is unknown, or where too much time is between two. */
function runs(points, gap = GAP_S) {
  const found = [];
  let last = null;
  for (const point of points) {
    if (point[1] === null || point[1] === undefined) {
      last = null;
      continue;
    }
    if (last === null || point[0] - last[0] > gap) found.push([]);
    found[found.length - 1].push(point);
    last = point;
  }
  return found;
}

const path = (points, x, y) => points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");

/**
 * A plot in a card. `series`: [{name, colour: 1…5}], `text` writes a value.
 * `update(points)` takes an array of [t, v0, v1, …], t in seconds.
 */
export class Plot {
  constructor({ title, series, text, height = 150, fill = true }) {
    Object.assign(this, { series, text, height, isFilled: fill, title, id: `plot${(plots += 1)}` });
    this.points = [];
    this.width = 0;
    this.now = series.map(() => h("b", { class: "now" }, NOTHING));
    this.svg = s("svg", { class: "plot", role: "img", height });
    this.tip = h("div", { class: "tip", hidden: true });
    this.holder = h("div", { class: "plot-box" }, this.svg, this.tip);
    this.element = h("section", { class: "card", "aria-label": title },
      h("header", null, h("h3", null, title),
        h("div", { class: "legend" }, series.map((one, i) => h("span", { class: `key s${one.colour}` }, one.name, " ", this.now[i])))),
      this.holder);
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.holder);
    this.holder.addEventListener("pointermove", (event) => this.point(event));
    this.holder.addEventListener("pointerleave", () => this.point(null));
  }

  update(points) {
    this.points = points;
    const last = points.length ? points[points.length - 1] : [];
    this.now.forEach((one, i) => setText(one, this.text(last[i + 1])));
    this.svg.setAttribute("aria-label", `${this.title}: ` + this.series.map((one, i) => `${one.name} ${this.text(last[i + 1])}`).join(", "));
    this.draw();
  }

  draw() {
    const { width, height, points } = this;
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("width", width);
    const end = points.length ? points[points.length - 1][0] : Date.now() / 1000;
    const begin = Math.min(points.length ? points[0][0] : end, end - MIN_SPAN_S);
    const most = points.reduce((high, point) => Math.max(high, ...point.slice(1).map((v) => v || 0)), 0);
    const steps = ticks(most);
    const top = steps[steps.length - 1];
    const labels = steps.map((step) => (step === 0 ? "0" : this.text(step)));
    const left = 12 + CHARACTER * Math.max(...labels.map((one) => one.length));
    this.left = left;
    this.x = (t) => left + ((t - begin) / (end - begin)) * (width - left - PAD.right);
    const y = (v) => height - PAD.bottom - (v / top) * (height - PAD.top - PAD.bottom);
    replace(this.svg, steps.map((step, i) => [
      s("line", { class: "grid", x1: left, x2: width - PAD.right, y1: y(step), y2: y(step) }),
      s("text", { class: "tick", x: left - 6, y: y(step) + 3.5, "text-anchor": "end" }, labels[i]),
    ]), this.timeTicks(begin, end), this.series.map((one, i) => this.line(one, i, y)),
    s("line", { class: "cross", y1: PAD.top, y2: height - PAD.bottom, visibility: "hidden" }));
  }

  timeTicks(begin, end) {
    const span = end - begin;
    const step = [30, 60, 120, 300].find((one) => span / one <= Math.max(2, this.width / 72)) || 600;
    const found = [];
    for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
      const x = this.x(t);
      if (x < this.left + 14 || x > this.width - 20) continue;
      const text = step < 60 ? timeWithSeconds(t * 1000) : timeOfDay(t * 1000);
      found.push(s("text", { class: "tick", x, y: this.height - 4, "text-anchor": "middle" }, text));
    }
    return found;
  }

  line(one, i, y) {
    const pieces = runs(this.points.map((point) => [point[0], point[i + 1]]));
    return pieces.map((piece) => [
      this.isFilled && i === 0 && piece.length > 1 && s("path", {
        class: `area s${one.colour}`,
        d: `${path(piece, this.x, y)}L${this.x(piece[piece.length - 1][0]).toFixed(1)} ${y(0)}L${this.x(piece[0][0]).toFixed(1)} ${y(0)}Z`,
      }),
      piece.length > 1 ? s("path", { class: `line s${one.colour}`, d: path(piece, this.x, y) })
        : s("circle", { class: `dot s${one.colour}`, cx: this.x(piece[0][0]), cy: y(piece[0][1]), r: 2 }),
    ]);
  }

  point(event) {
    const cross = this.svg.querySelector(".cross");
    const box = this.holder.getBoundingClientRect();
    const at = event && this.points.length && this.x ? event.clientX - box.left : null;
    if (at === null || !cross) {
      this.tip.hidden = true;
      cross?.setAttribute("visibility", "hidden");
      return;
    }
    const nearest = this.points.reduce((best, one) => (Math.abs(this.x(one[0]) - at) < Math.abs(this.x(best[0]) - at) ? one : best));
    const x = this.x(nearest[0]);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    replace(this.tip, h("div", { class: "dim" }, timeWithSeconds(nearest[0] * 1000)),
      this.series.map((one, i) => h("div", { class: `key s${one.colour}` }, one.name, " ", h("b", null, this.text(nearest[i + 1])))));
    this.tip.hidden = false;
    this.tip.classList.toggle("left", x > box.width / 2);
    this.tip.style.left = `${x}px`;
  }
}

/** A small line of values without axes, for a table. */
export function spark(values, { width = 96, height = 22, colour = 1 } = {}) {
  const known = values.filter((value) => value !== null);
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  if (known.length < 2) return svg;
  const most = Math.max(...known, 1e-9);
  const step = (width - 2) / (known.length - 1);
  const points = known.map((value, i) => [i, value]);
  const line = path(points, (i) => 1 + i * step, (v) => height - 2 - (v / most) * (height - 4));
  svg.append(s("path", { class: `area s${colour}`, d: `${line}L${width - 1} ${height}L1 ${height}Z` }),
    s("path", { class: `line s${colour}`, d: line }));
  return svg;
}

/** A bar from 0 to 100 %. */
export function bar(share, kind = "") {
  const inner = h("i", null);
  inner.style.width = `${Math.max(0, Math.min(100, share || 0))}%`;
  return h("span", { class: `meter ${kind}`, "aria-hidden": "true" }, inner);
}
