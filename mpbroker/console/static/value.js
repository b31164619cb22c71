// Keys and values of records: as JSON with its own digits, as text, or as bytes.

import { h } from "./dom.js";

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)|([{}[\],])|\s+/gy;
const BYTES_PER_LINE = 16;
// Lines of deeper JSON would be indentation above all: 64 KB of brackets could make gigabytes of it.
const DEPTH_MAX = 100;
const LETTERS_MAX = 4 << 20;
// Letters that nobody sees, or that turn the order of those behind them.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Write letters that cannot be seen as escapes. */
export const visible = (text) => text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function bytesOf(value) {
  if (value.b64 !== undefined) return Uint8Array.from(atob(value.b64), (one) => one.charCodeAt(0));
  return new TextEncoder().encode(value.text);
}

const STRING = /"(?:[^"\\]|\\.)*"/g;

/** Write the strings of JSON as people do: "Gr\u00fc\u00dfe" is "Grüße". What is no JSON stays. */
function spelled(text) {
  if (!text.includes("\\u")) return text;
  return text.replace(STRING, (one) => {
    try {
      return JSON.stringify(JSON.parse(one));
    } catch {
      return one;
    }
  });
}

/** Return a short text of a value in one line. */
export function preview(value, most = 300) {
  if (value === null) return null;
  if (value.json !== undefined) return visible(value.json.slice(0, most));
  if (value.b64 !== undefined) {
    return [...bytesOf(value).slice(0, 32)].map((one) => one.toString(16).padStart(2, "0")).join(" ");
  }
  return visible((/^\s*[[{"]/.test(value.text) ? spelled(value.text) : value.text).slice(0, most).replace(/[\r\n\t]+/g, " "));
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

/**
 * Return JSON in lines, coloured. Numbers keep their digits, which JSON.parse would round.
 * Return null if it is nested too deeply, or would be too long.
 */
export function pretty(text) {
  const parts = [];
  let depth = 0;
  let before = "";
  let letters = 0;
  const put = (written, kind) => {
    letters += written.length;
    parts.push(kind ? h("span", { class: kind }, written) : written);
  };
  const line = () => put(`\n${"  ".repeat(depth)}`);
  for (const [whole, string, colon, number, word, sign] of text.matchAll(TOKEN)) {
    const opens = sign === "{" || sign === "[";
    const closes = sign === "}" || sign === "]";
    if (closes) depth -= 1;
    const isEmpty = (before === "{" && sign === "}") || (before === "[" && sign === "]");
    if (closes && !isEmpty) line();
    else if ((before === "{" || before === "[") && whole.trim() && !isEmpty) line();
    if (string && colon) {
      put(visible(spelled(string)), "j-key");
      put(": ");
    } else if (string) put(visible(spelled(string)), "j-text");
    else if (number) put(number, "j-number");
    else if (word) put(word, "j-word");
    else if (sign) put(sign);
    if (opens) depth += 1;
    if (sign === ",") line();
    if (whole.trim()) before = sign || "x";
    if (depth > DEPTH_MAX || letters > LETTERS_MAX) return null;
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
