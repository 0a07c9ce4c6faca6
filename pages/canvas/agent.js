// One agent behind the gateway, by @a2a-js/sdk. Whatever generation of A2A it speaks, what it says comes out of here as
// three kinds of events: `status`, `artifact` and `message`.

import {
  CancelTaskRequest,
  ClientFactory,
  ClientFactoryOptions,
  DefaultAgentCardResolver,
  GetTaskRequest,
  JsonRpcTransportFactory,
  RestTransportFactory,
  SendMessageRequest,
  taskStateToJSON,
} from "./a2a-sdk.js";
import { Refusal } from "./refusal.js";
import { recording } from "./raw.js";
import { resuming } from "./resume.js";

/** Of a message, as the protocol numbers it. */
const ROLE_USER = 1;

/** States from which a task does not go on. */
const TERMINAL = ["completed", "failed", "canceled", "rejected"];

export const isTerminal = (state) => TERMINAL.includes(state);

export class Agent {
  #client;
  /** What is to be known of each call, by its signal. */
  #calls = new WeakMap();

  /** Reads the card of a workspace and makes a client of it. */
  static async of(gateway, id) {
    const agent = new Agent();
    const { card, refusal } = await cardOf(gateway, id);
    const callOf = ({ signal }) => agent.#calls.get(signal) ?? {};
    const fetchImpl = recording(resuming(gateway.fetch, id, callOf), callOf);
    // With it the SDK of A2A 1.0 also speaks with agents of 0.3.
    const options = { fetchImpl, legacyCompat: { enabled: true } };
    const factory = new ClientFactory(
      ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
        transports: [new JsonRpcTransportFactory(options), new RestTransportFactory(options)],
        cardResolver: new DefaultAgentCardResolver(options),
      }),
    );
    agent.#client = await factory.createFromAgentCard(callable(card, id));
    /** The card as the gateway served it; `null` if it has none. */
    agent.card = refusal ? null : card;
    /** Why there is none. */
    agent.refusal = refusal;
    return agent;
  }

  /**
   * Sends a message and yields what comes of it, as it comes. `contextId` goes on with a conversation, `taskId` with a task
   * that asked for input; `files` are `{ name, type, base64 }`. `call.onLink` hears how the connection fares: `"lost"`,
   * `"back"`, or how many events were `missed`; `call.onExchange` gets what was asked and answered; `call.position` is where
   * the stream is, and one that has such a position from before goes on there, and sends nothing.
   */
  async *send(text, { contextId = "", taskId = "", files = [], signal, call = {} } = {}) {
    // Where the stream is with what has been given to the page, which may be behind what was read.
    const read = [];
    const passed = ({ id, data }) => data !== null && read.push(id);
    this.#calls.set(signal, { tell: call.onLink, passed, after: call.position, onExchange: call.onExchange });
    const parts = [...(text ? [{ text }] : []), ...files.map(({ name, type, base64 }) => ({ raw: base64, filename: name, mediaType: type }))];
    const message = { messageId: crypto.randomUUID(), contextId, taskId, role: "ROLE_USER", parts };
    // Agents that do not stream answer with one event, and one that polls is not waited for.
    const request = SendMessageRequest.fromJSON({ message, configuration: { returnImmediately: true } });
    const stream = this.#client.sendMessageStream(request, { signal });
    for await (const { payload } of stream) {
      yield* eventsOf(payload);
      call.position = read.shift() ?? null;
    }
  }

  /** What a task is now, as the events that would have led to it. */
  task(id, onExchange) {
    return this.#about((options) => this.#client.getTask(GetTaskRequest.fromJSON({ id }), options), onExchange);
  }

  /** Asks the agent to stop a task, and answers what the task is then. */
  cancel(id, onExchange) {
    return this.#about((options) => this.#client.cancelTask(CancelTaskRequest.fromJSON({ id }), options), onExchange);
  }

  async #about(ask, onExchange) {
    const { signal } = new AbortController();
    this.#calls.set(signal, { onExchange });
    const value = await ask({ signal });
    return [...eventsOf({ $case: "task", value })];
  }
}

/** The card that the gateway serves for a workspace; or why there is none, and an empty one to go on with. */
async function cardOf(gateway, id) {
  try {
    const card = await (await gateway.fetch(`${baseOf(id)}/.well-known/agent-card.json`)).json();
    return { card: card !== null && typeof card === "object" ? card : {}, refusal: null };
  } catch (refusal) {
    if (!(refusal instanceof Refusal)) throw refusal;
    // A workspace without a card can still be called; if not, it is better to hear why from the call.
    return { card: {}, refusal };
  }
}

const baseOf = (id) => `/workspaces/${id}/a2a`;

/**
 * A card that the SDK takes. It throws at one of 0.x that leaves out what that generation asks for, though nothing of it is
 * needed to call the agent: many do.
 */
function callable(card, id) {
  if (Array.isArray(card.supportedInterfaces) && card.supportedInterfaces.length > 0) return card;
  const list = (value) => (Array.isArray(value) ? value : []);
  return {
    ...card,
    protocolVersion: card.protocolVersion ?? "0.3.0",
    url: card.url ?? baseOf(id),
    preferredTransport: card.preferredTransport ?? "JSONRPC",
    capabilities: card.capabilities ?? {},
    defaultInputModes: list(card.defaultInputModes),
    defaultOutputModes: list(card.defaultOutputModes),
    // They are for people, who get them from the card as it is.
    skills: [],
  };
}

/** What the SDK gives, as this page shows it. */
function* eventsOf({ $case, value }) {
  if ($case === "message") {
    const { contextId, taskId, parts } = value;
    yield { kind: "message", contextId, taskId, parts: parts.map(shownPart) };
  } else if ($case === "statusUpdate") {
    yield statusOf(value.taskId, value.contextId, value.status);
  } else if ($case === "artifactUpdate") {
    yield artifactOf(value.taskId, value.contextId, value.artifact, value.append);
  } else if ($case === "task") {
    for (const artifact of value.artifacts ?? []) yield artifactOf(value.id, value.contextId, artifact, false);
    yield statusOf(value.id, value.contextId, value.status);
  }
}

function statusOf(taskId, contextId, status) {
  // TASK_STATE_INPUT_REQUIRED is `input-required`, as A2A 0.3 and the gateway spell it.
  const state = taskStateToJSON(status?.state).replace("TASK_STATE_", "").toLowerCase().replaceAll("_", "-");
  // Some agents begin with what their user said.
  const isUsers = status?.message?.role === ROLE_USER;
  const parts = isUsers ? [] : (status?.message?.parts ?? []).map(shownPart);
  return { kind: "status", taskId, contextId, state, parts, timestamp: status?.timestamp ?? null };
}

function artifactOf(taskId, contextId, artifact, append) {
  const parts = (artifact?.parts ?? []).map(shownPart);
  return { kind: "artifact", taskId, contextId, id: artifact?.artifactId, name: artifact?.name, parts, append: Boolean(append) };
}

/** A part as it is shown: text, data as what it is, a file with its bytes. Nothing is fetched, and no file is opened. */
function shownPart({ content, filename, mediaType }) {
  if (content?.$case === "text") {
    // Text without a type may be Markdown; text of another type is not.
    const isPlain = Boolean(mediaType) && mediaType !== "text/markdown" && mediaType !== "text/plain";
    return isPlain ? { text: content.value, isCode: true } : { text: content.value };
  }
  if (content?.$case === "url") return { text: `${[filename || "a file", mediaType].filter(Boolean).join(" · ")}, at`, url: content.value };
  if (content?.$case === "raw") {
    const bytes = Uint8Array.from(content.value);
    return { text: filename || "a file", isFile: true, file: { name: filename, type: mediaType, bytes, size: bytes.length } };
  }
  if (content?.$case === "data") return dataPart(content.value);
  return { text: "a part of a kind that this page does not know", isFile: true };
}

function dataPart(value) {
  const text = json(value);
  return text === null ? { text: "data that is nested too deeply to be shown", isFile: true } : { text, isCode: true, data: value ?? null };
}

/** Data as JSON; `null` if it is nested too deeply. */
function json(value) {
  try {
    return JSON.stringify(value ?? null, null, 2);
  } catch {
    return null;
  }
}
