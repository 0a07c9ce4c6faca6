// Signing in at the console with a real provider, as an operator meets it. See stage.mjs; tests/pages.rs starts a gateway that
// has a provider of tests/provider, which it can stop. Logins of the provider are the words of `groups` that it gives.

import { assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const ADMIN = process.env.PAGES_ADMIN;
const PROVIDER = process.env.PAGES_PROVIDER;
const browser = await browse();

const half = (page) => page.evaluate(() => sessionStorage.getItem("a2a-console-session"));
const notice = (page) => page.locator("#login .notice");
const way = (page) => page.locator("#login a.button");

/** A new browser that has come to the provider, and back as this person. */
async function signIn(login, { as = null } = {}) {
  const page = as ?? (await visitor(browser));
  if (!as) await page.goto(demo.console);
  await way(page).click();
  await page.waitForURL(`${PROVIDER}/**`);
  await page.locator("input[name=login]").fill(login);
  await page.locator("input[name=password]").fill("any");
  await page.locator("button[type=submit]").click();
  // What the gateway asks for is granted.
  await page.locator("input[name=prompt][value=consent]").waitFor({ state: "attached" });
  await page.locator("button[type=submit]").click();
  await page.waitForURL(`${demo.console}**`);
  return page;
}

async function isIn(page, who) {
  await page.locator("#console:not([hidden])").waitFor();
  await until(async () => (await page.locator("#who").textContent()) === who, who);
}

await call("POST", "/workspaces", ADMIN, { id: "w1", name: "w1", url: "http://127.0.0.1:9" });

let reader;
await show("a person signs in, has the role of their group, and stays in when the page is loaded again", async () => {
  const page = await visitor(browser);
  await page.goto(demo.console);
  await way(page).waitFor();
  await look(page, "console-sign-in");
  reader = await signIn("staff", { as: page });
  await isIn(reader, "staff@example.com · read");
  assert(!reader.url().includes("signed-in"), `the code is in the address: ${reader.url()}`);
  await until(() => half(reader), "a session");
  await reader.reload();
  await isIn(reader, "staff@example.com · read");
  const cookies = await reader.context().cookies(demo.console);
  const session = cookies.find(({ name }) => /^a2a_console_\d+$/.test(name));
  assert(session.httpOnly && session.sameSite === "Strict", session);
  const kept = await reader.evaluate(() => JSON.stringify([sessionStorage, localStorage, document.cookie]));
  assert(!kept.includes("a2aa_") && !kept.includes(session.value), "a secret is kept");
});

await show("what a role does not cover is refused, and the console says what it takes", async () => {
  await reader.evaluate(() => (location.hash = "#/workspaces/w1"));
  await reader.locator("button", { hasText: "Pause" }).click();
  await reader.locator("dialog button", { hasText: "Pause" }).click();
  await reader.locator("dialog", { hasText: "this needs an operator with the role `operate`, and yours is `read`" }).waitFor();
  await look(reader, "console-role");
  await reader.locator("dialog button", { hasText: "Cancel" }).click();
  const operator = await signIn("night");
  await isIn(operator, "night@example.com · operate");
  await operator.evaluate(() => (location.hash = "#/workspaces/w1"));
  await operator.locator("button", { hasText: "Pause" }).click();
  await operator.locator("dialog button", { hasText: "Pause" }).click();
  await operator.locator("button", { hasText: "Resume" }).waitFor();
  const audit = await until(async () => {
    const { records } = await call("GET", "/audit?event_type=WORKSPACE_PAUSED&outcome=done", ADMIN, undefined, demo.admin);
    return records[0];
  }, "a record");
  const { role, name, subject, issuer } = audit.detail.operator;
  assert(role === "operate" && name === "night@example.com" && subject === "night" && issuer === PROVIDER, audit);
});

await show("a person without a role is told so, and one who leaves comes back to the page", async () => {
  const page = await signIn("stranger");
  await notice(page).filter({ hasText: "have no role here" }).waitFor();
  assert(await page.locator("#console").isHidden(), "the console is shown");
  await look(page, "console-no-role");
  const other = await visitor(browser);
  await other.goto(demo.console);
  await way(other).click();
  await other.waitForURL(`${PROVIDER}/**`);
  await other.locator("a", { hasText: /cancel/i }).click();
  await notice(other).filter({ hasText: "the provider did not sign you in" }).waitFor();
});

await show("who signs out is out, in that browser and on the gateway", async () => {
  const before = await call("GET", "/operators/tokens", ADMIN);
  await reader.locator("#leave").click();
  await reader.locator("#login", { hasText: "You are signed out here" }).waitFor();
  await way(reader).waitFor();
  assert((await half(reader)) === null, "the session is kept");
  await until(async () => {
    const { tokens } = await call("GET", "/operators/tokens", ADMIN);
    return before.tokens.some(({ subject }) => subject === "staff") && !tokens.some(({ subject }) => subject === "staff");
  }, "the end of the session");
  await reader.reload();
  await way(reader).waitFor();
});

await show("a session that an admin ends, or that is over, leads back to the sign-in", async () => {
  const page = await signIn("admins");
  await isIn(page, "admins@example.com · admin");
  const { tokens } = await call("GET", "/operators/tokens", ADMIN);
  const { id } = tokens.find(({ subject }) => subject === "admins");
  await call("DELETE", `/operators/tokens/${id}`, ADMIN);
  await notice(page).filter({ hasText: "session has ended" }).waitFor();
  await way(page).waitFor();
});

await show("a provider that is away is told, and the token is still a way in", async () => {
  const page = await visitor(browser);
  await page.goto(demo.console);
  await way(page).waitFor();
  process.kill(Number(process.env.PAGES_PROVIDER_PID), "SIGKILL");
  // What the gateway knows of the provider it takes for a while: a browser is sent there, and it is this one's to say.
  const asked = await visitor(browser);
  const answer = await asked.request.get(`${process.env.PAGES_OTHER}console/sign-in`, { maxRedirects: 0, headers: { Accept: "text/html" } });
  assert(answer.status() === 303 && answer.headers().location === "../#sign-in=away", [answer.status(), answer.headers()]);
  await asked.goto(`${process.env.PAGES_OTHER}console/sign-in`);
  await notice(asked).filter({ hasText: "the provider does not answer" }).waitFor();
  await look(asked, "console-provider-away");
  await asked.locator("input[name=token]").fill(ADMIN);
  await asked.locator("button", { hasText: "Log in" }).click();
  await isIn(asked, "admin token · admin");
});

await end(browser);
