// What was asked and answered, as it went over the line: for whoever builds an agent, or looks for what went wrong.

import { copyButton } from "./copy.js";
import { clock, element, fill } from "./dom.js";
import { shortened } from "./parts.js";
import { Refusal } from "./refusal.js";

/** What is kept: exchanges of one conversation, events of one, and characters of a body or of all its events. */
const EXCHANGES_MAX = 50;
const EVENTS_MAX = 500;
const TEXT_MAX = 100_000;

/** So often it is drawn at most, in milliseconds. */
const DRAW_EVERY = 250;

/** A `fetch` that tells each exchange to the `onExchange` of its call; the token is not part of it. */
export function recording(fetchOnce, callOf) {
  return async (url, init = {}) => {
    const call = callOf(init);
    if (!call.onExchange) return fetchOnce(url, init);
    const sent = { url: String(url), method: init.method ?? "GET", headers: Object.fromEntries(new Headers(init.headers)), body: init.body ? String(init.body) : "" };
    const asked = call.after ? { url: `the stream, after the event ${call.after}`, method: "GET", headers: {}, body: "" } : sent;
    const exchange = { ...asked, at: new Date(), status: null, requestId: null, answer: "", events: [], size: 0, left: 0 };
    const { onExchange, passed } = call;
    call.passed = (event) => {
      passed?.(event);
      keepEvent(exchange, event.raw);
      onExchange(exchange);
    };
    onExchange(exchange);
    try {
      const response = await fetchOnce(url, init);
      exchange.status = response.status;
      exchange.requestId = response.headers.get("x-request-id");
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) exchange.answer = shortened(await response.clone().text(), TEXT_MAX);
      return response;
    } catch (error) {
      const isRefusal = error instanceof Refusal;
      Object.assign(exchange, isRefusal ? { status: error.status, requestId: error.requestId } : {});
      exchange.answer = isRefusal ? `refused by the gateway: ${error.reason}: ${error.message}` : String(error);
      throw error;
    } finally {
      onExchange(exchange);
    }
  };
}

function keepEvent(exchange, raw) {
  if (exchange.events.length >= EVENTS_MAX || exchange.size + raw.length > TEXT_MAX) return void (exchange.left += 1);
  exchange.events.push(raw);
  exchange.size += raw.length;
}

/** The same request for a shell. The token is in a variable: a line that is passed on must not have it. */
export function curlOf({ url, method, headers, body }, base) {
  const quoted = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;
  const path = url.includes("/workspaces/") ? url.slice(url.indexOf("/workspaces/")) : url;
  const fields = Object.entries(headers).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
  const data = body ? [`--data-raw ${quoted(body)}`] : [];
  return [`curl -N -X ${method} ${quoted(base + path)}`, `-H "Authorization: Bearer $TOKEN"`, ...fields, ...data].join(" \\\n  ");
}

/** The exchanges of one conversation. */
export class Raw {
  element = element("div", { className: "raw" });
  #base;
  /** `{ exchange, element }`, the oldest first. */
  #rows = [];
  #timer = null;
  #changed = new Set();

  constructor(base) {
    this.#base = base;
    fill(this.element, element("p", { className: "muted" }, "Requests and answers of this conversation show here, as they are sent."));
  }

  /** Takes in an exchange that is new or has changed. */
  take(exchange) {
    this.#changed.add(exchange);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      for (const one of this.#changed) this.#show(one);
      this.#changed.clear();
    }, DRAW_EVERY);
  }

  #show(exchange) {
    let row = this.#rows.find((one) => one.exchange === exchange);
    if (!row) {
      row = { exchange, element: element("details", { className: "exchange" }) };
      if (this.#rows.length === 0) fill(this.element);
      this.#rows.push(row);
      this.element.prepend(row.element);
      if (this.#rows.length > EXCHANGES_MAX) this.#rows.shift().element.remove();
    }
    fill(row.element, ...exchangeElements(exchange, this.#base));
  }
}

function exchangeElements(exchange, base) {
  const { at, method, headers, body, status, requestId, answer, events, left } = exchange;
  const name = json(body)?.method ?? method;
  const block = (title, text) => [element("h4", { className: "small muted" }, title), element("pre", { tabIndex: 0 }, text)];
  const fields = Object.entries(headers).map(([field, value]) => `${field}: ${value}`);
  const pretty = (text) => (json(text) === null ? text : JSON.stringify(json(text), null, 2));
  return [
    element("summary", {}, element("strong", {}, name), " ", element("span", { className: "muted small" }, status === null ? "no answer yet" : String(status), events.length > 0 && ` · ${events.length + left} events`, " · ", clock(at))),
    requestId && element("p", { className: "small mono" }, `request ${requestId} `, copyButton(() => requestId, "Copy the request id")),
    ...block("Request", [exchange.url, ...fields, "", pretty(body)].join("\n")),
    element("p", {}, "curl ", copyButton(() => curlOf(exchange, base), "Copy as curl")),
    ...(answer ? block("Answer", pretty(answer)) : []),
    ...(events.length > 0 ? block("Events", events.join("\n\n") + (left > 0 ? `\n\n… and ${left} more, which are not kept` : "")) : []),
  ];
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
