// What is shown in place of something that does not exist.

import { h } from "./dom.js";

export class Missing {
  constructor(text, back, title) {
    this.element = h("div", { class: "view" }, missing(text, back, title));
  }
}

/** Return a notice that says what is not there, with a way back. */
export function missing(text, back, title) {
  return h("section", { class: "card missing", role: "status" }, h("h1", null, text),
    h("p", { class: "dim" }, "It may have been deleted, or its name is another one."),
    h("p", null, h("a", { href: back }, `← ${title}`)));
}
