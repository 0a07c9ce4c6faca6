// A stream that survives its connection. The gateway numbers the events of each stream and keeps them for a while
// (docs/reference/a2a.md, "Resuming a stream"). A client whose stream broke off asks for the events after the last
// one that it has. This is a `fetch` for the SDK, which sees one unbroken stream.

import { Cut } from "./cut.js";
import { Refusal, partingOf } from "./refusal.js";
import { EventReader } from "./sse.js";

/** The gateway breaks its silence every 15 s. A connection that is silent for longer than this is dead. */
const SILENCE_MAX = 40_000;

/** Between two attempts to come back: at first, at most, and until it is given up, in milliseconds. */
const PAUSE_MIN = 500;
const PAUSE_MAX = 8_000;
// As long as the gateway keeps a stream that has ended (`stream.log_ttl`).
const PATIENCE = 10 * 60_000;

/**
 * A `fetch` whose event streams go on when their connection breaks. `fetchOnce` throws a `Refusal` for what the gateway
 * refuses; `workspace` is the id of the one that is called. `callOf` gives what is to be known of a request: its `tell` hears
 * `"lost"`, `"back"`, and `{ missed }` when the gateway says that it kept not all events; `passed` hears of each event; with
 * `after` nothing is sent, and the stream goes on after the event of that id. A stream that cannot be taken up again ends with
 * a `Cut`.
 */
export function resuming(fetchOnce, workspace, callOf) {
  return async (url, init = {}) => {
    const { tell = () => {}, passed = () => {}, after = null } = callOf(init);
    const leave = new AbortController();
    const signal = init.signal ? AbortSignal.any([init.signal, leave.signal]) : leave.signal;
    const response = after ? await comeBack(after, fetchOnce, workspace, signal) : await fetchOnce(url, { ...init, signal });
    if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    if (after) tell("back");
    const events = unbroken(response, fetchOnce, workspace, signal, tell, after);
    const encoder = new TextEncoder();
    const body = new ReadableStream({
      async pull(controller) {
        try {
          const { value, done } = await events.next();
          if (done) return controller.close();
          passed(value);
          controller.enqueue(encoder.encode(`${after ? renamed(value, init.body) : value.raw}\n\n`));
        } catch (error) {
          controller.error(error);
        }
      },
      // The reader has enough: leave, so that the gateway need not keep the stream for us.
      cancel: () => leave.abort(),
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}

/** An event of an earlier call of JSON-RPC, as one of the call that takes it up. */
function renamed({ raw, data }, body) {
  const [asked, said] = [json(body), json(data)];
  if (asked?.jsonrpc === undefined || said === null) return raw;
  return `data: ${JSON.stringify({ ...said, id: asked.id })}`;
}

/** The events of a stream over as many connections as it takes. Each comes once, and none is left out. */
async function* unbroken(first, fetchOnce, workspace, signal, tell, after) {
  // The name of the stream, which the gateway tells us and not the agent: so what goes by it is the gateway's.
  const stream = first.headers.get("x-a2a-stream") ?? "";
  let response = first;
  let last = after;
  for (;;) {
    try {
      for await (const event of eventsOf(response)) {
        // What the gateway says about a stream has no id, while whatever it passes on of the agent has one of the gateway's.
        if (last !== null && event.id === null) {
          if (event.event === "gap") {
            tell(JSON.parse(event.data));
            continue;
          }
          // The gateway stops: another one goes on, from the same place.
          if (event.event === "end") throw new Error(event.data);
        }
        if (isNumber(event.id, stream)) last = event.id;
        const refusal = partingOf(json(event.data), stream);
        if (refusal) throw refusal;
        yield event;
      }
      return;
    } catch (error) {
      // What was refused, is left, or never had an event cannot be taken up again.
      if (error instanceof Refusal || signal.aborted || last === null) throw error;
      tell("lost");
      response = await comeBack(last, fetchOnce, workspace, signal);
      tell("back");
    }
  }
}

/** Whether an id is one that the gateway gave an event of this stream, and not one of the agent's. */
const isNumber = (id, stream) => /^[0-9a-f]{32}-\d+$/.test(id ?? "") && id.startsWith(`${stream}-`);

/** Asks for what came after `last` until there is an answer. */
async function comeBack(last, fetchOnce, workspace, signal) {
  const stream = last.slice(0, last.lastIndexOf("-"));
  const deadline = Date.now() + PATIENCE;
  for (let pause = PAUSE_MIN; ; pause = Math.min(pause * 2, PAUSE_MAX)) {
    await wait(pause, signal);
    try {
      return await fetchOnce(`/workspaces/${workspace}/streams/${stream}`, { headers: { "Last-Event-ID": last }, signal });
    } catch (error) {
      if (signal.aborted) throw error;
      const passes = !(error instanceof Refusal) || error.status === 429 || error.status >= 500;
      if (!passes || Date.now() > deadline) throw new Cut(error);
      if (error.retryAfter) await wait(error.retryAfter * 1000, signal);
    }
  }
}

/** The events of one connection. Throws when it breaks, or is silent for too long. */
async function* eventsOf(response) {
  const reader = response.body.getReader();
  const events = new EventReader();
  try {
    for (;;) {
      const { value, done } = await withinSilence(reader.read());
      if (done) return;
      yield* events.read(value);
    }
  } finally {
    // Broken, or not wanted any more: either way nobody reads on.
    reader.cancel().catch(() => {});
  }
}

async function withinSilence(read) {
  let timer;
  const silent = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("the connection is silent")), SILENCE_MAX);
  });
  return Promise.race([read, silent]).finally(() => clearTimeout(timer));
}

/** Waits; less when the network comes back. */
function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      signal.removeEventListener("abort", done);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(done, milliseconds);
    addEventListener("online", done);
    signal.addEventListener("abort", done);
  });
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
