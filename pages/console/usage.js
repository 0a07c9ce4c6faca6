// What calls took: by day, workspace and org, of callers or of targets, with a file of all of it.

import { Newest, ask, download, query, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { choice, count, field, loading, panel, pathOf, refusal, span, table, to } from "./show.js";

/** Sums of a page. */
const PAGE = 200;

const SIDES = [
  ["caller", "Callers: what they used"],
  ["target", "Targets: what was used of them"],
];

const SUBJECTS = [
  ["org", "Orgs"],
  ["workspace", "Workspaces"],
];

const SPANS = [
  ["total", "All days together"],
  ["day", "Each day"],
];

/** Callers that are no workspaces. */
const KINDS = { "operator:": "operators", "org:": "integrations of the org", "canvas:": "browser users", "unknown:": "callers that proved nothing" };

/** `{ element, change, close }` of the view; `asked` from its address. */
export function usageView(asked) {
  const today = new Date().toISOString().slice(0, 10);
  const given = (name, otherwise) => asked.get(name) ?? otherwise;
  const day = (name, otherwise) => element("input", { name, value: given(name, otherwise), required: true, pattern: "\\d{4}-\\d{2}-\\d{2}", placeholder: "2026-11-28", title: "A day: 2026-11-28", autocomplete: "off" });
  const text = (name, placeholder) => element("input", { name, value: given(name, ""), placeholder, autocomplete: "off", spellcheck: false });
  const of = (name, options) => choice(options, { name, value: given(name, options[0][0]) });
  const controls = {
    from: day("from", `${today.slice(0, 8)}01`),
    to: day("to", today),
    side: of("side", SIDES),
    by: of("by", SUBJECTS),
    per: of("per", SPANS),
    org: text("org", "all"),
    workspace: text("workspace", "all"),
  };
  const sums = element("div", { className: "records" });
  const more = element("div", { className: "more" });
  const notes = element("div", {});
  const newest = new Newest();

  const wanted = () => {
    const said = Object.fromEntries(Object.entries(controls).map(([name, { value }]) => [name, value.trim()]));
    // A sum of an org has all of its workspaces.
    if (said.by === "org") said.workspace = "";
    return said;
  };

  async function search(cursor, before = []) {
    const signal = newest.next();
    if (!cursor) fill(sums, loading("the usage"));
    fill(more);
    const filter = wanted();
    try {
      const page = await ask(`api/usage${query({ ...filter, limit: PAGE, cursor })}`, { signal });
      if (signal.aborted) return;
      const lines = [...before, ...page.usage];
      fill(notes, ...notesOf(page));
      fill(sums, shown(lines, page));
      if (page.next_cursor) fill(more, element("button", { type: "button", onclick: () => search(page.next_cursor, lines) }, "Show more"));
    } catch (error) {
      if (signal.aborted) return;
      fill(cursor ? more : sums, refusal(words(error), () => search(cursor, before)));
    }
  }

  const failed = element("div", {});
  const save = element("button", { type: "button", onclick: () => file() }, "Download CSV");
  async function file() {
    save.disabled = true;
    fill(failed);
    const filter = wanted();
    try {
      const blob = await download(`api/usage${query({ ...filter, format: "csv" })}`);
      const url = URL.createObjectURL(blob);
      element("a", { href: url, download: `usage-${filter.side}-${filter.from}-${filter.to}.csv` }).click();
      // The browser has read it by then.
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) {
      fill(failed, refusal(words(error), file));
    } finally {
      save.disabled = false;
    }
  }

  const turn = () => (controls.workspace.disabled = controls.by.value === "org");
  controls.by.addEventListener("change", turn);
  turn();
  const form = element(
    "form",
    {
      className: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        history.replaceState(null, "", `#/usage${query(wanted())}`);
        search();
      },
    },
    field("From (a day of UTC)", controls.from),
    field("To, included", controls.to),
    field("Side of the calls", controls.side),
    field("Group by", controls.by),
    field("Rows", controls.per),
    field("Org", controls.org),
    field("Workspace", controls.workspace),
    element("div", { className: "buttons" }, element("button", { type: "submit", className: "primary" }, "Show"), save),
  );
  search();
  const how = element("p", { className: "muted small" }, "Refused calls are those that the gateway turned down; failed ones reached for an agent in vain. Those that the agent failed are among all of these: it answered with a 5xx status, or not at all. Bytes and time are those of all others and of the failed ones. A call counts on the day on which it ended.");
  const view = element("div", { className: "view" }, element("h1", { tabIndex: -1 }, "Usage"), form, failed, panel("Sums", notes, sums, more, how));
  return { title: "Usage", element: view, change: () => {}, close: () => newest.close() };
}

function notesOf({ recording }) {
  const note = (text) => element("p", { className: "notice", "data-tone": "warn" }, text);
  return [
    recording ? null : note("Nothing is counted: audit.enabled is false."),
  ].filter(Boolean);
}

/** The lines as a table, with the sum of all pages at its end. */
function shown(lines, { total, by, per, side }) {
  const daily = per === "day";
  const heads = [daily ? "Day" : null, by === "org" ? "Org" : "Workspace", by === "org" ? null : "Org", "Calls", "Streams", "Refused", "Failed", "Failed by the agent", "Bytes in", "Bytes out", "Time"];
  const there = heads.map((head) => head !== null);
  const cells = (first, name, org, sums) =>
    [first, name, org, count(sums.calls), count(sums.streams), count(sums.refused), count(sums.failed), count(sums.agent_failed), bytes(sums.bytes_in), bytes(sums.bytes_out), span(sums.seconds * 1000)].filter((_, index) => there[index]);
  const rows = lines.map((line) => cells(line.day, by === "org" ? (line.org ?? "no org") : named(line.workspace), line.org ?? "no org", line));
  if (rows.length > 0) rows.push(cells("", element("strong", {}, "Total"), "", total));
  const none = `No ${side === "caller" ? "caller" : "target"} that fits had a call on these days.`;
  const made = table("Usage", heads.filter(Boolean), rows, none);
  made.classList.add("sums");
  return made;
}

function named(workspace) {
  const kind = KINDS[workspace];
  return kind ?? to(pathOf(workspace), workspace);
}

/** A number of bytes, for people. */
export function bytes(n) {
  const [unit, name] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => n >= size) ?? [1, "B"];
  return `${count(Math.round((n / unit) * 10) / 10)} ${name}`;
}
