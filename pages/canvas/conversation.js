// What was said with one agent: the user's messages, and an answer below each that grows as events come.

import { isTerminal } from "./agent.js";
import { Content, STEP_MAX, body, step } from "./content.js";
import { clock, element, fill } from "./dom.js";
import { shortened } from "./parts.js";
import { explained } from "./advice.js";
import { copyButton } from "./copy.js";
import { Cut } from "./cut.js";
import { sentFile } from "./files.js";
import { questionElement } from "./question.js";
import { Record, errorOf } from "./record.js";

/** What a page keeps: turns of a conversation, characters of all its answers, steps of one and their characters, characters of a reason. */
const TURNS_MAX = 200;
const ALL_MAX = 2_000_000;
const STEPS_MAX = 500;
const STEPS_ALL_MAX = 400_000;
const REASON_MAX = 2_000;

/** A wait is said after so long, and its seconds after so long, in milliseconds. */
const SAY_WAIT = 3_000;
const SAY_SECONDS = 10_000;

/** So long it is said at most that nothing comes, in milliseconds: the gateway has given up by then. */
const WAIT_MAX = 60 * 60_000;

/** What a workspace is while its agent is made to run. */
const ASLEEP = ["hibernated", "restarting", "provisioning"];

/** The tone of a task's state; every other one is busy. */
const TONES = {
  completed: "ok",
  failed: "bad",
  rejected: "bad",
  canceled: "warn",
  "input-required": "warn",
  "auth-required": "warn",
};

/** So long is a title, in characters. */
const TITLE_MAX = 80;

export class Conversation {
  /** Where it is shown. */
  element = element("div", { className: "turns" });
  /** Goes on with what was said, if the agent gave it a name. */
  contextId = "";
  /** The answers that may still change. */
  open = new Set();
  /** `{ element, answer }`, the oldest first. */
  #turns = [];
  #gone = 0;
  #note = element("p", { className: "muted small left-out" });

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** The first words of its user, which name it. */
  get title() {
    return this.#turns.find(({ record }) => record.kind === "say")?.record.text.split("\n")[0].slice(0, TITLE_MAX) ?? "";
  }

  get length() {
    return this.#turns.length;
  }

  /** What the user says. */
  say(text, files = [], at = new Date()) {
    const said = text ? body([{ text, isPlain: true }]) : null;
    const turn = element("article", { className: "turn said", "aria-label": "You" }, element("p", { className: "turn-top" }, "You", clock(at)), said, ...files.map(sentFile));
    this.#add(turn, { kind: "say", text: text || files[0]?.name || "", files, at });
  }

  /** What the agent tells by itself. */
  hear(name, text, timestamp) {
    const top = element("p", { className: "turn-top" }, name, element("span", { className: "muted small" }, "tells you"), clock(timestamp));
    this.#add(element("article", { className: "turn", "aria-label": name }, top, body([{ text }], STEP_MAX)), { kind: "hear", name, text, timestamp });
  }

  /** What the page tells. */
  note(...said) {
    this.#add(element("article", { className: "turn", role: "status", "aria-label": "Canvas" }, said), { kind: "note" });
  }

  /** Ends it: the answers that had not come to their end. They take nothing in any more. */
  leave() {
    const left = [...this.open];
    for (const answer of left) answer.isLeft = true;
    this.open.clear();
    return left;
  }

  /** An answer to come. */
  answer(name, actions, at = new Date()) {
    const answer = new Answer(name, actions, () => this.open.delete(answer), at);
    this.open.add(answer);
    this.#add(answer.element, { kind: "answer", name, at }, answer);
    return answer;
  }

  /** What of it is kept over a reload. */
  kept() {
    const turns = this.#turns.filter(({ record }) => record.kind !== "note");
    return turns.map(({ record, answer }) => (answer ? { ...record, ...answer.kept() } : record));
  }

  /** Shows again what was kept; the answers that had not come to their end. */
  restore(turns, actionsFor) {
    for (const turn of turns) {
      if (turn.kind === "say") this.say(turn.text, turn.files, turn.at);
      else if (turn.kind === "hear") this.hear(turn.name, turn.text, turn.timestamp);
      else this.answer(turn.name, actionsFor(), turn.at).restore(turn);
    }
    return [...this.open];
  }

  /** The oldest turns leave when there is no room, and it says how many. What is being answered stays. */
  #add(turn, record, answer = null) {
    this.#turns.push({ element: turn, record, answer });
    this.element.append(turn);
    const size = () => this.#turns.reduce((all, one) => all + (one.answer?.size ?? 0), 0);
    while (this.#turns.length > 2 && (this.#turns.length > TURNS_MAX || size() > ALL_MAX)) {
      const [first] = this.#turns.splice(0, 1);
      first.element.remove();
      this.open.delete(first.answer);
      this.#gone += 1;
    }
    if (this.#gone === 0) return;
    fill(this.#note, `${this.#gone.toLocaleString()} earlier ${this.#gone === 1 ? "turn is" : "turns are"} not shown any more.`);
    this.element.prepend(this.#note);
  }
}

/** One answer: a message, or a task with its states, steps and artifacts. */
export class Answer {
  taskId = null;
  state = null;
  /** When its task was last asked for; whether it is being; and whether there is reason to ask again. */
  askedAt = 0;
  isAsked = false;
  isStale = false;
  /** Whether its user has started over. */
  isLeft = false;
  #state = element("span", { className: "state", "data-tone": "busy" }, "sent");
  #link = element("p", { className: "notice small", "data-tone": "warn", role: "status", hidden: true });
  #steps = element("ol", { className: "steps" });
  #earlier = element("p", { className: "muted small left-out", hidden: true });
  /** Characters of each step that is shown. */
  #stepSizes = [];
  /** What each says, to know it again. */
  #stepKeys = [];
  #gone = 0;
  #name;
  #waits = false;
  #said = null;
  #content = new Content();
  #task = element("span", { className: "muted small mono" });
  #cancel = element("button", { type: "button", hidden: true, onclick: () => this.#actions.cancel(this) }, "Cancel task");
  #copy = copyButton(() => this.#content.element.innerText.trim(), "Copy the answer");
  #question = element("div", { className: "question", hidden: true });
  #record = new Record();
  /** How it ended: `{ state, word }`. */
  #end = null;
  #waiting = null;
  #actions;
  #over;

  constructor(name, actions, over, at) {
    this.#name = name;
    this.#actions = actions;
    this.#over = over;
    this.element = element(
      "article",
      { className: "turn", "aria-label": name },
      element("p", { className: "turn-top" }, name, this.#state, clock(at)),
      this.#link,
      this.#earlier,
      this.#steps,
      this.#content.element,
      this.#question,
      element("footer", { className: "turn-end" }, this.#task, this.#copy, this.#cancel),
    );
    this.#copy.hidden = true;
  }

  /** Says from now on that nothing has come, and for how long. */
  wait() {
    const since = Date.now();
    const isAsleep = ASLEEP.includes(this.#actions.status());
    if (isAsleep) this.#show(`waking ${this.#name}`, "busy");
    this.#waiting = setInterval(() => {
      const passed = Date.now() - since;
      if (this.state !== null || this.#end || passed > WAIT_MAX) return clearInterval(this.#waiting);
      if (passed < SAY_WAIT) return;
      const word = isAsleep ? "waking" : "waiting for";
      this.#show(`${word} ${this.#name}${passed < SAY_SECONDS ? "" : ` · ${Math.round(passed / 1_000)} s`}`, "busy");
    }, 1_000);
  }

  /** What of it is kept over a reload. */
  kept() {
    const { events, failure, left } = this.#record;
    return { events, failure, left, end: this.#end };
  }

  /** Takes in what was kept of it. */
  restore({ events, failure, left, end }) {
    for (const event of events) this.apply(event);
    if (left > 0) this.#content.add(element("p", { className: "muted small left-out" }, `${left.toLocaleString()} ${left === 1 ? "event was" : "events were"} too much to be kept over the reload.`));
    if (failure) this.fail(errorOf(failure));
    if (end && !isTerminal(this.state)) this.#settle(end.state, end.word);
  }

  /** Characters of what it says. */
  get size() {
    return this.#content.size + this.#stepsSize;
  }

  get #stepsSize() {
    return this.#stepSizes.reduce((all, size) => all + size, 0);
  }

  /** Takes in one event. */
  apply(event) {
    this.#record.take(event);
    if (event.taskId && !this.taskId) {
      this.taskId = event.taskId;
      fill(this.#task, `task ${shortened(event.taskId, 200)}`);
    }
    if (event.kind === "status") this.#status(event);
    if (event.kind === "artifact") {
      this.#leaveOut(event.parts);
      this.#content.artifact(event);
      this.#copy.hidden = false;
    }
    if (event.kind === "message") {
      this.#content.message(event.parts);
      this.#copy.hidden = false;
      this.#settle("completed", "answered");
    }
  }

  /** How the connection fares. */
  link(link) {
    if (link === "reload") this.#note("The page was loaded anew. Reconnecting; the agent goes on meanwhile.");
    else if (link === "lost") this.#note("The connection broke. Reconnecting; the agent goes on meanwhile.");
    else if (link === "back") this.#note("Reconnected: no event was lost.", "ok");
    else if (link.missed) this.#note(`${link.missed.toLocaleString()} ${link.missed === 1 ? "event" : "events"} came while nobody listened, and ${link.missed === 1 ? "was" : "were"} not kept by the gateway.`);
  }

  /** The user has answered what it asked; the next answer goes on with its task. */
  passOn() {
    this.#settle("completed", "asked you");
  }

  /** Why there is no answer, or no more of it. */
  fail(error) {
    const { taskId } = this;
    this.#record.fail(error);
    const goesOn = error instanceof Cut && taskId !== null && !isTerminal(this.state);
    const about = { taskId, status: this.#actions.status(), name: this.#name, again: () => this.#actions.again(this), signIn: this.#actions.signIn };
    this.#content.add(failure(error, { ...about, ask: goesOn ? () => this.#actions.ask(this) : null }));
    const { badge } = explained(error, { status: this.#actions.status() });
    // The agent goes on: its task can be asked for, and canceled.
    if (goesOn) {
      this.#link.hidden = true;
      this.#show(badge, "warn");
    } else this.#settle("failed", badge);
  }

  /** The agent has said what it had to say for now; a task that is not over may be heard of later. */
  pause() {
    this.element.removeAttribute("aria-busy");
    if (this.state === "submitted" && !this.#waits) {
      this.#note("The agent has the message and has not answered yet. Its answer will show here when it comes.");
    } else if (this.state === null) this.#settle("completed", "no answer");
  }

  #status({ state, parts, timestamp }) {
    const asks = state === "input-required" || state === "auth-required";
    // What is said with the last state is the answer, and with one that asks the question; before that it is progress.
    if (parts.length > 0 && (asks || isTerminal(state))) this.#last(parts);
    else if (parts.length > 0) {
      const { element: said, size } = step(parts);
      this.#steps.append(element("li", {}, said, timestamp && clock(timestamp)));
      this.#stepSizes.push(size);
      this.#stepKeys.push(size > STEP_MAX ? "" : keyOf(parts));
      while (this.#stepSizes.length > STEPS_MAX || (this.#stepsSize > STEPS_ALL_MAX && this.#stepSizes.length > 1)) {
        this.#steps.firstChild.remove();
        this.#stepSizes.shift();
        this.#stepKeys.shift();
        this.#gone += 1;
        this.#earlier.hidden = false;
        fill(this.#earlier, `${this.#gone.toLocaleString()} earlier ${this.#gone === 1 ? "step is" : "steps are"} not shown any more.`);
      }
    }
    // What is over stays over, whatever is told of it later.
    if (state === "unspecified" || (isTerminal(this.state) && !isTerminal(state))) return;
    if (isTerminal(state)) return this.#settle(state, state);
    this.state = state;
    if (asks) this.#ask(state, parts);
    this.#wait(state === "submitted" && this.#actions.isPolled());
    this.#show(this.#waits ? "waiting" : state, TONES[state] ?? "busy");
    this.#cancel.hidden = !this.taskId;
  }

  /** Asks its user what the agent wants to know. */
  #ask(state, parts) {
    this.#question.hidden = false;
    fill(this.#question, ...questionElement(state, this.#name, parts, (text) => this.#actions.reply(text)));
  }

  /** ADK says on the way what it then gives as an artifact: once is enough. */
  #leaveOut(parts) {
    const at = parts.length === 0 ? -1 : this.#stepKeys.indexOf(keyOf(parts));
    if (at < 0) return;
    this.#steps.children[at].remove();
    this.#stepKeys.splice(at, 1);
    this.#stepSizes.splice(at, 1);
  }

  /** Says that the message waits for an agent that fetches its messages, or not any more. */
  #wait(waits) {
    if (waits) this.#note(`The message waits in the inbox of ${this.#name} until its agent fetches it. The answer shows here when it comes.`);
    else if (this.#waits) this.#link.hidden = true;
    this.#waits = waits;
  }

  /** The task as a whole may be told once more, when it is asked for: with the same words. */
  #last(parts) {
    const said = JSON.stringify(parts);
    if (said === this.#said) return;
    this.#said = said;
    this.#content.message(parts);
    this.#copy.hidden = false;
  }

  #settle(state, word) {
    this.state = state;
    this.#end = { state, word };
    clearInterval(this.#waiting);
    this.#question.hidden = true;
    this.#show(word, TONES[state] ?? "ok");
    this.#cancel.hidden = true;
    if (this.#link.dataset.tone !== "ok") this.#link.hidden = true;
    this.#over();
  }

  #show(word, tone) {
    this.#state.dataset.tone = tone;
    fill(this.#state, word);
  }

  #note(text, tone = "warn") {
    this.#link.hidden = false;
    this.#link.dataset.tone = tone;
    fill(this.#link, text);
  }
}

/** Two lists of parts that say the same have the same one. */
const keyOf = (parts) => parts.map(({ text, file }) => `${text} ${file?.size ?? ""}`).join("\n");

/**
 * A refusal, or whatever else went wrong: the reason, the sentence, what to do, and under which id the log has it. `status` and
 * `taskId` and `name` as for `explained`; `again`, `ask` (for the task's state) and `signIn` do what their buttons say, where they help.
 */
export function failure(error, { status, taskId, name, again, ask, signIn } = {}) {
  const { title, reason, words, advice, requestId, ...more } = explained(error, { status, taskId, name });
  const facts = Object.entries(more.facts).filter(([, value]) => typeof value !== "object");
  const button = (text, onclick) => element("button", { type: "button", onclick }, text);
  return element(
    "div",
    { className: "notice failure", "data-tone": "bad", role: "alert" },
    element("p", { className: "failure-top" }, element("strong", {}, title), reason && element("code", {}, reason)),
    element("p", {}, shortened(words, REASON_MAX)),
    element("p", {}, advice),
    requestId && element("p", { className: "small mono" }, ...facts.map(([name, value]) => `${name}: ${value} · `), `request ${requestId}`),
    ask && button("Ask for its state", ask),
    signIn && more.signIn && button("Sign in again", () => signIn(error)),
    again && more.again !== "no" && button(more.again === "twice" ? "Send again (may run twice)" : "Send again", again),
  );
}
