// Dialogs: the keys, and forms that ask before something is changed.

import { h, replace } from "./dom.js";
import { ApiError, change } from "./api.js";

/** Show a dialog, and return it. It is removed when it is closed. */
export function show(title, ...children) {
  const close = h("button", { class: "quiet", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, "✕");
  const dialog = h("dialog", { "aria-label": title }, h("header", null, h("h2", null, title), close), children);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function toast(text, isError = false) {
  const place = document.getElementById("toast");
  const one = h("div", { class: isError ? "bad" : "good" }, text);
  place.append(one);
  setTimeout(() => one.remove(), isError ? 8000 : 4000);
}

export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", null, label), input, hint && h("small", null, hint));
}

/**
 * A form that makes a change. `fields` are elements, `read()` returns [name, fields of the change].
 * With `preview(answer)` the first click asks what would be, and only the second one does it. `typed` is a
 * text that has to be typed, before what cannot be undone.
 */
export function form({ title, about, fields, read, action, isDanger, typed, preview, done }) {
  const said = h("div", { class: "said", role: "status" });
  const check = typed && h("input", { type: "text", autocomplete: "off", spellcheck: "false", name: "typed" });
  const button = h("button", { type: "submit", class: isDanger ? "danger" : "primary" }, preview ? "Preview" : action);
  let isSeen = !preview;
  const forget = () => {
    if (preview) {
      isSeen = false;
      button.textContent = "Preview";
      replace(said);
    }
  };
  async function submit(event) {
    event.preventDefault();
    if (typed && check.value !== typed) {
      replace(said, h("p", { class: "bad" }, `Type ${typed} to confirm.`));
      return;
    }
    button.disabled = true;
    try {
      const [name, values] = read();
      const answer = await change(name, preview ? { ...values, execute: isSeen } : values);
      if (isSeen) {
        dialog.close();
        toast(answer.said);
        done?.();
        return;
      }
      replace(said, preview(answer));
      isSeen = true;
      button.textContent = action;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      replace(said, h("p", { class: "bad" }, error.message));
    } finally {
      button.disabled = false;
    }
  }
  const dialog = show(title, h("form", { onsubmit: submit, oninput: forget, onchange: forget },
    about && h("p", { class: "dim" }, about), fields,
    typed && field(`Type ${typed} to confirm`, check), said,
    h("footer", null, h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"), button)));
  dialog.querySelector("form :is(input, select, textarea)")?.focus();
  return dialog;
}

export function keys() {
  const rows = [
    ["1 – 7", "views"], ["/", "search"], ["j k ↓ ↑", "next, previous row"], ["Enter", "open the row"],
    ["Esc", "close, or back"], ["t", "live tail of a topic on or off"], ["d", "light, dark or as the system"], ["?", "these keys"],
  ];
  show("Keys", h("dl", { class: "keys" }, rows.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])));
}
