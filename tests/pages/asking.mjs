// An agent of A2A 1.0 that asks back before it answers, and answers in pieces.

import { createServer } from "node:http";
import { call, demo } from "./stage.mjs";

const NAMES = { taskId: "weather-1", contextId: "talk-1" };

export class Asking {
  /** The messages that it got. */
  heard = [];

  static async join() {
    const asking = new Asking();
    const server = createServer((request, response) => asking.#answer(request, response));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    server.unref();
    const url = `http://127.0.0.1:${server.address().port}/`;
    const wanted = { id: "asking", name: "asking", role: "knows the weather", parent_id: "acme-pm", org: "acme", delivery_mode: "push" };
    const { enrolment_token: enrolment } = await call("POST", "/workspaces", demo.tokens.operator, wanted);
    await call("POST", "/registry/register", enrolment, { id: "asking", url, delivery_mode: "push", agent_card: card(url) });
    return asking;
  }

  leave() {
    return call("DELETE", "/workspaces/asking", demo.tokens.operator);
  }

  async #answer(request, response) {
    if (request.method === "GET") {
      response.setHeader("Content-Type", "application/json");
      return response.end(JSON.stringify(card(`http://${request.headers.host}/`)));
    }
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { id, params } = JSON.parse(Buffer.concat(chunks));
    if (!params?.message) {
      // A page that was kept waiting asks for the task.
      const state = this.heard.length > 1 ? "TASK_STATE_COMPLETED" : "TASK_STATE_INPUT_REQUIRED";
      const result = { id: NAMES.taskId, contextId: NAMES.contextId, status: { state } };
      response.setHeader("Content-Type", "application/json");
      return response.end(JSON.stringify({ jsonrpc: "2.0", id, result }));
    }
    this.heard.push(params.message);
    const say = (result) => response.write(`data: ${JSON.stringify({ jsonrpc: "2.0", id, result })}\n\n`);
    const status = (state, text) => {
      const message = text && { messageId: "m", role: "ROLE_AGENT", parts: [{ text }] };
      say({ statusUpdate: { ...NAMES, status: { state, message } } });
    };
    const piece = (text, append) => say({ artifactUpdate: { ...NAMES, artifact: { artifactId: "a", name: "report", parts: [{ text }] }, append } });
    response.setHeader("Content-Type", "text/event-stream");
    if (params.message.taskId) {
      status("TASK_STATE_WORKING", "looking out of the window");
      piece(`${params.message.parts[0].text}: `, false);
      piece("rain", true);
      status("TASK_STATE_COMPLETED");
    } else {
      say({ task: { id: NAMES.taskId, contextId: NAMES.contextId, status: { state: "TASK_STATE_SUBMITTED" } } });
      status("TASK_STATE_INPUT_REQUIRED", "Where?");
    }
    response.end();
  }
}

function card(url) {
  return {
    name: "asking",
    description: "Knows the weather, once it knows where.",
    version: "2",
    supportedInterfaces: [{ url, protocolBinding: "JSONRPC", protocolVersion: "1.0" }],
    capabilities: { streaming: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "weather", name: "weather", description: "Says how it is outside.", tags: ["weather"], examples: ["how is the weather?"] }],
  };
}
