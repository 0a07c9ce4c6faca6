// What changes something: always behind a dialog that says what will happen, and shows why it did not.

import { ask, words } from "./ask.js";
import { element } from "./dom.js";
import { Refusal } from "./refusal.js";
import { field, refusal, say } from "./show.js";

/**
 * Asks before it acts. `act(values)` does it; what it throws is shown in the dialog, which stays open. `fields`: elements
 * with a `name`, and `beside` each what belongs to it; `done`: what is said then, or makes it of the answer. Resolves to whether it was done.
 */
export function confirm({ title, text, fields = [], verb, danger = false, act, done }) {
  return new Promise((resolve) => {
    let runs = false;
    const turn = (on) => {
      runs = on;
      for (const button of [go, cancel]) button.disabled = on;
    };
    const failed = element("div", {});
    const go = element("button", { type: "submit", className: danger ? "danger" : "primary" }, typeof verb === "function" ? "" : verb);
    const cancel = element("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    let did = false;
    const submit = async (event) => {
      event.preventDefault();
      // What is being done is not done twice.
      if (runs) return;
      turn(true);
      failed.replaceChildren();
      try {
        const values = Object.fromEntries(fields.map(({ control }) => [control.name, control.value.trim()]));
        const answer = await act(values);
        // Whoever logged out meanwhile is told nothing.
        if (!dialog.open) return;
        did = true;
        dialog.close();
        say(typeof done === "function" ? done(answer) : done);
      } catch (error) {
        failed.replaceChildren(refusal(error instanceof Wrong ? { message: error.message } : asLabelled(words(error), fields)));
        turn(false);
        fields.find(({ control }) => control.name === error.field)?.control.focus();
      }
    };
    const values_ = () => Object.fromEntries(fields.map(({ control }) => [control.name, control.value.trim()]));
    // The button says what it does, by what is chosen.
    const word = () => typeof verb === "function" && go.replaceChildren(verb(values_()));
    const first = JSON.stringify(values_());
    const isTyped = () => JSON.stringify(values_()) !== first;
    const form = element(
      "form",
      { onsubmit: submit, oninput: word },
      element("h2", { id: "dialog-title" }, title),
      [text].flat().map((sentence) => (sentence instanceof Node ? sentence : element("p", {}, sentence))),
      fields.flatMap(({ label, control, beside = [] }) => [field(label, control), ...beside]),
      failed,
      element("div", { className: "buttons" }, cancel, go),
    );
    const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
    // What is being done cannot be taken back by leaving, and what was typed is left by the button alone.
    dialog.addEventListener("cancel", (event) => (runs || isTyped()) && event.preventDefault());
    // Chromium lets the second Escape in a row through without asking, but not one whose key was taken. With its buttons
    // disabled the dialog has no focus, so the key is the document's.
    const stay = (event) => (runs || isTyped()) && event.key === "Escape" && event.preventDefault();
    document.addEventListener("keydown", stay, true);
    dialog.addEventListener("close", () => {
      document.removeEventListener("keydown", stay, true);
      dialog.remove();
      resolve(did);
    });
    document.body.append(dialog);
    word();
    dialog.showModal();
    // Nothing happens by a key that was pressed twice.
    const empty = fields.find(({ control }) => control.value === "") ?? fields[0];
    (empty?.control ?? cancel).focus();
  });
}

/** A refusal that names fields as the dialog does, not as the gateway's interface. */
function asLabelled(refused, fields) {
  const named = (text, { label, control }) => text.replaceAll(`\`${control.name}\``, `“${label.replace(/ \(.*/, "")}”`);
  return new Refusal({ ...refused, message: fields.reduce(named, refused.message) });
}

/** Closes whatever is asked for, undone. */
export function dismiss() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

const path = (id) => `api/workspaces/${encodeURIComponent(id)}`;

/** What pausing and stopping do, side by side. `running`: the calls under way, in words. */
export function choicesShown(running) {
  const rows = [
    ["New calls to it and from it", "to it refused as offline", "refused as stopped, with your reason"],
    [`Calls under way (${running})`, "go on", "end now, if you choose so"],
    ["Unfinished tasks", "go on", "canceled, if you choose so"],
    ["Ends", "when somebody resumes it", "when somebody releases it, or at a time"],
  ];
  const head = element("tr", {}, ["", "Pause", "Stop"].map((title) => element("th", { scope: "col" }, title)));
  return element("table", { className: "choices" }, element("thead", {}, head), element("tbody", {}, rows.map(([first, ...rest]) => element("tr", {}, element("th", { scope: "row" }, first), rest.map((text) => element("td", {}, text))))));
}

/** The calls under way at a workspace: their number, and in words. */
export async function runningOf(id, model) {
  const streams = model?.workspaces.get(id)?.streams ?? 0;
  try {
    const { calls } = await ask(`console/workspaces/${encodeURIComponent(id)}`);
    const n = Math.max(calls.in_progress, streams);
    return { n, text: `${n} ${n === 1 ? "call" : "calls"}${streams ? `, ${streams} of them ${streams === 1 ? "a stream" : "streams"}` : ""}` };
  } catch {
    return { n: streams, text: "their number cannot be read now" };
  }
}

/** Takes a workspace out. */
export async function pause(id, model) {
  return confirm({
    title: "Pause this workspace?",
    text: [`New messages to ${id} are refused with workspace_offline until it is resumed.`, choicesShown((await runningOf(id, model)).text)],
    verb: `Pause ${id}`,
    act: () => ask(`${path(id)}/pause`, { method: "POST" }),
    done: `${id} is paused.`,
  });
}

/** Removes a workspace, for good but for a new life of its id. */
export const remove = (id) =>
  confirm({
    title: "Remove this workspace?",
    text: [`All tokens of ${id} end at once, and calls to it are refused as removed. Workspaces below it keep their place. Its id can begin a new life later (Create workspace, with the id).`],
    fields: [{ label: `Type ${id} to remove it`, control: element("input", { name: "typed", autocomplete: "off", spellcheck: false }) }],
    verb: "Remove workspace",
    danger: true,
    act: ({ typed }) => {
      if (typed !== id) throw new Wrong("typed", `Type the id “${id}” exactly.`);
      return ask(path(id), { method: "DELETE" });
    },
    done: `${id} is removed.`,
  });

/** Ends a token of an org or of an operator for good. `place`: its list in the interface. */
export const revokeAt = (place, { id, prefix, label }) =>
  confirm({
    title: "Revoke this token?",
    text: `${label ? `“${label}”` : `The token that begins with ${prefix}`} is refused by every replica within a second, for good.`,
    verb: "Revoke token",
    danger: true,
    act: () => ask(`api/${place}/${encodeURIComponent(id)}`, { method: "DELETE" }),
    done: "The token is revoked.",
  });

/** Lets a workspace in again. */
export const resume = (id) =>
  confirm({
    title: "Resume this workspace?",
    text: `Messages to ${id} are delivered again as soon as its agent is there.`,
    verb: "Resume",
    act: () => ask(`${path(id)}/resume`, { method: "POST" }),
    done: `${id} is resumed.`,
  });

/** Ends a token for good. */
export const revoke = (id, token) =>
  confirm({
    title: "Revoke this token?",
    text: [
      `The token that begins with ${token.prefix} is refused by every replica within a second, for good.`,
      `An agent that has no other cannot send, register or beat as ${id} any more.`,
    ],
    verb: "Revoke",
    danger: true,
    act: () => ask(`${path(id)}/tokens/${encodeURIComponent(token.id)}`, { method: "DELETE" }),
    done: `The token ${token.prefix}… is revoked.`,
  });

/** The longest life of a grant that ends, in hours: ten years. And the shortest: a minute. */
const HOURS_MAX = 87_600;
const HOURS_MIN = 1 / 60;

/** What was typed into a field is none of what it takes. Nothing was asked of the gateway. */
export class Wrong extends Error {
  constructor(field, message) {
    super(message);
    Object.assign(this, { name: "Wrong", field });
  }
}

/** A number of hours as it was typed into the field of this label, in milliseconds. Throws a Wrong. */
export function spanOf(text, label = "Expires after") {
  const hours = /^\d{1,12}([.,]\d{1,12})?$|^[.,]\d{1,12}$/.test(text) ? Number(text.replace(",", ".")) : NaN;
  const wrong = (message) => new Wrong("hours", `“${label}” ${message}`);
  if (Number.isNaN(hours)) throw wrong("takes a number of hours, such as 8 or 0.5");
  if (hours > HOURS_MAX) throw wrong(`takes at most ${HOURS_MAX} hours, which are ten years; leave it empty for no end`);
  if (hours < HOURS_MIN) throw wrong("takes a minute at least, which is 0.017 hours");
  return hours * 3_600_000;
}

/** Lets one workspace message another. */
export function grant({ caller = "", target = "" } = {}) {
  const input = (name, value, rest = {}) => element("input", { name, value, autocomplete: "off", spellcheck: false, ...rest });
  return confirm({
    title: "Grant access",
    text: "The caller may message the target, whatever the hierarchy says, across orgs too, until the grant expires or is removed.",
    fields: [
      { label: "Caller (a workspace id)", control: input("caller_id", caller, { required: true }) },
      { label: "Target (a workspace id)", control: input("target_id", target, { required: true }) },
      { label: "Expires after, in hours (empty: never)", control: input("hours", "", { inputMode: "decimal" }) },
      { label: "Note, for people", control: input("note", "", { maxLength: 256 }) },
    ],
    verb: "Grant access",
    act: ({ caller_id, target_id, hours, note }) => {
      const body = { caller_id, target_id };
      if (note) body.note = note;
      if (hours) {
        body.expires_at = new Date(Date.now() + spanOf(hours)).toISOString();
      }
      return ask("api/grants", { method: "POST", body });
    },
    done: "The grant is in force.",
  });
}

/** Takes a grant back. */
export const takeBack = ({ id, caller_id, target_id }) =>
  confirm({
    title: "Remove this grant?",
    text: `${caller_id} may then message ${target_id} only as far as the hierarchy lets it.`,
    verb: "Remove",
    danger: true,
    act: () => ask(`api/grants/${encodeURIComponent(id)}`, { method: "DELETE" }),
    done: "The grant is removed.",
  });

/** How long verifiers may keep the keys that they fetched, in seconds. */
const PUBLISHED_FIRST = 300;

/** Has the next key sign from now on. */
export function rotate(next, active) {
  const age = next?.age_seconds ?? 0;
  const haste =
    age < PUBLISHED_FIRST
      ? [`The next key has been published for ${age} s only. Verifiers that keep keys for 5 minutes may refuse what it signs until then.`]
      : [];
  return confirm({
    title: "Rotate the trust keys?",
    text: [
      "The next key signs from now on and a new next key is published. The one that signed until now verifies until the last token that it may have signed is over.",
      ...haste,
    ],
    verb: "Rotate",
    danger: haste.length > 0,
    // What the dialog was about: somebody else may have rotated meanwhile. It has warned of haste.
    act: () => ask("console/keys/rotate", { method: "POST", body: { active: active?.kid, force: haste.length > 0 } }),
    // The turn is made; what follows it may not be.
    done: ({ message }) => (message ? `The keys are rotated, but: ${message}` : "The keys are rotated."),
  });
}
