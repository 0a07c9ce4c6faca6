// Clients for JavaScript that read a card without a credential: node.mjs BASE, with A2A_TOKEN.
//
// Each fetches the card itself, with nothing that says who asks. Neither has a setting for a credential, so their calls
// get one from below: POST only.
import { RemoteA2AAgent } from "@google/adk/a2a";
import { InMemoryRunner } from "@google/adk";
import { a2a } from "a2a-ai-provider";

const base = process.argv[2];
const text = "hello from outside";
const below = globalThis.fetch;
globalThis.fetch = (url, options = {}) => {
  if ((options.method ?? "GET").toUpperCase() !== "POST") return below(url, options);
  const headers = new Headers(options.headers);
  headers.set("authorization", `Bearer ${process.env.A2A_TOKEN}`);
  return below(url, { ...options, headers });
};

async function adk() {
  const agent = new RemoteA2AAgent({ name: "remote", description: "d", agentCard: `${base}/` });
  const runner = new InMemoryRunner({ agent, appName: "test" });
  const session = await runner.sessionService.createSession({ appName: "test", userId: "u" });
  const newMessage = { role: "user", parts: [{ text }] };
  const events = [];
  for await (const event of runner.runAsync({ userId: "u", sessionId: session.id, newMessage })) events.push(event);
  return JSON.stringify(events);
}

async function aiProvider() {
  const prompt = [{ role: "user", content: [{ type: "text", text }] }];
  return JSON.stringify(await a2a(base).doGenerate({ prompt }));
}

let failed = false;
for (const [name, client] of [["@google/adk", adk], ["a2a-ai-provider", aiProvider]]) {
  let said;
  try {
    said = await client();
  } catch (error) {
    said = `${error.stack}`;
  }
  const fine = said.includes(`echo: ${text}`);
  failed ||= !fine;
  console.log(`${name} ${fine ? "ok" : "FAILED"} ${said.slice(0, 600)}`);
}
process.exit(failed ? 1 : 0);
