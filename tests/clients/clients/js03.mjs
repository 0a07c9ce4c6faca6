// Drives @a2a-js/sdk 0.3.14 as a client.
import { randomUUID } from "node:crypto";
import { ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { BYTES, DATA, NotOffered, PLACE, run, shown, state } from "./driving.mjs";

const texts = (parts) => shown(parts.map((part) => part.text).join(""));

function content({ kind, text, data, file }) {
  if (kind !== "file") return [kind, text ?? data];
  return [...("bytes" in file ? ["bytes", file.bytes] : ["url", file.uri]), file.mimeType, file.name];
}

/** A message, a task or an update, in the form that all drivers share. */
function read(event) {
  const ids = { task_id: event.taskId, context_id: event.contextId };
  switch (event.kind) {
    case "message":
      return { message: texts(event.parts) };
    case "task":
      return {
        task: state(event.status.state),
        artifacts: (event.artifacts ?? []).map(({ parts }) => texts(parts)),
        task_id: event.id,
        context_id: event.contextId,
      };
    case "artifact-update":
      return { artifact: texts(event.artifact.parts), append: Boolean(event.append), last: Boolean(event.lastChunk), ...ids };
    default:
      return { status: state(event.status.state), n: event.metadata?.n ?? null, ...ids };
  }
}

class Sdk {
  constructor({ fetch: fetchImpl }, job) {
    this.job = job;
    this.resolver = new DefaultAgentCardResolver({ fetchImpl });
    const Transport = job.binding === "JSONRPC" ? JsonRpcTransportFactory : RestTransportFactory;
    const options = { transports: [new Transport({ fetchImpl })], cardResolver: this.resolver };
    this.factory = new ClientFactory(ClientFactoryOptions.createFrom({ ...ClientFactoryOptions.default, transports: [] }, options));
  }

  async connect() {
    const { base, binding, unlisted } = this.job;
    const card = await this.resolver.resolve(`${base}/`);
    // The card names this binding of 1.0 only.
    const stated = unlisted ? { preferredTransport: binding, additionalInterfaces: [] } : {};
    this.client = await this.factory.createFromAgentCard({ ...card, ...stated });
  }

  async card() {
    const card = await this.resolver.resolve(`${this.job.base}/`);
    return { name: card.name, skills: card.skills.map(({ id }) => id) };
  }

  async extended() {
    const card = await this.client.getAgentCard();
    return { name: card.name, skills: card.skills.map(({ id }) => id) };
  }

  #message(text, { task, context, more = [] } = {}) {
    const message = { kind: "message", role: "user", messageId: randomUUID(), taskId: task, contextId: context };
    return { message: { ...message, parts: [{ kind: "text", text }, ...more] } };
  }

  async send(text, more) {
    return read(await this.client.sendMessage(this.#message(text, more)));
  }

  async parts() {
    const more = [
      { kind: "data", data: DATA },
      { kind: "file", file: { bytes: BYTES, mimeType: "application/octet-stream", name: "b.bin" } },
      { kind: "file", file: { uri: PLACE, mimeType: "image/png", name: "f.png" } },
    ];
    const task = await this.client.sendMessage(this.#message("parts", { more }));
    return task.artifacts.flatMap(({ parts }) => parts.map(content));
  }

  async *stream(text) {
    for await (const event of this.client.sendMessageStream(this.#message(text))) yield read(event);
  }

  async get(id) {
    return read(await this.client.getTask({ id }));
  }

  async cancel(id) {
    return read(await this.client.cancelTask({ id }));
  }

  async *subscribe(id) {
    for await (const event of this.client.resubscribeTask({ id })) yield read(event);
  }

  async list() {
    throw new NotOffered();
  }

  async push(taskId, url) {
    const made = await this.client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig: { id: "p-1", url, token: "t-1" } });
    const query = { id: taskId, pushNotificationConfigId: "p-1" };
    const readBack = await this.client.getTaskPushNotificationConfig(query);
    const listed = await this.client.listTaskPushNotificationConfig({ id: taskId });
    await this.client.deleteTaskPushNotificationConfig(query);
    return [made, readBack].map((config) => config.pushNotificationConfig.url).concat([listed.map((config) => config.pushNotificationConfig.url)]);
  }
}

await run((recording, job) => new Sdk(recording, job));
