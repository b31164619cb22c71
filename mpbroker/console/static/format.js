// Numbers and times as the page writes them. What is not known is a dash.

export const NOTHING = "–";
const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const LONG_MAX = "9223372036854775807";
// All times are those of the browser's zone, and have their day unless it is today.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

export const count = (value) => (isKnown(value) ? whole.format(value) : NOTHING);

/** Write a number with the singular or plural that goes with it. */
export const counted = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** Write a number in three digits: 12.3k. */
export function short(value) {
  if (!isKnown(value)) return NOTHING;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) return digits(value / size) + unit;
  }
  return digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return trimmed(value.toFixed(1));
  return trimmed(value.toFixed(2));
}

const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

export function bytes(value) {
  if (!isKnown(value)) return NOTHING;
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (Math.abs(size) < 999.5 || unit === "TB") return `${digits(size)} ${unit}`;
    size /= 1000;
  }
  return NOTHING;
}

export const rate = (value) => (isKnown(value) ? `${short(value)}/s` : NOTHING);
export const byteRate = (value) => (isKnown(value) ? `${bytes(value)}/s` : NOTHING);
export const percent = (value) => (isKnown(value) ? `${value < 9.95 ? digits(value) : value.toFixed(0)} %` : NOTHING);

export function ms(value) {
  if (!isKnown(value)) return NOTHING;
  if (value >= 999.5) return `${digits(value / 1000)} s`;
  return value > 0 && value < 0.0995 ? `${digits(value * 1000)} µs` : `${digits(value)} ms`;
}

export function duration(value) {
  if (!isKnown(value)) return NOTHING;
  const all = Math.floor(value);
  const [d, hours, minutes, rest] = [all / 86400, (all % 86400) / 3600, (all % 3600) / 60, all % 60].map(Math.floor);
  if (d) return `${d} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

/** Write a duration that a setting has in ms, so that a person sees what 604800000 is. */
function msMeans(value) {
  if (!isKnown(value) || value < 1000) return "";
  for (const [size, unit] of [[86400e3, "d"], [3600e3, "h"], [60e3, "min"], [1e3, "s"]]) {
    if (value % size === 0) return `${whole.format(value / size)} ${unit}`;
  }
  return "";
}

/** Say what a setting's number means to a person; "" where it says so itself. */
export function settingMeans(name, value) {
  const number = Number(value);
  if (value === LONG_MAX) return "no limit";
  if (name.endsWith(".ms")) return msMeans(number);
  return /\.bytes$|\.size$/.test(name) && number >= 1000 ? bytes(number) : "";
}

const LAST = 8.64e15;
const isTime = (value) => isKnown(value) && value >= 0 && value < LAST;
const two = (number) => String(number).padStart(2, "0");
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
const withDay = (at, text) => (at.toDateString() === new Date().toDateString() ? text : `${day(at)} ${text}`);
const milliseconds = (at) => `${seconds.format(at)}.${String(at.getMilliseconds()).padStart(3, "0")}`;

export const timeOfDay = (at) => clock.format(at);
/** Write a time (ms) to the second. */
export const timeWithSeconds = (value) => withDay(new Date(value), seconds.format(value));
/** Write a timestamp to the millisecond. */
export const stamp = (value) => (isTime(value) ? withDay(new Date(value), milliseconds(new Date(value))) : NOTHING);
/** Write a timestamp with its day and its distance from UTC, whatever the day. */
export const fullStamp = (value) => (isTime(value) ? `${day(new Date(value))} ${milliseconds(new Date(value))} ${zone(value)}` : NOTHING);

/** Return the distance of local time from UTC: UTC+02:00. */
export function zone(value = Date.now()) {
  const minutes = -new Date(value).getTimezoneOffset();
  if (!minutes) return "UTC";
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

/** Return what a person wrote as a time, for the broker: without a zone it is local time, as all that is shown. */
export function timeFor(text) {
  const isLocal = /^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?$/.test(text);
  const at = isLocal ? new Date(text.length === 10 ? `${text}T00:00` : text.replace(" ", "T").replace(",", ".")).getTime() : NaN;
  return Number.isFinite(at) && at >= 0 ? String(at) : text;
}
