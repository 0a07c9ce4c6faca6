// How the console asks the gateway: with the token that was typed, which is in this module's memory and nowhere else, and with
// its half of a session, which counts alone when the page was loaded again.

import { Refusal, refusalOf } from "./refusal.js";
import { keep, kept } from "./session.js";
import { EventReader } from "./sse.js";

let token = null;
/** The page's half of its session. */
let half = null;
/** Called when the gateway does not take the token any more. */
let locked = () => {};

/** Whose questions these are from now on: the token's, or with `null` those of the session that is kept. */
export function enter(secret, onLocked) {
  token = secret;
  half = kept();
  locked = onLocked;
}

/** Begins a session for the token, so that the page can be loaded again. Without one that asks for the token. */
export async function beginSession() {
  const mine = token;
  if (mine === null) return;
  try {
    const { session } = await ask("console/session", { method: "POST" });
    if (mine !== token) return;
    half = session;
    keep(half);
  } catch {
    // It is tried again when the feed is opened next.
  }
}

/** Begins the session of a sign-in that came back with this code. Throws a Refusal. */
export async function endSignIn(code) {
  const response = await send("console/sign-in", { method: "POST", headers: { "X-A2A-Sign-In": code } });
  if (!response.ok) throw await failure(response);
  keep((await response.json()).session);
}

/** Ends the session and forgets the token. Resolves to what the gateway says of it, or to `null`. */
export function leave() {
  const ended = half === null ? null : ask("console/session", { method: "DELETE" }).catch(() => null);
  forget();
  return Promise.resolve(ended);
}

/** Forgets the token and the session. */
export function forget() {
  token = half = null;
  keep(null);
  locked = () => {};
}

/** How long an answer may take as a whole, in milliseconds. */
const ANSWER_MAX = 30_000;

/** One request with the token or the session; the answer, whatever it says. */
async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (half !== null) headers["X-A2A-Session"] = half;
  try {
    return await fetch(path, { cache: "no-store", credentials: "same-origin", redirect: "error", ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    const message = "the gateway cannot be reached from here: is it running, and is this its address?";
    throw new Refusal({ reason: "unreachable", message });
  }
}

/** Why an answer is no good, as something that can be shown. */
async function failure(response) {
  const refusal = await refusalOf(response);
  if (refusal) return refusal;
  const message = `the gateway answered ${response.status} and gave no reason`;
  return new Refusal({ reason: "unexpected", message, requestId: response.headers.get("x-request-id"), status: response.status });
}

/** The JSON of an answer. Throws a Refusal; whatever else, once `signal` is aborted. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), ANSWER_MAX);
  try {
    const both = signal ? AbortSignal.any([signal, late.signal]) : late.signal;
    return await answerTo(path, { method, body, signal: both });
  } catch (error) {
    if (!late.signal.aborted || signal?.aborted) throw error;
    const then = method === "GET" ? "try again" : "what was asked for may have been done: look before you ask again";
    const message = `the gateway has not answered for ${ANSWER_MAX / 1000} s: it, or one of its stores, is busy or away; ${then}`;
    throw new Refusal({ reason: "no_answer", message });
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Questions of which only the newest counts: `next` is the signal of one, and aborts that of the one before, whose answer
 * would come too late.
 */
export class Newest {
  #now = null;

  next() {
    this.#now?.abort();
    this.#now = new AbortController();
    return this.#now.signal;
  }

  close() {
    this.#now?.abort();
  }
}

async function answerTo(path, { method, body, signal }) {
  const options = { method, signal };
  if (method === "POST" || method === "PATCH") {
    options.body = JSON.stringify(body ?? {});
    options.headers = { "Content-Type": "application/json" };
  }
  return (await good(path, options)).json();
}

/** A file of the gateway, whole or not at all. Throws a Refusal, or what broke it off. */
export async function download(path) {
  return (await good(path, {})).blob();
}

/** An answer that is no refusal. */
async function good(path, options) {
  const [mine, session] = [token, half];
  const response = await send(path, options);
  if (response.ok) return response;
  const refusal = await failure(response);
  if (response.status === 401 && mine === token && (mine !== null || session === half)) locked(refusal);
  throw refusal;
}

/** A query of what is there: `{ a: 1, b: "" }` is `?a=1`. */
export function query(members) {
  const there = Object.entries(members).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return there.length ? `?${new URLSearchParams(there)}` : "";
}

/** What is wrong, in words, for errors of any kind. */
export function words(error) {
  if (error instanceof Refusal) return error;
  if (error.name === "AbortError") return new Refusal({ reason: "silent", message: "the gateway has been silent for too long" });
  return new Refusal({ reason: "broken_off", message: `what the gateway said could not be read to its end (${error.message})` });
}

/** First and longest pause before a feed is opened again, in milliseconds. */
const PAUSES = [500, 1000, 2000, 4000, 8000];

/** How long a feed may be silent, in milliseconds: it says something every second. */
const SILENT_MAX = 10_000;

/**
 * Follows the feed until `stop` is aborted: `hear(event, data)` for each event, `state("live" | "lost", refusal)` as it
 * comes and goes. Opens it again by itself, but for a token that is not taken.
 */
export async function follow({ hear, state, stop }) {
  for (let failures = 0; !stop.aborted; failures += 1) {
    let why = null;
    try {
      why = await once(hear, () => {
        failures = 0;
        state("live");
      }, stop);
    } catch (error) {
      if (stop.aborted) return;
      why = words(error);
    }
    if (stop.aborted) return;
    if (why?.status === 401 || why?.status === 403 || why?.reason === "unauthenticated") return locked(why);
    state("lost", why);
    const pause = PAUSES[Math.min(failures, PAUSES.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** One feed, to its end: why it ended. */
async function once(hear, opened, stop) {
  const cut = new AbortController();
  const end = () => cut.abort();
  stop.addEventListener("abort", end);
  let silence = setTimeout(end, SILENT_MAX);
  try {
    const response = await send("console/feed", { signal: cut.signal });
    if (!response.ok) return await failure(response);
    const reader = response.body.getReader();
    const events = new EventReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null;
      clearTimeout(silence);
      silence = setTimeout(end, SILENT_MAX);
      for (const { event, data } of events.read(value)) {
        const said = JSON.parse(data);
        if (event === "end") return new Refusal(said);
        if (event === "begin") opened();
        hear(event, said);
      }
    }
  } finally {
    clearTimeout(silence);
    stop.removeEventListener("abort", end);
    cut.abort();
  }
}
