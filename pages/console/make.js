// What an operator makes: workspaces, tokens, moves. A token is shown once, in a dialog that forgets it when it is closed.

import { Wrong, confirm, spanOf } from "./act.js";
import { ask } from "./ask.js";
import { element, fill } from "./dom.js";
import { field, say } from "./show.js";

/** Parents that are offered at once. */
const OFFERED = 20;

const input = (name, value = "", rest = {}) => element("input", { name, value, autocomplete: "off", spellcheck: false, ...rest });

/** The workspaces below `id`, and itself: none of them can be its parent. */
export function selfAndBelow(workspaces, id) {
  const below = new Map();
  for (const one of workspaces.values()) {
    if (below.has(one.parent)) below.get(one.parent).push(one.id);
    else below.set(one.parent, [one.id]);
  }
  const found = new Set([id]);
  for (const one of found) for (const child of below.get(one) ?? []) found.add(child);
  return found;
}

/** The workspaces that a text may mean, the best first: those whose id or name begins with it, then those that have it. */
export function parentsFor(workspaces, text, without) {
  const wanted = text.trim().toLowerCase();
  const [first, then] = [[], []];
  for (const one of workspaces.values()) {
    if (without.has(one.id)) continue;
    const names = [one.id.toLowerCase(), one.name.toLowerCase()];
    if (names.some((name) => name.startsWith(wanted))) first.push(one);
    else if (names.some((name) => name.includes(wanted))) then.push(one);
    if (first.length >= OFFERED) break;
  }
  return [...first, ...then].slice(0, OFFERED);
}

/** The id that was meant: an id, or a name that only one workspace has. */
export function idFor(workspaces, text) {
  if (text === "" || workspaces.has(text)) return text;
  const named = [...workspaces.values()].filter(({ name }) => name === text);
  return named.length === 1 ? named[0].id : text;
}

/** A field that offers workspaces while one types, and says what the choice means for the org. */
function parentField(model, { value = "", without = new Set(), told = () => "" }) {
  const offers = element("datalist", { id: "parents" });
  const said = element("p", { className: "muted small", role: "status" });
  const control = input("parent_id", value, { placeholder: "none: at the top" });
  control.setAttribute("list", offers.id);
  const offer = () => {
    const found = parentsFor(model.workspaces, control.value, without);
    fill(offers, found.map(({ id, name, org }) => element("option", { value: id, label: [name, org].filter(Boolean).join(" · ") })));
    fill(said, told(model.workspaces.get(idFor(model.workspaces, control.value.trim())), control.value.trim()));
  };
  control.addEventListener("input", offer);
  offer();
  return { label: "Parent (name or id; empty: none)", control, beside: [offers, said] };
}

/** Shows a secret until its dialog is closed. */
function reveal({ title, text, secret, lines = null }) {
  return new Promise((resolve) => {
    const select = () => getSelection().selectAllChildren(shown);
    const shown = element("output", { className: "secret", tabIndex: 0, "aria-label": title, onfocus: () => select() }, secret);
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(secret);
        say("It is copied.");
      } catch {
        select();
        say("The browser copies nothing here: the text is selected, copy it by its keys.");
      }
    };
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "dialog-title" }, title),
      [text].flat().map((sentence) => element("p", {}, sentence)),
      shown,
      lines ? element("pre", { className: "lines", tabIndex: 0, "data-scrolls": "", "aria-label": "How its agent starts" }, lines) : null,
      element("div", { className: "buttons" }, element("button", { type: "button", onclick: copy }, "Copy token"), element("button", { type: "button", className: "primary", onclick: () => dialog.close() }, "Done, I saved the token")),
    );
    const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
    // The token is shown once, so no key closes this: Chromium lets a second Escape through, but not one that was taken.
    const stay = (event) => event.key === "Escape" && event.preventDefault();
    document.addEventListener("keydown", stay, true);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      document.removeEventListener("keydown", stay, true);
      shown.textContent = "";
      dialog.remove();
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
    shown.focus();
  });
}

/** Kinds of agents, as `POST /workspaces` has them. */
const KINDS = {
  registers: {},
  assumed: { liveness: "assumed" },
  polls: { delivery_mode: "poll" },
};

/** Makes a workspace; resolves to its id, or `null`. */
export async function create(model) {
  const kind = element(
    "select",
    { name: "kind" },
    element("option", { value: "registers" }, "registers by itself, with the token that is shown next"),
    element("option", { value: "assumed" }, "is at the URL below, and knows nothing of the gateway"),
    element("option", { value: "polls" }, "has no address, and fetches its messages"),
  );
  const parent = parentField(model, { told: (found) => (found ? `It is made in ${orgOf(found)}, which its parent is in.` : "") });
  let made = null;
  const did = await confirm({
    title: "Create a workspace",
    text: "It is the place of one agent in the hierarchy: its parent, its siblings and its children may exchange messages with it.",
    fields: [
      { label: "Name", control: input("name", "", { maxLength: 256, required: true }) },
      { label: "Id (empty: one is made)", control: input("id", "", { maxLength: 128 }) },
      parent,
      { label: "Org (empty: that of the parent, or none)", control: input("org", "", { maxLength: 256 }) },
      { label: "Its agent", control: kind },
      { label: "URL of the agent", control: input("url", "", { placeholder: "http://127.0.0.1:8000/" }) },
      { label: "If a removed workspace had this id", control: element("select", { name: "recreate" }, element("option", { value: "" }, "refuse"), element("option", { value: "yes" }, "begin a new life of the id (recreate)")) },
    ],
    verb: "Create workspace",
    act: async ({ name, id, parent_id, org, kind, url, recreate }) => {
      const body = { name, ...KINDS[kind] };
      if (recreate === "yes") body.recreate = true;
      for (const [member, value] of Object.entries({ id, parent_id: idFor(model.workspaces, parent_id), org, url })) if (value) body[member] = value;
      made = await ask("api/workspaces", { method: "POST", body });
      return made;
    },
    done: ({ id }) => `${id} is created.`,
  });
  if (!did) return null;
  await reveal({
    title: "Enrolment token",
    text: [`With this token the agent of ${made.id} registers once, within 24 hours, and gets a token of its own.`, "It is shown this once, and kept nowhere."],
    secret: made.enrolment_token,
    lines: linesFor(made),
  });
  return made.id;
}

/** The lines that start an agent in a new workspace that registers by itself. */
function linesFor({ id, proxy_url: proxy, liveness }) {
  if (liveness === "assumed") return null;
  const gateway = proxy ? new URL(proxy).origin : "http://127.0.0.1:8080";
  return [`export A2A_GATEWAY_URL=${gateway}`, "export A2A_GATEWAY_ENROLMENT_TOKEN=…   # the token above", `a2a-gateway run --workspace ${id} --token-file ${id}.token -- python3 agent.py`].join("\n");
}

/** Changes what is set of a workspace. */
export function edit(workspace) {
  const { id } = workspace;
  const value = (name) => (workspace[name] === null || workspace[name] === undefined ? "" : String(workspace[name]));
  const numbers = ["max_concurrent", "idle_timeout_seconds"];
  const members = ["name", "role", "url", "card_url", ...numbers];
  return confirm({
    title: "Edit this workspace",
    text: "Only what you change is sent; an empty field clears what can be empty.",
    fields: [
      { label: "Name", control: input("name", value("name"), { maxLength: 256, required: true }) },
      { label: "Role (what its agent is for)", control: input("role", value("role"), { maxLength: 256 }) },
      { label: "URL of the agent", control: input("url", value("url")) },
      { label: "URL of its card", control: input("card_url", value("card_url")) },
      { label: "Calls at once (empty: limits.target_concurrency)", control: input("max_concurrent", value("max_concurrent"), { inputMode: "numeric" }) },
      { label: "Seconds without an event (empty: timeouts.idle)", control: input("idle_timeout_seconds", value("idle_timeout_seconds"), { inputMode: "numeric" }) },
    ],
    verb: "Save changes",
    act: (given) => {
      const body = {};
      for (const name of members) {
        if (given[name] === value(name)) continue;
        if (given[name] !== "" && numbers.includes(name) && !/^\d{1,9}$/.test(given[name])) throw new Wrong(name, "Type a whole number.");
        body[name] = given[name] === "" ? null : numbers.includes(name) ? Number(given[name]) : given[name];
      }
      return ask(`api/workspaces/${encodeURIComponent(id)}`, { method: "PATCH", body });
    },
    done: `${id} is changed.`,
  });
}

const orgOf = ({ org }) => (org === null ? "no org" : `the org ${org}`);

/** Moves a workspace with all below it. */
export function move(model, { id, org, parent_id: parent }) {
  const chosen = parentField(model, {
    value: parent ?? "",
    without: selfAndBelow(model.workspaces, id),
    told: (found, text) => {
      if (text === "") return `It stands at the top of ${orgOf({ org })}.`;
      if (!found) return "";
      return found.org === org ? `It stays in ${orgOf(found)}.` : `It leaves ${orgOf({ org })} for ${orgOf(found)}.`;
    },
  });
  return confirm({
    title: "Move this workspace?",
    text: `${id} moves with all that is below it. Who may message whom changes on every replica within a second; calls under way that are not permitted any more end.`,
    fields: [chosen],
    verb: "Move workspace",
    act: ({ parent_id: text }) => {
      const parent = idFor(model.workspaces, text);
      const body = { parent_id: parent === "" ? null : parent };
      const found = model.workspaces.get(parent);
      if (found && found.org !== org) body.org = found.org;
      return ask(`api/workspaces/${encodeURIComponent(id)}`, { method: "PATCH", body });
    },
    done: `${id} is moved.`,
  });
}

const HOURS = () => ({ label: "Ends after, in hours (empty: never)", control: input("hours", "", { inputMode: "decimal" }) });

/** Makes a token at a place of the interface, and shows it once. `bodyOf` makes the body of what was given but the end. */
async function makeToken({ place, title, text, fields, bodyOf, of }) {
  let made = null;
  const did = await confirm({
    title, text, fields,
    verb: "Create token",
    act: async ({ hours, ...given }) => {
      const there = Object.entries(bodyOf(given)).filter(([, value]) => value !== "");
      const body = Object.fromEntries(there);
      if (hours) body.expires_in = Math.ceil(spanOf(hours, "Ends after") / 1000);
      made = await ask(`api/${place}`, { method: "POST", body });
      return made;
    },
    done: ({ prefix }) => `The token ${prefix}… is made.`,
  });
  if (!did) return false;
  await reveal({ title: `Token of ${of}`, text: "It is shown this once: the gateway keeps its hash only.", secret: made.token });
  return true;
}

/** Makes a token of a workspace. */
export const issue = (id) =>
  makeToken({
    place: `workspaces/${encodeURIComponent(id)}/tokens`,
    title: "Create a token",
    text: `With it an agent sends, registers and reads as ${id}, until the token ends or is revoked.`,
    fields: [{ label: "Label, for people (where it is used)", control: input("label", "", { maxLength: 64 }) }, HOURS()],
    bodyOf: (given) => given,
    of: id,
  });

/** Makes a token of an org, or of a subtree of it. */
export const issueForOrg = (org) =>
  makeToken({
    place: `orgs/${encodeURIComponent(org)}/tokens`,
    title: "Create a token of the org",
    text: `With it an integration makes and looks after workspaces of ${org}, and calls them, until the token is revoked.`,
    fields: [
      { label: "Note, for people (where it is used)", control: input("note", "", { maxLength: 256 }) },
      { label: "Workspace (empty: all of the org; else it and those below it)", control: input("subtree", "", { maxLength: 128 }) },
    ],
    bodyOf: (given) => given,
    of: org,
  });

/** What an operator with a role may do. */
const ROLES = { read: "read: sees everything", operate: "operate: stops, releases and pauses, too", admin: "admin: changes everything" };

/** Makes a token of an operator. */
export const issueForOperator = () =>
  makeToken({
    place: "operators/tokens",
    title: "Create a token of an operator",
    text: "Give each person and each program a token of its own, with the least role that does its work.",
    fields: [
      { label: "Role", control: element("select", { name: "role" }, Object.entries(ROLES).map(([value, text]) => element("option", { value }, text))) },
      { label: "Label, for lists and records (who uses it)", control: input("label", "", { maxLength: 64 }) },
      HOURS(),
    ],
    bodyOf: (given) => given,
    of: "an operator",
  });
