// How things are said: states, times, numbers, refusals, tables. Whatever comes from outside is text.

import { element } from "./dom.js";
import { visible } from "./visible.js";

const number = new Intl.NumberFormat();

/** A whole number, for people. */
export const count = (n) => number.format(n);

/** The tone of a workspace's status. */
export function toneOf(status) {
  if (status === "online") return "ok";
  if (["degraded", "paused", "restarting", "provisioning", "hibernated"].includes(status)) return "warn";
  return "bad";
}

/** The tone of an outcome. */
export function toneOfOutcome({ outcome, refused }) {
  if (refused) return "bad";
  return outcome === "answered" || outcome === "done" ? "ok" : "warn";
}

/** A number of things: `1 workspace`, `2 workspaces`. */
export const countOf = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

/** A word with its colour. */
export const pill = (word, tone) => element("span", { className: "state", "data-tone": tone }, word);

/** A pill that can be changed, for lists. */
export function setPill(span, word, tone) {
  setText(span, word);
  if (span.dataset.tone !== tone) span.dataset.tone = tone;
}

/** Sets the text of an element, if it is another. */
export function setText(node, text) {
  const seen = visible(text);
  if (node.textContent !== seen) node.textContent = seen;
}

/** A span of time in words: `12 s`, `3 min`, `5 h`, `2 d`. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** How long an exchange took. */
export function took(ms) {
  if (ms < 1000) return `${ms} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : span(ms);
}

/** Two digits. */
const two = (n) => String(n).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A moment, as short as it can be: `09:27:50` today, `28 Nov 09:27` before. */
export function moment(time, seconds = true, millis = false) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "–";
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  const long = millis ? `${clock}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}` : `${clock}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return seconds ? long : clock;
  return `${date.getDate()} ${MONTHS[date.getMonth()]} ${millis ? long : clock}`;
}

/** A size: `12 KB`. */
export function bytes(n) {
  if (n < 1000) return `${n} B`;
  return n < 1_000_000 ? `${Math.round(n / 1000)} KB` : `${(n / 1_000_000).toFixed(1)} MB`;
}

const clockOf = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** A time of day. */
export const timeOfDay = (ms) => (Number.isNaN(new Date(ms).getTime()) ? "–" : clockOf.format(ms));

/** A time with its day. */
export function when(time) {
  const date = new Date(time);
  if (time === null || time === undefined || Number.isNaN(date.getTime())) return "–";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return element("time", { dateTime: date.toISOString(), title: date.toISOString() }, `${day} ${clock}`);
}

/** A sentence of the gateway, which writes them without their first capital and their full stop. */
export const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** What is wrong, with its reason and the id that the log has, and something to do about it. */
export function refusal(error, retry) {
  const id = error.requestId ? element("p", { className: "small" }, "Request ", element("code", {}, error.requestId)) : null;
  return element(
    "div",
    { className: "notice", "data-tone": "bad", role: "alert" },
    element("p", {}, sentence(error.message)),
    error.reason ? element("p", { className: "small" }, "Reason ", element("code", {}, error.reason)) : null,
    id,
    retry ? element("button", { type: "button", onclick: retry }, "Try again") : null,
  );
}

/** A caller, as people name it. */
export const who = (caller) => caller?.replace(/:$/, "") ?? "unknown caller";

/** A panel with a title. */
export function panel(title, ...children) {
  return element("section", { className: "panel", "aria-label": title }, element("h2", {}, title), children);
}

/** A panel that has a whole row of its view. */
export function widePanel(title, ...children) {
  const made = panel(title, ...children);
  made.classList.add("wide");
  return made;
}

/** Names and what they are. Values are text or nodes; what is nothing is a dash. */
export function facts(pairs) {
  const there = pairs.filter(Boolean);
  return element(
    "dl",
    { className: "facts" },
    there.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value === null || value === undefined || value === "" ? "–" : value)),
    ),
  );
}

/** A table, whose rows are lists of facts where it has no room. `rows`: arrays of text or nodes. */
export function table(label, heads, rows, empty) {
  if (rows.length === 0) return element("p", { className: "muted nothing" }, empty);
  const head = element("tr", {}, heads.map((title) => element("th", { scope: "col" }, title)));
  // A narrow window has no row of heads: each cell says its own.
  const body = rows.map((cells) => element("tr", {}, cells.map((cell, index) => element("td", { "data-head": heads[index] }, cell ?? "–"))));
  return element(
    "div",
    { className: "table", "data-scrolls": "", tabIndex: 0, role: "group", "aria-label": label },
    element("table", {}, element("thead", {}, head), element("tbody", {}, body)),
  );
}

/** A link to a view of this page. */
export const to = (path, text, className) => element("a", { href: `#${path}`, className: className ?? "" }, text);

/** The path of a workspace's view. */
export const pathOf = (id) => `/workspaces/${encodeURIComponent(id)}`;

/** The path of an explanation. */
export const explainPath = (caller, target) => `/explain?${new URLSearchParams({ caller: caller ?? "", target: target ?? "" })}`;

/** A field with its label above it. */
export function field(label, control) {
  return element("label", { className: "field" }, element("span", {}, label), control);
}

/** A choice among `[value, text]`. */
export function choice(options, properties) {
  return element("select", properties, options.map(([value, text]) => element("option", { value, selected: value === properties.value }, text)));
}

/** Something loads. */
export const loading = (what) => element("p", { className: "muted nothing", role: "status" }, `Loading ${what}…`);

/** Says something to those who listen, and shows it for a while to those who look: above any dialog. */
export function say(text) {
  document.getElementById("told").replaceChildren(visible(text));
  const toasts = document.getElementById("toasts");
  const toast = element("div", { className: "toast", "aria-hidden": "true" }, text);
  toasts.append(toast);
  // Shown anew, it is on top of what was opened since.
  if (toasts.matches(":popover-open")) toasts.hidePopover();
  toasts.showPopover();
  setTimeout(() => {
    toast.remove();
    if (toasts.children.length === 0 && toasts.matches(":popover-open")) toasts.hidePopover();
  }, 5000);
}
