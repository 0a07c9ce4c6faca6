// A page on an origin that the gateway does not know, in a browser on the same machine. It even has a good token.

import { message, pause, report, seen, task } from "./page.js";

const { gateway, token, elsewhere } = await task();
const target = `${gateway}/workspaces/target/a2a`;
const json = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };

/** Sends a form, as a click would, into a frame. `parts` of a text/plain form can spell out JSON. */
async function form(enctype, parts) {
  const frame = document.createElement("iframe");
  frame.name = `frame-${enctype}`;
  const element = document.createElement("form");
  Object.assign(element, { action: target, method: "post", enctype, target: frame.name });
  for (const [name, value] of Object.entries(parts)) {
    element.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
  document.body.append(frame, element);
  const loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
  // The frame's first, empty document loads by itself.
  await Promise.race([loaded, pause(200)]);
  const answered = new Promise((resolve) => frame.addEventListener("load", () => resolve("answered")));
  element.submit();
  return Promise.race([answered, pause(10_000)]);
}

report({
  // What this browser says of such a request, asked of a site that shows it.
  says: async () => (await fetch(`${elsewhere}/echo`)).text(),

  fetched: async () => seen(await fetch(target, { method: "POST", headers: json, body: message("x") })),
  // Without a preflight: a "simple" request. The page may send it, and never read what comes back.
  simple: async () => seen(await fetch(target, { method: "POST", body: message("x") })),
  blind: async () => seen(await fetch(target, { method: "POST", mode: "no-cors", body: message("x") })),
  blindGet: async () => seen(await fetch(`${gateway}/workspaces/target`, { mode: "no-cors" })),
  control: async () => seen(await fetch(`${gateway}/workspaces/target`, { headers: json })),
  textForm: () => form("text/plain", { '{"message":{"text":"': '"}}' }),
  urlForm: () => form("application/x-www-form-urlencoded", { message: "hello" }),
  beacon: async () => {
    const sent = navigator.sendBeacon(target, new Blob([message("x")], { type: "text/plain" }));
    await pause(300);
    return sent;
  },
});
