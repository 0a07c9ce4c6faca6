// Stops: calls that an operator stopped, and the way to stop and to release them.

import { choicesShown, confirm, runningOf, spanOf } from "./act.js";
import { ask, query, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { count, loading, refusal, table, when } from "./show.js";

/** Stops that are shown at most. */
const SHOWN = 200;

/** Stops the calls from and to a workspace. */
export async function stop(id, model) {
  const running = await runningOf(id, model);
  const choice = (name, ...options) => {
    const said = options.map(([value, text]) => element("option", { value }, text));
    return element("select", { name }, said);
  };
  return confirm({
    title: "Stop this workspace?",
    text: [`Calls from and to ${id} are refused by every replica within a second, until the stop is released. Messages that wait keep waiting; heartbeats go on.`, choicesShown(running.text)],
    fields: [
      { label: "Reason (refused callers get it)", control: element("input", { name: "reason", value: "", autocomplete: "off", maxLength: 500, required: true }) },
      { label: "Covers", control: choice("kind", ["workspace", "the workspace"], ["subtree", "the workspace and those below it"]) },
      { label: `Calls under way (${running.text})`, control: choice("what", ["running", "end now"], ["cancel", "end now, and unfinished tasks are canceled"], ["new", "go on"]) },
      { label: "Released after, in hours (empty: by hand)", control: element("input", { name: "hours", value: "", autocomplete: "off", inputMode: "decimal" }) },
    ],
    verb: ({ what }) => (what === "new" ? `Stop ${id}` : `Stop ${id} and end ${running.n} running ${running.n === 1 ? "call" : "calls"}`),
    danger: true,
    act: ({ reason, kind, what, hours }) => {
      const body = { scope: { [kind]: id }, mode: what === "new" ? "new" : "running", reason, cancel_tasks: what === "cancel" };
      if (hours) body.expires_at = new Date(Date.now() + spanOf(hours)).toISOString();
      return ask("api/stops", { method: "POST", body });
    },
    done: `${id} is stopped.`,
  });
}

/** Ends a stop. */
export const release = ({ id, scope }) =>
  confirm({
    title: "Release this stop?",
    text: `Calls of ${scopeOf(scope)} pass again on every replica within a second, and what waited is delivered.`,
    verb: "Release stop",
    act: () => ask(`api/stops/${encodeURIComponent(id)}`, { method: "DELETE" }),
    done: "The stop is released.",
  });

/** What a stop covers, in words. */
export function scopeOf(scope) {
  if (scope.all) return "all callers";
  if (scope.caller) return `${scope.caller} to ${scope.target}`;
  if (scope.org) return `the org ${scope.org}`;
  return scope.subtree ? `${scope.subtree} and those below it` : scope.workspace;
}

function tasksOf(cancel) {
  if (cancel === null) return "";
  const said = ["canceled", "over", "failed", "pending"].filter((word) => cancel[word] > 0);
  return said.map((word) => `${count(cancel[word])} ${word}`).join(", ") || "none";
}

/** The stops in force, with a button to release each; `read` reads them again. */
export function stopsShown() {
  const place = element("div", {}, loading("the stops"));
  async function read() {
    try {
      const { stops, next_cursor: more } = await ask(`api/stops${query({ limit: SHOWN })}`);
      const rows = stops.map((one) => [
        scopeOf(one.scope),
        one.reason,
        one.mode === "running" ? "all calls" : "new calls",
        tasksOf(one.cancel),
        when(one.created_at),
        one.expires_at === null ? "by hand" : when(one.expires_at),
        element("button", { type: "button", className: "danger small", onclick: async () => (await release(one)) && read(), "aria-label": `Release the stop of ${scopeOf(one.scope)}` }, "Release…"),
      ]);
      const heads = ["Covers", "Reason", "Stops", "Tasks", "Since", "Until", "Release"];
      const rest = more ? element("p", { className: "muted" }, "There are more: ", element("code", {}, "a2a-gateway stops")) : null;
      fill(place, ...[table("Stops", heads, rows, "None: no calls are stopped."), rest].filter(Boolean));
    } catch (error) {
      fill(place, refusal(words(error), read));
    }
  }
  read();
  return { element: place, read };
}
