// How the pages make what is seen: elements with text in them. There is no way from a string to markup here, so what an
// agent or a caller wrote is always shown as it was written: what nobody can see, by its number.

import { RIGHT_TO_LEFT, visible } from "./visible.js";

/**
 * An element. `properties` are those of the element (`className`, `type`, `hidden`, …); `on…` adds a listener,
 * `data-…`, `aria-…`, `role` and `for` are attributes. Children are nodes or text; null and false are left out.
 */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (/^(data|aria)-|^(role|for)$/.test(key)) made.setAttribute(key, key === "aria-label" ? visible(value) : value);
    else made[key] = key === "title" ? visible(value) : value;
  }
  made.append(...shown(children));
  return made;
}

/** Puts `children` in the place of what is in `parent`. */
export function fill(parent, ...children) {
  parent.replaceChildren(...shown(children));
  return parent;
}

/** Whatever is to be seen of a list of children. Text beside others is kept from changing the order of those. */
function shown(children) {
  const there = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  return there.map((child) => {
    if (child instanceof Node) return child;
    const text = visible(child);
    if (there.length === 1 || !RIGHT_TO_LEFT.test(text)) return text;
    const apart = document.createElement("bdi");
    apart.textContent = text;
    return apart;
  });
}

/** The element with this id, which the page has. */
export const byId = (id) => document.getElementById(id);

/** A link to somewhere else, if `url` is one that a browser may open: other schemes than these can run scripts. */
export function link(url, text = url) {
  const parsed = URL.canParse(url) ? new URL(url) : null;
  if (!parsed || !["http:", "https:", "mailto:"].includes(parsed.protocol)) return document.createTextNode(visible(text));
  return element("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer" }, text);
}

/** A time of day for a time stamp, before today with its date; with the whole of it, in UTC, for whoever points at it. */
export function clock(timestamp) {
  const date = new Date(timestamp);
  if (Number.isNaN(date.getTime())) return element("span", {}, String(timestamp ?? ""));
  const isToday = date.toDateString() === new Date().toDateString();
  const day = isToday ? {} : { day: "numeric", month: "short" };
  const text = date.toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit", second: isToday ? "2-digit" : undefined }).replace(",", "");
  return element("time", { dateTime: date.toISOString(), title: date.toISOString() }, text);
}
