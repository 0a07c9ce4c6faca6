// The first view: all workspaces, with what passes through each. As a tree it is closed and opened like any other: by the marks
// before the names, or with the arrows to the left and to the right.

import { element } from "./dom.js";
import { STATES as HEALTH, setState } from "./health.js";
import { List } from "./list.js";
import { create } from "./make.js";
import { inTree } from "./model.js";
import { choice, count, countOf, pathOf, sentence, setText, span } from "./show.js";
import { visible } from "./visible.js";

const STATES = [["", "All states"], ...Object.entries(HEALTH).map(([state, [word, , shape]]) => [state, `${shape} ${word}`])];

const ORDERS = [
  ["tree", "As a tree"],
  ["busy", "Busiest first"],
  ["refused", "Most refused first"],
];

/** What is asked for stays as it is when one comes back to the view. */
const asked = { text: "", state: "", order: "tree", closed: new Set() };

/** Nothing is closed in a list. */
const NONE = new Set();

const COLUMNS = [
  { title: "Workspace", className: "name" },
  { title: "State", className: "status" },
  { title: "Delivery", className: "mode" },
  { title: "Last seen", className: "seen" },
  { title: "Received / min", className: "number" },
  { title: "Refused / min", className: "number refused" },
  { title: "Sent / min", className: "number sent" },
  { title: "Streams", className: "number streams" },
];

function make(onFold) {
  const cell = (className) => element("span", { className, role: "gridcell" });
  const link = element("a", {});
  // With the keyboard the arrows do the same.
  const fold = element("button", { type: "button", className: "fold", tabIndex: -1, onclick: () => onFold(cells.shown) });
  const below = element("span", { className: "below muted small" });
  const id = element("code", { className: "id" });
  const state = element("span", { className: "state" });
  const name = element("span", { className: "name", role: "gridcell" }, fold, link, id, below);
  const status = element("span", { className: "status", role: "gridcell" }, state);
  // Cells in the order of the columns; what is inside of them is not enumerated.
  const cells = { name, status, mode: cell("mode"), seen: cell("seen"), n: cell("number n"), refused: cell("number refused"), sent: cell("number sent"), streams: cell("number streams") };
  const inside = { link: { value: link }, id: { value: id }, state: { value: state }, fold: { value: fold }, below: { value: below }, shown: { value: null, writable: true } };
  return Object.defineProperties(cells, inside);
}

/** `{ element, change, close }` of the view. */
export function treeView(model) {
  let version = -1;
  let counted = 0;
  const summary = element("p", { className: "muted small", role: "status" });
  const strays = element("p", { className: "muted small" });
  const list = new List({
    label: "Workspaces",
    className: "tree",
    role: "treegrid",
    columns: COLUMNS,
    make: () => make(fold),
    show: (cells, workspace, row) => show(cells, workspace, row, model),
    empty: () => nothing(model),
    onKey: (event, workspace, at) => isTree() && key(event, workspace, at),
  });
  const isTree = () => !list.element.classList.contains("flat");
  const again = () => {
    version = -1;
    change();
  };

  /** Closes or opens what is below a workspace. */
  function fold({ id, isParent }) {
    if (!isParent) return;
    if (!asked.closed.delete(id)) asked.closed.add(id);
    again();
  }

  /** The keys of a tree, at the row of a workspace. */
  function key({ key, altKey, ctrlKey, metaKey }, workspace, at) {
    if (altKey || ctrlKey || metaKey || !["ArrowLeft", "ArrowRight"].includes(key)) return false;
    const isClosed = asked.closed.has(workspace.id);
    if (key === "ArrowRight" && workspace.isParent) {
      if (isClosed) fold(workspace);
      else list.goTo(at + 1);
    } else if (key === "ArrowLeft" && workspace.isParent && !isClosed) {
      fold(workspace);
    } else if (key === "ArrowLeft") {
      const parent = list.items.findLastIndex(({ depth }, index) => index < at && depth < workspace.depth);
      if (parent >= 0) list.goTo(parent);
    }
    return true;
  }
  const search = element("input", {
    type: "search",
    value: asked.text,
    placeholder: "Name, id or org",
    autocomplete: "off",
    spellcheck: false,
    "aria-label": "Search workspaces",
    oninput: () => {
      asked.text = search.value;
      again();
    },
  });
  const select = (options, name, label) => {
    const made = choice(options, {
      value: asked[name],
      "aria-label": label,
      onchange: () => {
        asked[name] = made.value;
        again();
      },
    });
    return made;
  };

  function change() {
    setText(strays, model.strays > 0 ? `${countOf(model.strays, "call")} in the last minute named an id that no workspace has` : "");
    // Order by numbers changes all the time; every few seconds is enough to be read.
    const stale = version !== model.rowsVersion || (asked.state !== "" && Date.now() - counted > 1000) || (asked.order !== "tree" && Date.now() - counted > 3000);
    if (!stale) return list.refresh();
    version = model.rowsVersion;
    counted = Date.now();
    const text = asked.text.trim().toLowerCase();
    const found = ({ name, id, org }) => [name, id, org ?? ""].some((one) => one.toLowerCase().includes(text));
    const flat = asked.order !== "tree" || text !== "" || asked.state !== "";
    const all = asked.order === "tree" ? inTree(model.workspaces, flat ? NONE : asked.closed) : ordered(model.workspaces);
    const items = all.filter((workspace) => (asked.state === "" || model.stateOf(workspace.id) === asked.state) && (text === "" || found(workspace)));
    list.element.classList.toggle("flat", flat);
    folds.hidden = flat;
    const more = model.truncated ? "; there are more than can be shown here: GET /workspaces lists them" : "";
    const shown = items.length === model.workspaces.size ? countOf(items.length, "workspace") : `${count(items.length)} of ${count(model.workspaces.size)} workspaces`;
    setText(summary, model.complete ? shown + more : "");
    list.set(items);
  }

  const foldAll = (close) => () => {
    asked.closed = new Set(close ? parentsOf(model.workspaces) : []);
    again();
  };
  const folds = element("div", { className: "buttons" }, element("button", { type: "button", onclick: foldAll(true) }, "Collapse all"), element("button", { type: "button", onclick: foldAll(false) }, "Expand all"));
  const begin = async () => {
    const id = await create(model);
    if (id !== null) location.hash = pathOf(id);
  };
  const add = element("button", { type: "button", className: "primary", onclick: begin }, "Create workspace…");
  const tools = element("div", { className: "tools" }, search, select(STATES, "state", "State"), select(ORDERS, "order", "Order"), folds, add, summary, strays);
  const view = element("div", { className: "view fills" }, element("h1", { tabIndex: -1 }, "Workspaces"), tools, list.element);
  return { title: "Workspaces", element: view, change, close: () => list.close() };
}

/** The ids of those with workspaces below them. */
function parentsOf(workspaces) {
  const parents = new Set();
  for (const { parent } of workspaces.values()) if (workspaces.has(parent)) parents.add(parent);
  return parents;
}

function ordered(workspaces) {
  const of = asked.order === "busy" ? ({ n, sent }) => n + sent : ({ refused }) => refused;
  return [...workspaces.values()].sort((one, other) => of(other) - of(one) || (one.id < other.id ? -1 : 1));
}

function show(cells, workspace, row, model) {
  cells.shown = workspace;
  showFold(cells, workspace, row);
  setText(cells.link, workspace.name);
  const href = `#${pathOf(workspace.id)}`;
  if (cells.link.getAttribute("href") !== href) cells.link.href = href;
  setText(cells.id, workspace.id === workspace.name ? "" : workspace.id);
  const depth = String(Math.min(workspace.depth ?? 0, 8));
  if (row.dataset.depth !== depth) row.dataset.depth = depth;
  setState(cells.state, model.stateOf(workspace.id));
  setText(cells.mode, workspace.mode);
  const seen = workspace.seen === null ? "never" : `${span(model.now() - workspace.seen)} ago`;
  setText(cells.seen, workspace.liveness === "assumed" && workspace.seen === null ? "assumed" : seen);
  setNumber(cells.n, workspace.n);
  setNumber(cells.refused, workspace.refused);
  setNumber(cells.sent, workspace.sent);
  setNumber(cells.streams, workspace.streams);
}

/** The mark of a workspace with others below it. */
function showFold({ fold, below }, { name, depth = 0, isParent, hidden = 0, id }, row) {
  const isClosed = asked.closed.has(id);
  const state = isParent ? (isClosed ? "closed" : "open") : "none";
  if (fold.dataset.fold !== state) fold.dataset.fold = state;
  const label = isParent ? `${isClosed ? "Expand" : "Collapse"} ${visible(name)}` : "";
  if (fold.getAttribute("aria-label") !== label) fold.setAttribute("aria-label", label);
  setText(below, hidden > 0 ? `${count(hidden)} below` : "");
  const said = { "aria-level": String(depth + 1), "aria-expanded": isParent ? String(!isClosed) : null };
  for (const [attribute, value] of Object.entries(said)) {
    if (value === null) row.removeAttribute(attribute);
    else if (row.getAttribute(attribute) !== value) row.setAttribute(attribute, value);
  }
}

function setNumber(cell, n) {
  setText(cell, count(n));
  const tone = n === 0 ? "none" : "some";
  if (cell.dataset.count !== tone) cell.dataset.count = tone;
}

function nothing(model) {
  if (model.trouble) return element("p", { className: "notice", "data-tone": "warn" }, sentence(model.trouble.message));
  if (!model.complete) return element("p", { className: "muted", role: "status" }, "Loading workspaces…");
  if (model.workspaces.size > 0) return element("p", { className: "muted" }, "No workspace fits: change what you search for.");
  return element("p", { className: "muted" }, "There are no workspaces yet: create the first one here.");
}
