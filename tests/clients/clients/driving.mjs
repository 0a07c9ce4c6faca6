// What the JavaScript drivers share. `driving.py` says what a driver reads and prints, and what the scenarios are for.

// For an answer as a whole, streams included.
const PATIENCE = 90_000;
const TEXT_MAX = 64;
const UNKNOWN = "00000000-0000-4000-8000-000000000000";
const HOOK = "http://127.0.0.1:9/hook";
export const DATA = { n: 7, deep: [1.5, null, "ü"] };
export const BYTES = "AP8=";
export const PLACE = "http://127.0.0.1:9/f.png";

/** The SDK has no such call. */
export class NotOffered extends Error {}

/** `TASK_STATE_INPUT_REQUIRED` and `input-required` are one. */
export const state = (name) => name.replace(/^TASK_STATE_/, "").toLowerCase().replaceAll("_", "-");

export const shown = (text) => (text.length <= TEXT_MAX ? text : `${text.length} characters`);

/** An event without the ids, which differ from run to run, and without its place in an artifact. */
const told = ({ task_id, context_id, append, last, ...rest }) => rest;

/** A `fetch` that proves the caller, and writes down status, type and body of each answer. */
export class Recording {
  entries = [];
  fields = {};

  fetch = async (url, init = {}) => {
    const entry = { status: null, type: null, pieces: [] };
    this.entries.push(entry);
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(this.fields)) headers.set(name, value);
    const response = await fetch(url, { ...init, headers, signal: init.signal ?? AbortSignal.timeout(PATIENCE) });
    Object.assign(entry, { status: response.status, type: response.headers.get("content-type") });
    const keep = new TransformStream({
      transform(piece, controller) {
        entry.pieces.push(piece);
        controller.enqueue(piece);
      },
    });
    const body = response.body?.pipeThrough(keep);
    return new Response(body, { status: response.status, statusText: response.statusText, headers: response.headers });
  };

  take() {
    const taken = this.entries;
    this.entries = [];
    return taken.map(({ status, type, pieces }) => ({ status, type, body: Buffer.concat(pieces).toString() }));
  }
}

async function all(events) {
  const seen = [];
  for await (const event of events) seen.push(event);
  return seen;
}

class Scenarios {
  constructor(sdk) {
    this.sdk = sdk;
  }

  one(text, more = {}) {
    return this.sdk.send(text, more);
  }

  // A task that waits, followed in the background: its id, and the following.
  async begun(text, seen) {
    let begin;
    const begun = new Promise((resolve) => (begin = resolve));
    const following = (async () => {
      for await (const event of this.sdk.stream(text)) {
        seen.push(told(event));
        // Working, not only submitted: then the agent is in its own code.
        if (event.status === "working" || event.task === "working") begin(event.task_id);
      }
    })();
    const id = await Promise.race([begun, following]);
    if (!id) throw new Error("the stream ended before the task began");
    return [id, following];
  }

  card = () => this.sdk.card();
  send = async () => told(await this.one("hello"));
  task = async () => told(await this.one("task"));
  stream = async (text = "stream 3") => (await all(this.sdk.stream(text))).map(told);
  parts = () => this.sdk.parts();
  extended = () => this.sdk.extended();
  long = async () => (await this.stream("stream 20000")).length;
  big = () => this.stream(`big ${9 << 20}`);
  get = async () => told(await this.sdk.get((await this.one("task")).task_id));
  fail = async () => told(await this.one("fail"));
  unknown = async () => told(await this.sdk.get(UNKNOWN));
  terminal = async () => told(await this.sdk.cancel((await this.one("task")).task_id));

  pieces = async () => {
    const seen = await all(this.sdk.stream("pieces"));
    const places = seen.filter((event) => "artifact" in event).map(({ append, last }) => [append, last]);
    return { stream: seen.map(told), places, task: told(await this.sdk.get(seen.at(-1).task_id)) };
  };

  crowd = async () => {
    const streams = await Promise.all(Array.from({ length: 50 }, () => this.stream()));
    const first = JSON.stringify(streams[0]);
    return { streams: streams.length, alike: streams.every((events) => JSON.stringify(events) === first), one: streams[0] };
  };

  ask = async () => {
    const asked = await this.one("ask");
    const answered = await this.one("answer", { task: asked.task_id, context: asked.context_id });
    return [told(asked), told(answered)];
  };

  zombie = async () => {
    const stream = [];
    const [id, following] = await this.begun("zombie", stream);
    const canceled = told(await this.sdk.cancel(id));
    const error = await following.then(() => null, failed);
    return { canceled, stream, error };
  };

  cancel = async () => {
    const stream = [];
    const [id, following] = await this.begun("wait", stream);
    const canceled = told(await this.sdk.cancel(id));
    await following;
    return { canceled, stream };
  };

  resubscribe = async () => {
    const [id, following] = await this.begun("wait", []);
    const { recording } = this.sdk;
    const before = recording.entries.length;
    const again = all(this.sdk.subscribe(id));
    let over = false;
    const ends = () => (over = true);
    again.then(ends, ends);
    // 0.3.26 says nothing at first: its ping, which comes after a second, shows that it follows the task. A client may try
    // another HTTP method before, which that one answers with 405.
    const follows = ({ status, pieces }) => status === 200 && pieces.length > 0;
    while (!over && !recording.entries.slice(before).some(follows)) await new Promise((go) => setTimeout(go, 10));
    await this.sdk.cancel(id);
    await following;
    return (await again).map(told);
  };

  list = async () => {
    const task = await this.one("task");
    return (await this.sdk.list(task.context_id)).map(told);
  };

  push = async () => {
    const [id, following] = await this.begun("wait", []);
    try {
      return await this.sdk.push(id, HOOK);
    } finally {
      await this.sdk.cancel(id);
      await following;
    }
  };

  ended = async () => {
    const task = await this.one("task");
    return told(await this.one("more", { task: task.task_id, context: task.context_id }));
  };

  // Two callers: what one begins, and what another then tries on it.

  begin = async () => {
    const { task_id, context_id } = await this.one("ask");
    return { task_id, context_id };
  };

  look = async ({ task_id }) => told(await this.sdk.get(task_id));

  intrude = async ({ task_id, context_id }) => {
    const attempts = {
      get: () => this.sdk.get(task_id),
      list: async () => (await this.sdk.list(context_id)).map((task) => task.task_id),
      subscribe: async () => (await this.sdk.subscribe(task_id).next()).value,
      push: () => this.sdk.push(task_id, HOOK),
      continue: () => this.one("more", { task: task_id, context: context_id }),
      cancel: () => this.sdk.cancel(task_id),
    };
    const found = {};
    for (const [name, attempt] of Object.entries(attempts)) found[name] = await outcome(attempt);
    return found;
  };
}

const failed = (error) => `${error.name === "Error" ? error.constructor.name : error.name}: ${error.message}`;

async function outcome(attempt) {
  try {
    return { got: await attempt() };
  } catch (error) {
    return error instanceof NotOffered ? { not_offered: true } : { error: failed(error) };
  }
}

async function input() {
  const pieces = [];
  for await (const piece of process.stdin) pieces.push(piece);
  return JSON.parse(Buffer.concat(pieces));
}

export async function run(make) {
  const results = {};
  for (const job of (await input()).jobs) {
    const recording = new Recording();
    Object.assign(recording.fields, job.fields);
    if (job.token) recording.fields.Authorization = `Bearer ${job.token}`;
    const found = (results[job.name] = {});
    const sdk = make(recording, job);
    sdk.recording = recording;
    const connected = await outcome(() => sdk.connect());
    const wire = recording.take();
    if (connected.error) {
      found.connect = { saw: connected, wire };
      continue;
    }
    for (const scenario of job.scenarios) {
      const [name, argument] = Array.isArray(scenario) ? scenario : [scenario];
      // Tells the agent's record which request belongs to what; gateways pass it on.
      recording.fields.baggage = `job=${job.name},scenario=${name}`;
      const saw = await outcome(() => new Scenarios(sdk)[name](argument));
      found[name] = { saw, wire: recording.take() };
    }
  }
  // What was broken off may still be open.
  process.stdout.write(JSON.stringify(results), () => process.exit(0));
}
