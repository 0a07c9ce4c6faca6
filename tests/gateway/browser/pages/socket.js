// Events by WebSocket: a ticket first, since a browser cannot send Authorization with a socket.

import { report, seen, task } from "./page.js";

const { gateway, token, ticket: given } = await task();

async function ticket() {
  if (given) return given;
  const answer = await fetch(`${gateway}/ws/tickets`, { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  return (await answer.json()).ticket;
}

/** Opens a socket; { opened, frames, code }, with at most `wanted` frames. */
function socket(query, wanted) {
  return new Promise((resolve) => {
    const found = { opened: false, frames: [] };
    const socket = new WebSocket(`${gateway.replace("http", "ws")}/ws${query}`);
    const timer = setTimeout(() => socket.close(), 15_000);
    socket.onopen = () => {
      found.opened = true;
      // The test changes something as soon as it hears of this.
      fetch("/echo?opened");
    };
    socket.onmessage = (event) => {
      found.frames.push(JSON.parse(event.data));
      if (found.frames.length >= wanted) socket.close();
    };
    socket.onclose = (event) => {
      clearTimeout(timer);
      resolve({ ...found, code: event.code });
    };
  });
}

let used;
report({
  tickets: async () => {
    if (given) return null;
    return seen(await fetch(`${gateway}/ws/tickets`, { method: "POST", headers: { Authorization: `Bearer ${token}` } }));
  },
  byTicket: async () => {
    used = `?ticket=${encodeURIComponent(await ticket())}`;
    return socket(used, 1);
  },
  again: () => socket(used, 1),
  withoutTicket: () => socket("", 1),
});
