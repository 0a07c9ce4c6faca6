// The first view: all workspaces, with what passes through each.

import { element, fill } from "./dom.js";
import { List } from "./list.js";
import { inTree } from "./model.js";
import { choice, count, countOf, pathOf, sentence, setPill, setText, span, toneOf } from "./show.js";

const STATES = [
  ["", "All states"],
  ["up", "Up"],
  ["away", "Not reachable"],
  ["degraded", "Degraded"],
  ["paused", "Paused"],
];

const ORDERS = [
  ["tree", "As a tree"],
  ["busy", "Busiest first"],
  ["refused", "Most refused first"],
];

const up = ({ status }) => status === "online" || status === "degraded";

const fits = {
  "": () => true,
  up,
  away: (workspace) => !up(workspace),
  degraded: ({ status }) => status === "degraded",
  paused: ({ status }) => status === "paused",
};

/** What is asked for stays as it is when one comes back to the view. */
const asked = { text: "", state: "", order: "tree" };

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

function make() {
  const cell = (className) => element("span", { className, role: "cell" });
  const link = element("a", {});
  const id = element("code", { className: "id" });
  const state = element("span", { className: "state" });
  const name = element("span", { className: "name", role: "cell" }, link, id);
  const status = element("span", { className: "status", role: "cell" }, state);
  // Cells in the order of the columns; what is inside of them is not enumerated.
  const cells = { name, status, mode: cell("mode"), seen: cell("seen"), n: cell("number n"), refused: cell("number refused"), sent: cell("number sent"), streams: cell("number streams") };
  return Object.defineProperties(cells, { link: { value: link }, id: { value: id }, state: { value: state } });
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
    columns: COLUMNS,
    make,
    show: (cells, workspace, row) => show(cells, workspace, row, model),
    empty: () => nothing(model),
  });
  const again = () => {
    version = -1;
    change();
  };
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
    setText(strays, model.strays > 0 ? `${countOf(model.strays, "exchange")} in the last minute named an id that no workspace has` : "");
    // Order by numbers changes all the time; every few seconds is enough to be read.
    const stale = version !== model.rowsVersion || (asked.order !== "tree" && Date.now() - counted > 3000);
    if (!stale) return list.refresh();
    version = model.rowsVersion;
    counted = Date.now();
    const text = asked.text.trim().toLowerCase();
    const found = ({ name, id, org }) => [name, id, org ?? ""].some((one) => one.toLowerCase().includes(text));
    const all = asked.order === "tree" ? inTree(model.workspaces) : ordered(model.workspaces);
    const items = all.filter((workspace) => fits[asked.state](workspace) && (text === "" || found(workspace)));
    const flat = asked.order !== "tree" || text !== "" || asked.state !== "";
    list.element.classList.toggle("flat", flat);
    const more = model.truncated ? "; there are more than can be shown here: GET /workspaces lists them" : "";
    const shown = items.length === model.workspaces.size ? countOf(items.length, "workspace") : `${count(items.length)} of ${count(model.workspaces.size)} workspaces`;
    setText(summary, model.complete ? shown + more : "");
    list.set(items);
  }

  const tools = element("div", { className: "tools" }, search, select(STATES, "state", "State"), select(ORDERS, "order", "Order"), summary, strays);
  const view = element("div", { className: "view fills" }, element("h1", { tabIndex: -1 }, "Workspaces"), tools, list.element);
  return { title: "Workspaces", element: view, change, close: () => list.close() };
}

function ordered(workspaces) {
  const of = asked.order === "busy" ? ({ n, sent }) => n + sent : ({ refused }) => refused;
  return [...workspaces.values()].sort((one, other) => of(other) - of(one) || (one.id < other.id ? -1 : 1));
}

function show(cells, workspace, row, model) {
  setText(cells.link, workspace.name);
  const href = `#${pathOf(workspace.id)}`;
  if (cells.link.getAttribute("href") !== href) cells.link.href = href;
  setText(cells.id, workspace.id === workspace.name ? "" : workspace.id);
  const depth = String(Math.min(workspace.depth ?? 0, 8));
  if (row.dataset.depth !== depth) row.dataset.depth = depth;
  setPill(cells.state, workspace.status, toneOf(workspace.status));
  setText(cells.mode, workspace.mode);
  const seen = workspace.seen === null ? "never" : `${span(model.now() - workspace.seen)} ago`;
  setText(cells.seen, workspace.liveness === "assumed" && workspace.seen === null ? "assumed" : seen);
  setNumber(cells.n, workspace.n);
  setNumber(cells.refused, workspace.refused);
  setNumber(cells.sent, workspace.sent);
  setNumber(cells.streams, workspace.streams);
}

function setNumber(cell, n) {
  setText(cell, count(n));
  const tone = n === 0 ? "none" : "some";
  if (cell.dataset.count !== tone) cell.dataset.count = tone;
}

function nothing(model) {
  if (model.trouble) return element("p", { className: "notice", "data-tone": "warn" }, sentence(model.trouble.message));
  if (!model.complete) return element("p", { className: "muted", role: "status" }, "Loading workspaces …");
  if (model.workspaces.size > 0) return element("p", { className: "muted" }, "No workspace fits: change what you search for.");
  const how = element("code", {}, "POST /workspaces");
  return fill(element("div", { className: "muted" }), element("p", {}, "There are no workspaces yet. ", how, " on the public listener makes the first one, and README.md has the steps."));
}
