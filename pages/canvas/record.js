// What is kept of an answer, so that a reload can show it again: its events, put together where they follow each other.

import { Cut, Left } from "./cut.js";
import { Refusal } from "./refusal.js";

/** Events and characters of one answer. */
const EVENTS_MAX = 600;
const CHARACTERS_MAX = 400_000;

const lengthOf = (parts) => parts.reduce((all, { text }) => all + String(text).length, 0);

export class Record {
  events = [];
  failure = null;
  /** Characters of all events, and how many events are left out. */
  #size = 0;
  left = 0;

  take(event) {
    const last = this.events.at(-1);
    if (event.kind === "status" && event.parts.length === 0 && last?.kind === "status" && last.parts.length === 0) this.events.pop();
    const size = lengthOf(event.parts);
    const fits = this.events.length < EVENTS_MAX && this.#size + size <= CHARACTERS_MAX;
    if (!fits && (event.kind !== "status" || event.parts.length > 0)) return void (this.left += 1);
    this.#size += size;
    const before = event.kind === "artifact" ? this.events.findIndex(({ kind, id }) => kind === "artifact" && id === event.id) : -1;
    if (before < 0) return void this.events.push({ ...event, parts: [...event.parts] });
    const artifact = this.events[before];
    if (!event.append) {
      this.#size -= lengthOf(artifact.parts);
      this.events[before] = { ...event, parts: [...event.parts] };
      return;
    }
    for (const part of event.parts) {
      const end = artifact.parts.at(-1);
      const isText = (one) => one && Object.keys(one).length === 1 && typeof one.text === "string";
      if (isText(end) && isText(part)) artifact.parts.splice(-1, 1, { text: end.text + part.text });
      else artifact.parts.push(part);
    }
  }

  fail(error) {
    const isCut = error instanceof Cut;
    const cause = isCut ? error.cause : error;
    const { reason, requestId, status, retryAfter, facts } = cause;
    this.failure = { isCut, isLeft: error instanceof Left, isRefusal: cause instanceof Refusal, isNetwork: cause instanceof TypeError, message: String((cause.cause?.envelopeCode === undefined ? cause : cause.cause).message), reason, requestId, status, retryAfter, facts };
  }
}

/** The error that a kept failure was. */
export function errorOf({ isCut, isLeft, isRefusal, isNetwork, message, ...more }) {
  if (isLeft) return new Left();
  const cause = isRefusal ? new Refusal({ message, ...more }) : isNetwork ? new TypeError(message) : new Error(message);
  return isCut ? new Cut(cause) : cause;
}
