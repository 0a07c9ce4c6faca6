// Events by WebSocket: a ticket first, since a browser cannot send Authorization with a socket. And by fetch.

import { report, task } from "./page.js";

const { gateway, token, ticket } = await task();
const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
let query = "";

/** Opens a socket and waits for one frame, or for the end: { opened, frames, code }. */
function socket(query) {
  return new Promise((resolve) => {
    const found = { opened: false, frames: [] };
    const socket = new WebSocket(`${gateway.replace("http", "ws")}/ws${query}`);
    const timer = setTimeout(() => socket.close(), 15_000);
    socket.onopen = () => (found.opened = true);
    socket.onmessage = (event) => {
      found.frames.push(JSON.parse(event.data));
      socket.close();
    };
    socket.onclose = (event) => {
      clearTimeout(timer);
      resolve({ ...found, code: event.code });
    };
  });
}

/** The first event of a stream. */
async function firstEvent(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) throw new Error(`the stream ended: ${text}`);
    text += value;
    // Whole events only; comments and events without data are none.
    const events = text.split(/\r?\n\r?\n/).slice(0, -1);
    const [data] = events.flatMap((event) => event.match(/^data: ?.*$/m) ?? []);
    if (data) {
      await reader.cancel();
      return JSON.parse(data.slice("data:".length));
    }
  }
}

report({
  // A page from elsewhere is handed a good ticket, as if it had stolen one.
  made: async () => {
    const made = ticket ? { ticket } : await (await fetch(`${gateway}/ws/tickets`, { method: "POST", headers, body: "{}" })).json();
    query = `?ticket=${encodeURIComponent(made.ticket)}`;
    return made;
  },
  byTicket: () => socket(query),
  again: () => socket(query),
  withoutTicket: () => socket(""),
  events: async () => firstEvent(await fetch(`${gateway}/events`, { headers, signal: AbortSignal.timeout(15_000) })),
});
