// Elements made of data. Texts are only ever set as text: nothing that the broker says is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "hidden", "htmlFor", "selected", "open"]);

/** Make an element. `props`: attributes, `class`, properties, and listeners as `onclick`. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (AS_PROPERTY.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Make a choice of a select. */
export const option = (value, text) => h("option", { value }, text);

/** Make a name with its value, of a list of facts. */
export const fact = ([name, value, kind]) => h("div", null, h("dt", null, name), h("dd", { class: kind }, value));

/** Put these children in the place of those that an element has. */
export function replace(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

/** Do what `replace` does, but keep each child that looks like the new one in its place: a link keeps its focus. */
export function update(element, ...children) {
  const wanted = [...put(document.createDocumentFragment(), children).childNodes];
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
  wanted.forEach((child, i) => {
    const there = element.childNodes[i];
    if (!there) element.append(child);
    else if (!there.isEqualNode(child)) there.replaceWith(child);
  });
}

/** Set a text, and touch nothing where it is the same: a selection stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Mark each place in a text where the wanted text is, whatever its case. */
export function marked(text, wanted) {
  if (!wanted) return [text];
  const parts = [];
  const low = text.toLowerCase();
  const want = wanted.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(want); at >= 0; at = low.indexOf(want, from)) {
    parts.push(text.slice(from, at), h("mark", null, text.slice(at, at + want.length)));
    from = at + want.length;
  }
  parts.push(text.slice(from));
  return parts;
}
