// The first view: what is wrong now, since when, whom it hits and what to do; then what passed over time, and through whom.

import { pause } from "./act.js";
import { Newest, ask, query, words } from "./ask.js";
import { chart } from "./charts.js";
import { element, fill } from "./dom.js";
import { RESULTS, setState, wordOf } from "./health.js";
import { choice, count, countOf, loading, moment, pathOf, refusal, setText, span, table, to, took } from "./show.js";
import { release, stop } from "./stops.js";

/** How often sums are read, in milliseconds. */
const SUMS_EVERY = 5_000;

/** Problems and workspaces that are shown at most. */
const SHOWN = 20;

/** Records that are looked through for the callers of an agent that fails. */
const LOOKED_AT = 500;

const TIMES = ["1h", "6h", "24h", "7d"];

const ATTENTION = ["stopped", "failing", "offline", "busy"];

/** `{ element, change, close }` of the view; `asked` from its address. */
export function overviewView(model, asked) {
  const chosen = { over: TIMES.includes(asked.get("over")) ? asked.get("over") : "1h", org: asked.get("org") ?? "" };
  const problems = element("div", { className: "problems" }, loading("what is wrong"));
  const title = element("h2", {}, "Needs attention");
  const workspaces = element("div", {}, loading("the workspaces"));
  const trouble = element("div", {});
  const newest = new Newest();
  /** By workspace: the callers that it failed, with the time of the failure that they were read for. */
  const hit = new Map();
  let [overview, stops, shown, closed, sums] = [model.overview, [], "", false, null];

  const charts = {
    calls: chart({ title: "Calls per second", unit: "rate", lines: [{ label: "answered", tone: "ok" }, { label: "failed", tone: "bad" }] }),
    denied: chart({ title: "Denied per second", unit: "rate", lines: [{ label: "denied", tone: "warn" }, { label: "rejected", tone: "muted", dash: [4, 3] }] }),
    latency: chart({ title: "Duration of calls", unit: "ms", lines: [{ label: "p50", tone: "accent" }, { label: "p95", tone: "accent", dash: [4, 3] }] }),
    streams: chart({ title: "Streams opened per second", unit: "rate", lines: [{ label: "streams", tone: "accent" }] }),
  };

  /** The stops in force, where a workspace has one to release. */
  async function readStops() {
    try {
      ({ stops } = await ask(`api/stops${query({ limit: 100 })}`));
      draw();
    } catch (error) {
      fill(trouble, refusal(words(error), readStops));
    }
  }

  async function count_() {
    const signal = newest.next();
    try {
      sums = await ask(`console/traffic${query(chosen)}`, { signal });
      if (closed || signal.aborted) return;
      drawSums();
    } catch (error) {
      if (signal.aborted || closed) return;
      // What is there stays, and is grey as the rest of the page.
      if (sums === null) fill(workspaces, refusal(words(error), count_));
    }
  }

  /** The callers that a failing agent hit, read once for each further failure, not more often than each ten seconds. */
  async function callersOf({ id, since, last_failed: last }) {
    const known = hit.get(id);
    if (known && (known.last === last || Date.now() - known.at < 10_000)) return;
    hit.set(id, { ...known, last, at: Date.now() });
    try {
      const { records } = await ask(`audit${query({ event_type: "A2A_CALL", target: id, since: since ?? last, limit: LOOKED_AT })}`);
      const failed = records.filter(({ result }) => result === "agent_failed");
      hit.set(id, { last, at: Date.now(), callers: new Set(failed.map(({ caller }) => caller)).size });
      draw();
    } catch {
      // It is read again with the next failure.
    }
  }

  /** Caps that are reached, and keys that cannot be read, once for each reading of sums. */
  let more = [];
  async function readPolicy() {
    try {
      const [{ caps }, { readable }] = await Promise.all([ask("api/caps?limit=5"), ask("console/keys")]);
      more = caps.flatMap(({ name, limit, count: unit, subjects }) => subjects.filter(({ reached }) => reached).map(({ subject, org, resets_at: resets }) => ({
        key: `cap ${name} ${subject} ${org}`, word: "cap reached", tone: "warn", what: `Cap ${name}`, path: "/policy",
        why: `${subject || org || "no org"} has used all ${count(limit)} ${unit}${resets ? `; it begins again ${moment(resets)}` : ""}`,
      })));
      if (!readable) more.push({ key: "keys", word: "unreadable", tone: "bad", what: "Trust keys", path: "/gateway", why: "keys.dir cannot be read; the keys known before stay in force" });
      draw();
    } catch {
      // What is away is said by the feed.
    }
  }

  /** What the gateway itself has: stores that are away, replicas that are silent. */
  function ofGateway() {
    const found = [];
    for (const { replica, sql, shared, silent_ms: silent } of model.replicas) {
      if (silent >= 5000) found.push({ key: `silent ${replica}`, what: `Replica ${replica}`, why: `silent for ${span(silent)}`, path: "/gateway" });
      if (!sql) found.push({ key: `sql ${replica}`, what: "Database", why: `does not answer replica ${replica}`, path: "/gateway" });
      if (!shared) found.push({ key: `shared ${replica}`, what: "Shared state", why: `does not answer replica ${replica}`, path: "/gateway" });
    }
    return [...found, ...more];
  }

  function problem(one) {
    const pill = element("span", { className: "state" });
    setState(pill, one.state);
    if (one.state === "failing") callersOf(one);
    const callers = hit.get(one.id)?.callers;
    const whole = [one.why, callers ? `${countOf(callers, "caller")} hit` : null].filter(Boolean).join(" · ");
    const act = (text, onclick, className = "") => element("button", { type: "button", className: `small ${className}`, onclick }, text);
    const buttons = [to(`/calls${query({ workspace: one.id, result: one.state === "failing" ? "agent_failed" : "" })}`, "See calls", "button small")];
    if (one.state === "stopped") {
      const cause = stops.find(({ scope }) => scope.workspace === one.id) ?? stops.find(({ scope }) => scope.subtree || scope.org || scope.all);
      if (cause) buttons.push(act("Release…", () => release(cause)));
    } else if (one.state === "failing" || one.state === "busy") buttons.push(act("Pause…", () => pause(one.id, model)), act("Stop…", () => stop(one.id, model)));
    return element(
      "li",
      { className: "problem", "data-id": one.id },
      element("p", { className: "what" }, pill, " ", to(pathOf(one.id), one.name), one.since ? element("span", { className: "muted since" }, ` since ${moment(one.since)}`) : null),
      element("p", { className: "small" }, whole),
      element("div", { className: "buttons" }, buttons),
    );
  }

  function draw() {
    if (!overview) return;
    const inOrg = overview.unwell.filter(({ org }) => chosen.org === "" || org === chosen.org);
    const wrong = inOrg.filter(({ state }) => ATTENTION.includes(state));
    const own = ofGateway();
    const solved = overview.solved.filter(({ id }) => !wrong.some((one) => one.id === id));
    // What is the same is not made again: a button under the pointer stays.
    const now = JSON.stringify([wrong, own.map(({ key }) => key), solved, stops, [...hit].map(([id, { callers }]) => [id, callers]), overview.counts, chosen.org]);
    if (now === shown) return;
    shown = now;
    // The button that has the focus keeps it, where it is still there.
    const here = problems.contains(document.activeElement) ? document.activeElement : null;
    const focused = here && [here.closest("li")?.dataset.id, here.textContent];
    const total = wrong.length + own.length;
    setText(title, total === 0 ? "Needs attention" : `Needs attention · ${count(total)}`);
    const all = overview.counts.reduce((sum, [, n]) => sum + n, 0);
    const rest = overview.counts.filter(([state]) => !ATTENTION.includes(state) && state !== "healthy").map(([state, n]) => `${count(n)} ${wordOf(state)}`);
    const last = overview.last_solved;
    const calm = [all === 0 ? "There are no workspaces yet." : rest.length === 0 ? `All ${countOf(all, "workspace")} are healthy.` : `No workspace needs attention: ${rest.join(", ")}, the others are healthy.`];
    if (last) calm.push(` Last problem: ${last.id}, ${span(Date.parse(last.ended_at) - Date.parse(last.since))}, ${moment(last.since)}.`);
    fill(
      problems,
      total === 0 ? element("p", { className: "calm" }, calm.join("")) : null,
      element(
        "ul",
        {},
        own.map(({ what, why, path, word = "away", tone = "bad" }) => element("li", { className: "problem" }, element("p", { className: "what" }, element("span", { className: "state", "data-tone": tone, "data-shape": "" }, `⚠ ${word}`), " ", to(path, what)), element("p", { className: "small" }, why))),
        wrong.slice(0, SHOWN).map(problem),
        solved.map(({ id, since, ended_at: ended }) => element("li", { className: "problem" }, element("p", { className: "what" }, element("span", { className: "state", "data-tone": "ok", "data-shape": "" }, "✓ solved"), " ", to(pathOf(id), id), element("span", { className: "muted since" }, ` ${moment(ended)} after ${span(Date.parse(ended) - Date.parse(since))}`)))),
      ),
      wrong.length > SHOWN ? element("p", { className: "small" }, to("/workspaces", `${countOf(wrong.length - SHOWN, "more workspace")}`)) : null,
    );
    if (focused) [...problems.querySelectorAll("button, a")].find((one) => one.closest("li")?.dataset.id === focused[0] && one.textContent === focused[1])?.focus();
  }

  function drawSums() {
    const { from, step, steps, cells } = sums;
    const x = Array.from({ length: steps }, (_, at) => from + at * step);
    const by = new Map(cells.map((cell) => [cell[0], cell]));
    const line = (value) => x.map((at) => (by.has(at) ? value(by.get(at)) : 0));
    const rate = (...results) => line(([, counts]) => results.reduce((sum, result) => sum + counts[RESULTS.indexOf(result)], 0) / step);
    const gaps = (at) => x.map((time) => by.get(time)?.[at] ?? null);
    charts.calls.show(x, [rate("answered"), rate("agent_failed", "gateway_failed")]);
    charts.denied.show(x, [rate("denied"), rate("rejected")]);
    charts.latency.show(x, [gaps(3), gaps(4)]);
    charts.streams.show(x, [line(([, , streams]) => streams / step)]);
    const seconds = step * steps;
    const rows = sums.workspaces.filter(([id]) => chosen.org === "" || model.workspaces.get(id)?.org === chosen.org).slice(0, SHOWN).map(([id, counts, streams, p50, p95]) => {
      const [answered, failed] = counts;
      const pill = element("span", { className: "state" });
      setState(pill, model.stateOf(id));
      const success = answered + failed === 0 ? "–" : `${(Math.floor((1000 * answered) / (answered + failed)) / 10).toFixed(1)} %`;
      const rate = counts.reduce((sum, n) => sum + n, 0) / seconds;
      return [to(pathOf(id), model.workspaces.get(id)?.name ?? id), success, String(Number(rate.toPrecision(2))), p50 === null ? "–" : took(p50), p95 === null ? "–" : took(p95), count(streams), pill];
    });
    const none = sums.recording ? "No call in this time." : "Nothing is counted: audit.enabled is false.";
    fill(workspaces, table("Workspaces by failures, then by calls", ["Workspace", "Success", "Calls/s", "p50", "p95", "Streams", "State"], rows, none));
  }

  const again = () => {
    history.replaceState(null, "", `#/overview${query({ ...chosen, over: chosen.over === "1h" ? "" : chosen.over })}`);
    shown = "";
    draw();
    count_();
  };
  const times = element("div", { className: "segments", role: "group", "aria-label": "Time" });
  for (const over of TIMES) {
    times.append(element("button", { type: "button", "aria-pressed": String(over === chosen.over), onclick: (event) => {
      chosen.over = over;
      for (const button of times.children) button.setAttribute("aria-pressed", String(button === event.target));
      again();
    } }, over.replace(/(\d+)/, "$1 ")));
  }
  const orgs = choice([["", "All orgs"]], { value: chosen.org, "aria-label": "Org", onchange: () => ((chosen.org = orgs.value), again()) });
  const named = new Set();
  let [covered, drawn] = ["", null];
  function change() {
    if (model.overview !== overview) {
      overview = model.overview;
      const now = JSON.stringify(overview.unwell.filter(({ state }) => state === "stopped").map(({ id, since }) => [id, since]));
      if (now !== covered) readStops();
      covered = now;
      const states = JSON.stringify(overview.unwell.map(({ id, state }) => [id, state]));
      if (sums && states !== drawn) drawSums();
      drawn = states;
    }
    for (const { org } of model.workspaces.values()) {
      if (org === null || named.has(org)) continue;
      named.add(org);
      orgs.append(element("option", { value: org, selected: org === chosen.org }, org));
    }
    draw();
  }

  change();
  readStops();
  count_();
  readPolicy();
  const timer = setInterval(() => (count_(), readPolicy()), SUMS_EVERY);
  const head = element("div", { className: "title" }, element("h1", { tabIndex: -1 }, "Overview"), element("div", { className: "buttons" }, times, orgs));
  const attention = element("section", { className: "panel attention", "aria-label": "Needs attention" }, title, trouble, problems);
  const view = element("div", { className: "view overview" }, head, attention, element("div", { className: "charts" }, Object.values(charts).map((one) => one.element)), element("section", { className: "panel wide", "aria-label": "Workspaces" }, element("h2", {}, "Workspaces"), workspaces));
  return {
    title: "Overview",
    element: view,
    change,
    close: () => {
      closed = true;
      clearInterval(timer);
      newest.close();
      for (const one of Object.values(charts)) one.close();
    },
  };
}
