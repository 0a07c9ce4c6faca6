// An agent made with @a2a-js/sdk 1.3.0: JSON-RPC and REST, of A2A 1.0 and of 0.3. What it does is said by the message's first word.
// A second argument, `1.0`, leaves 0.3 out.
import { randomUUID } from "node:crypto";
import { AgentCard, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryPushNotificationStore, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from "@a2a-js/sdk/server/express";
import express from "express";
import { Waiting, serve, wordAndNumber } from "./serving.mjs";

const waiting = new Waiting();

const executor = {
  async execute({ userMessage, task, taskId, contextId }, bus) {
    const [word, number] = wordAndNumber(userMessage.parts[0].content.value);
    const now = (state) => ({ state: `TASK_STATE_${state}`, timestamp: new Date().toISOString() });
    const status = (state, more) =>
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON({ taskId, contextId, status: now(state), ...more })));
    if (word === "hello") {
      const message = { role: "ROLE_AGENT", messageId: randomUUID(), contextId, parts: [{ text: "hello, too" }] };
      bus.publish(AgentEvent.message(Message.fromJSON(message)));
      return bus.finished();
    }
    const started = { ...Task.fromJSON({ id: taskId, contextId, status: now("SUBMITTED") }), history: [userMessage] };
    // A stream begins with it, of a task that goes on too.
    bus.publish(AgentEvent.task(task ?? started));
    status("WORKING");
    if (word === "wait") {
      await waiting.until(taskId);
      status("CANCELED");
    } else if (word === "ask") {
      status("INPUT_REQUIRED");
    } else if (word === "fail") {
      status("FAILED");
    } else if (word === "pieces") {
      ["one, ", "two, ", "three"].forEach((text, at) => {
        const piece = { taskId, contextId, artifact: { artifactId: "pieces", parts: [{ text }] }, append: at > 0, lastChunk: at === 2 };
        bus.publish(AgentEvent.artifactUpdate(TaskArtifactUpdateEvent.fromJSON(piece)));
      });
      status("COMPLETED");
    } else {
      for (let n = 1; word === "stream" && n <= number; n += 1) {
        status("WORKING", { metadata: { n } });
      }
      const made = [{ text: word === "big" ? "x".repeat(number) : "made" }];
      const artifact = { artifactId: randomUUID(), name: "result", parts: made };
      const update = TaskArtifactUpdateEvent.fromJSON({ taskId, contextId, artifact, lastChunk: true });
      if (word === "parts") update.artifact.parts = userMessage.parts;
      bus.publish(AgentEvent.artifactUpdate(update));
      status("COMPLETED");
    }
    bus.finished();
  },
  async cancelTask(taskId) {
    waiting.end(taskId);
  },
};

serve((url) => {
  const of = (protocolBinding, protocolVersion, path) => ({ url: `${url}/a2a/${path}`, protocolBinding, protocolVersion });
  const enabled = process.argv[3] !== "1.0";
  const legacy = enabled ? [of("JSONRPC", "0.3", "jsonrpc"), of("HTTP+JSON", "0.3", "rest")] : [];
  const card = AgentCard.fromJSON({
    name: "js13",
    description: "@a2a-js/sdk 1.3.0",
    version: "1",
    supportedInterfaces: [of("JSONRPC", "1.0", "jsonrpc"), of("HTTP+JSON", "1.0", "rest"), ...legacy],
    capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "act", name: "act", description: "does what it is told", tags: ["test"] }],
  });
  const store = new InMemoryPushNotificationStore();
  // Tells nobody: the tests look at the configurations only.
  const sender = { send: async () => {} };
  const extended = { ...card, skills: [...card.skills, { ...card.skills[0], id: "more" }] };
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor, undefined, store, sender, async () => extended);
  const both = { requestHandler, userBuilder: UserBuilder.noAuthentication, legacyCompat: { enabled } };
  const app = express();
  app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler, legacyCompat: both.legacyCompat }));
  app.use("/a2a/jsonrpc", jsonRpcHandler(both));
  app.use("/a2a/rest", restHandler(both));
  return app;
});
