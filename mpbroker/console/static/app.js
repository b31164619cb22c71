// The shell: views by the address behind #, one poll for all of them, keys, theme, token.

import { Access } from "./access.js";
import { ApiError, get, token } from "./api.js";
import { field, keys, show } from "./dialog.js";
import { h, replace, s, setText } from "./dom.js";
import { duration, zone } from "./format.js";
import { Group, Groups } from "./groups.js";
import { Health } from "./health.js";
import { History } from "./history.js";
import { Missing } from "./missing.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { Settings } from "./settings.js";
import { Topic, Topics } from "./topics.js";

const VIEWS = [
  ["overview", "Overview", "M3 17l5-6 4 3 8-9", Overview], ["topics", "Topics", "M4 6h16M4 12h16M4 18h10", Topics],
  ["groups", "Groups", "M8 11a3 3 0 100-6 3 3 0 000 6zm8 2a3 3 0 100-6 3 3 0 000 6zM3 19c0-3 2-5 5-5s5 2 5 5m1-3c4 0 6 1 6 3", Groups],
  ["pipeline", "Pipeline", "M3 7h6v6H3zm12 4h6v6h-6zM9 10h3v4h3", Pipeline],
  ["access", "Access", "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zm-3 9l2 2 4-4", Access],
  ["settings", "Settings", "M4 7h9m5 0h2M4 17h3m5 0h8M13 4.5v5M7 14.5v5", Settings], ["health", "Health", "M3 12h4l3-7 4 14 3-7h4", Health],
];
const THEMES = ["auto", "light", "dark"];
const THEME_ICONS = { auto: "◐", light: "☀", dark: "☾" };
const THEME_KEY = "mpbroker.console.theme";
const RETRY_MS = 2000;
const GONE_MS = 10000;
const HEALTHS = { running: ["running", "good"], recovering: ["recovering", "warn"], silent: ["supervisor silent", "warn"] };

class Shell {
  constructor() {
    this.history = new History();
    this.main = document.getElementById("main");
    this.pill = document.getElementById("health");
    this.problems = document.getElementById("problems");
    this.aboutText = document.getElementById("about");
    this.mayWrite = false;
    // Topics deleted here, and when: a look that began before still has them.
    this.gone = new Map();
    this.nav = VIEWS.map(([key, title, icon], i) => h("a", { href: `#/${key}`, title: `${title} (${i + 1})` },
      s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: icon })), h("span", null, title), h("kbd", { "aria-hidden": "true" }, String(i + 1))));
    document.getElementById("nav").append(...this.nav);
    document.getElementById("help").addEventListener("click", keys);
    document.getElementById("theme").addEventListener("click", () => this.nextTheme());
    document.getElementById("token").addEventListener("click", () => this.explainToken());
    this.setTheme(localStorage.getItem(THEME_KEY) || "auto");
    this.sayZone();
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => document.hidden || this.poll());
  }

  async begin() {
    this.takeToken();
    await this.learn();
    this.route();
    this.poll();
  }

  /** Return whether a topic was deleted here a moment ago. */
  isGone(topic) {
    return Date.now() - (this.gone.get(topic) ?? -Infinity) < GONE_MS;
  }

  /** Take a token out of the address. Returns whether there was one. */
  takeToken() {
    const found = /^#token=([\w-]+)$/.exec(location.hash);
    if (!found) return false;
    token.set(found[1]);
    history.replaceState(null, "", "#/overview");
    return true;
  }

  /** Ask what this page may do. */
  async learn() {
    try {
      this.about = await get("about");
    } catch (error) {
      this.say(error.message, "bad");
      return;
    }
    this.mayWrite = this.about.may_write && this.about.has_token;
    const button = document.getElementById("token");
    button.hidden = this.about.has_token && this.about.may_write;
    setText(button, this.about.needs_token && !this.about.has_token ? "Token" : "Read-only");
    button.title = this.about.may_write ? "Enter the console's token to change something" : "This console changes nothing: how to allow it";
    button.classList.toggle("wanted", this.about.needs_token);
  }

  // ---- views

  async route() {
    if (this.takeToken()) await this.learn();
    const [view, name, tab] = location.hash.replace(/^#\/?/, "").split("/").map(safely);
    const found = VIEWS.find((one) => one[0] === (view || VIEWS[0][0])) || [];
    const hadFocus = this.main.contains(document.activeElement) && this.main !== document.activeElement;
    this.view?.close?.();
    if (!found.length) this.view = new Missing(`There is no view ${view}`, "#/overview", "Overview");
    else if (found[0] === "topics" && name) this.view = new Topic(this, name, tab);
    else if (found[0] === "groups" && name) this.view = new Group(this, name);
    else this.view = new found[3](this);
    this.nav.forEach((link, i) => (VIEWS[i] === found ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    document.title = `${name || found[1] || view} · mpbroker`;
    replace(this.main, this.view.element);
    // Whoever came by a link in the view goes on from its beginning, not from the top of the page.
    if (hadFocus) this.main.focus({ preventScroll: true });
    this.main.scrollTo?.(0, 0);
    scrollTo(0, 0);
    if (this.data) this.view.live?.(this.data, this.history);
  }

  /** Tell a failure where it belongs, and ask for the token if that is what is missing. */
  failed(error, place) {
    if (!(error instanceof ApiError)) throw error;
    const text = h("span", { class: error.status === 401 ? "" : "bad" }, error.message);
    // A view asks every two seconds: what stands there already keeps its focus.
    if (place.firstElementChild?.isEqualNode(text)) return;
    replace(place, text, error.status === 401 && [" ", h("button", { type: "button", onclick: () => this.askToken() }, "Enter the token")]);
  }

  /** Ask for the token where it would help, and say how to allow changes where it would not. */
  explainToken() {
    const { may_write: mayWrite, needs_token: needsToken, has_token: hasToken } = this.about || {};
    if (!this.about || mayWrite || (needsToken && !hasToken)) {
      this.askToken();
      return;
    }
    show("This console is read-only", h("div", { class: "text" },
      h("p", null, "It changes nothing, because the broker's settings do not allow it. To create topics, produce records, reset offsets and more:"),
      h("ol", null, h("li", null, "Set ", h("code", null, "http.console.write=true"), " in the broker's file and run ", h("code", null, "mpbroker ctl reload"), ", or start it with ", h("code", null, "-o http.console.write=true"), "."),
        h("li", null, "Open the address that ", h("code", null, "mpbroker ctl console"), " prints: it has the token."))));
  }

  askToken() {
    const input = h("input", { type: "password", autocomplete: "off", name: "token", required: true });
    const dialog = show("Token", h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        token.set(input.value.trim().replace(/^.*#token=/, ""));
        await this.learn();
        if (this.about?.has_token) {
          dialog.close();
          this.route();
        } else replace(said, h("p", { class: "bad" }, "That is not this broker's token."));
      },
    }, h("p", { class: "dim" }, "mpbroker ctl console, on the broker's host and as its user, prints it. This tab keeps it until it is closed."),
    field("Token", input), h("footer", null, h("button", { type: "submit", class: "primary" }, "Use it"))));
    const said = h("div");
    dialog.querySelector("form").insertBefore(said, dialog.querySelector("footer"));
    input.focus();
  }

  // ---- what is live

  async poll() {
    clearTimeout(this.timer);
    if (document.hidden || this.isAsking) return;
    this.isAsking = true;
    let pause = RETRY_MS;
    try {
      const data = await get("live", { after: this.history.number });
      pause = data.every_s * 1000;
      if (!this.about) await this.learn();
      if (this.history.add(data)) {
        this.data = data;
        this.saySeen(data);
        this.view?.live?.(data, this.history);
      } else pause = 0;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.say(error.status ? "console refuses" : "no answer", "bad", error.message);
    } finally {
      this.isAsking = false;
      this.timer = setTimeout(() => this.poll(), pause);
    }
  }

  saySeen(data) {
    const [text, kind] = HEALTHS[data.broker.health] || ["not reached", "bad"];
    const isRecovering = data.broker.health === "recovering";
    if (data.problems.length && !isRecovering) this.say("not ready", "bad");
    else this.say(text, kind, data.broker.note);
    setText(this.problems, isRecovering ? "" : data.problems.join("\n"));
    const { node_id: node, up_s: up, version, listeners } = data.broker;
    setText(this.aboutText, [node === null ? "" : `node ${node}`, up === null ? "" : `up ${duration(up)}`, listeners.join(", "), version].filter(Boolean).join("  ·  "));
  }

  /** Say once in which zone all times are. */
  sayZone() {
    const place = document.getElementById("zone");
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
    setText(place, zone());
    place.title = `All times are those of this browser's zone: ${name}, now ${zone()}`;
  }

  say(text, kind, why = "") {
    setText(this.pill, text);
    this.pill.className = `pill ${kind}`;
    this.pill.title = why;
  }

  // ---- theme and keys

  setTheme(name) {
    const theme = THEMES.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    button.textContent = THEME_ICONS[theme];
    button.title = `Theme: ${theme} (d)`;
    button.setAttribute("aria-label", `Colour theme: ${theme}`);
    localStorage.setItem(THEME_KEY, theme);
    this.theme = theme;
  }

  nextTheme() {
    this.setTheme(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length]);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else this.back();
      return;
    }
    if (isTyping) return;
    const number = Number(event.key);
    if (number >= 1 && number <= VIEWS.length) location.hash = `#/${VIEWS[number - 1][0]}`;
    else if (event.key === "?") keys();
    else if (event.key === "/") this.view?.search?.focus();
    else if (event.key === "d") this.nextTheme();
    else if (event.key === "t") this.view?.toggleTail?.();
    else if (event.key === "j" || event.key === "ArrowDown") this.step(1);
    else if (event.key === "k" || event.key === "ArrowUp") this.step(-1);
    else return;
    event.preventDefault();
  }

  back() {
    const parts = location.hash.split("/");
    if (parts.length > 2) location.hash = parts.slice(0, 2).join("/");
  }

  step(by) {
    const rows = [...this.main.querySelectorAll("tr.opens")];
    const at = rows.indexOf(document.activeElement);
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }
}

function safely(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

new Shell().begin();
