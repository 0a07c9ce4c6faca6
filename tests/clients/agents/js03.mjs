// An agent made with @a2a-js/sdk 0.3.14: JSON-RPC and REST of A2A 0.3. What it does is said by the message's first word.
import { randomUUID } from "node:crypto";
import { DefaultRequestHandler, InMemoryPushNotificationStore, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from "@a2a-js/sdk/server/express";
import express from "express";
import { Waiting, serve, wordAndNumber } from "./serving.mjs";

const waiting = new Waiting();

const executor = {
  async execute({ userMessage, task, taskId, contextId }, bus) {
    const [word, number] = wordAndNumber(userMessage.parts[0].text);
    const status = (state, final, more) =>
      bus.publish({ kind: "status-update", taskId, contextId, final, status: { state, timestamp: new Date().toISOString() }, ...more });
    if (word === "hello") {
      const parts = [{ kind: "text", text: "hello, too" }];
      bus.publish({ kind: "message", role: "agent", messageId: randomUUID(), contextId, parts });
      return bus.finished();
    }
    if (!task) {
      const submitted = { state: "submitted", timestamp: new Date().toISOString() };
      bus.publish({ kind: "task", id: taskId, contextId, status: submitted, history: [userMessage] });
    }
    status("working", false);
    if (word === "wait") {
      await waiting.until(taskId);
      status("canceled", true);
    } else if (word === "ask") {
      status("input-required", true);
    } else if (word === "fail") {
      status("failed", true);
    } else if (word === "pieces") {
      ["one, ", "two, ", "three"].forEach((text, at) => {
        const artifact = { artifactId: "pieces", parts: [{ kind: "text", text }] };
        bus.publish({ kind: "artifact-update", taskId, contextId, artifact, append: at > 0, lastChunk: at === 2 });
      });
      status("completed", true);
    } else {
      for (let n = 1; word === "stream" && n <= number; n += 1) {
        status("working", false, { metadata: { n } });
      }
      const made = [{ kind: "text", text: word === "big" ? "x".repeat(number) : "made" }];
      const parts = word === "parts" ? userMessage.parts : made;
      const artifact = { artifactId: randomUUID(), name: "result", parts };
      bus.publish({ kind: "artifact-update", taskId, contextId, artifact, lastChunk: true });
      status("completed", true);
    }
    bus.finished();
  },
  async cancelTask(taskId) {
    waiting.end(taskId);
  },
};

serve((url) => {
  const card = {
    name: "js03",
    description: "@a2a-js/sdk 0.3.14",
    version: "1",
    protocolVersion: "0.3.0",
    url: `${url}/a2a/jsonrpc`,
    preferredTransport: "JSONRPC",
    additionalInterfaces: [
      { url: `${url}/a2a/jsonrpc`, transport: "JSONRPC" },
      { url: `${url}/a2a/rest`, transport: "HTTP+JSON" },
    ],
    capabilities: { streaming: true, pushNotifications: true },
    supportsAuthenticatedExtendedCard: true,
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "act", name: "act", description: "does what it is told", tags: ["test"] }],
  };
  const store = new InMemoryPushNotificationStore();
  // Tells nobody: the tests look at the configurations only.
  const sender = { send: async () => {} };
  const extended = { ...card, skills: [...card.skills, { ...card.skills[0], id: "more" }] };
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor, undefined, store, sender, async () => extended);
  const userBuilder = UserBuilder.noAuthentication;
  const app = express();
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
  app.use("/a2a/jsonrpc", jsonRpcHandler({ requestHandler, userBuilder }));
  app.use("/a2a/rest", restHandler({ requestHandler, userBuilder }));
  return app;
});
