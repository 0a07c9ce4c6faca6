// What the pages decide without a browser: whose words something is, which characters are shown how, when a wait is over.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mock, test } from "node:test";
import { pathToFileURL } from "node:url";

/** The modules of a page, each a neighbour of the others as they are served. */
const folder = mkdtempSync(join(tmpdir(), "pages-"));
process.on("exit", () => rmSync(folder, { recursive: true }));
writeFileSync(join(folder, "package.json"), '{"type":"module"}');
async function load(name, page) {
  for (const from of ["shared", "vendor", page]) {
    const there = join(import.meta.dirname, "../../pages", from);
    for (const file of readdirSync(there).filter((file) => file.endsWith(".js"))) cpSync(join(there, file), join(folder, page, file));
  }
  return import(pathToFileURL(join(folder, page, name)));
}
const { EventReader } = await load("sse.js", "canvas");
const { partingOf, refusalOf } = await load("refusal.js", "canvas");
const { visible } = await load("visible.js", "canvas");
const { resuming } = await load("resume.js", "canvas");
const { Newest, ask, enter } = await load("ask.js", "console");
const { spanOf } = await load("act.js", "console");
const { isPaused, unknownOf } = await load("explain.js", "console");
const { rowsOf } = await load("facts.js", "console");
const { folded, treeOf } = await load("hierarchy.js", "canvas");
const { idFor, parentsFor, selfAndBelow } = await load("make.js", "console");
const { bytes } = await load("usage.js", "console");
const { countOf } = await load("show.js", "console");
const { notOperators, notUsers } = await load("token.js", "console");
const { explained } = await load("advice.js", "canvas");
const { Refusal } = await load("refusal.js", "canvas");
const { Cut, Left } = await load("cut.js", "canvas");
const { Record, errorOf } = await load("record.js", "canvas");
const { forget, keep, recall } = await load("kept.js", "canvas");
const { curlOf } = await load("raw.js", "canvas");
const { choicesOf } = await load("question.js", "canvas");

Object.assign(globalThis, { addEventListener: () => {}, removeEventListener: () => {} });

const STREAM = "01a20410667173f9b0570ddf9405f3b5";
const error = (metadata) => ({ jsonrpc: "2.0", id: 1, error: { code: -32000, message: "away", data: [{ domain: "a2a-gateway", reason: "WORKSPACE_OFFLINE", metadata }] } });

test("events are the same wherever their bytes are cut, and however their lines end", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const text = [": note", "id: a", "data: 1", "data:2 ü", "", ": only a comment", "", "event: end", "data", "", "data: cut"].join(end);
    const bytes = new TextEncoder().encode(text);
    for (let length = 1; length <= bytes.length; length += 1) {
      const reader = new EventReader();
      const found = [];
      for (let at = 0; at < bytes.length; at += length) found.push(...reader.read(bytes.slice(at, at + length)));
      assert.deepEqual(found.map(({ id, event, data }) => [id, event, data]), [["a", "message", "1\n2 ü"], [null, "end", ""]], `${JSON.stringify(end)}, ${length}`);
    }
  }
});

test("a refusal is the gateway's by the field that no agent can send", async () => {
  const headers = { "content-type": "application/json" };
  const answer = (said, more, status = 503) => new Response(JSON.stringify(said), { status, headers: { ...headers, ...more } });
  assert.equal(await refusalOf(answer(error({ requestId: "r" }), {})), null);
  assert.equal(await refusalOf(answer({ error: "away", reason: "workspace_offline", request_id: "r" }, {})), null);
  assert.equal(await refusalOf(answer(error({}), {}, 200)), null);
  const rpc = await refusalOf(answer(error({ requestId: "r", retryAfter: "15", delivered: "false" }), { "x-a2a-refused": "workspace_offline" }));
  assert.deepEqual([rpc.reason, rpc.requestId, rpc.retryAfter, rpc.facts], ["workspace_offline", "r", 15, { delivered: "false" }]);
  const plain = await refusalOf(answer({ error: "no", reason: "not_found", request_id: "q" }, { "x-a2a-refused": "not_found" }, 404));
  assert.deepEqual([plain.reason, plain.message, plain.requestId, plain.status], ["not_found", "no", "q", 404]);
});

test("a last event is the gateway's by the name of the stream", () => {
  assert.equal(partingOf(error({ requestId: "r" }), STREAM), null);
  assert.equal(partingOf(error({ stream: "0".repeat(32) }), STREAM), null);
  assert.equal(partingOf(error({}), ""), null);
  assert.equal(partingOf(error({ stream: "" }), ""), null);
  assert.deepEqual(partingOf(error({ stream: STREAM, delivered: "true" }), STREAM).facts, { delivered: "true" });
});

/** Streams one after another; what the page gets of them, is told, and asks for. */
async function through(...streams) {
  return throughCall({}, ...streams);
}

async function throughCall(call, ...streams) {
  const [asked, told, passed] = [[], [], []];
  const fetchOnce = async (url, { headers } = {}) => {
    asked.push([url, headers?.["Last-Event-ID"]]);
    const text = streams.shift();
    return new Response(text, { headers: { "content-type": "text/event-stream", "x-a2a-stream": STREAM } });
  };
  const known = { tell: (link) => told.push(link), passed: ({ id }) => passed.push(id), ...call };
  const response = await resuming(fetchOnce, "dev", () => known)("/workspaces/dev/a2a", { method: "POST", body: '{"jsonrpc":"2.0","id":9}' });
  const text = await response.text().catch((error) => error);
  return { text, asked, told, passed };
}

test("an agent's gap and end are its own, and its ids lead nowhere", async () => {
  const n = (number) => `id: ${STREAM}-${number}\n\n`;
  const forged = `event: gap\ndata: {"missed":9}\n${n(1)}event: end\ndata: {}\nid: ../../x-1\n${n(2)}`;
  const agents = await through(`event: end\ndata: 1\n\n${forged}`);
  assert.deepEqual([agents.told, agents.asked.length], [[], 1]);
  assert.ok(agents.text.includes("event: gap") && agents.text.includes("event: end"), String(agents.text));
  // The gateway's own: one tells, the other leads to the rest.
  const own = await through(`data: 1\n${n(1)}event: gap\ndata: {"missed":2}\n\ndata: 4\n${n(4)}event: end\ndata: {"reason":"shutting_down"}\n\n`, `data: 5\n${n(5)}`);
  assert.deepEqual(own.told, [{ missed: 2 }, "lost", "back"]);
  assert.deepEqual(own.asked[1], [`/workspaces/dev/streams/${STREAM}`, `${STREAM}-4`]);
  assert.deepEqual([...own.text.matchAll(/data: (\d)/g)].map(([, digit]) => digit), ["1", "4", "5"]);
  // Ids of another form, or another stream's, are never asked for.
  const other = await through(`data: 1\nid: ${"0".repeat(32)}-7\n\nevent: end\ndata: 2\nid: /../-1\n\n`);
  assert.equal(other.asked.length, 1);
});

test("a stream that the gateway cut says why, and one that only looks so goes on", async () => {
  const event = (metadata) => `data: ${JSON.stringify(error(metadata))}\nid: ${STREAM}-1\n\n`;
  const cut = await through(event({ stream: STREAM }));
  assert.equal(cut.text.reason, "workspace_offline");
  const imitated = await through(event({ requestId: "r" }));
  assert.ok(String(imitated.text).includes("WORKSPACE_OFFLINE"));
});

test("a stream that is not kept any more is told apart from a refusal of the message", async () => {
  const gone = new Refusal({ reason: "not_found", message: "no such stream", requestId: "r", status: 404 });
  const streams = [`data: 1\nid: ${STREAM}-1\n\nevent: end\ndata: {}\n\n`];
  const fetchOnce = async () => {
    if (streams.length === 0) throw gone;
    return new Response(streams.shift(), { headers: { "content-type": "text/event-stream", "x-a2a-stream": STREAM } });
  };
  const cut = await (await resuming(fetchOnce, "dev", () => ({}))("/workspaces/dev/a2a", {})).text().catch((error) => error);
  const said = explained(cut, { taskId: "t" });
  assert.deepEqual([cut.cause, said.badge, said.title, said.reason, said.requestId, said.again], [gone, "cut off", "The connection broke", "not_found", "r", "twice"]);
  assert.match(`${said.words} ${said.advice}`, /does not keep this stream any more\. The agent was reached, and may still be working\. Ask what its task is now\..*twice/);
  assert.match(explained(cut).advice, /has not named a task/);
});

test("a stream from before a reload goes on where it was, as an answer to the call that takes it up", async () => {
  const event = (n) => `data: {"jsonrpc":"2.0","id":1,"result":{"n":${n}}}\nid: ${STREAM}-${n}\n\n`;
  const { text, asked, told, passed } = await throughCall({ after: `${STREAM}-4` }, event(5) + event(6));
  assert.deepEqual(asked, [[`/workspaces/dev/streams/${STREAM}`, `${STREAM}-4`]], "nothing is sent");
  assert.deepEqual([told, passed], [["back"], [`${STREAM}-5`, `${STREAM}-6`]]);
  assert.equal(text, 'data: {"jsonrpc":"2.0","id":9,"result":{"n":5}}\n\ndata: {"jsonrpc":"2.0","id":9,"result":{"n":6}}\n\n');
});

test("what is kept of an answer is what its events come to, within bounds", () => {
  const record = new Record();
  const artifact = (id, append, ...parts) => record.take({ kind: "artifact", id, append, parts });
  const status = (state, ...parts) => record.take({ kind: "status", state, parts });
  status("submitted");
  status("working");
  artifact("a", false, { text: "one" });
  artifact("a", true, { text: " two" }, { text: "{}", isCode: true, data: {} });
  artifact("b", false, { text: "old" });
  artifact("b", false, { text: "new" });
  assert.deepEqual(record.events.map(({ kind, state, parts }) => [state ?? kind, parts.map(({ text }) => text).join("|")]), [["working", ""], ["artifact", "one two|{}"], ["artifact", "new"]]);
  for (let n = 0; n < 700; n += 1) status("working", { text: `step ${n}` });
  status("completed");
  assert.deepEqual([record.events.length, record.left, record.events.at(-1).state], [601, 103, "completed"]);
  artifact("c", false, { text: "x".repeat(500_000) });
  assert.equal(record.left, 104);
});

test("a failure is the same one after a reload", () => {
  const refusal = new Refusal({ reason: "agent_unreachable", message: "away", requestId: "r", status: 502, facts: { delivered: "false" } });
  const agents = new Error("SSE event contained an error", { cause: Object.assign(new Error("no paper left"), { envelopeCode: -32001 }) });
  for (const error of [refusal, agents, new TypeError("failed to fetch"), new Cut(refusal), new Left()]) {
    const record = new Record();
    record.fail(error);
    assert.deepEqual(explained(errorOf(JSON.parse(JSON.stringify(record.failure)))), explained(error), error.name);
  }
});

test("what is kept has a bound, the oldest goes first, and bytes come back as they were", () => {
  const stored = new Map();
  globalThis.sessionStorage = { getItem: (name) => stored.get(name) ?? null, setItem: (name, text) => stored.set(name, text), removeItem: (name) => stored.delete(name) };
  const talk = (id, ...files) => ({ id, text: "t".repeat(900_000), files });
  const [small, large] = [Uint8Array.from([0, 127, 255]), new Uint8Array(200_001)];
  assert.equal(keep({ token: "t", user: "u", talks: [talk(1, { bytes: small }, { bytes: large }), talk(2), talk(3)] }), 1);
  const { token, talks } = recall();
  assert.deepEqual([token, talks.map(({ id }) => id), talks[0].files], ["t", [1, 2], [{ bytes: small }, { bytes: null }]]);
  stored.set("a2a-canvas", '{"version":1,"talks":[{"data":{"bytes":{"$bytes":"%"}}}]}');
  assert.equal(recall().talks[0].data.bytes, null, "an agent's own");
  stored.set("a2a-canvas", "{");
  assert.equal(recall(), null);
  forget();
  assert.equal(stored.size, 0);
  globalThis.sessionStorage.setItem = () => {
    throw new Error("full");
  };
  assert.equal(keep({ token: "t", talks: [talk(1)] }), 1, "a browser without room");
});

test("a request is a line for a shell, whatever is in it, without a token", () => {
  const request = { url: "https://other.example/workspaces/dev/a2a", method: "POST", headers: { accept: "it's" }, body: `{"a":"'; rm -rf / #$(x)"}` };
  assert.equal(curlOf(request, "http://gw"), `curl -N -X POST 'http://gw/workspaces/dev/a2a' \\\n  -H "Authorization: Bearer $TOKEN" \\\n  -H 'accept: it'\\''s' \\\n  --data-raw '{"a":"'\\''; rm -rf / #$(x)"}'`);
});

test("the answers that an agent proposes are words, and not without number", () => {
  const found = (data) => choicesOf([{ text: "?" }, { data }]);
  assert.deepEqual(found({ options: ["red", 7, "", "x".repeat(101), "blue"] }), ["red", "blue"]);
  assert.equal(found({ choices: Array.from({ length: 50 }, (_, n) => `${n}`) }).length, 8);
  for (const none of [null, 7, "options", { options: "red" }, []]) assert.deepEqual(found(none), []);
});

test("who failed is said first", () => {
  const title = (reason, name) => explained(new Refusal({ reason, message: "m", requestId: "r", status: 503, facts: {} }), { name });
  assert.deepEqual([title("agent_unreachable", "planner").title, title("agent_unreachable").badge], ["planner cannot be reached", "agent failed"]);
  assert.deepEqual([title("not_permitted", "$& spy").title, title("store_unavailable").badge, title("invalid_params").badge], ["You may not message $& spy", "gateway failed", "rejected"]);
});

test("what a user can do about an error", () => {
  const refused = (reason, facts = {}) => new Refusal({ reason, message: "m", requestId: "r", status: 503, facts });
  const paused = explained(refused("workspace_offline"), { status: "paused" });
  assert.match(paused.advice, /only an operator can resume it/);
  assert.match(explained(refused("workspace_offline"), { status: "offline" }).advice, /Wait until/);
  const expired = explained(refused("unauthenticated"));
  assert.deepEqual([expired.signIn, expired.again], [true, "no"]);
  assert.deepEqual(["true", "unknown", "false"].map((delivered) => explained(refused("timeout", { delivered })).again), ["twice", "twice", "yes"]);
  // As the SDK says it, with what it was told as the cause.
  const cause = Object.assign(new Error("no paper left"), { envelopeCode: -32001 });
  const agents = explained(new Error("SSE event contained an error: no paper left (Code: -32001) Data: {}", { cause }));
  assert.deepEqual([agents.badge, agents.words, agents.reason], ["failed", "no paper left", null]);
});

test("a wrong token is told by what it looks like", () => {
  const secret = "x".repeat(43);
  assert.match(notOperators(`a2aw_${secret}`), /a workspace's token.*begins with a2aa_/);
  assert.match(notOperators("nonsense"), /not an admin token: one begins with a2aa_/);
  assert.match(notOperators("a2aa_short"), /not a whole admin token/);
  assert.match(notOperators(`a2aa_${secret}`), /does not know this admin token/);
  assert.match(notUsers("eyJhbGciOiJ9.eyJ4Ijox.c2ln"), /canvas token has expired/);
  assert.match(notUsers("nothing"), /not a canvas token/);
  assert.match(notUsers(`a2ae_${secret}`), /an enrolment token/);
});

test("explanations say which id is unknown, and what is paused", () => {
  const place = (step, workspace, exists) => ({ step, ok: true, fact: { workspace, exists } });
  assert.deepEqual(unknownOf({ steps: [place("caller_place", "a", true), place("target_place", "b", false)] }), ["b"]);
  const state = (status, ok) => ({ steps: [{ step: "state", ok, fact: { status } }] });
  assert.deepEqual([isPaused(state("paused", false)), isPaused(state("offline", false)), isPaused(state("online", true))], [true, false, false]);
});

test("facts are rows in words, however deep they are", () => {
  const said = (fact) => rowsOf(fact).map(({ name, text }) => `${name}: ${text}`);
  assert.deepEqual(said({ exists: true, org: null, ancestors: ["a", "b"], none: [], empty: {} }), ["Exists: yes", "Org: none", "Ancestors: a, b", "None: none", "Empty: none"]);
  assert.deepEqual(said({ ttl_ms: 90_000, age_ms: 7, idle_seconds: 120, max_bytes: 10_485_760, port: 33657, limit: 10_000 }), ["TTL: 90 s", "Age: 7 ms", "Idle: 2 min", "Max: 10 MiB", "Port: 33657", "Limit: 10,000"]);
  assert.deepEqual(said({ "access.lineage": "direct", a2a_by: "its card" }), ["access.lineage: direct", "A2A by: its card"]);
  assert.deepEqual(said({ tokens: [{ may_ask: true }, { may_ask: false }] }), ["Tokens, 1, may ask: yes", "Tokens, 2, may ask: no"]);
  assert.deepEqual(said({ a: { b: { c: { d: { e: 1 } } } } }), ['A, b, c, d: {"e":1}']);
  assert.ok(!said({ last_seen: "2026-11-21T10:00:00.000Z" })[0].includes("T10"));
});

test("a tree has everybody once, below who is there", () => {
  const tree = (...pairs) => treeOf(pairs.map(([id, parent]) => ({ id, parent })), { idOf: ({ id }) => id, parentOf: ({ parent }) => parent }).map(({ item, depth }) => `${item.id}${depth}`).join(" ");
  assert.equal(tree(["b", "a"], ["a", null], ["c", "b"], ["d", "gone"], ["e", "a"]), "a0 b1 c2 e1 d0");
  assert.equal(tree(["a", "b"], ["b", "a"], ["c", "c"]), "a0 b1 c0");
});

test("what is below a closed one is counted and not shown, also twice closed, in a tree of any size", () => {
  const items = (...pairs) => treeOf(pairs.map(([id, parent]) => ({ id, parent })), { idOf: ({ id }) => id, parentOf: ({ parent }) => parent });
  const seen = (order, ...closed) => folded(order, ({ id }) => closed.includes(id)).map(({ item, isParent, hidden }) => `${item.id}${isParent ? "+" : ""}${hidden || ""}`).join(" ");
  const order = items(["a", null], ["b", "a"], ["c", "b"], ["d", "a"], ["e", null], ["f", "e"]);
  assert.equal(seen(order), "a+ b+ c d e+ f");
  assert.equal(seen(order, "b"), "a+ b+1 d e+ f");
  assert.equal(seen(order, "a", "b", "c"), "a+3 e+ f");
  assert.equal(seen(order, "a", "e"), "a+3 e+1");
  const many = items(...Array.from({ length: 10_000 }, (_, n) => [n, n === 0 ? null : Math.floor((n - 1) / 2)]));
  assert.deepEqual(folded(many, ({ id }) => id === 0).map(({ hidden }) => hidden), [9_999]);
});

test("a parent is found by name or id, and is never what would be moved", () => {
  const workspaces = new Map([["a", "Acme", null], ["b", "Beta", "a"], ["c", "Gamma", "b"], ["d", "Beta", null]].map(([id, name, parent]) => [id, { id, name, parent }]));
  assert.deepEqual([...selfAndBelow(workspaces, "b")].sort(), ["b", "c"]);
  const found = (text, ...without) => parentsFor(workspaces, text, new Set(without)).map(({ id }) => id).join();
  assert.deepEqual([found("be"), found("BETA", "b"), found("mm"), found("x"), found("")], ["b,d", "d", "c", "", "a,b,c,d"]);
  assert.deepEqual([idFor(workspaces, "a"), idFor(workspaces, "Gamma"), idFor(workspaces, "Beta"), idFor(workspaces, "")], ["a", "c", "Beta", ""]);
  const many = new Map(Array.from({ length: 10_000 }, (_, n) => [`w-${n}`, { id: `w-${n}`, name: `w-${n}`, parent: null }]));
  assert.equal(parentsFor(many, "w", new Set()).length, 20);
});

test("bytes are told in units", () => {
  assert.deepEqual([0, 1023, 1536, 3 * 2 ** 30].map(bytes), ["0 B", "1,023 B", "1.5 KiB", "3 GiB"]);
});

test("one is one, and more are more", () => {
  assert.deepEqual([0, 1, 2].map((n) => countOf(n, "exchange")), ["0 exchanges", "1 exchange", "2 exchanges"]);
});

test("what nobody can see is written out, and what belongs into words is left", () => {
  assert.equal(visible("a\u202eb\u200b\u0007\u{e0041}"), "a‹U+202E›b‹U+200B›‹U+0007›‹U+E0041›");
  assert.equal(visible("ad\u200dmin \u200c"), "ad‹U+200D›min ‹U+200C›");
  for (const whole of ["two\n\tlines", "שלום", "👩‍💻", "می‌خواهم", "ü"]) assert.equal(visible(whole), whole);
});

test("hours are a number that a clock can take", () => {
  assert.equal(spanOf("0,5"), 1_800_000);
  assert.equal(spanOf("8"), 28_800_000);
  for (const wrong of ["0", "-1", "1e400", "Infinity", "0x10", "87601", "99999999999999999999", "eight", "0.001", "."]) {
    assert.throws(() => spanOf(wrong), (error) => error.field === "hours" && error.message.startsWith("“Expires after” takes") && error.message.length > 20, wrong);
  }
});

test("who is not answered is told what to do, and only the newest question counts", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const never = ({ signal }) =>
    new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason);
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  mock.method(globalThis, "fetch", (_, options) => never(options));
  enter("a2aa_x", () => {});
  const read = assert.rejects(ask("audit"), ({ reason, message }) => reason === "no_answer" && message.includes("30 s") && message.includes("try again"));
  const change = assert.rejects(ask("api/grants", { method: "POST" }), ({ reason, message }) => reason === "no_answer" && message.includes("may have been done"));
  mock.timers.tick(30_000);
  await Promise.all([read, change]);
  const newest = new Newest();
  const [first, second] = [newest.next(), newest.next()];
  const left = assert.rejects(ask("audit", { signal: first }), ({ name }) => name === "AbortError");
  assert.ok(first.aborted && !second.aborted);
  await left;
  mock.reset();
  mock.timers.reset();
});
