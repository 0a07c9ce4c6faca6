// What was recorded: who called whom, who changed what; and where the chains of it end.

import { Newest, ask, query, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { choice, count, explainPath, field, loading, panel, pathOf, pill, refusal, span, table, to, toneOfOutcome, when, who } from "./show.js";

const EVENTS = [
  "A2A_CALL", "STREAM_RESUMED", "CONTENT_READ", "WORKSPACE_CREATED", "WORKSPACE_CHANGED", "WORKSPACE_REMOVED", "WORKSPACE_PAUSED", "WORKSPACE_RESUMED",
  "WORKSPACE_REGISTERED", "WORKSPACE_DEREGISTERED", "INSTANCE_DRAINING", "WORKSPACE_STATUS", "CREDENTIAL_MOVED", "CARD_UPDATED", "TOKEN_ISSUED", "TOKEN_REVOKED",
  "GRANT_CREATED", "GRANT_REMOVED", "DELEGATION_CREATED", "MESSAGE_REPLIED", "MESSAGE_NOTIFIED", "KEYS_CHANGED",
  "CONFIG_CHANGED", "CONFIG_REFUSED", "AUDIT_STARTED", "AUDIT_CHECKPOINT", "AUDIT_LOST", "AUDIT_PRUNED", "AUDIT_STOPPED",
];

const TEXTS = [
  ["workspace", "Workspace", "caller or target"],
  ["caller", "Caller", "an id, operator"],
  ["target", "Target", "a workspace id"],
  ["outcome", "Outcome", "not_permitted"],
  ["method", "Method", "send_message"],
  ["request_id", "Request id", ""],
  ["txn", "Run of a root", ""],
  ["replica", "Replica", ""],
];

const TIMES = [
  ["since", "Since"],
  ["until", "Until"],
];

/** Records of a page. */
const PAGE = 100;

/** `{ element, change, close }` of the view; `asked` from its address. */
export function auditView(model, asked) {
  const controls = {};
  for (const [name, , placeholder] of TEXTS) {
    controls[name] = element("input", { name, value: asked.get(name) ?? "", placeholder, autocomplete: "off", spellcheck: false });
  }
  controls.event_type = choice([["", "Everything"], ...EVENTS.map((word) => [word, word])], { name: "event_type", value: asked.get("event_type") ?? "" });
  for (const [name] of TIMES) controls[name] = element("input", { name, value: local(asked.get(name)), placeholder: "2026-11-28 09:00", autocomplete: "off", spellcheck: false, pattern: "\\d{4}-\\d{2}-\\d{2}([ T]\\d{2}:\\d{2}(:\\d{2})?)?", title: "A day, or a day and a time of 24 hours: 2026-11-28 09:00" });

  const rows = element("div", { className: "records" });
  const more = element("div", { className: "more" });
  const chains = element("div", {}, loading("the chains"));

  const wanted = () => {
    const said = Object.fromEntries(Object.entries(controls).map(([name, { value }]) => [name, value.trim()]));
    for (const [name] of TIMES) if (said[name]) said[name] = new Date(said[name].length === 10 ? `${said[name]} 00:00` : said[name].replace(" ", "T")).toISOString();
    return said;
  };

  const newest = new Newest();

  async function search(cursor) {
    const signal = newest.next();
    if (!cursor) fill(rows, loading("records"));
    fill(more);
    const filter = wanted();
    try {
      const page = await ask(`audit${query({ ...filter, limit: PAGE, cursor })}`, { signal });
      if (signal.aborted) return;
      const shown = page.records.map(record);
      if (cursor) rows.append(...shown);
      else if (shown.length > 0) fill(rows, ...shown);
      else fill(rows, element("p", { className: "muted nothing" }, "No record fits. Records are written within a second or two of what they tell of."));
      if (page.next_cursor) fill(more, element("button", { type: "button", onclick: () => search(page.next_cursor) }, "Older records"));
    } catch (error) {
      if (signal.aborted) return;
      fill(cursor ? more : rows, refusal(words(error), () => search(cursor)));
    }
  }

  async function look() {
    try {
      fill(chains, ...chainsShown(await ask("console/chains"), model));
    } catch (error) {
      fill(chains, refusal(words(error), look));
    }
  }

  const form = element(
    "form",
    {
      className: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        history.replaceState(null, "", `#/audit${query(wanted())}`);
        search();
      },
    },
    field("What", controls.event_type),
    TEXTS.map(([name, label]) => field(label, controls[name])),
    TIMES.map(([name, label]) => timeField(label, controls[name])),
    element("div", { className: "buttons" }, element("button", { type: "submit", className: "primary" }, "Search"), element("button", { type: "button", onclick: () => (clear(), form.requestSubmit()) }, "Clear")),
  );
  function clear() {
    for (const control of Object.values(controls)) control.value = "";
  }
  search();
  look();
  const found = element("section", { className: "panel found", "aria-label": "Records" }, element("h2", {}, "Records"), rows, more);
  const view = element("div", { className: "view" }, element("h1", { tabIndex: -1 }, "Audit"), form, found, panel("Chains", chains));
  return { title: "Audit", element: view, change: () => {}, close: () => newest.close() };
}

function timeField(label, control) {
  const made = field(label, control);
  made.classList.add("time");
  return made;
}

/** A time of the address as the field has it: in the browser's zone. */
function local(time) {
  const date = new Date(time ?? "");
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19).replace("T", " ");
}

/** One record: a line that opens. */
function record(said) {
  const call = said.event_type === "A2A_CALL";
  const caller = said.caller === null && !call ? "the gateway" : who(said.caller);
  const pair = said.target === null ? [caller] : [caller, " → ", said.target];
  const refused = !["answered", "done", "caller_left"].includes(said.outcome);
  const line = element(
    "summary",
    {},
    element("span", { className: "at" }, when(said.time)),
    element("span", { className: "what" }, call ? (said.method ?? "A2A_CALL") : said.event_type),
    element("span", { className: "pair" }, ...pair),
    pill(said.outcome, toneOfOutcome({ outcome: said.outcome, refused })),
  );
  const links = element(
    "p",
    { className: "links" },
    call && said.caller ? to(explainPath(said.caller, said.target), "Explain this pair") : null,
    said.target ? to(pathOf(said.target), "The workspace") : null,
    said.request_id ? to(`/audit${query({ request_id: said.request_id })}`, "All of this request") : null,
  );
  const details = element("details", { className: "record" }, line);
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      details.append(links, element("pre", { tabIndex: 0, "data-scrolls": "", role: "group", "aria-label": "The record as JSON" }, JSON.stringify(ordered(said), null, 2)));
    }
  });
  return details;
}

/** A record with what people look for first, and what proves it last. */
function ordered(said) {
  const first = ["time", "event_type", "caller", "target", "method", "outcome", "result", "status", "rule", "detail", "duration_ms", "request_id"];
  const last = ["replica", "seq", "prev", "hash"];
  const rest = Object.keys(said).filter((name) => !first.includes(name) && !last.includes(name));
  const names = [...first, ...rest, ...last].filter((name) => name in said);
  return Object.fromEntries(names.map((name) => [name, said[name]]));
}

/** Where each chain ends, and by what that is known. */
function chainsShown({ recording, chains }, model) {
  const rows = chains.map((chain) => [
    element("code", {}, chain.replica),
    `${count(chain.first_seq)} to ${count(chain.last_seq)}`,
    `${span(model.now() - Date.parse(chain.signed_at))} ago`,
    chain.signed ? pill("signed", "ok") : pill("not signed by a known key", "bad"),
    chain.own ? "the one that answers" : "",
  ]);
  const off = recording ? null : element("p", { className: "notice", "data-tone": "warn" }, "Nothing is recorded: audit.enabled is false.");
  const how = element("p", { className: "muted small" }, "A signature says where a chain ends. Whether every record in it is as it was written, ", element("code", {}, "a2a-gateway audit verify"), " says.");
  return [off, table("Chains", ["Chain", "Records", "Signed", "Its end", ""], rows, "There is no chain yet: the first is signed within seconds of the first record."), how].filter(Boolean);
}
