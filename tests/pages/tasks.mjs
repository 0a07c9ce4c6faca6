// The daily tasks in the console: workspaces and tokens are made, moved, seen as a tree, and what they used is told. See
// stage.mjs.

import { readFileSync } from "node:fs";
import { Line, assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const { tokens } = demo;
const line = await Line.to(demo.admin);
const browser = await browse(line);
const page = await visitor(browser, { acceptDownloads: true });

const dialog = page.locator("dialog");
const visit = (view) => page.locator("#nav a", { hasText: view }).click();
const row = (text) => page.locator(".tree .body .row:not([hidden])", { hasText: text }).first();
const rows = () => page.locator(".tree .body .row:not([hidden]) .name a").allTextContents();
const secret = page.locator("dialog .secret");

/** Sends a message with the token; the status. */
async function send(token, to) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const message = { jsonrpc: "2.0", id: 1, method: "message/send", params: { message: { role: "user", parts: [{ kind: "text", text: "hello" }] } } };
  const answer = await fetch(`${demo.public}/workspaces/${to}/a2a`, { method: "POST", headers, body: JSON.stringify(message) });
  await answer.text();
  return answer.status;
}

await page.goto(demo.console);
await page.locator("input[name=token]").fill(tokens.operator);
await page.locator("text=Log in").last().click();
await visit("Workspaces");
await row("acme-pm").waitFor();

await show("the tree is closed and opened by its marks and by its keys, and says so", async () => {
  const all = await rows();
  assert(all.slice(0, 3).join() === "acme-pm,acme-dev,acme-intern", all);
  const expanded = (id) => row(id).getAttribute("aria-expanded");
  assert((await expanded("acme-pm")) === "true" && (await expanded("acme-intern")) === null, "which have others below them");
  assert((await row("acme-intern").getAttribute("aria-level")) === "3", "levels");
  await row("acme-pm").locator(".fold").click();
  assert((await expanded("acme-pm")) === "false" && !(await rows()).includes("acme-dev"), await rows());
  await row("acme-pm").locator(".below", { hasText: `${all.filter((id) => id.startsWith("acme-")).length - 1} below` }).waitFor();
  await look(page, "console-tree-closed");
  // What is looked for is found, closed or not.
  await page.locator("input[type=search]").fill("acme-intern");
  assert((await rows()).join() === "acme-intern", await rows());
  await page.locator("input[type=search]").fill("");
  await row("acme-pm").locator("a").focus();
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  const walked = [];
  // Opens, first child, closes it, to its parent, closes that.
  for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"]) {
    await page.keyboard.press(key);
    walked.push(`${await focused()} ${(await rows()).length}`);
  }
  const [n, below] = [all.length, all.filter((id) => id.startsWith("acme-")).length - 1];
  assert(walked.join() === [`acme-pm ${n}`, `acme-dev ${n}`, `acme-dev ${n - 1}`, `acme-pm ${n - 1}`, `acme-pm ${n - below}`].join(), walked);
  await page.locator("button", { hasText: "Expand all" }).click();
  assert((await rows()).length === n, await rows());
  await page.locator("button", { hasText: "Collapse all" }).click();
  assert((await rows()).every((id) => !["acme-dev", "acme-intern"].includes(id)), await rows());
  await page.locator("button", { hasText: "Expand all" }).click();
});

await show("a workspace is created, and its token is shown once", async () => {
  await page.locator("button", { hasText: "Create workspace…" }).click();
  await dialog.waitFor();
  await look(page, "console-create");
  await dialog.locator("input[name=name]").fill("Night shift");
  await dialog.locator("input[name=id]").fill("acme-night");
  await dialog.locator("input[name=parent_id]").fill("acme-p");
  assert((await dialog.locator("datalist option").evaluateAll((all) => all.map(({ value }) => value))).includes("acme-pm"), "what is typed finds it");
  await dialog.locator("input[name=parent_id]").fill("acme-pm");
  await dialog.locator("p", { hasText: "It is made in the org acme" }).waitFor();
  await dialog.locator("button[type=submit]").click();
  await secret.waitFor();
  const token = await secret.textContent();
  assert(/^a2ae_[\w-]{43}$/.test(token), token);
  await look(page, "console-created");
  await dialog.locator("button", { hasText: "Done, I saved" }).click();
  await page.locator("h1", { hasText: "Night shift" }).waitFor();
  const left = await page.evaluate(() => [document.documentElement.innerHTML, JSON.stringify(sessionStorage), location.href].join());
  // Its first characters stay: the list of tokens has them.
  assert(!left.includes(token.slice(0, 16)), "the token is left");
  await page.locator(".facts", { hasText: "acme-pm" }).first().waitFor();
  // It is good for what it says.
  const card = { name: "night", description: "", version: "1", url: "http://127.0.0.1:9/", capabilities: {}, skills: [], defaultInputModes: [], defaultOutputModes: [] };
  const joined = await call("POST", "/registry/register", token, { id: "acme-night", delivery_mode: "poll", agent_card: card });
  assert(joined.status === "registered", joined);
});

await show("what cannot be created is told in words, and the dialog stays", async () => {
  await visit("Workspaces");
  await page.locator("button", { hasText: "Create workspace…" }).click();
  await dialog.locator("input[name=name]").fill("Another");
  await dialog.locator("input[name=id]").fill("acme-night");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "conflict" }).waitFor();
  await dialog.locator("input[name=id]").fill("acme night");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "invalid_workspace_id" }).waitFor();
  await dialog.locator("input[name=id]").fill("acme-known");
  await dialog.locator("select[name=kind]").selectOption("assumed");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "URL" }).waitFor();
  await dialog.locator("button", { hasText: "Cancel" }).click();
});

await show("a token with a label and an end is made and shown once", async () => {
  await row("acme-night").locator("a").click();
  const panel = page.locator(".panel", { hasText: "Tokens" }).last();
  await panel.locator("button", { hasText: "Create a token" }).click();
  await dialog.locator("input[name=hours]").fill("soon");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "“Ends after” takes a number of hours" }).waitFor();
  await dialog.locator("input[name=hours]").fill("1");
  await dialog.locator("input[name=label]").fill("<b>build 7</b>");
  await dialog.locator("button[type=submit]").click();
  await secret.waitFor();
  const token = await secret.textContent();
  assert(/^a2aw_[\w-]{43}$/.test(token), token);
  // It is shown once: no key closes it.
  for (const key of ["Escape", "Escape", "Escape"]) await page.keyboard.press(key);
  assert((await secret.textContent()) === token, "the token is still shown");
  await dialog.locator("button", { hasText: "Done, I saved" }).click();
  await panel.locator("td", { hasText: "<b>build 7</b>" }).waitFor();
  assert(!(await page.evaluate(() => document.documentElement.innerHTML)).includes(token.slice(0, 16)), "the token is left");
  const own = await call("GET", "/workspaces/acme-night", token);
  assert(own.id === "acme-night", own);
  await look(page, "console-token");
});

await show("a workspace is moved by choosing its parent", async () => {
  const button = page.locator("button", { hasText: "Move…" });
  await button.click();
  assert((await dialog.locator("input[name=parent_id]").inputValue()) === "acme-pm", "its parent now");
  await dialog.locator("input[name=parent_id]").fill("acme-night");
  assert((await dialog.locator("datalist option").count()) === 0, "it is not offered itself");
  await dialog.locator("button[type=submit]").click();
  await dialog.locator(".notice", { hasText: "conflict" }).waitFor();
  await dialog.locator("input[name=parent_id]").fill("rival-spy");
  await dialog.locator("p", { hasText: "It leaves the org acme for the org rival" }).waitFor();
  await dialog.locator("input[name=parent_id]").fill("acme-dev");
  await dialog.locator("p", { hasText: "It stays in the org acme" }).waitFor();
  await look(page, "console-move");
  await dialog.locator("button[type=submit]").click();
  await until(async () => (await dialog.count()) === 0, "the dialog is gone");
  await page.locator(".facts", { hasText: "acme-dev" }).first().waitFor();
  await visit("Workspaces");
  await until(async () => (await row("acme-night").getAttribute("data-depth")) === "2", "it is below its new parent");
});

await show("what calls took is told for callers and targets, and saved as a file", async () => {
  for (let n = 0; n < 4; n += 1) assert((await send(tokens["acme-dev"], "acme-pm")) === 200, "it is answered");
  assert((await send(tokens["rival-spy"], "acme-dev")) === 403, "it is refused");
  const show_ = page.locator(".filters button", { hasText: "Show" });
  await page.evaluate(() => (location.hash = "#/usage?by=workspace&workspace=acme-dev"));
  const cells = async (text) => page.locator(".sums tbody tr", { hasText: text }).first().locator("td").allTextContents();
  await until(async () => {
    await show_.click();
    await page.locator(".sums, .records .nothing").first().waitFor();
    return (await page.locator(".sums").count()) > 0 && Number((await cells("acme-dev"))[2]) >= 4;
  }, "the calls are counted");
  const total = await cells("Total");
  assert(total[2] === (await cells("acme-dev"))[2], total);
  await look(page, "console-usage");
  await page.locator("select[name=side]").selectOption("target");
  await page.locator("select[name=by]").selectOption("org");
  assert(await page.locator("input[name=workspace]").isDisabled(), "an org is not narrowed to a workspace");
  await show_.click();
  await until(async () => Number((await cells("acme"))[1]) >= 4, "by org");
  assert(Number((await cells("acme"))[3]) >= 1, await cells("acme"));
  // Loaded again it asks for the same.
  await page.reload();
  await until(async () => (await page.locator("select[name=side]").inputValue().catch(() => "")) === "target", "the same is asked for");
  const [file] = await Promise.all([page.waitForEvent("download"), page.locator("button", { hasText: "Download CSV" }).click()]);
  const text = readFileSync(await file.path(), "utf8");
  assert(/^usage-target-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv$/.test(file.suggestedFilename()), file.suggestedFilename());
  assert(text.startsWith("from,to,side,org,workspace,calls,") && text.includes(",target,acme,,"), text);
});

await show("what is wrong with a request for usage is told in words", async () => {
  await page.locator("input[name=from]").fill("2020-01-01");
  await page.locator(".filters button", { hasText: "Show" }).click();
  await page.locator(".notice", { hasText: "at most 366 days" }).first().waitFor();
  await page.locator("button", { hasText: "Download CSV" }).click();
  await until(async () => (await page.locator(".notice", { hasText: "at most 366 days" }).count()) === 2, "the file as well");
});

await show("the tree of the canvas is closed and opened, and stays small with ten thousand workspaces", async () => {
  const user = await visitor(browser);
  await user.goto(demo.canvas);
  const items = user.locator("#workspaces [role=treeitem]");
  const first = items.first();
  await first.waitFor();
  const before = await items.count();
  assert((await first.getAttribute("aria-expanded")) === "true", "it is open");
  await user.locator("#workspaces .fold[data-fold=open]").first().click();
  assert((await items.count()) < before && (await first.getAttribute("aria-expanded")) === "false", "it is closed");
  await look(user, "canvas-tree-closed");
  await first.focus();
  await user.keyboard.press("ArrowRight");
  assert((await items.count()) === before, "it is open again");
  await user.keyboard.press("ArrowLeft");
  assert((await items.count()) < before, "and closed");
  // Teams of a hundred, below ten roots.
  const id = (n) => `w-${String(n).padStart(5, "0")}`;
  const parent = (n) => (n < 10 ? null : n < 110 ? id(n % 10) : id(10 + (n % 100)));
  const many = Array.from({ length: 10_000 }, (_, n) => ({ id: id(n), name: id(n), role: null, status: "online", parent_id: parent(n), delivery_mode: "push" }));
  await user.route(/\/workspaces\?limit=500$/, (route) => route.fulfill({ json: many }));
  const token = await call("POST", "/canvas/tokens", tokens.operator, { user: "ada", org: "acme" });
  const started = Date.now();
  await user.goto(`${demo.public}/canvas/?big#token=${token.token}`);
  await user.locator("#workspaces [role=treeitem]", { hasText: "w-00000" }).waitFor();
  console.log(`      shown after ${Date.now() - started} ms`);
  assert((await items.count()) === 10, "only the roots");
  await first.focus();
  await user.keyboard.press("ArrowRight");
  assert((await items.count()) === 20, "and those below one");
  await user.locator("#filter").fill("w-0");
  await until(async () => (await items.count()) === 300, "no more than are shown");
  await user.locator("#list-note", { hasText: "more: filter to find them" }).waitFor();
  await user.context().close();
});

await show("nothing was complained of but what the gateway refused", async () => {
  const others = page.complaints.filter((said) => !/status of (400|403|409)/.test(said));
  assert(others.length === 0, others);
});

await end(browser);
