// A canvas on an origin that cors.origins lists: everything that it needs works, and can be read.

import { message, report, seen, task } from "./page.js";

const { gateway, token } = await task();
const target = `${gateway}/workspaces/target/a2a`;

// None of these fields is "simple", so the browser asks first, by a preflight.
const fields = {
  Authorization: `Bearer ${token}`,
  "Content-Type": "application/json",
  "A2A-Version": "0.3",
  "X-Request-Id": "from-the-page",
  "X-Timeout": "20",
};
const post = (body, more = {}) => fetch(target, { method: "POST", headers: fields, body, ...more });

/** Reads a stream; of each piece, its text and when it came, in milliseconds. */
async function pieces(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const found = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return found;
    found.push({ text: value, at: performance.now() });
  }
}

report({
  unary: async () => seen(await post(message("hello"))),

  streamed: async () => {
    const answer = await post(message("stream"), { headers: { ...fields, Accept: "text/event-stream" } });
    return { status: answer.status, fields: Object.fromEntries(answer.headers), pieces: await pieces(answer) };
  },

  // A page that stops listening stops the agent's work.
  left: async () => {
    const controller = new AbortController();
    const answer = await post(message("endless"), { signal: controller.signal });
    const reader = answer.body.getReader();
    await reader.read();
    controller.abort();
    return reader.read().then(() => "went on", (error) => error.name);
  },

  refused: async () => seen(await fetch(`${gateway}/workspaces/nobody/a2a`, { method: "POST", headers: fields, body: message("x") })),
  unproven: async () => seen(await fetch(target, { method: "POST", headers: { ...fields, Authorization: "Bearer nothing" }, body: message("x") })),
  unknown: async () => seen(await fetch(`${gateway}/nowhere`, { headers: fields })),
  control: async () => seen(await fetch(`${gateway}/workspaces/target`, { headers: fields })),

  // What the preflight does not allow, the browser does not send.
  otherField: async () => seen(await post(message("x"), { headers: { ...fields, "X-Anything": "1" } })),
  otherMethod: async () => seen(await fetch(target, { method: "PUT", headers: fields, body: message("x") })),
  // Nor does it hand out an answer to a request with cookies: tokens are sent by hand, or not at all.
  withCookies: async () => seen(await post(message("x"), { credentials: "include" })),
});
