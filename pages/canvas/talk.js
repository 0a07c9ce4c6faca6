// One conversation with an agent: what is sent, what comes of it, and what is done about tasks that take their time.

import { base64Of } from "./files.js";
import { Conversation, failure } from "./conversation.js";
import { Cut, Left } from "./cut.js";
import { element } from "./dom.js";
import { BASE } from "./gateway.js";
import { Raw } from "./raw.js";

/** So long, in milliseconds, it takes in events without a pause. */
const BUSY_MAX = 30;

/**
 * `page` is what a talk needs of the page: `meet(entry)` reads the agent's card, `changed(talk)` shows what is new of it,
 * `keepingEnd(act)` does something to the log, `signIn(why)` leads to the door, `left(talk)` says that it was emptied.
 */
export class Talk {
  conversation = new Conversation();
  raw = new Raw(BASE);
  /** What stops the call that is running. */
  running = null;
  /** The task that asked for input. */
  taskId = "";
  /** What was written and not sent. */
  draft = "";
  name = "";
  usedAt = Date.now();
  /** The call that is running: `position` is where its stream is. */
  #call = null;
  /** Where the stream was that a token which was over has ended. */
  #cutAt = null;
  #page;

  constructor(entry, page) {
    this.id = crypto.randomUUID();
    this.entry = entry;
    this.#page = page;
  }

  get title() {
    return this.name || this.conversation.title || "New conversation";
  }

  get isBusy() {
    return Boolean(this.running) || this.conversation.open.size > 0;
  }

  #actions() {
    const { entry } = this;
    return {
      cancel: (answer) => this.#show(answer, (onExchange) => entry.agent.cancel(answer.taskId, onExchange)),
      again: (answer) => !this.running && this.send(answer.asked.text, answer.asked.files),
      ask: (answer) => this.#show(answer, (onExchange) => entry.agent.task(answer.taskId, onExchange)),
      reply: (text) => !this.running && this.send(text),
      status: () => entry.data.status,
      isPolled: () => entry.data.delivery_mode === "poll",
      signIn: this.#page.signIn,
    };
  }

  async send(text, files = []) {
    const { conversation } = this;
    this.usedAt = Date.now();
    conversation.say(text, files);
    for (const earlier of conversation.open) if (earlier.taskId === this.taskId) earlier.passOn();
    const answer = conversation.answer(this.entry.data.name || this.entry.data.id, this.#actions());
    answer.asked = { text, files };
    answer.wait();
    const sent = files.map(({ name, type, bytes }) => ({ name, type, base64: base64Of(bytes) }));
    await this.#run(answer, (going) => this.entry.agent.send(text, { ...going, files: sent, contextId: conversation.contextId, taskId: this.taskId }));
  }

  /** Runs a call whose events are those of an answer. */
  async #run(answer, begin, position = null) {
    const { conversation, entry } = this;
    const page = this.#page;
    const running = new AbortController();
    const call = { position, onLink: (link) => page.keepingEnd(() => answer.link(link)), onExchange: (exchange) => this.raw.take(exchange) };
    this.running = running;
    this.#call = call;
    this.#cutAt = null;
    try {
      page.changed(this);
      await page.meet(entry);
      if (!entry.agent) throw entry.cardError;
      let since = performance.now();
      for await (const event of begin({ signal: running.signal, call })) {
        this.#apply(conversation, answer, [event]);
        // However fast they come, the page is drawn and hears its user in between.
        if (performance.now() - since > BUSY_MAX) {
          await new Promise((resolve) => setTimeout(resolve));
          since = performance.now();
        }
      }
      page.keepingEnd(() => answer.pause());
    } catch (error) {
      if (page.isOut()) return;
      this.#cutAt = error instanceof Cut && error.cause.reason === "unauthenticated" ? call.position : null;
      page.keepingEnd(() => answer.fail(error));
      // It may know more of the task than the stream told. Whoever wants to send again does not wait for that.
      if (answer.taskId && !answer.isLeft) this.ask(answer);
    } finally {
      // The user may have started over, and sent something else since.
      if (this.running === running) this.running = this.#call = null;
      page.changed(this);
    }
  }

  /** Shows what came of a message. A task that asks for input is gone on with by the next one. */
  #apply(conversation, answer, events) {
    if (answer.isLeft) return;
    for (const event of events) {
      this.#page.keepingEnd(() => answer.apply(event));
      conversation.contextId = event.contextId || conversation.contextId;
    }
    const asks = answer.state === "input-required" || answer.state === "auth-required";
    if (asks) this.taskId = answer.taskId;
    else if (this.taskId === answer.taskId) this.taskId = "";
    this.#page.changed(this);
  }

  /** Empties it, and cancels what it was waiting for. What cannot be cancelled is said. */
  async startOver() {
    const { running, entry } = this;
    const left = this.conversation.leave();
    const fresh = new Conversation();
    Object.assign(this, { conversation: fresh, running: null, taskId: "", name: "", raw: new Raw(BASE) });
    this.#call = null;
    running?.abort();
    this.#page.changed(this);
    const still = "Its agent may still be working on it.";
    const tell = (...said) => {
      fresh.note(...said);
      this.#page.changed(this);
    };
    for (const { taskId } of left) {
      if (!taskId) {
        tell(element("p", {}, `The last message cannot be cancelled: no task of it is known yet. ${still}`));
        continue;
      }
      try {
        await entry.agent.cancel(taskId);
      } catch (error) {
        tell(element("p", {}, `The task ${taskId} was not cancelled. ${still}`), failure(error, { signIn: this.#page.signIn }));
      }
    }
  }

  /** Does something with a task because its user wants it: what fails is said. */
  async #show(answer, call) {
    try {
      if (!this.entry.agent) await this.#page.meet(this.entry);
      this.#apply(this.conversation, answer, await call((exchange) => this.raw.take(exchange)));
    } catch (error) {
      this.#page.keepingEnd(() => answer.element.append(failure(error, { signIn: this.#page.signIn })));
    }
  }

  /** Asks what a task is now. Nobody waits for it, so what fails is tried again with the next reason to ask. */
  async ask(answer) {
    // One question at a time, and one more for whatever happened meanwhile.
    answer.isStale = true;
    if (answer.isAsked) return;
    answer.isAsked = true;
    try {
      while (answer.isStale) {
        answer.isStale = false;
        answer.askedAt = performance.now();
        if (!this.entry.agent) await this.#page.meet(this.entry);
        this.#apply(this.conversation, answer, await this.entry.agent.task(answer.taskId));
      }
    } catch {
    } finally {
      answer.isAsked = false;
    }
  }

  // ---- Over a reload --------------------------------------------------------------------------------------------------

  /** What of it is kept. */
  kept() {
    const { id, name, draft, taskId, usedAt, conversation } = this;
    const turns = conversation.kept();
    // Where the stream of the last answer is.
    const position = this.#call?.position ?? this.#cutAt;
    if (position && turns.length > 0) turns.at(-1).failure = null;
    return { id, workspace: this.entry.data.id, name, draft, taskId, usedAt, contextId: conversation.contextId, turns, position };
  }

  /** Shows again what was kept, and goes on with what was going on. */
  restore({ id, name, draft, taskId, usedAt, contextId, turns, position }) {
    Object.assign(this, { id, name, draft, taskId, usedAt });
    this.conversation.contextId = contextId;
    const open = this.conversation.restore(turns, () => this.#actions());
    const asked = turns.filter(({ kind }) => kind === "say").at(-1);
    for (const answer of open) answer.asked = { text: asked?.text ?? "", files: [] };
    const last = open.at(-1);
    for (const answer of open) {
      if (answer === last && position) this.#takeUp(answer, position);
      else if (answer.taskId) this.ask(answer);
      else answer.fail(new Left());
    }
  }

  #takeUp(answer, position) {
    answer.link("reload");
    this.#run(answer, (going) => this.entry.agent.send("", going), position);
  }
}
