// Policy: who may call whom beside the hierarchy, what is stopped, what is capped, and whose tokens may change it.

import { grant, revokeAt, takeBack } from "./act.js";
import { ask, query, words } from "./ask.js";
import { showCaps } from "./caps.js";
import { element, fill } from "./dom.js";
import { issueForOperator, issueForOrg } from "./make.js";
import { count, loading, panel, pathOf, refusal, table, to, when } from "./show.js";
import { stopsShown } from "./stops.js";

/** Rows of a table at most. */
const SHOWN = 200;

/** A list that is read, shown as a table, and read again after each action. `rows(page, again)` makes the rows. */
function listed({ what, path, heads, rows, none, how }) {
  const place = element("div", {}, loading(what));
  async function read() {
    try {
      const page = await ask(`api/${path}${path.includes("?") ? "&" : "?"}limit=${SHOWN}`);
      const more = page.next_cursor ? element("p", { className: "muted small" }, "There are more: ", element("code", {}, how)) : null;
      fill(place, table(what, heads, rows(page, read), none), more);
    } catch (error) {
      fill(place, refusal(words(error), read));
    }
  }
  read();
  return { element: place, read };
}

const button = (text, label, onclick) => element("button", { type: "button", className: "danger small", "aria-label": label, onclick }, text);

/** The tokens at a place of the interface, each with a way to end it. */
const tokensAt = (place, what, none, how) =>
  listed({
    what, path: place, none, how,
    heads: ["Token", "Label", "Role or subtree", "Created", "Last used", "Expires", ""],
    rows: ({ tokens }, read) =>
      tokens.map((one) => [
        element("code", {}, `${one.prefix ?? one.id}…`), one.label ?? one.name ?? "–", one.role ?? one.within ?? "–", when(one.created_at), one.last_used_at ? when(one.last_used_at) : "–",
        one.expires_at ? when(one.expires_at) : "never",
        button("Revoke…", `Revoke ${one.label ?? one.prefix ?? one.id}`, async () => (await revokeAt(place, one)) && read()),
      ]),
  });

/** A button that adds to a list, which is read again then. */
const adder = (text, make, list) => element("p", {}, element("button", { type: "button", onclick: async () => (await make()) && list.read() }, text));

/** `{ element, change, close }` of the view. */
export function policyView(model) {
  const grants = listed({
    what: "Grants", path: "grants", how: "a2a-gateway grants", none: "None: the hierarchy alone says who may call whom.",
    heads: ["Caller", "Target", "Note", "Created", "Expires", ""],
    rows: (page, read) =>
      page.grants.map((one) => [
        to(pathOf(one.caller_id), one.caller_id), to(pathOf(one.target_id), one.target_id), one.note ?? "–", when(one.created_at), one.expires_at ? when(one.expires_at) : "never",
        button("Remove…", `Remove the grant of ${one.caller_id} to ${one.target_id}`, async () => (await takeBack(one)) && read()),
      ]),
  });
  const caps = element("div", {});
  showCaps(caps);
  const orgs = element("div", {});
  let named = "";
  function change() {
    const all = [...new Set([...model.workspaces.values()].map(({ org }) => org).filter((org) => org !== null))].sort();
    if (all.join("\n") === named || (named !== "" && orgs.contains(document.activeElement))) return;
    named = all.join("\n");
    if (all.length === 0) return fill(orgs, element("p", { className: "muted" }, "No workspace has an org."));
    const chosen = element("select", { "aria-label": "Org" }, all.map((org) => element("option", { value: org }, org)));
    const place = element("div", {});
    const show = () => {
      const org = chosen.value;
      const tokens = tokensAt(`orgs/${encodeURIComponent(org)}/tokens`, `Tokens of ${org}`, "It has no tokens.", `a2a-gateway token list --org ${org}`);
      fill(place, tokens.element, adder("Create a token of the org…", () => issueForOrg(org), tokens));
    };
    chosen.addEventListener("change", show);
    fill(orgs, element("p", {}, chosen), place);
    show();
  }
  change();
  const operators = tokensAt("operators/tokens", "Tokens of operators", "None but those of the configuration and of the first start.", "a2a-gateway token list --operators");
  const view = element(
    "div", { className: "view" }, element("h1", { tabIndex: -1 }, "Policy"),
    panel("Grants", grants.element, adder("Grant access…", grant, grants)), panel("Stops", stopsShown().element), panel("Caps", caps), panel("Tokens of orgs", orgs), panel("Tokens of operators", operators.element, adder("Create a token of an operator…", issueForOperator, operators)),
  );
  return { title: "Policy", element: view, change, close: () => {} };
}
