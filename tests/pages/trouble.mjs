// What is wrong is seen first: an agent breaks in each way, one is stopped, and the gateway goes away. See stage.mjs.

import { createServer } from "node:http";
import { Line, assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const { tokens } = demo;
const line = await Line.to(demo.admin);
const browser = await browse(line);
const page = await visitor(browser);
const dialog = page.locator("dialog");
const problem = (id) => page.locator(".problem", { hasText: id });

/** An agent that does as it is told: answers with a status, or resets the connection. */
let does = 200;
const agent = createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    if (does === "reset") return request.socket.resetAndDestroy();
    response.writeHead(does, { "Content-Type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id: 1, result: { kind: "message", messageId: "m", role: "agent", parts: [{ kind: "text", text: "hello" }] } }));
  });
});
await new Promise((resolve) => agent.listen(0, "127.0.0.1", resolve));
agent.unref();
const url = `http://127.0.0.1:${agent.address().port}/`;
await call("POST", "/workspaces", tokens.operator, { id: "acme-flaky", name: "Flaky", parent_id: "acme-pm", liveness: "assumed", url });

/** Messages to it, one after the other. */
async function send(count, token = tokens["acme-pm"]) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "message/send", params: { message: { role: "user", messageId: "m", parts: [{ kind: "text", text: "hello" }] } } });
  for (let n = 0; n < count; n += 1) await fetch(`${demo.public}/workspaces/acme-flaky/a2a`, { method: "POST", headers, body }).then((answer) => answer.text());
}

/** Waits for the state of the agent at the top of the overview. */
async function sees(shape, why) {
  const since = Date.now();
  await problem("Flaky").locator(".state", { hasText: shape }).waitFor();
  if (why) await problem("Flaky").locator("p", { hasText: why }).waitFor();
  console.log(`      seen after ${Date.now() - since} ms`);
}

await page.goto(demo.console);
await page.locator("input[name=token]").fill(tokens.operator);
await page.locator("text=Log in").last().click();
await page.locator(".problem", { hasText: "rival-night" }).waitFor();

await show("an agent that answers 500 is failing, since when and for whom, and calms down when it answers", async () => {
  await send(2);
  does = 500;
  await send(4);
  await sees("▲ failing", "4 of 4 calls failed, the last one with 500");
  await problem("Flaky").locator("p", { hasText: "1 caller hit" }).waitFor();
  assert(/since \d\d:\d\d:\d\d/.test(await problem("Flaky").locator(".since").textContent()), "since when");
  assert((await problem("Flaky").locator(".state").getAttribute("data-tone")) === "bad", "red");
  await page.locator(".chart .u-wrap").first().waitFor();
  await until(async () => (await page.locator(".overview .wide tbody tr", { hasText: "Flaky" }).count()) === 1, "its row", 60_000);
  await look(page, "console-overview");
  const said = await call("GET", "/workspaces/acme-flaky", tokens.operator);
  assert(said.health.state === "failing" && said.status === "online", said);
  does = 200;
  await send(3);
  await problem("acme-flaky").locator(".state", { hasText: "✓ solved" }).waitFor();
  assert((await call("GET", "/workspaces/acme-flaky", tokens.operator)).health.state === "healthy", "it is healthy");
});

await show("one that has enough calls is busy, one that resets its connections is failing", async () => {
  does = 429;
  await send(1);
  await sees("◆ busy");
  does = "reset";
  await send(3);
  await sees("▲ failing", "agent_");
  does = 200;
  // Its breaker may have opened.
  await until(async () => (await send(1), (await call("GET", "/workspaces/acme-flaky", tokens.operator)).health.state !== "failing"), "it answers again");
});

await show("a failed call is found in the list, and says what happened", async () => {
  await page.locator("#nav a", { hasText: "Calls" }).click();
  await page.locator("select[aria-label=Result]").selectOption("agent_failed");
  const row = page.locator(".exchanges .body .row:not([hidden])", { hasText: "500" }).first();
  await row.locator(".state", { hasText: "failed by agent" }).waitFor();
  await page.locator(".chip", { hasText: "result is failed by agent" }).waitFor();
  await look(page, "console-calls");
  await row.locator("a").click();
  await page.locator(".call-panel p", { hasText: "its agent failed with 500" }).waitFor();
  await page.keyboard.press("Escape");
  await page.locator(".call-panel").waitFor({ state: "detached" });
});

await show("what is stopped is red everywhere, and is released from the overview", async () => {
  await page.evaluate(() => (location.hash = "#/workspaces/acme-flaky"));
  await page.locator("button", { hasText: "Stop…" }).click();
  await dialog.locator("th", { hasText: "Calls under way (0 calls)" }).waitFor();
  await dialog.locator("button", { hasText: "Stop acme-flaky and end 0 running calls" }).waitFor();
  await dialog.locator("input[name=reason]").fill("drill");
  // What was typed is not thrown away by a key.
  for (const key of ["Escape", "Escape"]) await page.keyboard.press(key);
  assert((await dialog.locator("input[name=reason]").inputValue()) === "drill", "it is still there");
  await look(page, "console-stop-explained");
  await dialog.locator("button[type=submit]").click();
  await page.locator(".title .state", { hasText: "■ stopped" }).waitFor();
  await page.locator("#nav a", { hasText: "Overview" }).click();
  await sees("■ stopped", "drill");
  await problem("Flaky").locator("button", { hasText: "Release…" }).click();
  await dialog.locator("button", { hasText: "Release stop" }).click();
  await until(async () => (await problem("Flaky").locator(".state", { hasText: "■ stopped" }).count()) === 0, "it is released");
});

await show("a workspace is edited, removed by typing its id, and recreated", async () => {
  await page.evaluate(() => (location.hash = "#/workspaces/acme-flaky"));
  await page.locator("button", { hasText: "Edit…" }).click();
  await dialog.locator("input[name=role]").fill("breaks");
  await dialog.locator("button[type=submit]").click();
  await page.locator(".facts", { hasText: "breaks" }).first().waitFor();
  await page.locator("button", { hasText: "Remove workspace…" }).click();
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "exactly" }).waitFor();
  await dialog.locator("input[name=typed]").fill("acme-flaky");
  await dialog.locator("button[type=submit]").click();
  await page.locator("button", { hasText: "Create workspace…" }).click();
  await dialog.locator("input[name=name]").fill("Flaky again");
  await dialog.locator("input[name=id]").fill("acme-flaky");
  await dialog.locator("select[name=recreate]").selectOption("yes");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator("pre", { hasText: "a2a-gateway run --workspace acme-flaky" }).waitFor();
  await dialog.locator("button", { hasText: "Done, I saved" }).click();
});

await show("grants, tokens of orgs and of operators, and caps are in one view", async () => {
  await page.locator("#nav a", { hasText: "Policy" }).click();
  for (const title of ["Grants", "Stops", "Caps", "Tokens of orgs", "Tokens of operators"]) await page.locator(`.panel[aria-label="${title}"]`).locator("td, .nothing").first().waitFor();
  await look(page, "console-policy");
});

await show("a token of an org and one of an operator are made there, and revoked", async () => {
  for (const [title, label] of [["Tokens of orgs", "Create a token of the org…"], ["Tokens of operators", "Create a token of an operator…"]]) {
    const list = page.locator(`.panel[aria-label="${title}"]`);
    await list.locator("button", { hasText: label }).click();
    const named = dialog.locator("input[name=note], input[name=label]");
    await named.fill("made here");
    await dialog.locator("button[type=submit]").click();
    assert((await dialog.locator(".secret").textContent()).startsWith("a2a"), `${title}: a token is shown`);
    await dialog.locator("button", { hasText: "Done, I saved" }).click();
    const revoke = list.locator("button", { hasText: "Revoke…" }).last();
    await revoke.waitFor();
    await revoke.click();
    await dialog.locator("button[type=submit]").click();
    await revoke.waitFor({ state: "detached" });
  }
});

await show("the keys of the page go to its views", async () => {
  await page.locator("h1").first().focus();
  await page.keyboard.press("g");
  await page.keyboard.press("w");
  await page.locator("h1", { hasText: "Workspaces" }).waitFor();
  await page.keyboard.press("/");
  assert((await page.evaluate(() => document.activeElement.type)) === "search", "the search has the focus");
  await page.locator("#nav a", { hasText: "Overview" }).click();
});

await show("when the gateway is away, what is old looks old and says its time", async () => {
  line.cut();
  await page.locator("#stale", { hasText: /Data as of \d\d:\d\d:\d\d/ }).waitFor();
  await look(page, "console-stale");
  line.mend();
  await page.locator("#stale").waitFor({ state: "hidden" });
});

await end(browser);
