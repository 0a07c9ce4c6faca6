// Server-sent events out of bytes, as they come: what EventSource does, for `fetch`, which can send a token.

/** The largest event, in characters. A page must not be filled by one that never ends. */
const EVENT_MAX = 16 * 1024 * 1024;

/**
 * Reads an event stream piece by piece. Lines end as the standard says (WHATWG HTML, 9.2), a single `\r` included, as the
 * gateway reads them: else an agent could write what is one event here and two there.
 */
export class EventReader {
  #decoder = new TextDecoder();
  /** The pieces of the line that is not whole yet. */
  #line = [];
  /** The lines of the event that is not whole yet. */
  #lines = [];
  #size = 0;
  #behindCr = false;

  /**
   * The events that end within `bytes`: `{ id, event, data, raw }`. Blocks of comments alone are none. `raw` is the text as it
   * came, its lines ended by `\n`, without the blank one.
   */
  read(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // What ended with `\r` was whole: a `\n` that follows is part of that end.
    const startsWithin = this.#behindCr && text.startsWith("\n");
    this.#behindCr = text.endsWith("\r");
    if (startsWithin) text = text.slice(1);
    const [first, ...others] = text.split(/\r\n|\n|\r/);
    const events = [];
    this.#take(first);
    for (const piece of others) {
      const event = this.#endLine();
      if (event) events.push(event);
      this.#take(piece);
    }
    return events;
  }

  #take(piece) {
    this.#size += piece.length;
    if (this.#size > EVENT_MAX) throw new Error("an event of the stream is too large");
    if (piece) this.#line.push(piece);
  }

  #endLine() {
    const line = this.#line.join("");
    this.#line = [];
    if (line) return void this.#lines.push(line);
    const event = parse(this.#lines);
    this.#lines = [];
    this.#size = 0;
    return event;
  }
}

function parse(lines) {
  const event = { id: null, event: "message", data: null, raw: lines.join("\n") };
  const data = [];
  for (const line of lines) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") data.push(value);
    else if (name === "id") event.id = value;
    else if (name === "event") event.event = value;
  }
  if (data.length > 0) event.data = data.join("\n");
  return event.data === null && event.id === null ? null : event;
}
