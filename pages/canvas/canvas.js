// A canvas: a page that talks with agents through the gateway. It is also the example of how to write one. Read it in this
// order: gateway.js (calls with a token), resume.js (streams that survive), agent.js (the SDK), live.js (what happens
// meanwhile), talk.js (one conversation), conversation.js, parts.js and card.js (what is shown), kept.js (what survives a
// reload), and this, which holds them together.

import { Agent } from "./agent.js";
import { cardElements } from "./card.js";
import { failure } from "./conversation.js";
import { confirm } from "./dialog.js";
import { byId, element, fill } from "./dom.js";
import { Files } from "./files.js";
import { Gateway } from "./gateway.js";
import { forget, keep, recall } from "./kept.js";
import { Live } from "./live.js";
import { drawWithin } from "./markdown.js";
import { Playground } from "./playground.js";
import { Refusal } from "./refusal.js";
import { Talk } from "./talk.js";
import { notUsers } from "./token.js";
import { visible } from "./visible.js";
import { clearWorkspaces, moveInTree, showWorkspaces } from "./workspaces.js";

/** Tasks that are open and of which nothing is heard are asked for this often, in milliseconds, and so many at once. */
const ASK_EVERY = 15_000;
const ASK_MAX = 10;

/** What changed is kept this often at most, in milliseconds, and when the page is left. */
const KEEP_EVERY = 5_000;

/** Conversations with one agent. */
const TALKS_MAX = 30;

/** So far from its end, in pixels, the log still counts as read to the end, and is kept there. */
const NEAR_END = 80;

let gateway = null;
let live = null;
/** The workspaces by id: `{ data, agent, cardError, talks, talk, unread }`; `talk` is the conversation that is shown. */
const entries = new Map();
let chosen = null;
/** The frame that shows what changed. */
let frame = null;
/** The frame that shows the end of the log. */
let follows = null;
/** Whether something is new since it was kept last; whether no user is in; what was kept and has no workspace yet. */
let isNew = false;
let isOut = true;
let later = [];
/** Whether the raw exchanges are shown in place of the card. */
let isRaw = false;
const files = new Files(() => showComposer());

// ---- Coming and going -------------------------------------------------------------------------------------------------

/** Takes a token out of the address bar before anything else happens, so that it is in no history and on no screenshot. */
function tokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (location.hash) history.replaceState(null, "", location.pathname);
  return token;
}

async function enter(token) {
  byId("enter").disabled = true;
  // Whoever comes in last is who is in: a link with another token may be followed meanwhile.
  const mine = new Gateway(token);
  gateway = mine;
  try {
    const { workspaces, more } = await mine.workspaces();
    if (gateway !== mine) return;
    byId("token").value = "";
    fill(byId("who"), gateway.who);
    restore(mine, workspaces, more);
    show("desk");
    live = new Live(gateway, hear, showLive);
    live.open();
    byId(chosen ? "text" : "filter").focus();
  } catch (error) {
    if (gateway !== mine) return;
    gateway = null;
    show("door");
    const isWrong = error instanceof Refusal && error.reason === "unauthenticated";
    fill(byId("refused"), failure(isWrong ? new Refusal({ ...error, message: notUsers(token ?? "") }) : error));
    byId("token").focus();
  } finally {
    if (gateway === mine || gateway === null) byId("enter").disabled = false;
  }
}

/** To the door, with why. The same user finds all as it was, and the token that is over is not kept. */
function signIn(why) {
  keepAll(null);
  leave(false);
  fill(byId("refused"), failure(why));
}

/** Forgets everything, also what was kept. */
function leave(forgets = true) {
  if (forgets) forget();
  live?.close();
  isOut = true;
  for (const { talks } of entries.values()) for (const { running } of talks) running?.abort();
  entries.clear();
  files.take();
  byId("text").value = "";
  later = [];
  isNew = false;
  clearWorkspaces();
  gateway = live = chosen = null;
  fill(byId("refused"));
  fill(byId("who"));
  showChosen();
  showView("list");
  show("door");
  byId("token").focus();
}

function show(what) {
  byId("door").hidden = what !== "door";
  byId("desk").hidden = what !== "desk";
  byId("leave").hidden = what !== "desk";
  byId("live").hidden = what !== "desk";
}

// ---- Over a reload ----------------------------------------------------------------------------------------------------

/** Shows what was kept of this user, and forgets what was of another one. */
function restore(mine, workspaces, more) {
  isOut = false;
  const kept = recall();
  const isSame = kept?.user === mine.user;
  if (kept && !isSame) forget();
  later = isSame ? kept.talks : [];
  take(workspaces, more);
  if (isSame && entries.has(kept.chosen)) choose(kept.chosen);
  keepAll();
}

/** The conversations that were kept with a workspace. */
function restoreTalks(entry) {
  const own = later.filter(({ workspace }) => workspace === entry.data.id);
  if (own.length === 0) return;
  later = later.filter((one) => !own.includes(one));
  entry.talks = own.map((kept) => {
    const talk = new Talk(entry, page);
    talk.restore(kept);
    return talk;
  });
  [entry.talk] = entry.talks;
}

function keepAll(token = gateway?.token ?? "") {
  // What was kept of the user before stays until the next one is in.
  if (!gateway || isOut) return;
  isNew = false;
  saveDraft();
  const talks = [...entries.values()].flatMap((entry) => entry.talks.filter((talk) => !talk.conversation.isEmpty || talk.draft));
  talks.sort((one, other) => other.usedAt - one.usedAt);
  keep({ token, user: gateway.user, chosen, talks: [...talks.map((talk) => talk.kept()), ...later] });
}

function saveDraft() {
  const talk = chosen && entries.get(chosen)?.talk;
  if (talk) talk.draft = byId("text").value;
}

/** Which of the three a narrow window shows: `list`, `talk` or `card`. A wide one shows all. */
function showView(view) {
  byId("desk").dataset.view = view;
  byId("card-toggle").setAttribute("aria-expanded", String(view === "card"));
}

// ---- Workspaces -------------------------------------------------------------------------------------------------------

/** Takes in the list as it is now; conversations go on. */
function take(workspaces, more) {
  const ids = new Set(workspaces.map(({ id }) => id));
  for (const id of entries.keys()) if (!ids.has(id)) entries.delete(id);
  for (const data of workspaces) {
    const entry = entries.get(data.id);
    if (entry) entry.data = data;
    else {
      const fresh = { data, agent: null, unread: false, talks: [], talk: null };
      entries.set(data.id, fresh);
      fresh.talk = new Talk(fresh, page);
      fresh.talks = [fresh.talk];
      restoreTalks(fresh);
    }
  }
  const notice = byId("list-notice");
  if (entries.size === 0) {
    const hint = "This token reaches no workspace. Ask an operator for one that does, or have an agent registered.";
    fill(notice, element("p", { className: "notice" }, hint));
  } else if (more) fill(notice, element("p", { className: "notice" }, "Not all workspaces are listed: there are too many."));
  else fill(notice);
  if (chosen && !entries.has(chosen)) chosen = null;
  showAll();
}

function showAll() {
  showWorkspaces([...entries.values()], byId("filter").value, chosen, choose);
  showChosen();
}

/** The same with the next frame, once, however much happens until then. */
function showSoon() {
  if (!frame) {
    frame = requestAnimationFrame(() => {
      frame = null;
      showAll();
    });
  }
}

/** Opens the conversation with a workspace. */
async function choose(id, talk = null) {
  saveDraft();
  chosen = id;
  const entry = entries.get(id);
  entry.unread = false;
  if (talk) entry.talk = talk;
  byId("text").value = entry.talk.draft;
  isNew = true;
  showView("talk");
  showAll();
  toEnd();
  byId("text").focus();
  await meet(entry);
}

/** Reads the agent's card, once. What cannot be read is said, and tried again when it is needed next. */
async function meet(entry) {
  if (entry.agent?.card) return;
  try {
    entry.agent = await Agent.of(gateway, entry.data.id);
    entry.cardError = null;
  } catch (error) {
    entry.cardError = error;
  }
  if (chosen === entry.data.id) showCard(entry);
}

// ---- What is shown of the chosen one ----------------------------------------------------------------------------------

function showChosen() {
  const entry = chosen && entries.get(chosen);
  for (const id of ["composer", "afresh", "fresh", "card-toggle", "raw-toggle"]) byId(id).hidden = !entry;
  showTalks(entry);
  if (!entry) {
    fill(byId("title"), "No workspace chosen");
    fill(byId("subtitle"));
    fill(byId("log"), empty("Choose a workspace", "Pick one from the list. Its agent's card says what it can do, and then you can write to it."));
    fill(byId("card-body"), element("p", { className: "muted" }, "The card of the agent that you choose is shown here."));
    document.title = "Canvas";
    return;
  }
  const { data, talk } = entry;
  const { conversation } = talk;
  const name = data.name || data.id;
  document.title = `${visible(name)} · Canvas`;
  fill(byId("title"), name);
  // Each for itself, so that none is drawn in another's place.
  const about = [data.role, data.id !== name && data.id, data.status].filter(Boolean);
  fill(byId("subtitle"), ...about.flatMap((one) => [" · ", one]).slice(1));
  byId("afresh").disabled = conversation.isEmpty;
  showComposer();
  const first = empty(`Say something to ${name}`, "What it answers shows here as it comes. An example from its card is a good start.");
  const log = byId("log");
  const wanted = conversation.isEmpty ? first : conversation.element;
  if (log.firstChild !== wanted) fill(log, wanted);
  showCard(entry);
}

/** While an answer comes, nothing is sent; what is written stays. */
function showComposer() {
  const entry = chosen && entries.get(chosen);
  byId("send").disabled = Boolean(entry?.talk.running);
}

/** The conversations with the chosen agent. */
function showTalks(entry) {
  byId("talks").hidden = !entry || (entry.talks.length === 1 && entry.talk.conversation.isEmpty);
  if (!entry) return;
  const rows = entry.talks.map((talk) => {
    const button = element("button", { type: "button", className: "talk-row", onclick: () => choose(entry.data.id, talk) }, talk.title, talk.isBusy && element("span", { className: "state", "data-tone": "busy" }, "working"));
    if (talk === entry.talk) button.setAttribute("aria-current", "true");
    return element("li", {}, button);
  });
  const list = byId("talk-list");
  // What has not changed stays, and with it the focus.
  const same = rows.length === list.children.length && rows.every((row, index) => row.textContent === list.children[index].textContent && row.firstChild.ariaCurrent === list.children[index].firstChild.ariaCurrent);
  if (!same) fill(list, ...rows);
  byId("rename").disabled = byId("fresh").disabled = entry.talk.conversation.isEmpty;
}

/** Empties a conversation, or takes one of several away, once its user has said that it is meant. */
async function clear(entry) {
  const { talk } = entry;
  const tasks = talk.isBusy ? " What its agent is working on is cancelled." : "";
  const turns = talk.conversation.length;
  const title = talk.isBusy ? "Cancel and clear this conversation?" : "Clear this conversation?";
  if (!(await confirm(title, `Its ${turns} ${turns === 1 ? "turn is" : "turns are"} gone for good.${tasks}`, talk.isBusy ? "Cancel and clear" : "Clear"))) return;
  await talk.startOver();
  // One that has something to say about that stays.
  if (entry.talks.length > 1 && talk.conversation.isEmpty) {
    entry.talks = entry.talks.filter((one) => one !== talk);
    if (entry.talk === talk) [entry.talk] = entry.talks;
  }
  isNew = true;
  showAll();
}

/** Begins another conversation with the same agent; the others stay, and go on. */
function begin(entry) {
  const empty = entry.talks.find(({ conversation }) => conversation.isEmpty);
  const talk = empty ?? new Talk(entry, page);
  if (!empty) entry.talks.unshift(talk);
  // Those that were not used the longest leave, but not while their agent works.
  const idle = entry.talks.filter((one) => one !== talk && !one.isBusy).sort((one, other) => one.usedAt - other.usedAt);
  if (entry.talks.length > TALKS_MAX && idle.length > 0) entry.talks = entry.talks.filter((one) => one !== idle[0]);
  choose(entry.data.id, talk);
}

async function rename({ talk }) {
  const name = await confirm("Rename this conversation", "", "Rename", { label: "Name", value: talk.title });
  if (name) talk.name = name;
  isNew = true;
  showAll();
}

function showCard(entry) {
  const { agent, cardError, data, talk } = entry;
  const body = byId("card-body");
  byId("raw-toggle").setAttribute("aria-pressed", String(isRaw));
  fill(byId("card-title"), isRaw ? "Raw exchanges" : "Agent card");
  if (isRaw) {
    entry.playground ??= new Playground(gateway, data.id, (exchange) => entry.talk.raw.take(exchange));
    if (agent) entry.playground.offer(agent.card);
    if (body.firstChild !== entry.playground.element || body.lastChild !== talk.raw.element) fill(body, entry.playground.element, talk.raw.element);
    return;
  }
  if (agent?.card) fill(body, ...cardElements(agent.card, data, propose));
  else if (agent) {
    const about = { status: data.status, signIn };
    fill(body, element("p", { className: "muted" }, "There is no card of this workspace to be had. It may still take messages."), failure(agent.refusal, about));
  } else if (cardError) fill(body, failure(cardError, { signIn }));
  else fill(body, element("p", { className: "muted", role: "status" }, "Reading the card …"));
}

function empty(title, hint) {
  return element("div", { className: "empty" }, element("p", { className: "empty-title" }, title), element("p", { className: "muted" }, hint));
}

/** Puts an example into the message, to be sent or changed. */
function propose(text) {
  showView("talk");
  byId("text").value = text;
  byId("text").focus();
}

// ---- Talking ----------------------------------------------------------------------------------------------------------

/** What a conversation needs of the page. */
const page = {
  meet,
  keepingEnd,
  signIn,
  isOut: () => isOut,
  changed: (talk) => {
    isNew = true;
    if (chosen === talk.entry.data.id) showSoon();
  },
};

function send(entry, text) {
  const { talk } = entry;
  talk.draft = "";
  const sent = talk.send(text, files.take());
  showChosen();
  toEnd();
  return sent;
}

/** Asks for the tasks of which nothing can be heard by a stream. */
function askForOpen() {
  const talks = [...entries.values()].flatMap((entry) => entry.talks);
  const waiting = talks.flatMap((talk) => [...talk.conversation.open].map((answer) => [talk, answer]));
  const silent = waiting.filter(([talk, answer]) => !talk.running && answer.taskId);
  // Those that were not asked for the longest, so that each has its turn.
  silent.sort(([, one], [, other]) => one.askedAt - other.askedAt);
  for (const [talk, answer] of silent.slice(0, ASK_MAX)) talk.ask(answer);
}

/** Does something to the log, and goes on showing its end to whoever was reading that. It is measured once for each frame. */
function keepingEnd(act) {
  if (!follows) {
    const { scrollHeight, scrollTop, clientHeight } = byId("log");
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR_END;
    follows = requestAnimationFrame(() => {
      follows = null;
      if (isNear) toEnd();
    });
  }
  act();
}

function toEnd() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}

// ---- What happens meanwhile -------------------------------------------------------------------------------------------

/** One event of the gateway. Those that are not known are passed over, as its contract asks. */
function hear({ event, workspace_id: id, payload = {}, timestamp }) {
  if (event === "GAP" || event === "WORKSPACE_MOVED") return void refresh();
  const entry = entries.get(id);
  if (!entry) {
    // One that this token reaches, and that was not there before.
    if (event === "WORKSPACE_ONLINE") refresh();
    return;
  }
  if (["WORKSPACE_ONLINE", "WORKSPACE_OFFLINE", "WORKSPACE_DEGRADED"].includes(event)) {
    entry.data.status = payload.status;
    showSoon();
  } else if (event === "WORKSPACE_REMOVED") {
    entry.data.status = "removed";
    showSoon();
  } else if (event === "AGENT_CARD_UPDATED") {
    // Read anew when it is needed; a conversation in progress keeps the client that it has.
    if (!entry.talks.some(({ running }) => running)) entry.agent = null;
    if (chosen === id) meet(entry);
  } else if (event === "TASK_UPDATED" && payload.task_id) {
    for (const talk of entry.talks) {
      const answer = [...talk.conversation.open].find(({ taskId }) => taskId === payload.task_id);
      if (answer) talk.ask(answer).then(() => unread(entry));
    }
  } else if (event === "AGENT_MESSAGE") {
    keepingEnd(() => entry.talk.conversation.hear(entry.data.name || id, payload.message, timestamp));
    unread(entry);
  }
}

function unread(entry) {
  isNew = true;
  entry.unread = chosen !== entry.data.id;
  showSoon();
}

async function refresh() {
  const asked = gateway;
  try {
    const { workspaces, more } = await asked.workspaces();
    if (asked === gateway) take(workspaces, more);
  } catch {
    // Said by the socket, which cannot be opened either.
  }
}

function showLive(state, error) {
  const badge = byId("live");
  const over = error instanceof Refusal && error.reason === "unauthenticated";
  if (over) live.close();
  badge.dataset.tone = state === "live" ? "ok" : over ? "bad" : "warn";
  fill(badge, state === "live" ? "Live" : over ? "Token expired" : "Reconnecting");
  byId("away").hidden = state === "live" || over;
  if (over) fill(byId("list-notice"), failure(error, { signIn }));
  // What only passes by may have been missed.
  if (state === "live") {
    askForOpen();
    refresh();
  }
}

// ---- The beginning ----------------------------------------------------------------------------------------------------

byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(byId("token").value.trim());
});
byId("leave").addEventListener("click", () => leave());
byId("filter").addEventListener("input", showAll);
byId("workspaces").addEventListener("keydown", moveInTree);
byId("back").addEventListener("click", () => {
  showView("list");
  byId("filter").focus();
});
byId("card-toggle").addEventListener("click", () => {
  showView(byId("desk").dataset.view === "card" ? "talk" : "card");
});
byId("raw-toggle").addEventListener("click", () => {
  isRaw = !isRaw;
  if (isRaw) showView("card");
  showChosen();
});
byId("afresh").addEventListener("click", () => clear(entries.get(chosen)));
byId("fresh").addEventListener("click", () => begin(entries.get(chosen)));
byId("rename").addEventListener("click", () => rename(entries.get(chosen)));
byId("composer").prepend(files.element);
byId("attach").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", () => {
  files.add([...byId("file").files]);
  byId("file").value = "";
});
byId("text").addEventListener("paste", (event) => {
  const pasted = [...event.clipboardData.files];
  if (pasted.length === 0) return;
  event.preventDefault();
  files.add(pasted);
});
for (const type of ["dragover", "drop"]) {
  addEventListener(type, (event) => {
    // A file that misses would take the place of the page.
    event.preventDefault();
    if (type === "drop" && chosen) files.add([...event.dataTransfer.files]);
  });
}
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const entry = entries.get(chosen);
  const text = byId("text").value.trim();
  if ((!text && files.isEmpty) || entry.talk.running) return;
  byId("text").value = "";
  showView("talk");
  send(entry, text);
});
byId("text").addEventListener("keydown", (event) => {
  // Enter sends; with Shift, and while a character is being composed, it is a character.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
setInterval(() => isNew && keepAll(), KEEP_EVERY);
addEventListener("pagehide", () => keepAll());
drawWithin(keepingEnd);
addEventListener("keydown", (event) => {
  const writes = event.target.closest?.("input, textarea, select, dialog");
  if (event.key !== "/" || writes || !gateway) return;
  event.preventDefault();
  showView("list");
  byId("filter").focus();
});
setInterval(() => document.visibilityState === "visible" && askForOpen(), ASK_EVERY);

// A link that is followed in a page that is open already loads nothing: it is another user coming in.
addEventListener("hashchange", () => {
  const token = tokenFromAddress();
  if (!token) return;
  keepAll();
  leave(false);
  enter(token);
});

const fromAddress = tokenFromAddress();
const kept = recall();
if (fromAddress) enter(fromAddress);
// An open gateway takes no token, and what was kept of it is there all the same.
else if (typeof kept?.token === "string") enter(kept.token);
else {
  show("door");
  byId("token").focus();
}
showChosen();
