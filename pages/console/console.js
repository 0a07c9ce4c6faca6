// The console: a page for operators. It logs in with an operator's token, which it keeps in memory, or by the session that it
// has when it is loaded again, follows one feed, and shows one view at a time, by the part of the address behind `#`.

import { dismiss } from "./act.js";
import { ask, beginSession, endSignIn, enter, follow, forget, leave as endSession, words } from "./ask.js";
import { byId, element, fill } from "./dom.js";
import { auditView } from "./audit.js";
import { callsView } from "./calls.js";
import { explainView } from "./explain.js";
import { gatewayView } from "./gateway.js";
import { Model, POINTS } from "./model.js";
import { overviewView } from "./overview.js";
import { policyView } from "./policy.js";
import { Refusal } from "./refusal.js";
import { kept } from "./session.js";
import { count, field, loading, moment, refusal, say, setPill, setText } from "./show.js";
import { cameBack, wayIn, whoIsIn } from "./signin.js";
import { notOperators } from "./token.js";
import { treeView } from "./tree.js";
import { usageView } from "./usage.js";
import { visible } from "./visible.js";
import { workspaceView } from "./workspace.js";

const VIEWS = [
  ["/overview", "Overview"],
  ["/workspaces", "Workspaces"],
  ["/calls", "Calls"],
  ["/policy", "Policy"],
  ["/explain", "Explain"],
  ["/audit", "Audit"],
  ["/usage", "Usage"],
  ["/gateway", "System"],
];

const model = new Model();
let view = null;
let feed = null;

/** Asks for the token. `why`: the refusal that led here. */
function login(why) {
  leave();
  const token = element("input", { type: "password", name: "token", autocomplete: "off", spellcheck: false, required: true, placeholder: "a2aa_…" });
  const go = element("button", { type: "submit", className: "primary" }, "Log in");
  const form = element(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        const secret = token.value.trim();
        if (!/^[\x21-\x7e]+$/.test(secret)) return login({ reason: "unauthenticated", message: notOperators(secret) });
        go.disabled = true;
        open(secret);
      },
    },
    field("Admin token", token),
    go,
  );
  const other = element("div", {});
  wayIn().then((way) => way && fill(other, way));
  const box = element(
    "div",
    { className: "login" },
    element("h1", {}, "a2a-gateway"),
    element("p", { className: "muted" }, "The console is for operators. The admin token is the one in ", element("code", {}, "A2A_GATEWAY_ADMIN_TOKEN"), "; a gateway that was started without it printed one at its first start."),
    why ? refusal(why) : null,
    other,
    form,
    element("p", { className: "muted small" }, "The token stays in this page's memory. Loading the page again does not ask for it, until you log out, close the tab, or do not use the console for 15 minutes."),
  );
  fill(byId("login"), element("main", {}, box)).hidden = false;
  byId("console").hidden = true;
  document.title = "Log in · a2a-gateway";
  token.focus();
}

/** Forgets everything. */
function leave() {
  feed?.abort();
  feed = null;
  dismiss();
  forget();
  view?.close();
  view = null;
  model.reset();
  fill(byId("view"));
}

/** Follows the feed with this token, or by the session that is kept with `null`, and shows the console once the gateway takes it. */
function open(token) {
  const stop = new AbortController();
  feed = stop;
  enter(token, (why) => feed === stop && login(notTaken(why, token)));
  follow({
    stop: stop.signal,
    hear: (event, data) => feed === stop && model.hear(event, data),
    state: (state, why) => feed === stop && linked(state, why),
  });
}

/** Why a token is not taken, for whoever typed it, or was in with it until now. */
function notTaken(why, token) {
  if (token === null && why.reason === "unauthenticated") return new Refusal({ ...why, message: "your session has ended; log in again" });
  if (why.reason !== "unauthenticated" && why.reason !== "not_permitted") return why;
  const wasIn = !byId("console").hidden;
  const message = wasIn ? "you have been logged out: this admin token is not valid any more; log in with the one in force" : notOperators(token);
  return new Refusal({ ...why, message });
}

function linked(state, why) {
  const open = !byId("console").hidden;
  if (state === "live") {
    setPill(byId("link"), "live", "ok");
    byId("link").title = "";
    // Also when the gateway was started anew, which ends all sessions.
    beginSession();
    whoIsIn().then((who) => setText(byId("who"), who));
    if (open) return;
    fill(byId("login")).hidden = true;
    byId("console").hidden = false;
    route();
  } else if (open) {
    setPill(byId("link"), why?.reason === "shutting_down" ? "shutting down" : "reconnecting", "bad");
    byId("link").title = why?.message ?? "";
  } else {
    login(why ?? { reason: "unreachable", message: "the gateway ended the feed at once; try again" });
  }
}

/** Shows what the address names. */
function route() {
  if (byId("console").hidden) return;
  const [path, search] = location.hash.slice(1).split("?");
  const asked = new URLSearchParams(search);
  const [, name, id] = path.split("/");
  view?.close();
  view = made(name, id, asked);
  fill(byId("view"), view.element);
  document.title = `${visible(view.title)} · a2a-gateway`;
  for (const link of byId("nav").children) {
    const here = link.getAttribute("href") === `#/${name || "overview"}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.change();
  byId("view").querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

function made(name, id, asked) {
  // The name before this release.
  if (name === "calls" || name === "exchanges") return callsView(model, asked);
  if (name === "explain") return explainView(model, asked);
  if (name === "audit") return auditView(model, asked);
  if (name === "policy") return policyView(model);
  if (name === "usage") return usageView(asked);
  if (name === "gateway") return gatewayView(model);
  if (name === "workspaces" && id) return workspaceView(model, decoded(id));
  if (name === "workspaces") return treeView(model);
  return overviewView(model, asked);
}

/** How often the states of workspaces are read, in milliseconds: what breaks is seen within two seconds. */
const STATES_EVERY = 1000;

/** Data of this age are shown as old, in milliseconds. */
const STALE = 5000;

/** Reads how workspaces are, for as long as the page is seen. */
async function followStates() {
  for (;;) {
    if (feed !== null && !byId("console").hidden && !document.hidden) {
      try {
        model.setStates(await ask("console/overview"));
      } catch {
        // The feed says that the gateway, or its database, is away.
      }
    }
    await new Promise((resolve) => setTimeout(resolve, STATES_EVERY));
  }
}

/** Greys what is old, and says of when it is. */
function showAge() {
  const isOld = feed !== null && !byId("console").hidden && Date.now() - model.heardAt > STALE;
  const said = byId("stale");
  if (isOld) setText(said, `Data as of ${moment(model.heardAt)}: the gateway has not been heard since.`);
  said.hidden = !isOld;
  if (isOld) byId("console").dataset.stale = "";
  else delete byId("console").dataset.stale;
}

const PLACES = { o: "overview", w: "workspaces", c: "calls", p: "policy", e: "explain", a: "audit", u: "usage", s: "gateway" };

/** The keys of the page: `/` searches, `g` and a letter goes to a view, `?` lists them. */
let pending = false;
function onKey(event) {
  const types = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (types || event.ctrlKey || event.metaKey || event.altKey || byId("console").hidden || document.querySelector("dialog[open]")) return;
  const goes = pending && PLACES[event.key];
  pending = event.key === "g" && !pending;
  if (goes) location.hash = `#/${goes}`;
  else if (event.key === "/") byId("view").querySelector("input[type=search]")?.focus();
  else if (event.key === "?") say("Keys: / search · g then o, w, c, p, e, a, u or s: Overview, Workspaces, Calls, Policy, Explain, Audit, Usage, System · arrows move in lists, Enter opens · Esc closes");
  else return;
  event.preventDefault();
}

/** A name in an address, which anybody may have typed. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What is always to be seen: numbers of now and of the last minute. */
function strip() {
  const made = (label) => {
    const value = element("dd", {}, "–");
    return { value, box: element("div", {}, element("dt", {}, label), value) };
  };
  const [rate, refused, streams, workspaces, replicas] = ["Calls/s", "Not carried out/s", "Open streams", "Healthy workspaces", "Replicas"].map(made);
  const curves = [curve("n"), curve("refused")];
  rate.box.append(curves[0].svg);
  refused.box.append(curves[1].svg);
  byId("strip").append(...[rate, refused, streams, workspaces, replicas].map(({ box }) => box));
  return () => {
    const last = model.curve.at(-1);
    setText(rate.value, last ? count(last.n) : "–");
    setText(refused.value, last ? count(last.refused) : "–");
    refused.value.dataset.tone = last?.refused ? "bad" : "none";
    setText(streams.value, count(model.totals.streams));
    const counts = model.overview?.counts ?? [];
    const all_ = counts.reduce((sum, [, n]) => sum + n, 0);
    const healthy = counts.find(([state]) => state === "healthy")?.[1] ?? 0;
    setText(workspaces.value, model.overview ? `${count(healthy)} of ${count(all_)}` : "–");
    const well = model.replicas.filter(({ sql, shared, silent_ms: silent }) => sql && shared && silent < 5000).length;
    const all = model.replicas.length;
    setText(replicas.value, well < all ? `${count(well)} of ${count(all)} well` : count(all));
    replicas.value.dataset.tone = well < all ? "bad" : "none";
    for (const one of curves) one.draw();
  };
}

const SVG = "http://www.w3.org/2000/svg";

/** The last minute of a number as a line. Said in numbers elsewhere, so it is nothing to those who listen. */
function curve(member) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${POINTS - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true", class: `curve ${member}` })) svg.setAttribute(name, value);
  const line = document.createElementNS(SVG, "polyline");
  svg.append(line);
  const draw = () => {
    const points = model.curve.map((point) => point[member]);
    const most = Math.max(1, ...points);
    const from = POINTS - points.length;
    line.setAttribute("points", points.map((n, index) => `${from + index},${19 - (18 * n) / most}`).join(" "));
  };
  return { svg, draw };
}

byId("nav").append(...VIEWS.map(([path, title]) => element("a", { href: `#${path}` }, title)));
byId("leave").addEventListener("click", () => {
  const ended = endSession();
  login();
  const box = byId("login").querySelector(".login");
  ended.then((said) => said?.signed_in_at && box.append(element("p", { className: "muted small" }, `You are signed out here. Your session at ${new URL(said.signed_in_at).host} goes on.`)));
});
const numbers = strip();
model.addEventListener("change", () => {
  if (byId("console").hidden) return;
  numbers();
  view?.change();
});
addEventListener("hashchange", route);
addEventListener("keydown", onKey);
setInterval(showAge, 500);
followStates();
const came = cameBack();
if (came?.why || (came === null && kept() === null)) login(came?.why);
else {
  fill(byId("login"), element("main", { className: "login" }, loading("the console")));
  if (came) endSignIn(came.code).then(() => open(null), (error) => login(words(error)));
  else open(null);
}
