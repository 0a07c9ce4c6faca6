// An agent in the place of the demo's slow one, at the pace of the test: its newest task takes a step when it is let.

import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { call, demo, until } from "./stage.mjs";

const STEPS = 10;

export class Working {
  /** Whether tasks work without being let. */
  isFree = false;
  #tasks = [];

  static async join() {
    const working = new Working();
    const server = createServer((request, response) => working.#answer(request, response));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    server.unref();
    const url = `http://127.0.0.1:${server.address().port}/`;
    await call("PATCH", "/workspaces/acme-dev", demo.tokens.operator, { url });
    return working;
  }

  /** Waits for a task that works at nothing yet, and lets it take a step. */
  async begins() {
    await until(() => this.#tasks.at(-1)?.steps === 0 && !this.#tasks.at(-1).isOver, "a new task");
    this.step(1);
  }

  /** Lets the newest task take so many further steps. */
  step(count = STEPS) {
    const task = this.#tasks.at(-1);
    for (let n = 0; n < count && !task.isOver; n += 1) {
      task.steps += 1;
      task.reach("working", `step ${task.steps} of ${STEPS}`);
      if (task.steps === STEPS) {
        const parts = [{ kind: "text", text: `done in ${STEPS} steps: ${task.text}` }];
        task.say({ kind: "artifact-update", ...task.names, artifact: { artifactId: "answer", name: "answer", parts } });
        task.reach("completed");
      }
    }
  }

  async #answer(request, response) {
    if (request.method !== "POST") return response.writeHead(404).end();
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { id, method, params } = JSON.parse(Buffer.concat(chunks));
    if (method === "message/stream") {
      response.setHeader("Content-Type", "text/event-stream");
      this.#tasks.push(new Task(id, params.message, response));
      if (this.isFree) this.step();
      return;
    }
    const task = this.#tasks.find(({ names }) => names.taskId === params.id);
    const isRefused = method === "tasks/cancel" && task.isOver;
    if (method === "tasks/cancel" && !isRefused) task.reach("canceled");
    const said = isRefused ? { error: { code: -32002, message: "the task has ended" } } : { result: task.shown() };
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({ jsonrpc: "2.0", id, ...said }));
  }
}

class Task {
  steps = 0;
  isOver = false;
  #status = { state: "submitted" };

  constructor(id, message, stream) {
    this.names = { taskId: randomUUID(), contextId: message.contextId ?? randomUUID() };
    this.text = message.parts[0].text;
    this.say = (result) => stream.write(`data: ${JSON.stringify({ jsonrpc: "2.0", id, result })}\n\n`);
    this.end = () => stream.end();
    this.say(this.shown());
  }

  shown() {
    const { taskId, contextId } = this.names;
    return { kind: "task", id: taskId, contextId, status: this.#status };
  }

  reach(state, text) {
    const message = text && { kind: "message", messageId: randomUUID(), role: "agent", parts: [{ kind: "text", text }] };
    this.#status = { state, message };
    this.isOver = ["completed", "canceled"].includes(state);
    this.say({ kind: "status-update", ...this.names, status: this.#status, final: this.isOver });
    if (this.isOver) this.end();
  }
}
