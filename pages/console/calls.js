// Calls: the newest records of the audit, then what passes as it ends. A row opens with all that is known of its call. The
// address has the filters and the open row, so it can be sent to a colleague.

import { Newest, ask, query, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { explained } from "./explain.js";
import { RESULTS, RESULT_WORDS } from "./health.js";
import { List } from "./list.js";
import { bytes, choice, count, countOf, explainPath, facts, loading, moment, pathOf, refusal, setPill, setText, to, took, when, who } from "./show.js";
import { visible } from "./visible.js";

/** Records of a page, and pages that are read at once to find some that fit. */
const PAGE = 200;
const PAGES_AT_ONCE = 5;

/** Calls that are kept at most. */
const KEPT = 5000;

const COLUMNS = [
  { title: "Time", className: "time" },
  { title: "Caller → target", className: "pair" },
  { title: "Method", className: "method" },
  { title: "Result", className: "outcome" },
  { title: "Reason", className: "reason" },
  { title: "Status", className: "number http" },
  { title: "Duration", className: "number took" },
];

/** Filters that the gateway applies, and those that are applied here. */
const ASKED = ["workspace", "caller", "target", "method", "since", "until"];
const NAMES = [...ASKED, "result", "reason"];

function make() {
  const link = element("a", {});
  const state = element("span", { className: "state" });
  const cell = (className, ...children) => element("span", { className, role: "cell" }, children);
  const cells = { time: cell("time"), pair: cell("pair", link), method: cell("method"), outcome: cell("outcome", state), reason: cell("reason"), http: cell("number http"), took: cell("number took") };
  return Object.defineProperties(cells, { link: { value: link }, state: { value: state } });
}

/** A call of the audit in the form of the feed. */
const ofRecord = (record) => ({
  id: record.request_id, at: Date.parse(record.time), caller: record.caller, target: record.target, method: record.method, rule: record.rule,
  outcome: record.outcome, result: record.result, status: record.status, ms: record.duration_ms, bridged: record.bridged, record,
});

/** The reason of the gateway, if the call has one. */
const reasonOf = ({ outcome }) => (["answered", "caller_left"].includes(outcome) ? "" : outcome);

/** What happened, in one sentence. */
function sentenceOf({ caller, target, method, outcome, result, status, ms }) {
  const pair = `${who(caller)} called ${target ?? "an unknown workspace"}${method ? ` (${method})` : ""}`;
  const after = `after ${took(ms)}`;
  const ends = {
    answered: `and it answered with ${status} ${after}`,
    agent_failed: outcome === "answered" ? `and its agent failed with ${status} ${after}` : `and its agent failed ${after}: ${outcome}`,
    gateway_failed: `and the gateway could not carry it out: ${outcome}`,
    denied: `and was denied: ${outcome}`,
    rejected: `and the call was not a valid one: ${outcome}`,
    left: `and left ${after}, before the answer was complete`,
  };
  return `${pair}, ${ends[result] ?? outcome}.`;
}

/** `{ element, change, close }` of the view; `given` from its address. */
export function callsView(model, given) {
  const asked = Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
  let open = given.get("request") ?? "";
  let [past, live, cursor, reading, heard, closed] = [[], [], undefined, false, model.exchanges[0], false];
  const newest = new Newest();
  const summary = element("p", { className: "muted small", role: "status" });
  const news = element("button", { type: "button", className: "primary small", hidden: true, onclick: () => ((list.body.scrollTop = 0), takeIn()) });
  const trouble = element("div", {});
  const list = new List({ label: "Calls", className: "exchanges", columns: COLUMNS, make, show, empty: () => element("p", { className: "muted" }, reading ? "Loading calls…" : "No call fits. Remove a filter, or choose another time.") });
  const older = element("button", { type: "button", hidden: true, onclick: () => read() }, "Older calls");

  const fits = (one) =>
    (asked.result === "" || one.result === asked.result) &&
    (asked.reason === "" || one.outcome === asked.reason) &&
    (asked.method === "" || one.method === asked.method) &&
    (asked.caller === "" || one.caller === asked.caller) &&
    (asked.target === "" || one.target === asked.target) &&
    (asked.workspace === "" || one.caller === asked.workspace || one.target === asked.workspace) &&
    (asked.since === "" || one.at >= Date.parse(asked.since)) &&
    (asked.until === "" || one.at < Date.parse(asked.until));

  function show(cells, one) {
    setText(cells.time, moment(one.at));
    setText(cells.link, `${who(one.caller)} → ${one.target ?? "?"}`);
    const href = `#/calls${query({ ...asked, request: one.id })}`;
    if (cells.link.getAttribute("href") !== href) cells.link.href = href;
    setText(cells.method, [one.method, one.stream && "⇶", one.bridged].filter(Boolean).join(" "));
    setPill(cells.state, ...(RESULT_WORDS[one.result] ?? [one.outcome, "none"]));
    setText(cells.reason, reasonOf(one) || "–");
    setText(cells.http, one.status ? String(one.status) : "–");
    setText(cells.took, took(one.ms));
  }

  function draw() {
    const ids = new Set(live.map(({ id }) => id));
    const items = live.concat(past.filter(({ id }) => !ids.has(id))).filter(fits);
    const from = items.at(-1);
    setText(summary, items.length === 0 ? "" : `${countOf(items.length, "call")} since ${moment(from.at)}`);
    older.hidden = !cursor || reading;
    list.set(items);
  }

  /** Reads older records, until some fit. */
  async function read(anew = false) {
    const signal = newest.next();
    reading = true;
    if (anew) [past, cursor] = [[], undefined];
    draw();
    try {
      const before = past.filter(fits).length;
      for (let n = 0; n < PAGES_AT_ONCE; n += 1) {
        const filter = Object.fromEntries(ASKED.map((name) => [name, asked[name]]));
        const page = await ask(`audit${query({ ...filter, outcome: asked.reason, event_type: "A2A_CALL", limit: PAGE, cursor })}`, { signal });
        if (signal.aborted) return;
        past = past.concat(page.records.map(ofRecord)).slice(0, KEPT);
        cursor = past.length < KEPT ? page.next_cursor : null;
        if (!cursor || past.filter(fits).length >= before + PAGE / 4) break;
      }
      fill(trouble);
    } catch (error) {
      if (signal.aborted) return;
      fill(trouble, refusal(words(error), () => read(anew)));
    }
    reading = false;
    draw();
  }

  /** Puts what has passed since on top. */
  function takeIn() {
    const at = model.exchanges.indexOf(heard);
    const more = at < 0 ? model.exchanges : model.exchanges.slice(0, at);
    heard = model.exchanges[0];
    live = more.concat(live).slice(0, KEPT);
    news.hidden = true;
    draw();
  }

  function change() {
    if (heard === model.exchanges[0]) return;
    if (list.body.scrollTop === 0) return takeIn();
    const at = model.exchanges.indexOf(heard);
    const n = model.exchanges.slice(0, at < 0 ? undefined : at).filter(fits).length;
    news.hidden = n === 0;
    setText(news, `${count(n)} new`);
  }

  const address = () => `#/calls${query({ ...asked, request: open })}`;

  /** Filters as chips that can be read aloud, each with a way to remove it. */
  const chips = element("div", { className: "chips" });
  function drawChips() {
    const said = { workspace: "caller or target is", since: "since", until: "until", result: "result is", reason: "reason is" };
    const worded = (name) => (name === "result" ? RESULT_WORDS[asked.result]?.[0] ?? asked.result : ["since", "until"].includes(name) ? moment(asked[name]) : asked[name]);
    fill(chips, NAMES.filter((name) => asked[name] !== "").map((name) => element("button", { type: "button", className: "chip", "aria-label": `Remove the filter ${said[name] ?? `${name} is`} ${worded(name)}`, onclick: () => set(name, "") }, `${said[name] ?? `${name} is`} ${worded(name)} ×`)));
  }
  function set(name, value) {
    asked[name] = value;
    for (const control of [result, text, span_, method]) control.sync();
    history.replaceState(null, "", address());
    drawChips();
    read(true);
  }

  const result = choice([["", "Any result"], ...RESULTS.map((one) => [one, RESULT_WORDS[one][0]])], { value: asked.result, "aria-label": "Result", onchange: () => set("result", result.value) });
  result.sync = () => (result.value = asked.result);
  const text = element("input", { type: "search", value: asked.workspace, placeholder: "Workspace or request id", autocomplete: "off", spellcheck: false, "aria-label": "Workspace or request id", onchange: () => search(text.value.trim()) });
  text.sync = () => (text.value = asked.workspace);
  const method = choice([["", "Any method"], ...["send_message", "send_streaming_message", "get_task", "list_tasks", "cancel_task", "subscribe_to_task"].map((one) => [one, one])], { value: asked.method, "aria-label": "Method", onchange: () => set("method", method.value) });
  method.sync = () => (method.value = asked.method);
  const span_ = choice([["", "Any time"], ["1", "Last hour"], ["24", "Last 24 hours"], ["168", "Last 7 days"]], { value: "", "aria-label": "Time", onchange: () => set("since", span_.value === "" ? "" : new Date(Date.now() - Number(span_.value) * 3_600_000).toISOString()) });
  span_.sync = () => asked.since === "" && (span_.value = "");

  function search(word) {
    // A request id is long, and no workspace has it.
    if (/^[0-9a-f-]{32,}$/i.test(word) && !model.workspaces.has(word)) location.hash = `#/calls${query({ ...asked, request: word })}`;
    else set("workspace", word);
  }

  /** The panel of one call. */
  let panel = null;
  async function openCall(id) {
    const known = live.concat(past, model.exchanges).find((one) => one.id === id);
    const body = element("div", {}, known ? callShown(known) : loading("the call"));
    const title = element("h2", { id: "call-title" }, "Call");
    const copy = element("button", { type: "button", onclick: () => navigator.clipboard?.writeText(location.href).then(() => setText(copy, "Copied")) }, "Copy link");
    panel = element("dialog", { className: "call-panel", "aria-labelledby": "call-title" }, element("div", { className: "title" }, title, element("div", { className: "buttons" }, copy, element("button", { type: "button", onclick: () => panel.close() }, "Close"))), body);
    panel.addEventListener("close", () => {
      panel.remove();
      panel = null;
      open = "";
      if (!closed) history.replaceState(null, "", address());
    });
    document.body.append(panel);
    panel.showModal();
    // Records are written a moment after their call.
    for (let n = 0; panel && n < 4; n += 1) {
      try {
        const { records } = await ask(`audit${query({ request_id: id, limit: 20 })}`);
        const record = records.find(({ event_type: type }) => type === "A2A_CALL");
        if (record) return fill(body, callShown(ofRecord(record)));
      } catch (error) {
        return fill(body, known ? callShown(known) : null, refusal(words(error)));
      }
      await new Promise((resolve) => setTimeout(resolve, 700));
    }
    if (!known) fill(body, element("p", { className: "muted" }, `No record of request ${id} is kept.`));
  }

  function callShown(one) {
    const { record } = one;
    const pill = element("span", { className: "state" });
    setPill(pill, ...(RESULT_WORDS[one.result] ?? [one.outcome, "none"]));
    const ended = one.at;
    const steps = [
      [moment(ended - one.ms, true, true), "received"],
      one.rule ? ["", `admitted by rule ${one.rule}`] : ["", record?.detail?.stage ? `refused at stage ${record.detail.stage}` : null],
      [moment(ended, true, true), `ended after ${took(one.ms)}`],
    ].filter(([, text]) => text);
    const why = element("div", {});
    const explain = element("button", { type: "button", onclick: () => explained(why, one.caller, one.target, model) }, "Explain now");
    return element(
      "div",
      { className: "call" },
      element("p", {}, pill),
      element("p", {}, sentenceOf(one)),
      element("ol", { className: "steps" }, steps.map(([time, text]) => element("li", {}, element("span", { className: "muted" }, time), " ", text))),
      facts([
        ["Time", when(one.at)],
        ["Caller", who(one.caller)],
        ["Target", one.target ? to(pathOf(one.target), one.target) : null],
        ["Method", one.method],
        ["Rule", one.rule],
        ["Reason", reasonOf(one)],
        ["Status", one.status ? String(one.status) : null],
        ["Duration", took(one.ms)],
        record ? ["Size", `${bytes(record.request_bytes)} in, ${bytes(record.response_bytes)} out`] : null,
        record?.root ? ["On behalf of", who(record.root)] : null,
        record?.txn ? ["Run of the root", to(`/audit${query({ txn: record.txn })}`, record.txn)] : null,
        record?.bridged ? ["Translated", `A2A ${record.bridged}`] : null,
        record?.task_id ? ["Task", element("code", {}, record.task_id)] : null,
        ["Request id", element("code", {}, one.id)],
        record?.trace_id ? ["Trace id", element("code", {}, record.trace_id)] : null,
      ]),
      element("p", { className: "buttons" }, one.caller && one.target ? explain : null, to(`/calls${query({ caller: one.caller, target: one.target, result: one.result })}`, "Calls like this", "button"), one.caller ? to(explainPath(one.caller, one.target), "Open in Explain", "button") : null),
      why,
      record ? element("details", {}, element("summary", {}, "Record"), element("pre", { tabIndex: 0, "data-scrolls": "", role: "group", "aria-label": "The record as JSON" }, JSON.stringify(record, null, 2))) : null,
    );
  }

  drawChips();
  read(true);
  if (open) openCall(open);
  const tools = element("div", { className: "tools" }, text, result, method, span_, summary, news);
  const view = element("div", { className: "view fills" }, element("h1", { tabIndex: -1 }, "Calls"), tools, chips, trouble, list.element, element("p", {}, older));
  return {
    title: open ? `Call ${visible(open)}` : "Calls",
    element: view,
    change,
    close: () => {
      closed = true;
      newest.close();
      panel?.close();
      list.close();
    },
  };
}
