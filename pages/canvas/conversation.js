// What was said with one agent: the user's messages, and an answer below each that grows as events come.

import { isTerminal } from "./agent.js";
import { Content, STEP_MAX, body, shortened, step } from "./content.js";
import { clock, element, fill } from "./dom.js";
import { explained } from "./advice.js";
import { Cut } from "./cut.js";

/** What a page keeps: turns of a conversation, characters of all its answers, steps of one and their characters, characters of a reason. */
const TURNS_MAX = 200;
const ALL_MAX = 2_000_000;
const STEPS_MAX = 500;
const STEPS_ALL_MAX = 400_000;
const REASON_MAX = 2_000;

/** The tone of a task's state; every other one is busy. */
const TONES = {
  completed: "ok",
  failed: "bad",
  rejected: "bad",
  canceled: "warn",
  "input-required": "warn",
  "auth-required": "warn",
};

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

  /** What the user says. */
  say(text) {
    this.#add(
      element("article", { className: "turn said", "aria-label": "You" }, element("p", { className: "turn-top" }, "You", clock(new Date())), body([{ text }])),
    );
  }

  /** What the agent tells by itself. */
  hear(name, text, timestamp) {
    const top = element("p", { className: "turn-top" }, name, element("span", { className: "muted small" }, "tells you"), clock(timestamp));
    this.#add(element("article", { className: "turn", "aria-label": name }, top, body([{ text }], STEP_MAX)));
  }

  /** What the page tells. */
  note(...said) {
    this.#add(element("article", { className: "turn", role: "status", "aria-label": "Canvas" }, said));
  }

  /** Ends it: the answers that had not come to their end. They take nothing in any more. */
  leave() {
    const left = [...this.open];
    for (const answer of left) answer.isLeft = true;
    this.open.clear();
    return left;
  }

  /** An answer to come. */
  answer(name, actions) {
    const answer = new Answer(name, actions, () => this.open.delete(answer));
    this.open.add(answer);
    this.#add(answer.element, answer);
    return answer;
  }

  /** The oldest turns leave when there is no room, and it says how many. What is being answered stays. */
  #add(turn, answer = null) {
    this.#turns.push({ element: turn, answer });
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
  #gone = 0;
  #name;
  #waits = false;
  #said = null;
  #content = new Content();
  #task = element("span", { className: "muted small mono" });
  #cancel = element("button", { type: "button", hidden: true, onclick: () => this.#actions.cancel(this) }, "Cancel task");
  #actions;
  #over;

  constructor(name, actions, over) {
    this.#name = name;
    this.#actions = actions;
    this.#over = over;
    this.element = element(
      "article",
      { className: "turn", "aria-label": name },
      element("p", { className: "turn-top" }, name, this.#state, clock(new Date())),
      this.#link,
      this.#earlier,
      this.#steps,
      this.#content.element,
      element("footer", { className: "turn-end" }, this.#task, this.#cancel),
    );
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
    if (event.taskId && !this.taskId) {
      this.taskId = event.taskId;
      fill(this.#task, `task ${shortened(event.taskId, 200)}`);
    }
    if (event.kind === "status") this.#status(event);
    if (event.kind === "artifact") this.#content.artifact(event);
    if (event.kind === "message") {
      this.#content.message(event.parts);
      this.#settle("completed", "answered");
    }
  }

  /** How the connection fares. */
  link(link) {
    if (link === "lost") this.#note("The connection broke. Reconnecting; the agent goes on meanwhile.");
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
    const goesOn = error instanceof Cut && taskId !== null && !isTerminal(this.state);
    const about = { taskId, status: this.#actions.status(), again: () => this.#actions.again(this), signIn: this.#actions.signIn };
    this.#content.add(failure(error, { ...about, ask: goesOn ? () => this.#actions.ask(this) : null }));
    const { badge } = explained(error);
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
      while (this.#stepSizes.length > STEPS_MAX || (this.#stepsSize > STEPS_ALL_MAX && this.#stepSizes.length > 1)) {
        this.#steps.firstChild.remove();
        this.#stepSizes.shift();
        this.#gone += 1;
        this.#earlier.hidden = false;
        fill(this.#earlier, `${this.#gone.toLocaleString()} earlier ${this.#gone === 1 ? "step is" : "steps are"} not shown any more.`);
      }
    }
    // What is over stays over, whatever is told of it later.
    if (state === "unspecified" || (isTerminal(this.state) && !isTerminal(state))) return;
    if (isTerminal(state)) return this.#settle(state, state);
    this.state = state;
    this.#wait(state === "submitted" && this.#actions.isPolled());
    this.#show(this.#waits ? "waiting" : state, TONES[state] ?? "busy");
    this.#cancel.hidden = !this.taskId;
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
  }

  #settle(state, word) {
    this.state = state;
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

/**
 * A refusal, or whatever else went wrong: the reason, the sentence, what to do, and under which id the log has it. `status` and
 * `taskId` as for `explained`; `again`, `ask` (for the task's state) and `signIn` do what their buttons say, where they help.
 */
export function failure(error, { status, taskId, again, ask, signIn } = {}) {
  const { title, reason, words, advice, requestId, ...more } = explained(error, { status, taskId });
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
