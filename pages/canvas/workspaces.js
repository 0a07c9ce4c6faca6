// The tree of workspaces. Its keys are those of any tree: the arrows up and down, Home and End move between the rows, left
// closes what is below or leads to the parent, right opens it or leads to the first child, Enter shows the workspace. A tree of
// more workspaces than are shown at once begins closed.

import { byId, element, fill } from "./dom.js";
import { folded, treeOf } from "./hierarchy.js";

/** So many are shown; the filter finds the others. */
const SHOWN_MAX = 300;

/** The deepest level that is indented. */
const INDENT_MAX = 5;

const TONES = { online: "ok", degraded: "warn", paused: "warn", offline: "bad", failed: "bad", removed: "bad" };

const collator = new Intl.Collator();

/** The rows by id, so that one that is focused stays the same element when something changes. */
const rows = new Map();

/** The ids of the rows in the order that is shown, and of the parent of each that has one here. */
let order = [];
let parents = new Map();

/** The row that Tab leads to. */
let current = null;

/** Whether a workspace was opened or closed by hand, by id; and what it is otherwise. */
const turned = new Map();
let isOpenElse = true;

/** The workspaces with others below them that are shown. */
let folds = new Map();

/** Shows the tree again as it is now. */
let again = () => {};

const nameOf = ({ data }) => data.name || data.id;

/** Shows the workspaces as a tree; those that `filter` finds as a list, since their parents may not be among them. */
export function showWorkspaces(entries, filter, chosen, onChoose) {
  const wanted = filter.trim().toLowerCase();
  const matches = ({ data: { id, name, role } }) => [id, name, role].some((text) => String(text ?? "").toLowerCase().includes(wanted));
  const found = entries.filter(matches).sort((one, other) => collator.compare(nameOf(one), nameOf(other)));
  const taken = new Map();
  for (const entry of entries) taken.set(nameOf(entry), (taken.get(nameOf(entry)) ?? 0) + 1);
  const parentOf = ({ data }) => (wanted === "" ? data.parent_id : null);
  again = () => showWorkspaces(entries, filter, chosen, onChoose);
  isOpenElse = entries.length <= SHOWN_MAX;
  const all = folded(treeOf(found, { idOf: ({ data }) => data.id, parentOf }), ({ data }) => !isOpen(data.id));
  const tree = all.slice(0, SHOWN_MAX);
  folds = new Map(tree.filter(({ isParent }) => isParent).map(({ item, hidden }) => [item.data.id, hidden]));
  order = tree.map(({ item }) => item.data.id);
  parents = new Map(tree.map(({ item, parent }) => [item.data.id, parent?.data.id]));
  if (!order.includes(current)) current = order.includes(chosen) ? chosen : (order[0] ?? null);
  const shown = tree.map(({ item, depth }) => row(item, { isTwin: taken.get(nameOf(item)) > 1, level: depth + 1, chosen, onChoose }));
  const rest = all.length - shown.length;
  const none = entries.length > 0 && found.length === 0 && "No workspace has that in its name or role.";
  fill(byId("list-note"), none || (rest > 0 && `and ${rest} more: filter to find them`));
  const list = byId("workspaces");
  const same = shown.length === list.children.length && shown.every((item, index) => item === list.children[index]);
  if (same) return;
  // A row that is moved loses the focus.
  const focused = document.activeElement;
  fill(list, ...shown);
  if (list.contains(focused)) focused.focus();
}

const isOpen = (id) => turned.get(id) ?? isOpenElse;

/** Opens or closes what is below a workspace. */
function turn(id) {
  turned.set(id, !isOpen(id));
  again();
}

/** Forgets all rows. */
export function clearWorkspaces() {
  rows.clear();
  turned.clear();
  [order, parents, current, folds] = [[], new Map(), null, new Map()];
  byId("filter").value = "";
  fill(byId("list-note"));
  fill(byId("workspaces"));
}

/** Moves the focus by a key. */
export function moveInTree(event) {
  const at = order.indexOf(current);
  if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  const turns = folds.has(current) && event.key === (isOpen(current) ? "ArrowLeft" : "ArrowRight");
  if (turns) {
    event.preventDefault();
    turn(current);
    return buttonOf(current).focus();
  }
  const child = parents.get(order[at + 1]) === current ? order[at + 1] : undefined;
  const to = { ArrowDown: order[at + 1], ArrowUp: order[at - 1], Home: order[0], End: order.at(-1), ArrowLeft: parents.get(current), ArrowRight: child };
  if (!(event.key in to)) return;
  event.preventDefault();
  const id = to[event.key];
  if (id === undefined) return;
  makeCurrent(id);
  buttonOf(id).focus();
}

const buttonOf = (id) => rows.get(id)?.lastChild;

function makeCurrent(id) {
  const before = buttonOf(current);
  if (before) before.tabIndex = -1;
  current = id;
  buttonOf(id).tabIndex = 0;
}

/** `isTwin`: another one has the same name, so the id tells them apart. */
function row({ data, unread }, { isTwin, level, chosen, onChoose }) {
  let item = rows.get(data.id);
  if (!item) {
    const open = () => {
      makeCurrent(data.id);
      onChoose(data.id);
    };
    // With the keyboard the arrows do the same, and to those who listen the row says it.
    const mark = element("span", { className: "fold", "aria-hidden": "true", onclick: () => turn(data.id) });
    item = element("li", { role: "none" }, mark, element("button", { type: "button", className: "workspace", role: "treeitem", onclick: open }));
    rows.set(data.id, item);
  }
  const [mark, button] = item.children;
  const hidden = folds.get(data.id);
  mark.dataset.fold = hidden === undefined ? "none" : isOpen(data.id) ? "open" : "closed";
  if (hidden === undefined) button.removeAttribute("aria-expanded");
  else button.setAttribute("aria-expanded", String(isOpen(data.id)));
  item.dataset.level = String(Math.min(level, INDENT_MAX));
  button.setAttribute("aria-level", String(level));
  button.setAttribute("aria-selected", String(data.id === chosen));
  button.tabIndex = data.id === current ? 0 : -1;
  fill(
    button,
    element("span", { className: "workspace-name" }, data.name || data.id, unread && element("span", { className: "unread" }, "new"), hidden > 0 && element("span", { className: "muted small below" }, `${hidden} below`)),
    element("span", { className: "state", "data-tone": TONES[data.status] }, data.status),
    isTwin && data.name && element("span", { className: "muted small mono workspace-id" }, data.id),
    data.role && element("span", { className: "muted small workspace-role" }, data.role),
  );
  return item;
}
