// Why a message would pass, or not: every check that it would meet, without sending one.

import { Newest, ask, query, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { grant, resume } from "./act.js";
import { rowsOf } from "./facts.js";
import { facts, field, loading, pathOf, pill, refusal, sentence, span, to } from "./show.js";

/** What each check asks. */
const CHECKS = {
  process: "Does this replica take anything new?",
  places: "Is there a place among the exchanges?",
  target: "Is the target's id one?",
  caller: "Whom does the caller's credential prove?",
  rate: "May it ask this often?",
  caller_place: "Where is the caller in the hierarchy?",
  target_place: "Where is the target in the hierarchy?",
  grant: "Is there an explicit grant?",
  stop: "Did an operator stop it?",
  rule: "Which rule lets the one message the other?",
  state: "Where is the target in its life?",
  liveness: "Is its agent alive?",
  url: "Where does its agent listen?",
  upstream: "What does the gateway show the agent?",
  call: "How is the agent called?",
  inbox: "Is there room in its inbox?",
  caps: "Is anything left of its caps?",
  slots: "Does the target take one more call?",
  address: "May its address be dialled?",
  limits: "Which clocks and bounds hold?",
};

/** What an operator can do about a refusal. */
const ADVICE = {
  not_permitted: "Move one of the two in the hierarchy, or grant the way.",
  role_required: "Use a token of an operator with the role that the message names.",
  stopped: "Release the stop, in System, once its cause is over.",
  workspace_offline: "See why the agent sends no heartbeat, or resume it if it is paused.",
  workspace_restarting: "Wait until its agent has registered.",
  workspace_not_found: "Create the workspace, or check the id.",
  workspace_removed: "A removed id is never given away again: use another workspace.",
  agent_busy: "Wait, or raise max_concurrent of the workspace (limits.target_concurrency).",
  agent_unreachable: "Check the name in the agent's URL, and that the gateway's name servers know it.",
  address_forbidden: "Let address.allow or trusted_agents name the address, if it is the agent's.",
  cap_reached: "Wait for its window, or raise the limit of the cap: `a2a-gateway caps` shows its use.",
  rate_limited: "Wait, or raise the limits in [rate].",
  unauthenticated: "Issue the caller a token: it has none that is live.",
  store_unavailable: "Look at the stores: what is needed to decide cannot be read.",
  overloaded: "See what fills this gateway, or raise server.max_exchanges.",
  shutting_down: "Ask another replica: this one is on its way out.",
};

/** `{ element, change, close }` of the view; `asked` from its address. */
export function explainView(model, asked) {
  const input = (name, placeholder) =>
    element("input", { name, value: asked.get(name) ?? "", placeholder, autocomplete: "off", spellcheck: false, required: true });
  const caller = input("caller", "a workspace id, operator, canvas:user or org:name");
  const target = input("target", "a workspace id");
  for (const one of [caller, target]) one.setAttribute("list", "known-workspaces");
  const known = element("datalist", { id: "known-workspaces" });
  const suggest = (event) => {
    const text = event.target.value.toLowerCase();
    const found = [];
    for (const { id, name } of model.workspaces.values()) {
      if (id.toLowerCase().includes(text) || name.toLowerCase().includes(text)) found.push(element("option", { value: id }, name));
      if (found.length === 50) break;
    }
    fill(known, ...found);
  };
  const answer = element("div", { className: "answer" });
  const go = element("button", { type: "submit", className: "primary" }, "Explain");
  const swap = element("button", { type: "button", onclick: () => (([caller.value, target.value] = [target.value, caller.value]), explain()) }, "Swap");
  const form = element(
    "form",
    {
      className: "question",
      oninput: suggest,
      onsubmit: (event) => {
        event.preventDefault();
        history.replaceState(null, "", `#/explain${query({ caller: caller.value.trim(), target: target.value.trim() })}`);
        explain();
      },
    },
    field("Caller", caller),
    field("Target", target),
    element("div", { className: "buttons" }, go, swap),
    known,
  );

  const newest = new Newest();

  async function explain() {
    const pair = { caller: caller.value.trim(), target: target.value.trim() };
    if (!pair.caller || !pair.target) return;
    const signal = newest.next();
    fill(answer, loading("the explanation"));
    try {
      const said = await ask(`explain${query(pair)}`, { signal });
      if (signal.aborted) return;
      fill(answer, ...verdict(said, explain, model));
    } catch (error) {
      if (signal.aborted) return;
      fill(answer, refusal(words(error), explain));
    }
  }
  if (caller.value && target.value) explain();
  else fill(answer, element("p", { className: "muted nothing" }, "Name a caller and a target. Nothing is sent to the agent, and nothing is counted."));
  const view = element("div", { className: "view" }, element("h1", { tabIndex: -1 }, "Explain"), form, answer);
  return { title: "Explain", element: view, change: () => {}, close: () => newest.close() };
}

/** Puts the explanation of a pair into `place`. */
export async function explained(place, caller, target, model) {
  const again = () => explained(place, caller, target, model);
  fill(place, loading("the explanation"));
  try {
    fill(place, ...verdict(await ask(`explain${query({ caller, target })}`), again, model));
  } catch (error) {
    fill(place, refusal(words(error), again));
  }
}

/** The ids that no workspace has, by what the checks found. */
export function unknownOf({ steps }) {
  const places = steps.filter(({ step: name, fact }) => ["caller_place", "target_place"].includes(name) && fact.exists === false);
  return places.map(({ fact }) => fact.workspace);
}

/** Whether an operator took the target out, so that one can let it in again. */
export const isPaused = ({ steps }) => steps.some(({ step: name, ok, fact }) => name === "state" && !ok && fact.status === "paused");

/** What helps against the refusal, in a sentence. */
function advice(said) {
  if (isPaused(said)) return "An operator paused it: resume it.";
  if (unknownOf(said).length > 0) return "Check the id, or create the workspace.";
  return ADVICE[said.reason];
}

function verdict(said, again, model) {
  const { caller, target, admitted, reason, message, steps } = said;
  const unknown = unknownOf(said);
  const ends = [caller, target].map((id) => (model.workspaces.has(id) ? to(pathOf(id), id) : element("code", {}, id)));
  const pair = element("p", { className: "ends" }, ends[0], " → ", ends[1]);
  const allow = element("button", { type: "button", onclick: async () => (await grant({ caller, target })) && again() }, "Grant this access…");
  const wake = element("button", { type: "button", onclick: async () => (await resume(target)) && again() }, "Resume…");
  const told = admitted
    ? [element("strong", {}, "A message would be delivered.")]
    : [
        ...unknown.map((id) => element("p", {}, element("strong", {}, "There is no workspace ", element("code", {}, id), "."))),
        element("p", {}, element("strong", {}, "A message would be refused: "), element("code", {}, reason)),
        element("p", {}, sentence(message)),
        advice(said) ? element("p", {}, advice(said)) : null,
        isPaused(said) ? wake : null,
        reason === "not_permitted" && unknown.length === 0 ? allow : null,
      ];
  const box = element("div", { className: "notice verdict", "data-tone": admitted ? "ok" : "bad", role: "status" }, pair, told);
  return [box, element("ol", { className: "steps" }, steps.map(step))];
}

function step({ step: name, ok, fact, because, source, age_ms: age }) {
  const from = age > 1000 ? `${source}, ${span(age)} ago` : source;
  const rows = rowsOf(because === undefined ? fact : { ...fact, because });
  return element(
    "li",
    { className: "step", "data-ok": String(ok) },
    element("div", { className: "asked" }, pill(ok ? "passes" : "refused here", ok ? "ok" : "bad"), element("strong", {}, name), element("span", { className: "muted" }, CHECKS[name] ?? ""), element("span", { className: "muted small from" }, from)),
    rows.length > 0 ? facts(rows.map(({ name: row, text }) => [row, text])) : null,
  );
}
