// An agent made with @a2a-js/sdk 0.3. It says who called.
import { randomUUID } from "node:crypto";
import { DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler } from "@a2a-js/sdk/server/express";
import { caller, join, userBuilder } from "a2a-gateway-agent";
import express from "express";

const { PORT } = process.env;

const executor = {
  async execute({ contextId, context }, bus) {
    const parts = [{ kind: "text", text: `${context.user.userName} = ${caller().id}` }];
    bus.publish({ kind: "message", role: "agent", messageId: randomUUID(), contextId, parts });
    bus.finished();
  },
  async cancelTask() {},
};

const card = {
  name: "js03",
  description: "says who called",
  version: "1",
  protocolVersion: "0.3.0",
  url: `http://127.0.0.1:${PORT}/a2a`,
  preferredTransport: "JSONRPC",
  capabilities: { streaming: true },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "who", name: "who", description: "says who called", tags: ["test"] }],
};
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const app = express();
join(app, { workspace: "js03", proof: "request" });
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/a2a", jsonRpcHandler({ requestHandler, userBuilder }));
app.listen(PORT, "127.0.0.1");
