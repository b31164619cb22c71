// Keys and values of records: as JSON with its own digits, as text, or as bytes.

import { h } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)|([{}[\],])|\s+/gy;
const BYTES_PER_LINE = 16;
// Letters that nobody sees, or that turn the order of those behind them.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Write letters that cannot be seen as escapes. */
export const visible = (text) => text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function bytesOf(value) {
  if (value.b64 !== undefined) return Uint8Array.from(atob(value.b64), (one) => one.charCodeAt(0));
  return new TextEncoder().encode(value.text);
}

/** Return a short text of a value in one line. */
export function preview(value, most = 300) {
  if (value === null) return null;
  if (value.b64 !== undefined) {
    return [...bytesOf(value).slice(0, 32)].map((one) => one.toString(16).padStart(2, "0")).join(" ");
  }
  return visible(value.text.slice(0, most).replace(/[\r\n\t]+/g, " "));
}

/** Return whether a text is a JSON object, array or scalar. */
export function isJson(text) {
  if (!/^\s*[[{"\-\dtfn]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Return JSON in lines, coloured. Numbers keep their digits, which JSON.parse would round. */
export function pretty(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [whole, string, colon, number, word, sign] of text.matchAll(TOKEN)) {
    if (sign === "}" || sign === "]") depth -= 1;
    const isEmpty = (before === "{" && sign === "}") || (before === "[" && sign === "]");
    if ((sign === "}" || sign === "]") && !isEmpty) parts.push(line());
    else if ((before === "{" || before === "[") && whole.trim() && !isEmpty) parts.push(line());
    if (string && colon) parts.push(h("span", { class: "j-key" }, visible(string)), ": ");
    else if (string) parts.push(h("span", { class: "j-text" }, visible(string)));
    else if (number) parts.push(h("span", { class: "j-number" }, number));
    else if (word) parts.push(h("span", { class: "j-word" }, word));
    else if (sign) parts.push(sign);
    if (sign === "{" || sign === "[") depth += 1;
    if (sign === ",") parts.push(line());
    if (whole.trim()) before = sign || "x";
  }
  return parts;
}

/** Return bytes as offset, hex and letters. */
export function hex(data) {
  const rows = [];
  for (let at = 0; at < data.length; at += BYTES_PER_LINE) {
    const piece = [...data.slice(at, at + BYTES_PER_LINE)];
    const codes = piece.map((one) => one.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const letters = piece.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${codes.slice(8).join(" ").padEnd(23)}  ${letters}`);
  }
  return rows.join("\n");
}
