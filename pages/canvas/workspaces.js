// The list of workspaces.

import { byId, element, fill } from "./dom.js";

/** So many are shown; the filter finds the others. */
const SHOWN_MAX = 300;

const TONES = { online: "ok", degraded: "warn", paused: "warn", offline: "bad", failed: "bad", removed: "bad" };

const collator = new Intl.Collator();

/** The rows by id, so that one that is focused stays the same element when something changes. */
const rows = new Map();

export function showWorkspaces(entries, filter, chosen, onChoose) {
  const wanted = filter.trim().toLowerCase();
  const matches = ({ data: { id, name, role } }) => [id, name, role].some((text) => String(text ?? "").toLowerCase().includes(wanted));
  const name = ({ data }) => data.name || data.id;
  const found = entries.filter(matches).sort((one, other) => collator.compare(name(one), name(other)));
  const taken = new Map();
  for (const entry of entries) taken.set(name(entry), (taken.get(name(entry)) ?? 0) + 1);
  const shown = found.slice(0, SHOWN_MAX).map((entry) => row(entry, taken.get(name(entry)) > 1, chosen, onChoose));
  const rest = found.length - shown.length;
  const list = byId("workspaces");
  const none = entries.length > 0 && found.length === 0 && "No workspace has that in its name or role.";
  const note = none || (rest > 0 && `and ${rest} more: filter to find them`);
  const now = note ? [...shown, element("li", { className: "muted small note" }, note)] : shown;
  const same = now.length === list.children.length && now.every((item, index) => item === list.children[index]);
  if (same) return;
  // A row that is moved loses the focus.
  const focused = document.activeElement;
  fill(list, ...now);
  if (list.contains(focused)) focused.focus();
}

export function clearWorkspaces() {
  rows.clear();
  byId("filter").value = "";
  fill(byId("workspaces"));
}

/** `isTwin`: another one has the same name, so the id tells them apart. */
function row({ data, unread }, isTwin, chosen, onChoose) {
  let item = rows.get(data.id);
  if (!item) {
    item = element("li", {}, element("button", { type: "button", className: "workspace", onclick: () => onChoose(data.id) }));
    rows.set(data.id, item);
  }
  const [button] = item.children;
  if (data.id === chosen) button.setAttribute("aria-current", "true");
  else button.removeAttribute("aria-current");
  fill(
    button,
    element("span", { className: "workspace-name" }, data.name || data.id, unread && element("span", { className: "unread" }, "new")),
    element("span", { className: "state", "data-tone": TONES[data.status] }, data.status),
    isTwin && data.name && element("span", { className: "muted small mono workspace-id" }, data.id),
    data.role && element("span", { className: "muted small workspace-role" }, data.role),
  );
  return item;
}
