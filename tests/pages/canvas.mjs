// The canvas, as a user meets it. See stage.mjs.

import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { Asking } from "./asking.mjs";
import { keepsForeignersOut } from "./foreign.mjs";
import { FLOOD, Hostile, PWNED } from "./hostile.mjs";
import { startsOver } from "./over.mjs";
import { Line, assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";
import { Working } from "./working.mjs";

const { tokens } = demo;
const line = await Line.to(demo.public);
const browser = await browse(line);

const asked = [];
const page = await visitor(browser);
page.on("request", (request) => asked.push(request.url()));

const answers = page.locator(".turn:not(.said)");
const last = answers.last();

async function choose(name, on = page) {
  const list = on.locator("#desk[data-view=list]");
  if (on.viewportSize().width < 960 && !(await list.isVisible())) await on.locator("#back").click();
  await on.locator(".workspace", { hasText: name }).first().click();
}

async function say(text) {
  // A state is seen before the stream has ended that brought it, and until then nothing is sent.
  await until(() => page.locator("#send").isEnabled(), "a message can be sent");
  const before = await answers.count();
  await page.locator("#text").fill(text);
  await page.locator("#text").press("Enter");
  await until(async () => (await answers.count()) > before, "an answer begins");
}

const stateOf = (turn) => turn.locator(".turn-top .state").textContent();
const reaches = (state) => until(async () => (await stateOf(last)) === state, `the state ${state}`);
const steps = () => last.locator(".steps li .parts").allTextContents();

await show("a token in the address is taken out of it, and kept in this tab alone", async () => {
  await page.goto(demo.canvas);
  await page.locator(".workspace").first().waitFor();
  assert(page.url() === `${demo.public}/canvas/`, page.url());
  const kept = await page.evaluate(() => [localStorage.length, Object.keys(sessionStorage).join(), document.cookie]);
  assert(kept[0] === 0 && kept[1] === "a2a-canvas" && kept[2] === "", kept);
  const names = await page.locator(".workspace-name").allTextContents();
  assert(names.join() === "acme-pm,acme-dev,acme-intern,acme-qa", names);
  assert((await page.locator("#who").textContent()) === "demo · acme", "who");
  await page.locator("#live[data-tone=ok]").waitFor();
  await look(page, "canvas-begin");
});

await show("the workspaces are a tree, which the keyboard walks", async () => {
  const rows = page.locator("#workspaces [role=treeitem]");
  const levels = await rows.evaluateAll((items) => items.map((item) => `${item.querySelector(".workspace-name").textContent} ${item.getAttribute("aria-level")}`));
  assert(levels.join() === "acme-pm 1,acme-dev 2,acme-intern 3,acme-qa 2", levels);
  const [top, below, lowest] = await Promise.all([0, 1, 2].map(async (index) => (await rows.nth(index).boundingBox()).x));
  assert(top < below && below < lowest, [top, below, lowest]);
  const walked = [];
  await page.locator("#filter").focus();
  // One stop for Tab, however many rows there are.
  await page.keyboard.press("Tab");
  for (const key of ["ArrowRight", "ArrowDown", "End", "ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowRight", "Home"]) {
    await page.keyboard.press(key);
    walked.push(await page.evaluate(() => document.activeElement.querySelector(".workspace-name").textContent.replace("acme-", "")));
  }
  assert(walked.join() === "dev,intern,qa,pm,pm,dev,intern,intern,pm", walked);
  await page.locator("#filter").fill("acme-intern");
  assert((await rows.first().getAttribute("aria-level")) === "1" && (await rows.count()) === 1, "what is found has no parents");
  await page.locator("#filter").fill("");
});

await show("an agent's card is read, and an example of it becomes a message", async () => {
  await choose("acme-dev");
  await page.locator(".card-name", { hasText: "slow (example)" }).waitFor();
  await look(page, "canvas-empty");
  await page.locator(".example").click();
  assert((await page.locator("#text").inputValue()) === "plan the release", "the example");
});

const working = await Working.join();

/** A message to an agent that works, whose first steps are seen. */
async function begin(count) {
  await say("plan the release");
  for (let n = 1; n <= count; n += 1) {
    // The agent sends nothing more until this one is seen.
    await (n === 1 ? working.begins() : working.step(1));
    await until(async () => (await steps()).at(-1)?.includes(`step ${n} of 10`), `step ${n}`);
  }
}

await show("ten events of a stream are seen one after another", async () => {
  await begin(10);
  await reaches("completed");
  await look(page, "canvas-answered");
});

await show("what comes is shown while it comes", async () => {
  await begin(4);
  await look(page, "canvas-streaming");
  working.step();
  await reaches("completed");
});

await show("a stream that is cut is taken up again, and loses nothing", async () => {
  const before = await steps();
  await begin(3);
  line.cut();
  await last.locator(".notice", { hasText: "Reconnecting" }).waitFor();
  await page.locator("#live[data-tone=warn]").waitFor();
  await look(page, "canvas-cut");
  // The agent goes on meanwhile: what it says now is heard later.
  working.step(4);
  line.mend();
  await until(async () => (await steps()).at(-1)?.includes("step 7 of 10"), "what it said meanwhile");
  working.step();
  await reaches("completed");
  assert((await steps()).join() === before.join(), { before, after: await steps() });
  assert((await last.locator(".notice").textContent()).includes("no event was lost"), "it says so");
  await page.locator("#live[data-tone=ok]").waitFor();
});

await show("a task is canceled", async () => {
  await begin(1);
  await last.getByRole("button", { name: "Cancel task" }).click();
  await reaches("canceled");
  await until(() => page.locator("#send").isEnabled(), "the next message can be sent");
  assert((await steps()).length <= 2 && (await stateOf(last)) === "canceled", "it stays so");
  await look(page, "canvas-canceled");
});

await show("a workspace's state is live, and a refusal says why", async () => {
  await choose("acme-qa");
  const row = page.locator(".workspace", { hasText: "acme-qa" });
  await row.locator(".state", { hasText: "online" }).waitFor();
  await call("POST", "/workspaces/acme-qa/pause", tokens.operator);
  const since = Date.now();
  await row.locator(".state", { hasText: "paused" }).waitFor();
  console.log(`      seen ${Date.now() - since} ms after the answer`);
  await say("are you there?");
  await reaches("paused");
  assert((await last.locator(".failure code").textContent()) === "workspace_offline", "the reason");
  assert(/request [0-9a-f-]{36}/.test(await last.locator(".failure").textContent()), "the request's id");
  assert((await last.locator(".failure").textContent()).includes("only an operator can resume it"), "whom to ask");
  await look(page, "canvas-refused");
  await call("POST", "/workspaces/acme-qa/resume", tokens.operator);
  await row.locator(".state", { hasText: "online" }).waitFor();
});

await show("an agent's failures are told apart, and a message is sent again", async () => {
  // The agent fails three times in three ways.
  await last.getByRole("button", { name: "Send again" }).click();
  await reaches("failed");
  await last.getByRole("button", { name: "Send again" }).click();
  await reaches("agent failed");
  assert((await last.locator(".failure code").textContent()) === "agent_protocol_error", "the reason");
  await last.getByRole("button", { name: "Send again" }).click();
  await reaches("completed");
  assert((await last.locator(".content").textContent()).includes("this time it worked"), "the answer");
});

await show("without a card the gateway's refusal is shown as that, and ids tell twins apart", async () => {
  // Nobody listens there.
  const wanted = { id: "acme-bare", name: "acme-dev", parent_id: "acme-pm", org: "acme", delivery_mode: "push", liveness: "assumed", url: "http://127.0.0.1:9/" };
  await call("POST", "/workspaces", tokens.operator, wanted);
  await page.evaluate((fragment) => location.assign(fragment), new URL(demo.canvas).hash);
  await page.locator(".workspace", { hasText: "acme-bare" }).click();
  const refused = async (place) => {
    await place.locator(".failure code", { hasText: "agent_unreachable" }).waitFor();
    const said = await place.textContent();
    assert(said.includes("cannot be reached") && /request [0-9a-f-]{36}/.test(said) && !/agentCard|the agent said/.test(said), said);
  };
  await refused(page.locator("#card-body"));
  await say("anybody?");
  await reaches("agent failed");
  await refused(last);
  await look(page, "canvas-no-card");
  assert((await page.locator(".workspace-id").allTextContents()).sort().join() === "acme-bare,acme-dev", "both ids");
  await call("DELETE", "/workspaces/acme-bare", tokens.operator);
  await page.locator(".workspace", { hasText: "acme-bare" }).locator(".state", { hasText: "removed" }).waitFor();
  await page.evaluate((fragment) => location.assign(fragment), new URL(demo.canvas).hash);
  await until(async () => (await page.locator(".workspace").count()) === 4, "it is gone");
});

await show("a stream that is not kept any more leaves the task to be asked for", async () => {
  await choose("acme-dev");
  await page.route(/\/streams\//, (route) => route.fulfill({ status: 404, headers: { "x-a2a-refused": "not_found" }, json: { error: "no such stream", reason: "not_found", request_id: "r-1" } }));
  await begin(2);
  line.cut();
  await last.locator(".failure", { hasText: "The connection broke" }).waitFor();
  const said = await last.locator(".failure").textContent();
  assert(said.includes("does not keep this stream") && said.includes("may still be working") && said.includes("request r-1"), said);
  assert(await last.getByRole("button", { name: "Cancel task" }).isVisible(), "it can be canceled");
  assert(await last.getByRole("button", { name: "Send again (may run twice)" }).isVisible(), "it warns");
  await look(page, "canvas-gone");
  await page.unrouteAll({ behavior: "ignoreErrors" });
  line.mend();
  await last.getByRole("button", { name: "Ask for its state" }).click();
  await until(async () => (await stateOf(last)) !== "cut off", "what it is now");
  working.step();
  await page.locator("#live[data-tone=ok]").waitFor();
});

await show("an agent that polls answers late", async () => {
  await choose("acme-intern");
  await page.locator(".card-name", { hasText: "acme-intern" }).waitFor();
  await say("what did you learn?");
  await reaches("waiting");
  await until(() => last.locator(".notice", { hasText: "waits in the inbox of acme-intern" }).isVisible(), "it says so");
  await look(page, "canvas-waiting");
  const token = tokens["acme-intern"];
  const [entry] = await call("GET", "/activity", token);
  const working = { status: { state: "working", message: { role: "agent", parts: [{ kind: "text", text: "reading" }] } } };
  // The page's socket may be elsewhere: the reply is to be heard of wherever the user is.
  await choose("acme-dev");
  const reply = { jsonrpc: "2.0", result: { kind: "message", role: "agent", messageId: "m-1", parts: [{ kind: "text", text: "to listen" }] } };
  await call("POST", `/workspaces/acme-intern/activity/${entry.id}/reply`, token, reply);
  await page.locator(".workspace", { hasText: "acme-intern" }).locator(".unread").waitFor();
  await choose("acme-intern");
  await reaches("completed");
  assert((await last.textContent()).includes("to listen"), [await last.textContent(), working]);
  await call("POST", "/workspaces/acme-intern/notify", token, { message: "I am off to lunch" });
  await page.locator(".turn", { hasText: "I am off to lunch" }).waitFor();
  await look(page, "canvas-replied");
});

await startsOver({ page, choose, say, reaches, working });
working.isFree = true;

await show("an agent of A2A 1.0 asks back, and the task goes on with the answer", async () => {
  const asking = await Asking.join();
  await page.locator(".workspace", { hasText: "asking" }).waitFor();
  await choose("asking");
  await page.locator(".facts", { hasText: "A2A 1.0" }).waitFor();
  await say("how is the weather?");
  await reaches("input-required");
  assert((await last.locator(".content").textContent()).includes("Where?"), "the question");
  await say("in Oslo");
  await reaches("completed");
  // The artifact came in two pieces, and is one text.
  assert((await last.locator(".artifact .text").allTextContents()).join("|") === "in Oslo: rain", await last.textContent());
  assert((await stateOf(answers.first())) === "asked you" && (await page.locator("#log .question:visible").count()) === 0 && (await page.getByRole("button", { name: "Cancel task" }).count()) === 0, "the question is done with");
  const [first, second] = asking.heard;
  assert(first.taskId === undefined && second.taskId === "weather-1" && second.contextId === "talk-1", asking.heard);
  await look(page, "canvas-asked");
  await asking.leave();
});

await show("a link with another token, followed in the same page, is another user", async () => {
  const user = await visitor(browser);
  await user.goto(demo.canvas);
  await user.locator("#who", { hasText: "demo" }).waitFor();
  const { token } = await call("POST", "/canvas/tokens", tokens.operator, { user: "mia", workspaces: ["acme-qa"] });
  await user.evaluate((fragment) => location.assign(fragment), `#token=${token}`);
  await user.locator("#who", { hasText: "mia" }).waitFor();
  assert(user.url() === `${demo.public}/canvas/`, user.url());
  await until(async () => (await user.locator(".workspace-name").allTextContents()).join() === "acme-qa", "hers alone");
  await user.context().close();
});

await show("a link with another token counts also while the first one comes in", async () => {
  const user = await visitor(browser);
  const { token } = await call("POST", "/canvas/tokens", tokens.operator, { user: "zoe", workspaces: ["acme-qa"] });
  let [first, go] = [null, null];
  await user.route(/\/workspaces\?limit=/, async (route) => {
    if (first) return route.continue();
    first = route;
    await new Promise((resolve) => (go = resolve));
    await route.continue();
  });
  await user.goto(demo.canvas);
  await until(() => go, "the first is asked for");
  await user.evaluate((fragment) => location.assign(fragment), `#token=${token}`);
  await user.locator("#who", { hasText: "zoe" }).waitFor();
  const late = user.waitForResponse(/\/workspaces\?limit=/);
  go();
  await late;
  await user.locator("#live[data-tone=ok]").waitFor();
  assert((await user.locator("#who").textContent()).includes("zoe"), "it is still she");
  assert((await user.locator(".workspace-name").allTextContents()).join() === "acme-qa", "hers alone");
  assert(user.url() === `${demo.public}/canvas/`, user.url());
  await user.context().close();
});

const hostile = await Hostile.join();

await show("markup is text, wherever it comes from", async () => {
  await page.locator(".workspace", { hasText: "onerror" }).first().waitFor();
  await choose("onerror");
  await page.locator(".card-name", { hasText: "onerror" }).waitFor();
  await say(`<img src=x onerror="${PWNED}"> hello`);
  await reaches("completed");
  await hostile.tells("<b>bold</b><script>document.title = 'pwned'</script>");
  await page.locator(".turn", { hasText: "<b>bold</b>" }).waitFor();
  await say("refuse");
  await reaches("failed");
  await say("refuse in a stream");
  await reaches("failed");
  assert(!/SSE event|Code:/.test(await last.textContent()) && (await last.textContent()).includes("onerror"), await last.textContent());
  const found = await page.evaluate(() => ({
    pwned: window.pwned,
    title: document.title,
    // The page has one image of its own, and one module.
    images: document.images.length,
    scripts: document.scripts.length,
    bold: document.querySelectorAll("#desk b, #desk iframe, #desk svg, #desk style").length,
    links: [...document.querySelectorAll("#desk a")].map(({ protocol }) => protocol),
  }));
  assert(found.pwned === undefined && !found.title.startsWith("pwned"), found);
  assert(found.images === 1 && found.scripts === 1 && found.bold === 0, found);
  assert(found.links.every((protocol) => protocol === "https:"), found);
  // What turns text round is written out; files are what they are, and nothing of them is fetched.
  assert((await page.locator("#subtitle").textContent()).includes("<b>role</b>‹U+202E›elor"), "the role");
  const files = await page.locator(".artifact :is(.file-name, p.file)").allTextContents();
  assert(files.some((text) => /^report\.pdf · application\/pdf · 3 bytes$/.test(text)), files);
  assert(files.some((text) => text.endsWith("https://example.com/")), files);
  await look(page, "canvas-hostile");
});

await show("an agent cannot speak with the gateway's voice", async () => {
  await say("imitate");
  await reaches("failed");
  await say("imitate in a stream");
  await reaches("failed");
  const said = await last.textContent();
  assert(said.includes("answered with an error") && !/The gateway (failed|rejected|does not know)/.test(said) && !said.includes("events came while nobody listened"), said);
  assert((await page.locator("#live").textContent()) === "Live", "it is still signed in");
  // The gateway's own is told by the same means.
  await call("POST", "/workspaces/hostile/pause", tokens.operator);
  await say("are you there?");
  await reaches("paused");
  await call("POST", "/workspaces/hostile/resume", tokens.operator);
  await page.locator(".workspace", { hasText: "onerror" }).locator(".state", { hasText: "online" }).waitFor();
});

await show("however much an agent sends, the canvas goes on", async () => {
  await page.evaluate(() => {
    window.frames_drawn = 0;
    const draw = () => requestAnimationFrame(() => ((window.frames_drawn += 1), draw()));
    draw();
  });
  await say("flood");
  await last.locator(".left-out", { hasText: "earlier steps" }).first().waitFor({ timeout: 120_000 });
  // Meanwhile its user writes, and looks elsewhere.
  await page.locator("#text").fill("still here");
  await choose("acme-dev");
  await choose("onerror");
  await until(async () => (await stateOf(last)) === "completed", "the end of the flood", 240_000);
  const found = await page.evaluate(() => ({
    frames: window.frames_drawn,
    steps: document.querySelectorAll(".turn:last-child .steps li").length,
    step: { parts: document.querySelectorAll(".turn:last-child .steps li:last-child p").length, characters: document.querySelector(".turn:last-child .steps li:last-child").textContent.length },
    artifacts: document.querySelectorAll(".turn:last-child .artifact").length,
    characters: document.querySelector(".turn:last-child").textContent.length,
    notes: [...document.querySelectorAll(".turn:last-child .left-out:not([hidden])")].map((one) => one.textContent),
  }));
  assert(found.steps === 500 && found.artifacts <= 1_000 && found.characters < 600_000, found);
  assert(found.step.parts < 25 && found.step.characters < 10_500, found.step);
  assert(found.notes.length === 2 && found.notes[0].includes("9,500 earlier steps"), found);
  assert(/Left out.*[\d,]{7,} characters, in \d+ parts/.test(found.notes[1]), found);
  assert(found.frames > 3 && FLOOD.events > 9_000, found);
  assert((await page.locator("#text").inputValue()) === "still here", "what was written");
  await page.locator("#text").fill("");
  await look(page, "canvas-flooded");
  await page.locator("#afresh").click();
  await page.getByRole("dialog").getByRole("button", { name: "Clear" }).click();
  await hostile.leave();
});

await show("it is used with the keyboard alone", async () => {
  const user = await visitor(browser);
  await user.goto(`${demo.public}/canvas/`);
  await user.locator("#token").waitFor();
  await look(user, "canvas-door");
  await user.keyboard.insertText(new URLSearchParams(new URL(demo.canvas).hash.slice(1)).get("token"));
  await user.keyboard.press("Enter");
  await user.locator(".workspace").first().waitFor();
  await user.keyboard.insertText("acme-pm");
  await user.keyboard.press("Tab");
  await user.keyboard.press("Enter");
  await user.locator(".card-name", { hasText: "echo (example)" }).waitFor();
  await user.keyboard.insertText("by key");
  await user.keyboard.press("Enter");
  await user.locator(".turn", { hasText: "echo: by key" }).waitFor();
  assert(user.complaints.length === 0, user.complaints);
  await user.context().close();
});

await show("a token that proves nothing, and one that reaches nothing, are told what to do", async () => {
  const user = await visitor(browser);
  await user.goto(`${demo.public}/canvas/#token=nothing`);
  await user.locator(".failure code", { hasText: "unauthenticated" }).waitFor();
  assert((await user.locator(".failure").textContent()).includes("this is not a canvas token"), "what it is not");
  await look(user, "canvas-refused-at-the-door");
  const { token } = await call("POST", "/canvas/tokens", tokens.operator, { user: "mia", org: "nobody" });
  await user.locator("#token").fill(token);
  await user.locator("#enter").click();
  await user.locator("#list-notice", { hasText: "reaches no workspace" }).waitFor();
  await look(user, "canvas-nobody");
  await user.locator("#leave").click();
  await user.locator("#door").waitFor();
  // One that is over leads to the door, and not to sending again.
  await user.locator("#token").fill(new URLSearchParams(new URL(demo.canvas).hash.slice(1)).get("token"));
  await user.locator("#enter").click();
  await choose("acme-pm", user);
  await user.locator(".card-name").waitFor();
  await user.route(/\/a2a$/, (route) => route.fulfill({ status: 401, headers: { "x-a2a-refused": "unauthenticated" }, json: { error: "the token has expired", reason: "unauthenticated", request_id: "r-2" } }));
  await user.locator("#text").fill("hello");
  await user.locator("#text").press("Enter");
  await user.locator(".turn .failure").waitFor();
  assert((await user.getByRole("button", { name: "Send again" }).count()) === 0, "not again");
  await user.getByRole("button", { name: "Sign in again" }).click();
  await user.locator("#refused", { hasText: "token" }).waitFor();
  assert((await user.evaluate(() => document.activeElement.id)) === "token", "the field");
  await user.context().close();
});

await show("on a narrow window the list, the conversation and the card have one place", async () => {
  const user = await visitor(browser, { viewport: { width: 390, height: 844 }, hasTouch: true });
  await user.goto(demo.canvas);
  await user.locator(".workspace", { hasText: "acme-dev" }).tap();
  await user.locator("#card-toggle").tap();
  await user.locator(".card-name", { hasText: "slow (example)" }).waitFor();
  await look(user, "canvas-card");
  await user.locator("#card-toggle").tap();
  await user.locator("#text").fill("short");
  await user.locator("#send").tap();
  await user.locator(".turn .state", { hasText: "completed" }).waitFor();
  await user.locator("#back").tap();
  await user.locator("#filter").fill("intern");
  assert((await user.locator(".workspace").count()) === 1, "the filter");
  assert(user.complaints.length === 0, user.complaints);
  await user.context().close();
});

await show("a page from elsewhere can visit it, and neither frame nor script it", async () => {
  await keepsForeignersOut(browser, `${demo.public}/canvas/`, "canvas.js");
  // The door without a slash is one, too.
  const user = await visitor(browser);
  const answer = await user.goto(`${demo.public}/canvas`);
  assert(answer.url() === `${demo.public}/canvas/` && answer.ok(), answer.url());
  const policy = answer.headers()["content-security-policy"];
  assert(policy.includes("frame-ancestors 'none'") && !policy.includes("unsafe"), policy);
  await user.context().close();
});

await show("nothing is asked of anybody else, and nothing goes wrong unsaid", async () => {
  const elsewhere = asked.filter((url) => !url.startsWith(`${demo.public}/`));
  assert(elsewhere.length === 0, elsewhere);
  // What the test itself brings about: refusals, and the cut.
  const told = page.complaints.filter((text) => !/Failed to load resource|WebSocket connection/.test(text));
  assert(told.length === 0, told);
});

if (process.env.A2A_PAGES_IMAGES) {
  await show("the picture of the README is made", async () => {
    const user = await visitor(browser, { viewport: { width: 1280, height: 800 }, colorScheme: "light" });
    await user.goto(demo.canvas);
    await user.locator(".workspace", { hasText: "acme-dev" }).click();
    await user.locator(".example").click();
    working.isFree = false;
    await user.locator("#text").press("Enter");
    await user.locator(".turn .state").waitFor();
    working.step(7);
    await user.locator(".steps li", { hasText: "step 7" }).waitFor();
    const file = join(process.env.PAGES_SEEN, "canvas.png");
    await user.screenshot({ path: file });
    copyFileSync(file, join(import.meta.dirname, "../../docs/images/canvas.png"));
    await user.context().close();
  });
}

await end(browser);
