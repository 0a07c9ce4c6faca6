// What passes, as it passes: who called whom, by which rule, and what came of it.

import { element } from "./dom.js";
import { List } from "./list.js";
import { choice, count, explainPath, pathOf, setPill, setText, timeOfDay, toneOfOutcome, took, who } from "./show.js";
import { visible } from "./visible.js";

const OUTCOMES = [
  ["", "All outcomes"],
  ["answered", "Answered"],
  ["refused", "Refused"],
  ["caller_left", "Caller left"],
];

const asked = { text: "", outcome: "", method: "" };

const COLUMNS = [
  { title: "Time", className: "time" },
  { title: "Caller → target", className: "pair" },
  { title: "Method", className: "method" },
  { title: "Rule", className: "rule" },
  { title: "Outcome", className: "outcome" },
  { title: "Status", className: "number http" },
  { title: "Took", className: "number took" },
  { title: "Why", className: "why" },
];

function make() {
  const caller = element("span", { className: "caller" });
  const target = element("a", { className: "target" });
  const state = element("span", { className: "state" });
  const why = element("a", {}, "Explain");
  const cell = (className, ...children) => element("span", { className, role: "cell" }, children);
  const cells = {
    time: cell("time"),
    pair: cell("pair", caller, " → ", target),
    method: cell("method"),
    rule: cell("rule"),
    outcome: cell("outcome", state),
    http: cell("number http"),
    took: cell("number took"),
    why: cell("why", why),
  };
  return Object.defineProperties(cells, { caller: { value: caller }, target: { value: target }, state: { value: state }, link: { value: why } });
}

function show(cells, one) {
  setText(cells.time, timeOfDay(one.at));
  setText(cells.caller, who(one.caller));
  setText(cells.target, one.target ?? "?");
  setHref(cells.target, `#${pathOf(one.target ?? "")}`);
  setText(cells.method, [one.method, one.stream && "⇶", one.bridged].filter(Boolean).join(" "));
  cells.method.title = [one.stream && "a stream", one.bridged && `translated: A2A ${one.bridged}`].filter(Boolean).join(", ");
  setText(cells.rule, one.rule ?? "–");
  setPill(cells.state, one.outcome, toneOfOutcome(one));
  setText(cells.http, one.status ? String(one.status) : "–");
  setText(cells.took, took(one.ms));
  setHref(cells.link, one.caller ? `#${explainPath(one.caller, one.target)}` : `#/audit?${new URLSearchParams({ request_id: one.id })}`);
  setText(cells.link, one.caller ? "Explain" : "Record");
  const name = visible(one.caller ? `Explain ${who(one.caller)} to ${one.target}` : `Record of request ${one.id}`);
  if (cells.link.getAttribute("aria-label") !== name) cells.link.setAttribute("aria-label", name);
}

function setHref(link, href) {
  if (link.getAttribute("href") !== href) link.href = href;
}

/** `{ element, change, close }` of the view. */
export function exchangesView(model) {
  /** What is shown while it stands still. */
  let still = null;
  const summary = element("p", { className: "muted small", role: "status" });
  const list = new List({ label: "Exchanges", className: "exchanges", columns: COLUMNS, make, show, empty: nothing });

  function nothing() {
    const filtered = model.exchanges.length > 0;
    return element("p", { className: "muted" }, filtered ? "No exchange fits: change what you look for." : "Nothing has passed since this page was opened. Exchanges appear here as they end; earlier ones are in the audit.");
  }

  function fits({ caller, target, method, outcome, refused, id, rule, bridged }) {
    const wanted = asked.outcome;
    if (wanted === "refused" ? !refused : wanted !== "" && outcome !== wanted) return false;
    if (asked.method !== "" && method !== asked.method) return false;
    const text = asked.text.trim().toLowerCase();
    return text === "" || [caller, target, method, outcome, id, rule, bridged].some((one) => one?.toLowerCase().includes(text));
  }

  function change() {
    const source = still ?? model.exchanges;
    const items = source.filter(fits);
    const more = model.untold > 0 ? `; ${count(model.untold)} more were too many to list, and are in the audit` : "";
    setText(summary, `${count(items.length)} of the last ${count(source.length)}${more}`);
    methods();
    list.set(items);
  }

  /** The methods that were seen can be asked for. */
  const seen = new Set();
  function methods() {
    for (const { method: one } of model.exchanges) {
      if (seen.has(one)) continue;
      seen.add(one);
      method.append(element("option", { value: one, selected: one === asked.method }, one));
    }
  }

  const search = element("input", {
    type: "search",
    value: asked.text,
    placeholder: "Caller, target, reason or request id",
    autocomplete: "off",
    spellcheck: false,
    "aria-label": "Search exchanges",
    oninput: () => {
      asked.text = search.value;
      change();
    },
  });
  const outcome = choice(OUTCOMES, { value: asked.outcome, "aria-label": "Outcome", onchange: () => ((asked.outcome = outcome.value), change()) });
  const method = choice([["", "All methods"]], { value: "", "aria-label": "Method", onchange: () => ((asked.method = method.value), change()) });
  const hold = element(
    "button",
    {
      type: "button",
      "aria-pressed": "false",
      onclick: () => {
        still = still ? null : model.exchanges;
        hold.setAttribute("aria-pressed", String(still !== null));
        setText(hold, still ? "Go on" : "Hold");
        change();
      },
    },
    "Hold",
  );
  const tools = element("div", { className: "tools" }, search, outcome, method, hold, summary);
  const view = element("div", { className: "view fills" }, element("h1", { tabIndex: -1 }, "Exchanges"), tools, list.element);
  return { title: "Exchanges", element: view, change, close: () => list.close() };
}
