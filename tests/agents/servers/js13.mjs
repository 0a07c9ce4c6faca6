// An agent made with @a2a-js/sdk 1.x, which settings in the environment join. It says who called.
import { randomUUID } from "node:crypto";
import { AgentCard, Message } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler } from "@a2a-js/sdk/server/express";
import { caller, join, userBuilder } from "a2a-gateway-agent";
import express from "express";

const { PORT, WORK = "0" } = process.env;

const executor = {
  async execute({ contextId, context }, bus) {
    await new Promise((done) => setTimeout(done, 1000 * WORK));
    const text = `${context.user.userName} = ${caller().id}`;
    bus.publish(AgentEvent.message(Message.fromJSON({ role: "ROLE_AGENT", messageId: randomUUID(), contextId, parts: [{ text }] })));
    bus.finished();
  },
  async cancelTask() {},
};

const card = AgentCard.fromJSON({
  name: "js13",
  description: "says who called",
  version: "1",
  supportedInterfaces: [{ url: `http://127.0.0.1:${PORT}/a2a`, protocolBinding: "JSONRPC", protocolVersion: "1.0" }],
  capabilities: { streaming: true },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [{ id: "who", name: "who", description: "says who called", tags: ["test"] }],
});
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
const app = express();
app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
app.use("/a2a", jsonRpcHandler({ requestHandler, userBuilder }));
app.use("/raw", (request, response) => response.json([request.headers, request.headersDistinct, request.rawHeaders]));
app.use("/ask", (request, response) => fetch(request.query.to).then((got) => got.text(), String).then((text) => response.send(text)));
join(app);
app.listen(PORT, "127.0.0.1");
