// What is said in the canvas: markdown, files, data and questions; and what survives a reload. See stage.mjs.

import { readFileSync } from "node:fs";
import { CORPUS, MARKDOWN, PNG, Saying } from "./saying.mjs";
import { Line, assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const { tokens } = demo;
const saying = await Saying.join();
const line = await Line.to(demo.public);
const browser = await browse(line);
const page = await visitor(browser, { acceptDownloads: true });
await page.context().grantPermissions(["clipboard-read", "clipboard-write"], { origin: demo.public });
const asked = [];
page.on("request", (request) => asked.push(request.url()));

const last = page.locator(".turn:not(.said)").last();
const stateOf = (turn) => turn.locator(".turn-top .state").textContent();
const reaches = (state) => until(async () => (await stateOf(last)) === state, `the state ${state}`);
const copied = () => page.evaluate(() => navigator.clipboard.readText());

async function say(text) {
  await until(() => page.locator("#send").isEnabled(), "a message can be sent");
  const before = await page.locator(".turn").count();
  await page.locator("#text").fill(text);
  await page.locator("#text").press("Enter");
  await until(async () => (await page.locator(".turn").count()) > before, "an answer begins");
}

await page.goto(demo.canvas);
await page.locator(".workspace", { hasText: "saying" }).click();
await page.locator(".card-name", { hasText: "saying" }).waitFor();

await show("markdown that comes in pieces is what it would be as a whole", async () => {
  await say("markdown");
  await reaches("completed");
  const shown = last.locator(".markdown");
  await until(async () => (await shown.locator("blockquote").count()) === 1, "its end");
  const found = await shown.evaluate((place) => ({
    heading: place.querySelector("h4")?.textContent,
    inline: ["strong", "em", "s", "p code"].map((name) => place.querySelector(name)?.textContent),
    links: [...place.querySelectorAll("a")].map(({ href, rel, target }) => [href, rel, target].join(" ")),
    list: place.querySelectorAll("ol > li").length,
    nested: place.querySelector("ol ul li")?.textContent.trim(),
    cell: place.querySelector("td[data-align=right]")?.textContent,
    code: place.querySelector("pre code")?.textContent,
    language: place.querySelector(".code-top span")?.textContent,
  }));
  assert(found.heading === "Result" && found.inline.join() === "bold,slanted,gone,code", found);
  assert(found.links.join() === "https://example.com/a?b=1&c=2 noopener noreferrer _blank,https://example.org/bare noopener noreferrer _blank", found);
  assert(found.list === 2 && found.nested === "nested" && found.cell === "1,200", found);
  assert(found.code === "print('<b>hello</b>')" && found.language === "python", found);
  assert((await shown.textContent()).includes("code & a link"), "an entity is its character");
  await last.getByRole("button", { name: "Copy code" }).click();
  assert((await copied()) === "print('<b>hello</b>')", await copied());
  await look(page, "canvas-markdown");
});

await show("pictures are seen, text is previewed, and everything else is a download", async () => {
  await say("files");
  await reaches("completed");
  const files = last.locator("div.file");
  await until(() => last.locator("img.picture").evaluateAll((all) => all.length === 1 && all[0].naturalWidth === 16), "the picture, and not the one that is none");
  assert((await files.count()) === 6 && (await files.getByRole("button", { name: "Preview" }).count()) === 2, "text and HTML have a preview, as text");
  await files.filter({ hasText: "page.html" }).getByRole("button", { name: "Preview" }).click();
  assert((await files.filter({ hasText: "page.html" }).locator("pre").textContent()).startsWith("<script>"), "as text");
  await files.filter({ hasText: "page.html" }).getByRole("button", { name: "Preview" }).click();
  for (const [name, bytes] of [["plot.png", Buffer.from(PNG, "base64")], ["paper.pdf", Buffer.from("%PDF-1.4")]]) {
    const [download] = await Promise.all([page.waitForEvent("download"), last.getByRole("button", { name: `Download ${name}` }).click()]);
    assert(download.suggestedFilename() === name && readFileSync(await download.path()).equals(bytes), name);
  }
  const tree = last.locator(".data");
  await tree.locator("summary", { hasText: "rows" }).click();
  await tree.locator("summary", { hasText: "0" }).click();
  await tree.locator(".leaf", { hasText: 'month: "January"' }).waitFor();
  assert((await tree.textContent()).includes('<b>: "<i>"'), "its words are text");
  await look(page, "canvas-files");
  await tree.locator("summary", { hasText: "rows" }).click();
});

const dropped = (name, size) => page.evaluateHandle(([name, size]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(size).map((_, index) => index % 251)], name, { type: "application/x-test" }));
  return data;
}, [name, size]);

await show("files are attached, dropped and pasted, and come back byte for byte", async () => {
  const bytes = Buffer.from(Uint8Array.from({ length: 5_000 }, (_, index) => (index * 7) % 256));
  await page.locator("#file").setInputFiles({ name: "chosen.bin", mimeType: "application/octet-stream", buffer: bytes });
  await page.locator(".chip", { hasText: "chosen.bin · 5.0 KB" }).waitFor();
  await page.locator("#log").dispatchEvent("drop", { dataTransfer: await dropped("dropped.dat", 300) });
  await page.locator(".chip", { hasText: "dropped.dat · 300 bytes" }).waitFor();
  const data = await dropped("pasted.dat", 40);
  await page.evaluate((clipboardData) => document.querySelector("#text").dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true })), data);
  await page.locator(".chip", { hasText: "pasted.dat" }).waitFor();
  await page.getByRole("button", { name: "Remove pasted.dat" }).click();
  await look(page, "canvas-attached");
  await say("keep these");
  await reaches("completed");
  assert(saying.got.length === 2 && Buffer.from(saying.got[0], "base64").equals(bytes), "the agent has them");
  const [download] = await Promise.all([page.waitForEvent("download"), last.getByRole("button", { name: "Download chosen.bin" }).click()]);
  assert(readFileSync(await download.path()).equals(bytes), "they are the same");
  assert((await page.locator(".chip").count()) === 0, "none is left for the next message");
});

await show("what does not fit is said before it is sent", async () => {
  await page.locator("#log").dispatchEvent("drop", { dataTransfer: await dropped("huge.bin", 7_000_001) });
  await page.locator(".files .notice", { hasText: "huge.bin was not added: it has 7.0 MB" }).waitFor();
  for (let n = 0; n < 11; n += 1) await page.locator("#log").dispatchEvent("drop", { dataTransfer: await dropped(`f${n}`, 10) });
  await page.locator(".files .notice", { hasText: "a message takes 10 files" }).waitFor();
  assert((await page.locator(".chip").count()) === 10, "ten");
  for (let n = 0; n < 10; n += 1) await page.locator(".chip button").first().click();
});

await show("a question has a place for its answer, and the answers that the agent proposes", async () => {
  await say("ask");
  await reaches("input-required");
  await last.locator(".question .choices button", { hasText: "red" }).waitFor();
  await look(page, "canvas-question");
  await last.locator(".question button", { hasText: "blue" }).click();
  await reaches("completed");
  assert((await last.textContent()).includes("you said: blue"), await last.textContent());
  await say("ask");
  await reaches("input-required");
  await last.locator(".question input").fill("green");
  await last.locator(".question input").press("Enter");
  await reaches("completed");
  assert((await last.textContent()).includes("you said: green"), await last.textContent());
});

await show("a conversation, what is written and who is signed in survive a reload", async () => {
  const before = await page.locator(".turns").evaluate((place) => place.innerText.replace(/(\d+ \w{3} )?\d\d:\d\d(:\d\d)?/g, ""));
  await page.locator("#text").fill("not sent yet");
  await page.reload();
  await page.locator(".turn").first().waitFor();
  await page.locator(".card-name", { hasText: "saying" }).waitFor();
  const after = await page.locator(".turns").evaluate((place) => place.innerText.replace(/(\d+ \w{3} )?\d\d:\d\d(:\d\d)?/g, ""));
  const [was, is] = [before.split("\n"), after.split("\n")];
  const other = was.findIndex((text, index) => text !== is[index]);
  assert(before === after, [other, was.slice(other, other + 5), is.slice(other, other + 5)]);
  assert((await page.locator("#text").inputValue()) === "not sent yet", "what was written");
  await page.locator("#text").fill("");
  assert((await last.locator("img.picture").count()) === 0 && (await page.locator("img.picture").count()) >= 1, "a picture");
});

await show("a stream goes on after a reload where it was, and loses nothing", async () => {
  await say("hold");
  await until(() => saying.held === 1, "the stream");
  saying.go("one ");
  await until(async () => (await last.locator(".artifact").count()) === 1, "its first piece");
  await page.reload();
  await last.locator(".notice", { hasText: "Reconnected" }).waitFor();
  saying.go("two ");
  await until(async () => (await last.locator(".artifact").textContent()).includes("one two"), "its second piece");
  // Also when the line was cut before.
  line.cut();
  await last.locator(".notice", { hasText: "Reconnecting" }).waitFor();
  await page.locator("#away").waitFor();
  saying.go("three ");
  line.mend();
  await until(async () => (await last.locator(".artifact").textContent()).includes("one two three"), "its third piece");
  await page.reload();
  await last.locator(".notice", { hasText: "Reconnected" }).waitFor();
  saying.go("four", true);
  await reaches("completed");
  assert((await last.locator(".artifact").textContent()).trim() === "one two three four", await last.locator(".artifact").textContent());
});

await show("conversations with one agent are apart, and each goes on with its own context", async () => {
  await say("first");
  await reaches("completed");
  const context = (await last.locator(".markdown").textContent()).match(/in (\S+)/)[1];
  await page.locator("#fresh").click();
  await page.locator("#log .empty").waitFor();
  await say("second *talk*");
  await reaches("completed");
  assert(!(await last.textContent()).includes(context), "another context");
  const talks = page.locator(".talk-row");
  assert((await talks.allTextContents()).join() === "second *talk*,markdown", await talks.allTextContents());
  await page.locator("#rename").click();
  await page.locator("dialog input").fill("Colours");
  await page.keyboard.press("Enter");
  await talks.filter({ hasText: "Colours" }).waitFor();
  await look(page, "canvas-talks");
  await talks.filter({ hasText: "markdown" }).click();
  await say("again");
  await reaches("completed");
  assert((await last.textContent()).includes(context), "the first one's context");
  await page.reload();
  await talks.first().waitFor();
  assert((await talks.allTextContents()).sort().join() === "Colours,markdown", await talks.allTextContents());
});

await show("nothing of a hostile corpus runs, loads, hides or overflows", async () => {
  await page.locator("#fresh").click();
  await say("corpus");
  await reaches("completed");
  await until(async () => (await last.locator(".artifact").count()) === CORPUS.length, "all of it");
  const found = await page.evaluate(() => ({
    pwned: window.pwned,
    title: document.title,
    elements: [...new Set([...document.querySelectorAll(".turn *")].map(({ localName }) => localName))].sort(),
    handlers: [...document.querySelectorAll(".turn *")].flatMap(({ attributes }) => [...attributes].map(({ name }) => name)).filter((name) => name.startsWith("on") || name === "style" || name === "srcdoc"),
    links: [...new Set([...document.querySelectorAll(".turn a")].map(({ protocol }) => protocol))].join(),
    text: document.querySelector("#log").textContent,
  }));
  assert(found.pwned === undefined && !found.title.startsWith("pwned"), found.title);
  const known = "a article bdi blockquote br button code div em footer form h3 h4 h5 h6 hr input li ol p pre section span strong s table tbody td th thead time tr ul".split(" ");
  assert(found.elements.every((name) => known.includes(name)), found.elements);
  assert(found.handlers.length === 0 && found.links === "https:", found);
  assert(found.text.includes("‹U+202E›txt.exe") && found.text.includes("<script>alert(1)</script> <img src=x>"), "it is written out");
  assert(found.text.includes("> > > deep") && found.text.includes("- - - deep") && found.text.includes("level 11"), "nothing is left out, however deep");
  await look(page, "canvas-corpus");
  await page.locator("#afresh").click();
  await page.locator("dialog button.danger").click();
});

await show("raw exchanges say what was asked and answered, and never the token", async () => {
  await say("markdown");
  await reaches("completed");
  await page.locator("#raw-toggle").click();
  const exchange = page.locator(".exchange").first();
  await exchange.locator("summary", { hasText: "events" }).click();
  await until(async () => (await exchange.locator("pre").count()) === 2, "request and events");
  const said = await exchange.textContent();
  assert(said.includes("SendStreamingMessage") && said.includes("artifactUpdate") && /request [0-9a-f-]{36}/.test(said), said.slice(0, 2_000));
  await exchange.getByRole("button", { name: "Copy as curl" }).click();
  const curl = await copied();
  const token = await page.evaluate(() => JSON.parse(sessionStorage.getItem("a2a-canvas")).token);
  assert(curl.startsWith(`curl -N -X POST '${demo.public}/workspaces/saying/a2a'`) && curl.includes("$TOKEN") && !`${curl} ${said}`.includes(token), curl);
  await look(page, "canvas-raw");
  await page.locator("#raw-toggle").click();
});

await show("any method of the card is called by hand, with header fields, and wrong ones are told", async () => {
  await page.locator("#raw-toggle").click();
  const form = page.locator(".playground");
  await form.locator("summary").click();
  const methods = await form.locator("option").allTextContents();
  assert(methods.includes("message/stream (A2A 0.3)") && methods.includes("SendMessage (A2A 1.0)") && !methods.some((name) => name.includes("Push")), methods);
  await form.getByLabel("Method").selectOption("SendStreamingMessage");
  await form.getByLabel("Header fields").fill("Authorization: Bearer stolen");
  await form.getByRole("button", { name: "Call" }).click();
  await form.locator(".notice", { hasText: "Authorization cannot be set here" }).waitFor();
  await form.getByLabel("Header fields").fill("X-Timeout: soon");
  await form.getByRole("button", { name: "Call" }).click();
  await form.locator(".failure code", { hasText: "invalid_request" }).waitFor();
  await form.getByLabel("Header fields").fill("X-Timeout: 30");
  await form.getByLabel("Parameters").fill("{");
  await form.getByRole("button", { name: "Call" }).click();
  await form.locator(".notice", { hasText: "not JSON" }).waitFor();
  await form.getByLabel("Parameters").fill(JSON.stringify({ message: { messageId: "m", role: "ROLE_USER", parts: [{ text: "by hand" }] } }));
  await form.getByRole("button", { name: "Call" }).click();
  const exchange = page.locator(".exchange", { hasText: "you said: by hand" });
  await exchange.waitFor();
  assert((await exchange.textContent()).includes("x-timeout: 30"), await exchange.textContent());
  await look(page, "canvas-playground");
  await page.locator("#raw-toggle").click();
});

await show("a token that is over leads to the door, and the same user finds all again", async () => {
  const before = await page.locator(".turn").count();
  await page.route(/\/a2a$/, (route) => route.fulfill({ status: 401, headers: { "x-a2a-refused": "unauthenticated" }, json: { error: "the token has expired", reason: "unauthenticated", request_id: "r-2" } }));
  await say("hello");
  await last.getByRole("button", { name: "Sign in again" }).click();
  await page.locator("#refused", { hasText: "token" }).waitFor();
  await page.unrouteAll({ behavior: "ignoreErrors" });
  assert((await page.evaluate(() => JSON.parse(sessionStorage.getItem("a2a-canvas")).token)) === null, "the token is not kept");
  // A wrong token and a reload lose nothing of it.
  await page.locator("#token").fill("nothing");
  await page.locator("#enter").click();
  await page.locator("#refused", { hasText: "not a canvas token" }).waitFor();
  await page.reload();
  await page.locator("#token").fill(new URLSearchParams(new URL(demo.canvas).hash.slice(1)).get("token"));
  await page.locator("#enter").click();
  await until(async () => (await page.locator(".turn").count()) === before + 2, "the conversation");
});

await show("a token that is over in the middle of a stream ends it, and the same user goes on with it", async () => {
  await say("hold");
  await until(() => saying.held === 1, "the stream");
  saying.go("one ");
  await until(async () => (await last.locator(".artifact").count()) === 1, "its first piece");
  const refused = { status: 401, headers: { "x-a2a-refused": "unauthenticated" }, json: { error: "the token has expired", reason: "unauthenticated", request_id: "r-3" } };
  await page.route(/\/(streams\/|ws\/tickets)/, (route) => route.fulfill(refused));
  line.cut();
  line.mend();
  await last.locator(".failure", { hasText: "The connection broke" }).waitFor();
  saying.go("two ");
  await page.locator("#live", { hasText: "Token expired" }).waitFor();
  await look(page, "canvas-expired");
  await last.getByRole("button", { name: "Sign in again" }).click();
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await page.locator("#token").fill(new URLSearchParams(new URL(demo.canvas).hash.slice(1)).get("token"));
  await page.locator("#enter").click();
  await until(async () => (await last.locator(".artifact").textContent()).includes("one two"), "what was said meanwhile");
  saying.go("three", true);
  await reaches("completed");
  assert((await last.locator(".artifact").textContent()).trim() === "one two three" && (await last.locator(".failure").count()) === 0, await last.textContent());
});

await show("signing out clears what is kept, and another user finds nothing", async () => {
  const { token } = await call("POST", "/canvas/tokens", tokens.operator, { user: "mia", org: "acme" });
  await page.evaluate((fragment) => location.assign(fragment), `#token=${token}`);
  await page.locator("#who", { hasText: "mia" }).waitFor();
  assert(!(await page.evaluate(() => sessionStorage.getItem("a2a-canvas"))).includes("Colours"), "the other's");
  await page.locator("#leave").click();
  await page.locator("#door").waitFor();
  const kept = await page.evaluate(() => [sessionStorage.length, localStorage.length, document.cookie]);
  assert(kept.join() === "0,0,", kept);
  await page.reload();
  await page.locator("#token").waitFor();
});

await show("nothing is asked of anybody else, and nothing goes wrong unsaid", async () => {
  const elsewhere = asked.filter((url) => !url.startsWith(`${demo.public}/`) && !url.startsWith(`blob:${demo.public}/`));
  assert(elsewhere.length === 0, elsewhere);
  const told = page.complaints.filter((text) => !/Failed to load resource|WebSocket connection/.test(text));
  assert(told.length === 0, told);
});

await end(browser);
