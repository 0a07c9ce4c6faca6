// Drives @a2a-js/sdk 1.3.0 as a client, to interfaces of A2A 1.0 and of 0.3.
import { randomUUID } from "node:crypto";
import {
  CancelTaskRequest,
  DeleteTaskPushNotificationConfigRequest,
  GetTaskPushNotificationConfigRequest,
  GetTaskRequest,
  ListTaskPushNotificationConfigsRequest,
  ListTasksRequest,
  SendMessageRequest,
  SubscribeToTaskRequest,
  TaskPushNotificationConfig,
  taskStateToJSON,
} from "@a2a-js/sdk";
import { ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { BYTES, DATA, NotOffered, PLACE, run, shown, state } from "./driving.mjs";

const texts = (parts) => shown(parts.map(({ content }) => content.value).join(""));
const stateOf = (status) => state(taskStateToJSON(status.state));

function content({ content: { $case, value }, mediaType, filename }) {
  if ($case === "text" || $case === "data") return [$case, value];
  return [...($case === "raw" ? ["bytes", Buffer.from(value).toString("base64")] : ["url", value]), mediaType, filename];
}

const readTask = (task) => ({
  task: stateOf(task.status),
  artifacts: task.artifacts.map(({ parts }) => texts(parts)),
  task_id: task.id,
  context_id: task.contextId,
});

/** An event of a stream, in the form that all drivers share. */
function read({ payload: { $case, value } }) {
  const ids = { task_id: value.taskId, context_id: value.contextId };
  switch ($case) {
    case "message":
      return { message: texts(value.parts) };
    case "task":
      return readTask(value);
    case "artifactUpdate":
      return { artifact: texts(value.artifact.parts), append: value.append, last: value.lastChunk, ...ids };
    default:
      return { status: stateOf(value.status), n: value.metadata?.n ?? null, ...ids };
  }
}

class Sdk {
  constructor({ fetch: fetchImpl }, job) {
    this.job = job;
    const options = { fetchImpl, legacyCompat: { enabled: !job.alone } };
    this.resolver = new DefaultAgentCardResolver(options);
    const Transport = job.binding === "JSONRPC" ? JsonRpcTransportFactory : RestTransportFactory;
    const wanted = { transports: [new Transport(options)], cardResolver: this.resolver };
    this.factory = new ClientFactory(ClientFactoryOptions.createFrom({ ...ClientFactoryOptions.default, transports: [] }, wanted));
  }

  async connect() {
    const { base, binding, version } = this.job;
    const card = await this.resolver.resolve(`${base}/`);
    // The one interface that this job is about; the SDK would take the best.
    const supportedInterfaces = card.supportedInterfaces
      .filter((one) => one.protocolBinding === binding && one.protocolVersion.startsWith(version))
      .slice(0, 1);
    this.client = await this.factory.createFromAgentCard({ ...card, supportedInterfaces });
  }

  async card() {
    const card = await this.resolver.resolve(`${this.job.base}/`);
    return { name: card.name, skills: card.skills.map(({ id }) => id) };
  }

  async extended() {
    const card = await this.client.getAgentCard();
    return { name: card.name, skills: card.skills.map(({ id }) => id) };
  }

  #request(text, { task, context, more = [] } = {}) {
    const message = { role: "ROLE_USER", messageId: randomUUID(), taskId: task, contextId: context, parts: [{ text }, ...more] };
    return SendMessageRequest.fromJSON({ message });
  }

  async send(text, more) {
    const result = await this.client.sendMessage(this.#request(text, more));
    return "parts" in result ? { message: texts(result.parts) } : readTask(result);
  }

  async parts() {
    const more = [
      { data: DATA },
      { raw: BYTES, mediaType: "application/octet-stream", filename: "b.bin" },
      { url: PLACE, mediaType: "image/png", filename: "f.png" },
    ];
    const task = await this.client.sendMessage(this.#request("parts", { more }));
    return task.artifacts.flatMap(({ parts }) => parts.map(content));
  }

  async *stream(text) {
    for await (const event of this.client.sendMessageStream(this.#request(text))) yield read(event);
  }

  async get(id) {
    return readTask(await this.client.getTask(GetTaskRequest.fromJSON({ id })));
  }

  async cancel(id) {
    return readTask(await this.client.cancelTask(CancelTaskRequest.fromJSON({ id })));
  }

  async *subscribe(id) {
    for await (const event of this.client.resubscribeTask(SubscribeToTaskRequest.fromJSON({ id }))) yield read(event);
  }

  async list(contextId) {
    if (this.job.version === "0.3") throw new NotOffered();
    return (await this.client.listTasks(ListTasksRequest.fromJSON({ contextId }))).tasks.map(readTask);
  }

  async push(taskId, url) {
    const query = { taskId, id: "p-1" };
    const made = await this.client.createTaskPushNotificationConfig(TaskPushNotificationConfig.fromJSON({ ...query, url, token: "t-1" }));
    const readBack = await this.client.getTaskPushNotificationConfig(GetTaskPushNotificationConfigRequest.fromJSON(query));
    const listed = await this.client.listTaskPushNotificationConfig(ListTaskPushNotificationConfigsRequest.fromJSON({ taskId }));
    await this.client.deleteTaskPushNotificationConfig(DeleteTaskPushNotificationConfigRequest.fromJSON(query));
    return [made.url, readBack.url, listed.configs.map(({ url: one }) => one)];
  }
}

await run((recording, job) => new Sdk(recording, job));
