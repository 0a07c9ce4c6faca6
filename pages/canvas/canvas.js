// A canvas: a page that talks with agents through the gateway. It is also the example of how to write one. Read it in this
// order: gateway.js (calls with a token), resume.js (streams that survive), agent.js (the SDK), live.js (what happens
// meanwhile), conversation.js and card.js (what is shown), and this, which holds them together.

import { Agent } from "./agent.js";
import { cardElements } from "./card.js";
import { Conversation, failure } from "./conversation.js";
import { byId, element, fill } from "./dom.js";
import { Gateway } from "./gateway.js";
import { Live } from "./live.js";
import { Refusal } from "./refusal.js";
import { notUsers } from "./token.js";
import { visible } from "./visible.js";
import { clearWorkspaces, moveInTree, showWorkspaces } from "./workspaces.js";

/** Tasks that are open and of which nothing is heard are asked for this often, in milliseconds, and so many at once. */
const ASK_EVERY = 15_000;
const ASK_MAX = 10;

/** So long, in milliseconds, it takes in events without a pause. */
const BUSY_MAX = 30;

/** So far from its end, in pixels, the log still counts as read to the end, and is kept there. */
const NEAR_END = 80;

let gateway = null;
let live = null;
/** The workspaces by id: `{ data, agent, conversation, running, taskId, unread }`. */
const entries = new Map();
let chosen = null;
/** The frame that shows what changed. */
let frame = null;
/** The frame that shows the end of the log. */
let follows = null;

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
    take(workspaces, more);
    show("desk");
    live = new Live(gateway, hear, showLive);
    live.open();
    byId("filter").focus();
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

/** To the door, with why. */
function signIn(why) {
  leave();
  fill(byId("refused"), failure(why));
}

/** Forgets everything. */
function leave() {
  live?.close();
  for (const entry of entries.values()) entry.running?.abort();
  entries.clear();
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
    else entries.set(data.id, { data, agent: null, conversation: new Conversation(), running: null, taskId: "", unread: false });
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
async function choose(id) {
  chosen = id;
  const entry = entries.get(id);
  entry.unread = false;
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
  for (const id of ["composer", "afresh", "card-toggle"]) byId(id).hidden = !entry;
  if (!entry) {
    fill(byId("title"), "No workspace chosen");
    fill(byId("subtitle"));
    fill(byId("log"), empty("Choose a workspace", "Pick one from the list. Its agent's card says what it can do, and then you can write to it."));
    fill(byId("card-body"), element("p", { className: "muted" }, "The card of the agent that you choose is shown here."));
    document.title = "Canvas";
    return;
  }
  const { data, conversation } = entry;
  const name = data.name || data.id;
  document.title = `${visible(name)} · Canvas`;
  fill(byId("title"), name);
  // Each for itself, so that none is drawn in another's place.
  const about = [data.role, data.id !== name && data.id, data.status].filter(Boolean);
  fill(byId("subtitle"), ...about.flatMap((one) => [" · ", one]).slice(1));
  showStartOver(entry);
  byId("send").disabled = Boolean(entry.running);
  const first = empty(`Say something to ${name}`, "What it answers shows here as it comes. An example from its card is a good start.");
  const log = byId("log");
  const wanted = conversation.isEmpty ? first : conversation.element;
  if (log.firstChild !== wanted) fill(log, wanted);
  showCard(entry);
}

/** The button says what it does: it also cancels what is in progress. */
function showStartOver({ conversation, running }) {
  const button = byId("afresh");
  const cancels = Boolean(running) || conversation.open.size > 0;
  button.disabled = conversation.isEmpty;
  fill(button, cancels ? "Cancel and start over" : "Start over");
}

function showCard(entry) {
  const { agent, cardError, data } = entry;
  const body = byId("card-body");
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

async function send(entry, text) {
  const { conversation } = entry;
  const name = entry.data.name || entry.data.id;
  const actions = {
    cancel: (answer) => cancel(entry, answer),
    again: () => !entry.running && send(entry, text),
    ask: (answer) => inquire(entry, answer),
    status: () => entry.data.status,
    isPolled: () => entry.data.delivery_mode === "poll",
    signIn,
  };
  conversation.say(text);
  for (const earlier of conversation.open) if (earlier.taskId === entry.taskId) earlier.passOn();
  const answer = conversation.answer(name, actions);
  const running = new AbortController();
  entry.running = running;
  try {
    showChosen();
    toEnd();
    await meet(entry);
    if (!entry.agent) throw entry.cardError;
    const onLink = (link) => keepingEnd(() => answer.link(link));
    const going = { contextId: conversation.contextId, taskId: entry.taskId, signal: running.signal, onLink };
    let since = performance.now();
    for await (const event of entry.agent.send(text, going)) {
      apply(entry, answer, [event]);
      // However fast they come, the page is drawn and hears its user in between.
      if (performance.now() - since > BUSY_MAX) {
        await new Promise((resolve) => setTimeout(resolve));
        since = performance.now();
      }
    }
    keepingEnd(() => answer.pause());
  } catch (error) {
    keepingEnd(() => answer.fail(error));
    // It may know more of the task than the stream told. Whoever wants to send again does not wait for that.
    if (answer.taskId && !answer.isLeft) ask(entry, answer);
  } finally {
    // The user may have started over, and sent something else since.
    if (entry.running === running) entry.running = null;
    if (chosen === entry.data.id) showChosen();
  }
}

/** Shows what came of a message. A task that asks for input is gone on with by the next one. */
function apply(entry, answer, events) {
  if (answer.isLeft) return;
  for (const event of events) {
    keepingEnd(() => answer.apply(event));
    entry.conversation.contextId = event.contextId || entry.conversation.contextId;
  }
  const asks = answer.state === "input-required" || answer.state === "auth-required";
  if (asks) entry.taskId = answer.taskId;
  else if (entry.taskId === answer.taskId) entry.taskId = "";
  if (chosen === entry.data.id) showStartOver(entry);
}

/** Begins a new conversation, and cancels what the one before was waiting for. What cannot be cancelled is said. */
async function startOver(entry) {
  const { agent, running } = entry;
  const left = entry.conversation.leave();
  const fresh = new Conversation();
  Object.assign(entry, { conversation: fresh, running: null, taskId: "" });
  running?.abort();
  showChosen();
  const still = "Its agent may still be working on it.";
  const tell = (...said) => {
    fresh.note(...said);
    if (entry.conversation === fresh && chosen === entry.data.id) showChosen();
  };
  for (const { taskId } of left) {
    if (!taskId) {
      tell(element("p", {}, `The last message cannot be cancelled: no task of it is known yet. ${still}`));
      continue;
    }
    try {
      await agent.cancel(taskId);
    } catch (error) {
      tell(element("p", {}, `The task ${taskId} was not cancelled. ${still}`), failure(error, { signIn }));
    }
  }
}

async function cancel(entry, answer) {
  try {
    apply(entry, answer, await entry.agent.cancel(answer.taskId));
  } catch (error) {
    keepingEnd(() => answer.element.append(failure(error, { signIn })));
  }
}

/** Asks for a task because its user wants to know: what fails is said. */
async function inquire(entry, answer) {
  try {
    if (!entry.agent) await meet(entry);
    apply(entry, answer, await entry.agent.task(answer.taskId));
  } catch (error) {
    keepingEnd(() => answer.element.append(failure(error, { signIn })));
  }
}

/** Asks what a task is now. Nobody waits for it, so what fails is tried again with the next reason to ask. */
async function ask(entry, answer) {
  // One question at a time, and one more for whatever happened meanwhile.
  answer.isStale = true;
  if (answer.isAsked) return;
  answer.isAsked = true;
  try {
    while (answer.isStale) {
      answer.isStale = false;
      answer.askedAt = performance.now();
      if (!entry.agent) await meet(entry);
      apply(entry, answer, await entry.agent.task(answer.taskId));
    }
  } catch {
  } finally {
    answer.isAsked = false;
  }
}

/** Asks for the tasks of which nothing can be heard by a stream. */
function askForOpen() {
  const waiting = [...entries.values()].flatMap((entry) => [...entry.conversation.open].map((answer) => [entry, answer]));
  const silent = waiting.filter(([entry, answer]) => !entry.running && answer.taskId);
  // Those that were not asked for the longest, so that each has its turn.
  silent.sort(([, one], [, other]) => one.askedAt - other.askedAt);
  for (const [entry, answer] of silent.slice(0, ASK_MAX)) ask(entry, answer);
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
    if (!entry.running) entry.agent = null;
    if (chosen === id) meet(entry);
  } else if (event === "TASK_UPDATED" && payload.task_id) {
    const answer = [...entry.conversation.open].find(({ taskId }) => taskId === payload.task_id);
    if (answer) ask(entry, answer).then(() => unread(entry));
  } else if (event === "AGENT_MESSAGE") {
    keepingEnd(() => entry.conversation.hear(entry.data.name || id, payload.message, timestamp));
    unread(entry);
  }
}

function unread(entry) {
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
byId("leave").addEventListener("click", leave);
byId("filter").addEventListener("input", showAll);
byId("workspaces").addEventListener("keydown", moveInTree);
byId("back").addEventListener("click", () => {
  showView("list");
  byId("filter").focus();
});
byId("card-toggle").addEventListener("click", () => {
  showView(byId("desk").dataset.view === "card" ? "talk" : "card");
});
byId("afresh").addEventListener("click", () => {
  startOver(entries.get(chosen));
  byId("text").focus();
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const entry = entries.get(chosen);
  const text = byId("text").value.trim();
  if (!text || entry.running) return;
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
setInterval(() => document.visibilityState === "visible" && askForOpen(), ASK_EVERY);

// A link that is followed in a page that is open already loads nothing: it is another user coming in.
addEventListener("hashchange", () => {
  const token = tokenFromAddress();
  if (!token) return;
  leave();
  enter(token);
});

const token = tokenFromAddress();
if (token) enter(token);
else {
  show("door");
  byId("token").focus();
}
showChosen();
