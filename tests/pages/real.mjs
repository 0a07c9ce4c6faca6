// Agents made with real SDKs in the canvas: ADK's Markdown with a picture, and what a2a-sdk for Python gives back and asks.
// See stage.mjs.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { PNG } from "./saying.mjs";
import { assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const started = [];
process.on("exit", () => started.forEach((child) => child.kill("SIGKILL")));

/** Starts an agent in an environment of scripts/clients, and registers it below its name. */
async function join_(name, environment, file, ...more) {
  const python = join(process.env.PAGES_CLIENTS, environment, "python/bin/python");
  const child = spawn(python, ["-B", join(import.meta.dirname, file), ...more], { env: { ...process.env, PICTURE: PNG }, stdio: ["ignore", "pipe", "inherit"] });
  started.push(child);
  const port = await new Promise((resolve) => createInterface(child.stdout).once("line", resolve));
  const base = `http://127.0.0.1:${port}`;
  const card = await until(() => fetch(`${base}/.well-known/agent-card.json`).then((answer) => answer.ok && answer.json(), () => null), `the card of ${name}`);
  const url = new URL(card.url ?? card.supportedInterfaces[0].url).href;
  const wanted = { id: name, name, parent_id: "acme-pm", org: "acme", delivery_mode: "push", liveness: "assumed", url };
  const { enrolment_token: enrolment } = await call("POST", "/workspaces", demo.tokens.operator, wanted);
  await call("POST", "/registry/register", enrolment, { id: name, url, delivery_mode: "push", agent_card: card });
}

await Promise.all([join_("adk", "adk", "adk.py"), join_("py13", "py13", "../clients/agents/py13.py", "/dev/null")]);

const browser = await browse();
const page = await visitor(browser, { acceptDownloads: true });
const last = page.locator(".turn:not(.said)").last();
const reaches = (state) => until(async () => (await last.locator(".turn-top .state").textContent()) === state, `the state ${state}`);

async function say(text) {
  await until(() => page.locator("#send").isEnabled(), "a message can be sent");
  const before = await page.locator(".turn").count();
  await page.locator("#text").fill(text);
  await page.locator("#text").press("Enter");
  await until(async () => (await page.locator(".turn").count()) > before, "an answer begins");
}

async function choose(name) {
  await page.locator(".workspace", { hasText: name }).click();
  await page.locator(".card-name", { hasText: name }).waitFor();
}

await page.goto(demo.canvas);

await show("an agent of ADK answers in Markdown with a picture", async () => {
  await choose("adk");
  await say("plan");
  await reaches("completed");
  const found = await last.evaluate((turn) => [turn.querySelector(".markdown h4")?.textContent, turn.querySelectorAll(".content ol li").length, turn.querySelectorAll(".steps li").length, turn.querySelector("li strong")?.textContent, turn.querySelector("pre code")?.textContent]);
  assert(found.join("|") === "Plan|2|0|read|echo done", [found, await last.textContent()]);
  await until(() => last.locator("img.picture").evaluateAll((all) => all[0]?.naturalWidth === 16), "the picture");
  await look(page, "canvas-adk");
});

await show("an agent of a2a-sdk gives a file back byte for byte", async () => {
  await choose("py13");
  const bytes = Buffer.from(Uint8Array.from({ length: 70_000 }, (_, index) => (index * 31) % 256));
  await page.locator("#file").setInputFiles({ name: "bytes.bin", mimeType: "application/octet-stream", buffer: bytes });
  await page.locator(".chip").waitFor();
  await say("parts");
  await reaches("completed");
  const [download] = await Promise.all([page.waitForEvent("download"), last.getByRole("button", { name: "Download bytes.bin" }).click()]);
  assert(readFileSync(await download.path()).equals(bytes), "they are the same");
});

await show("an agent of a2a-sdk asks, and its task goes on with the answer", async () => {
  await say("ask");
  await reaches("input-required");
  const task = await last.locator(".turn-end .mono").textContent();
  await last.locator(".question input").fill("parts");
  await last.locator(".question input").press("Enter");
  await reaches("completed");
  assert((await last.locator(".turn-end .mono").textContent()) === task, "the same task");
});

await show("a reload shows what they said again", async () => {
  await page.reload();
  await until(async () => (await page.locator(".turn").count()) === 6, "the conversation with the second");
  await choose("adk");
  await until(() => page.locator("img.picture").evaluateAll((all) => all[0]?.naturalWidth === 16), "the picture");
  const told = page.complaints.filter((text) => !/Failed to load resource/.test(text));
  assert(told.length === 0, told);
});

await end(browser);
