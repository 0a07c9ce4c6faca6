// Any method of the agent, with parameters and header fields as they are written: for whoever builds an agent. What comes of
// it stands with the other raw exchanges.

import { failure } from "./conversation.js";
import { element, fill } from "./dom.js";
import { recording } from "./raw.js";
import { Refusal } from "./refusal.js";
import { EventReader } from "./sse.js";

/** Characters of parameters and of header fields; and how long an answer may take, in milliseconds. */
const PARAMS_MAX = 100_000;
const FIELDS_MAX = 4_000;
const ANSWER_MAX = 5 * 60_000;

/** Fields that a page must not set: the gateway's sign-in, and those that a browser sets itself. */
const OWN = /^(authorization|cookie|host|origin|content-length|connection|accept-encoding|sec-.*|proxy-.*|x-workspace-id)$/i;

/** Methods by generation: name, parameters to begin with, and what a card must say for it. */
const MESSAGE = (part, role) => ({ message: { messageId: "m-1", role, parts: [part] } });
const OLD = { ...MESSAGE({ kind: "text", text: "hello" }, "user") };
const NEW = { ...MESSAGE({ text: "hello" }, "ROLE_USER") };
const METHODS = {
  "0.3": [
    ["message/send", OLD], ["message/stream", OLD, "streaming"], ["tasks/get", { id: "" }], ["tasks/cancel", { id: "" }],
    ["tasks/resubscribe", { id: "" }, "streaming"], ["tasks/pushNotificationConfig/list", { id: "" }, "pushNotifications"],
    ["agent/getAuthenticatedExtendedCard", {}, "extendedAgentCard"],
  ],
  "1.0": [
    ["SendMessage", NEW], ["SendStreamingMessage", NEW, "streaming"], ["GetTask", { id: "" }], ["ListTasks", {}], ["CancelTask", { id: "" }],
    ["SubscribeToTask", { id: "" }, "streaming"], ["ListTaskPushNotificationConfigs", { taskId: "" }, "pushNotifications"],
    ["GetExtendedAgentCard", {}, "extendedAgentCard"],
  ],
};

/** The methods that a card offers: `[name, parameters, generation]`. */
export function methodsOf(card) {
  const capabilities = { ...(card?.capabilities ?? {}) };
  capabilities.extendedAgentCard ??= card?.supportsAuthenticatedExtendedCard;
  const interfaces = Array.isArray(card?.supportedInterfaces) ? card.supportedInterfaces : [];
  const speaks = (version) => interfaces.some((one) => String(one?.protocolVersion ?? "").startsWith(version));
  const generations = interfaces.length === 0 ? ["0.3"] : ["1.0", "0.3"].filter(speaks);
  return generations.flatMap((generation) => METHODS[generation].filter(([, , needs]) => !needs || capabilities[needs]).map(([name, params]) => [name, params, generation]));
}

/** Header fields from lines of `Name: value`. Throws in words what is wrong with one. */
export function fieldsOf(text) {
  const fields = {};
  for (const line of text.split("\n").filter((line) => line.trim() !== "")) {
    const [, name, value] = line.match(/^\s*([!#$%&'*+.^_`|~\w-]+)\s*:\s*([\t\x20-\x7e]*?)\s*$/) ?? [];
    if (name === undefined) throw new Error(`“${line.slice(0, 60)}” is no header field: write one as Name: value, in ASCII.`);
    if (OWN.test(name)) throw new Error(`${name} cannot be set here: the page signs in by itself, and the browser sets its own.`);
    fields[name] = value;
  }
  return fields;
}

/** A form that calls the agent of a talk. */
export class Playground {
  element = element("details", { className: "playground" });
  #said = element("div", { role: "status" });
  #method = element("select", { "aria-label": "Method" });
  #params = element("textarea", { rows: 6, className: "mono", spellcheck: false, maxLength: PARAMS_MAX, "aria-label": "Parameters, as JSON" });
  #fields = element("textarea", { rows: 2, className: "mono", spellcheck: false, maxLength: FIELDS_MAX, placeholder: "X-Timeout: 30", "aria-label": "Header fields, a line each" });
  #call = element("button", { type: "submit" }, "Call");
  #methods = [];
  #running = null;

  /** `gateway` and `workspace` (an id) are called; `take` gets the exchange. */
  constructor(gateway, workspace, take) {
    const submit = async (event) => {
      event.preventDefault();
      if (this.#running) return this.#running.abort();
      await this.#run(gateway, workspace, take);
    };
    this.#method.addEventListener("change", () => this.#begin());
    this.element.append(
      element("summary", {}, "Call a method"),
      element("form", { onsubmit: submit }, this.#method, element("label", {}, "Parameters", this.#params), element("label", {}, "Header fields", this.#fields), this.#call, this.#said),
    );
  }

  /** Offers what the card says. */
  offer(card) {
    const methods = methodsOf(card);
    if (methods.map(([name]) => name).join() === this.#methods.map(([name]) => name).join()) return;
    this.#methods = methods;
    fill(this.#method, ...methods.map(([name, , generation]) => element("option", { value: name }, `${name} (A2A ${generation})`)));
    this.#begin();
  }

  #begin() {
    const [, params] = this.#methods.find(([name]) => name === this.#method.value) ?? [];
    this.#params.value = JSON.stringify(params ?? {}, null, 2);
  }

  async #run(gateway, workspace, take) {
    const [method, , generation] = this.#methods.find(([name]) => name === this.#method.value) ?? [this.#method.value];
    this.#running = new AbortController();
    fill(this.#call, "Stop");
    fill(this.#said);
    const signal = AbortSignal.any([this.#running.signal, AbortSignal.timeout(ANSWER_MAX)]);
    const call = { onExchange: take };
    try {
      const headers = { "Content-Type": "application/json", ...(generation === "1.0" ? { "A2A-Version": "1.0" } : {}), ...fieldsOf(this.#fields.value) };
      const body = JSON.stringify({ jsonrpc: "2.0", id: crypto.randomUUID(), method, params: paramsOf(this.#params.value) });
      const response = await recording(gateway.fetch, () => call)(`/workspaces/${workspace}/a2a`, { method: "POST", headers, body, signal });
      if (response.headers.get("content-type")?.startsWith("text/event-stream")) await drain(response, call);
      fill(this.#said, element("p", { className: "small" }, "Answered: see below."));
    } catch (error) {
      const isWritten = !(error instanceof Refusal) && !(error instanceof TypeError);
      fill(this.#said, isWritten ? element("p", { className: "notice small", "data-tone": "bad" }, this.#running.signal.aborted ? "Stopped." : error.message) : failure(error));
    } finally {
      this.#running = null;
      fill(this.#call, "Call");
    }
  }
}

function paramsOf(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The parameters are not JSON: ${error.message}`);
  }
}

/** Reads a stream to its end; its events go to the exchange. */
async function drain(response, call) {
  const events = new EventReader();
  const reader = response.body.getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    for (const event of events.read(value)) call.passed(event);
  }
}
