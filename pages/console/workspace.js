// One workspace: what it is, how loaded it is, who may come in as it, what was refused.

import { ask, query, words } from "./ask.js";
import { element, fill, link } from "./dom.js";
import { grant, pause, remove, resume, revoke, takeBack } from "./act.js";
import { STATES, setState } from "./health.js";
import { edit, issue, move } from "./make.js";
import { stop } from "./stops.js";
import { count, countOf, explainPath, facts, loading, moment, panel, pathOf, pill, refusal, setPill, setText, span, table, to, when, who, widePanel } from "./show.js";

/** Records that are looked through for refusals. */
const LOOKED_AT = 500;

/** Refusals that are shown. */
const SHOWN = 20;

/** Grants that are read at once, and at most for each end. */
const PAGE = 500;
const GRANTS_MAX = 2_000;

/** `{ element, change, close }` of the view of the workspace `id`. */
export function workspaceView(model, id) {
  const name = element("h1", { tabIndex: -1 }, id);
  const state = element("span", { className: "state" });
  const now = element("p", { className: "muted small" });
  const reason = element("p", { className: "small", role: "status" });
  const buttons = element("div", { className: "buttons" });
  const body = element("div", { className: "panels" }, loading("the workspace"));
  const own = `api/workspaces/${encodeURIComponent(id)}`;
  let status = null;
  // What the feed said last of its status.
  let told;
  let [busy, again, closed] = [false, false, false];

  // Whether it was just paused or resumed here: the button for the way back has the focus then.
  let turned = false;

  /** Runs an action; what it changed is read again. */
  const after = (action) => async () => (await action()) && load();

  async function load() {
    again = busy;
    if (busy || closed) return;
    busy = true;
    try {
      const [workspace, load_, tokens, asCaller, asTarget] = await Promise.all([
        ask(own),
        ask(`console/workspaces/${encodeURIComponent(id)}`),
        ask(`${own}/tokens?limit=500`).catch(gone),
        grantsOf("caller_id", id),
        grantsOf("target_id", id),
      ]);
      setText(name, workspace.name);
      status = workspace.status;
      actions(workspace);
      const grants = [...asCaller.grants, ...asTarget.grants.filter(({ caller_id: caller }) => caller !== id)];
      fill(
        body,
        about(workspace, model),
        limits(workspace, load_),
        card(workspace),
        credentials(tokens, (token) => after(() => revoke(id, token)), after(() => issue(id))),
        ways({ grants, cut: [asCaller, asTarget].filter(({ more }) => more) }, (one) => after(() => takeBack(one)), after(() => grant({ caller: id }))),
        refusals(id),
        workspace.status === "removed" ? null : widePanel("Remove", element("p", {}, "Calls to it are refused from then on, and nothing it proved itself with is valid any more."), element("p", {}, element("button", { type: "button", className: "danger", onclick: async () => (await remove(id)) && (location.hash = "/workspaces") }, "Remove workspace…"))),
      );
      change();
    } catch (error) {
      fill(buttons);
      fill(body, refusal(words(error), load));
    } finally {
      busy = false;
    }
    if (again) load();
  }

  function actions(workspace) {
    const { status: is } = workspace;
    const make = (text, className, onclick) => element("button", { type: "button", className, onclick }, text);
    const turns = (act) => after(async () => (turned = await act(id)));
    const turn = is === "paused" ? make("Resume…", "primary", turns(resume)) : is === "removed" ? null : make("Pause…", "", turns((one) => pause(one, model)));
    const focused = turned ? 0 : [...buttons.children].indexOf(document.activeElement);
    turned = false;
    const halt = is === "removed" ? null : make("Stop…", "danger", after(() => stop(id, model)));
    const shift = is === "removed" ? null : make("Move…", "", after(() => move(model, workspace)));
    const change_ = is === "removed" ? null : make("Edit…", "", after(() => edit(workspace)));
    fill(buttons, turn, halt, change_, shift, make("Grant access…", "", after(() => grant({ target: id }))), to(`/explain${query({ caller: "operator", target: id })}`, "Explain a message to it", "button"), to(`/calls${query({ workspace: id })}`, "Calls", "button"), to(`/usage${query({ workspace: id, by: "workspace" })}`, "Usage", "button"));
    buttons.children[focused]?.focus();
  }

  function change() {
    const known = model.workspaces.get(id);
    const is = known?.status ?? status;
    if (is === "removed") setPill(state, is, "bad");
    else setState(state, model.stateOf(id));
    const mine = model.overview?.unwell.find((one) => one.id === id);
    const cause = mine ? `${STATES[mine.state]?.[0] ?? mine.state}${mine.since ? ` since ${moment(mine.since)}` : ""}: ${mine.why}` : "";
    setText(reason, cause);
    if (!known) return;
    const news = told !== undefined && known.status !== told;
    told = known.status;
    // It changed while somebody looked.
    if (news) load();
    const seen = known.seen === null ? "never seen" : `last seen ${span(model.now() - known.seen)} ago`;
    setText(now, `${seen} · ${countOf(known.n, "call")} to it and ${countOf(known.refused, "call")} not carried out in the last minute · ${countOf(known.streams, "open stream")}`);
  }

  load();
  const head = element("div", { className: "title" }, element("div", {}, element("p", { className: "small" }, to("/workspaces", "Workspaces")), name, element("p", {}, element("code", {}, id), " ", state)), buttons);
  const view = element("div", { className: "view" }, head, reason, now, body);
  return { title: id, element: view, change, close: () => (closed = true) };
}

/** The grants that name `id` at one end; whether there are more than are read, and where those are to be had. */
async function grantsOf(end, id) {
  const grants = [];
  let cursor;
  do {
    const page = await ask(`api/grants${query({ [end]: id, limit: PAGE, cursor })}`);
    grants.push(...page.grants);
    cursor = page.next_cursor;
  } while (cursor && grants.length < GRANTS_MAX);
  return { grants, more: Boolean(cursor), how: `GET /grants${query({ [end]: id, cursor })}` };
}

/** A removed workspace has no tokens to list. */
function gone(error) {
  if (error.reason === "workspace_removed") return { tokens: [] };
  throw error;
}

function about(workspace, model) {
  const { parent_id: parent, org, role } = workspace;
  const above = parent === null ? null : to(pathOf(parent), model.workspaces.get(parent)?.name ?? parent);
  return panel(
    "About",
    facts([
      ["Role", role],
      ["Parent", above],
      ["Org", org],
      ["Delivery", workspace.delivery_mode === "poll" ? "poll: messages wait in its inbox" : "push: messages are sent to its URL"],
      ["Kept online by", workspace.liveness === "assumed" ? "nothing: it counts as online" : "its heartbeats"],
      ["URL", workspace.url],
      ["Internal URL", workspace.internal_url],
      ["Card URL", workspace.card_url],
      ["Works on", workspace.current_task],
      ["Created", when(workspace.created_at)],
      ["Changed", when(workspace.updated_at)],
    ]),
  );
}

function breaker(capacity) {
  if (capacity.breaker === "closed") return "closed";
  const why = capacity.breaker_cause === null ? "" : `, since calls failed (${capacity.breaker_cause})`;
  return capacity.breaker === "open" ? `open for ${capacity.retry_after_seconds} s more${why}` : `one call tries${why}`;
}

function learned(capacity) {
  const limits = [];
  if (capacity.learned_limit !== null) limits.push(`${count(capacity.learned_limit)} calls`);
  if (capacity.learned_limit_streams !== null) limits.push(`${count(capacity.learned_limit_streams)} streams`);
  return limits.join(", ") || "none";
}

function capacities(all) {
  if (all.length === 0) return [["Breaker", "closed"]];
  return all.flatMap((one) => {
    const [of, calls] = one.instance_id === null ? ["", ""] : [` of ${one.instance_id}`, `, ${count(one.in_progress)} calls in progress`];
    return [
      [`Breaker${of}`, `${breaker(one)}${calls}`],
      [`Limit learned from refusals${of}`, learned(one)],
    ];
  });
}

function limits(workspace, { calls, capacity, idle, inbox, replica }) {
  const oldest = inbox.oldest === null ? "" : `, the oldest since ${span(Date.now() - Date.parse(inbox.oldest))}`;
  return panel(
    "Limits and load",
    facts([
      ["Calls in progress", `${count(calls.in_progress)} of ${count(calls.limit)} at ${replica}`],
      ["That limit is by", calls.limit_by],
      ...capacities(capacity),
      ["Longest silence", `${idle.seconds} s, by ${idle.by}`],
      ["Inbox", `${count(inbox.waiting)} of ${count(inbox.limit)} wait${oldest}`],
      ["Tasks it says it has", count(workspace.active_tasks)],
      ["Incomplete calls", workspace.complete ?? "as a2a.complete says"],
      ["Its tokens prove", workspace.proof === "request" ? "who calls, with exactly this request" : "who calls, for half a minute"],
      ["Push notifications", workspace.push_notifications === undefined ? "as a2a.push_notifications says" : workspace.push_notifications ? "yes" : "no"],
    ]),
  );
}

function credentials({ tokens, next_cursor: more }, onRevoke, onIssue) {
  const rows = tokens.map((token) => [
    element("code", {}, `${token.prefix}…`),
    token.label,
    when(token.created_at),
    token.expires_at === undefined ? "never" : when(token.expires_at),
    token.last_used_at === null ? "never" : when(token.last_used_at),
    element("button", { type: "button", className: "danger small", onclick: onRevoke(token), "aria-label": `Revoke ${token.prefix}` }, "Revoke…"),
  ]);
  const heads = ["Token", "Label", "Created", "Ends", "Last used", "Revoke"];
  const none = "It has no live token: no agent can act as it until one is created, or it enrols.";
  const rest = more ? element("p", { className: "muted" }, "There are more.") : null;
  return widePanel("Tokens", table("Tokens", heads, rows, none), rest, element("p", {}, element("button", { type: "button", onclick: onIssue }, "Create a token …")));
}

function ways({ grants, cut }, onRemove, onAdd) {
  const rows = grants.map((one) => [
    to(pathOf(one.caller_id), one.caller_id),
    to(pathOf(one.target_id), one.target_id),
    one.expires_at === null ? "never" : when(one.expires_at),
    one.note,
    element("button", { type: "button", className: "danger small", onclick: onRemove(one), "aria-label": `Remove the grant of ${one.caller_id} to ${one.target_id}` }, "Remove …"),
  ]);
  return widePanel(
    "Grants",
    table("Grants", ["Caller", "Target", "Expires", "Note", "Remove"], rows, "None: only the hierarchy says whom it may message."),
    ...cut.map(({ how }) => element("p", { className: "notice", "data-tone": "warn" }, `These are the oldest ${count(GRANTS_MAX)} only. The others, on the public listener: `, element("code", {}, how))),
    element("p", {}, element("button", { type: "button", onclick: onAdd }, "Grant access…")),
  );
}

function card({ agent_card: said }) {
  if (said === null) return panel("Card", element("p", { className: "muted nothing" }, "It has registered none."));
  const skills = Array.isArray(said.skills) ? said.skills : [];
  const url = typeof said.url === "string" ? link(said.url) : null;
  const text = JSON.stringify(said, null, 2);
  return panel(
    "Card",
    facts([
      ["Name", plain(said.name)],
      ["Description", plain(said.description)],
      ["Version", plain(said.version)],
      ["URL", url],
      ["Skills", skills.map((skill) => plain(skill?.name ?? skill?.id)).join(", ")],
    ]),
    element("details", {}, element("summary", {}, "All of it"), element("pre", { tabIndex: 0, "data-scrolls": "", role: "group", "aria-label": "The card as JSON" }, text)),
  );
}

const plain = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));

/** What was refused of late, read after the rest. */
function refusals(id) {
  const place = element("div", {}, loading("refusals"));
  const read = async () => {
    try {
      const { records } = await ask(`audit${query({ workspace: id, event_type: "A2A_CALL", limit: LOOKED_AT })}`);
      const refused = records.filter(({ outcome }) => outcome !== "answered" && outcome !== "caller_left").slice(0, SHOWN);
      const rows = refused.map((record) => [
        when(record.time),
        who(record.caller),
        record.target,
        record.method,
        pill(record.outcome, "bad"),
        record.caller ? to(explainPath(record.caller, record.target), "Explain") : to(`/audit${query({ request_id: record.request_id })}`, "Record"),
      ]);
      const heads = ["Time", "Caller", "Target", "Method", "Reason", "Why"];
      fill(place, table("Recent refusals", heads, rows, `None among its last ${countOf(records.length, "exchange")}.`));
    } catch (error) {
      fill(place, refusal(words(error), read));
    }
  };
  read();
  return widePanel("Recent refusals", place);
}
