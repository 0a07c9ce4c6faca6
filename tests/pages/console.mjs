// The console, as an operator meets it. See stage.mjs.

import { join } from "node:path";
import { keepsForeignersOut } from "./foreign.mjs";
import { Hostile } from "./hostile.mjs";
import { Line, assert, browse, call, demo, end, look, show, until, visitor } from "./stage.mjs";

const { tokens } = demo;
const line = await Line.to(demo.admin);
const browser = await browse(line);
const page = await visitor(browser);
const asked = [];
page.on("request", (request) => asked.push(request));

const message = (text) => ({ jsonrpc: "2.0", id: 1, method: "message/send", params: { message: { role: "user", parts: [{ kind: "text", text }] } } });

/** A message of whoever has the token; the status and the reason, if it was refused. */
async function send(token, to) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const answer = await fetch(`${demo.public}/workspaces/${to}/a2a`, { method: "POST", headers, body: JSON.stringify(message("hello")) });
  const said = await answer.json();
  return { status: answer.status, reason: said.error?.data?.[0]?.reason ?? said.reason ?? null };
}

const visit = (view) => page.locator("#nav a", { hasText: view }).click();
const row = (list, text) => page.locator(`.${list} .body .row:not([hidden])`, { hasText: text }).first();
const stateOf = (id) => row("tree", id).locator(".state").textContent();
const dialog = page.locator("dialog");
const verdict = page.locator(".verdict");

/** Leaves the dialog. Chromium closes it at once, and tells the page with its next frame. */
async function cancel() {
  await dialog.locator("button", { hasText: "Cancel" }).click();
  await dialog.waitFor({ state: "detached" });
}

/** The page's half of its session. */
const halfOf = (on) => on.evaluate(() => sessionStorage.getItem("a2a-console-session"));

async function login(token, on = page) {
  await on.locator("input[name=token]").fill(token);
  await on.locator("text=Log in").last().click();
}

await show("a token that proves nothing is refused, an operator's is taken, and kept nowhere", async () => {
  await page.goto(demo.console);
  await look(page, "console-login");
  for (const wrong of ["nonsense", tokens["acme-pm"]]) {
    await login(wrong);
    await page.locator("#login .notice").waitFor();
    assert(await page.locator("#console").isHidden(), "the console is shown");
  }
  // The notice of the first stays until the second is answered.
  await page.locator("#login .notice", { hasText: "a workspace's token, and the console needs an admin token" }).waitFor();
  assert(await page.locator("#console").isHidden(), "the console is shown");
  await look(page, "console-refused");
  await login(tokens.operator);
  await page.locator(".problem", { hasText: "rival-night" }).locator(".state", { hasText: "○ offline" }).waitFor();
  await visit("Workspaces");
  await row("tree", "acme-pm").waitFor();
  await until(() => halfOf(page), "a session");
  const kept = await page.evaluate(() => [localStorage.length, document.cookie, location.href.includes("a2aa_"), JSON.stringify(sessionStorage).includes("a2aa_")]);
  assert(kept[0] === 0 && kept[1] === "" && !kept[2] && !kept[3], kept);
});

await show("the page is loaded again and shows the same, without the token", async () => {
  await page.evaluate(() => (location.hash = "#/workspaces/acme-pm"));
  await page.locator("h1", { hasText: "acme-pm" }).waitFor();
  for (let n = 0; n < 2; n += 1) {
    await page.reload();
    await page.locator(".panel", { hasText: "Tokens" }).locator("td").first().waitFor();
    assert(await page.locator("#login").isHidden(), "it asks for nothing");
  }
  const sent = await page.evaluate(async () => (await fetch("console/keys")).status);
  assert(sent === 401, `the cookie alone opens nothing: ${sent}`);
  // What is left here acts by the session, and the record has the operator's name.
  await page.locator("button", { hasText: "Pause" }).click();
  await dialog.locator("button", { hasText: "Pause" }).click();
  await page.locator("button", { hasText: "Resume" }).click();
  await dialog.locator("button", { hasText: "Resume" }).click();
  await page.locator("button", { hasText: "Pause" }).waitFor();
  await visit("Workspaces");
});

await show("every button of a workspace is in sight at 1440 by 900", async () => {
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.evaluate(() => (location.hash = "#/workspaces/acme-dev"));
  const revoke = page.locator("button[aria-label^='Revoke']").first();
  await revoke.scrollIntoViewIfNeeded();
  const { x, width } = await revoke.boundingBox();
  const panel = await page.locator(".panel", { hasText: "Tokens" }).last().boundingBox();
  assert(panel.x < x && x + width < panel.x + panel.width, { x, width, panel });
  await page.setViewportSize({ width: 1280, height: 800 });
  await visit("Workspaces");
});

await show("the tree is as deep as the hierarchy, and is walked by the keyboard", async () => {
  const depth = (id) => row("tree", id).getAttribute("data-depth");
  assert((await depth("acme-pm")) === "0" && (await depth("acme-dev")) === "1" && (await depth("acme-intern")) === "2", "depths");
  await page.locator(".tree .body").focus();
  await page.keyboard.press("ArrowDown");
  const first = await page.evaluate(() => document.activeElement.textContent);
  await page.keyboard.press("ArrowDown");
  const second = await page.evaluate(() => document.activeElement.textContent);
  assert(first === "acme-pm" && second === "acme-dev", [first, second]);
  await page.keyboard.press("Enter");
  await page.locator("h1", { hasText: "acme-dev" }).waitFor();
  await page.goBack();
  await row("tree", "acme-pm").waitFor();
});

await show("a workspace that goes offline is seen to", async () => {
  await page.locator(".tree .body").waitFor();
  await until(async () => (await stateOf("acme-qa")) === "● healthy", "it is healthy");
  await call("POST", "/registry/deregister", tokens["acme-qa"], { workspace_id: "acme-qa" });
  const since = Date.now();
  await until(async () => (await stateOf("acme-qa")) === "○ offline", "it is shown offline");
  console.log(`      seen ${Date.now() - since} ms after the answer`);
  assert(page.complaints.every((said) => /40[13]/.test(said)), page.complaints);
});

await show("messages are counted, and listed with what came of them", async () => {
  await visit("Calls");
  for (let n = 0; n < 5; n += 1) await send(tokens["acme-dev"], "acme-pm");
  await row("exchanges", "acme-dev → acme-pm").locator(".state", { hasText: "answered" }).waitFor();
  const cells = await row("exchanges", "acme-dev → acme-pm").locator("span[role=cell]").allTextContents();
  assert(cells[2] === "send_message" && cells[3] === "answered" && cells[5] === "200", cells);
  await row("exchanges", "acme-dev → acme-pm").locator("a").click();
  await page.locator(".call-panel summary", { hasText: "Record" }).waitFor();
  assert((await page.locator(".call-panel").textContent()).includes("acme-dev called acme-pm (send_message), and it answered with 200"), await page.locator(".call-panel").textContent());
  const link = page.url();
  assert(link.includes("request="), link);
  await look(page, "console-call");
  // The link shows the same, sent to a colleague.
  await page.reload();
  await page.locator(".call-panel .steps", { hasText: "admitted by rule child" }).waitFor();
  await page.locator(".call-panel button", { hasText: "Close" }).click();
  await visit("Workspaces");
  await until(async () => (await row("tree", "acme-pm").locator(".n").textContent()) === "5", "five a minute");
  await until(async () => (await row("tree", "acme-dev").locator(".sent").textContent()) === "5", "five a minute, sent");
});

await show("an open stream is counted for as long as it is open", async () => {
  let looking = true;
  const open = (async () => {
    while (looking) await send_stream();
  })();
  await until(async () => (await row("tree", "acme-dev").locator(".streams").textContent()) === "1", "one stream");
  looking = false;
  await open;
  await until(async () => (await row("tree", "acme-dev").locator(".streams").textContent()) === "0", "none any more");
});

async function send_stream() {
  const headers = { Authorization: `Bearer ${tokens["acme-pm"]}`, "Content-Type": "application/json", Accept: "text/event-stream" };
  const body = JSON.stringify({ ...message("plan the release"), method: "message/stream" });
  const answer = await fetch(`${demo.public}/workspaces/acme-dev/a2a`, { method: "POST", headers, body });
  return answer.text();
}

await show("a refusal leads to its explanation in two clicks, and a grant turns it", async () => {
  const refused = await send(tokens["rival-spy"], "acme-dev");
  assert(refused.reason === "NOT_PERMITTED", refused);
  await visit("Calls");
  await page.locator("select[aria-label=Result]").selectOption("denied");
  await row("exchanges", "rival-spy → acme-dev").locator("a").click();
  await page.locator(".call-panel a", { hasText: "Open in Explain" }).click();
  await verdict.locator("code", { hasText: "not_permitted" }).waitFor();
  await page.locator(".step[data-ok=false]", { hasText: "rule" }).waitFor();
  const facts = await page.locator(".step .facts").allTextContents();
  assert(facts.length > 5 && facts.every((text) => !/[{}[\]"]|true|false|null/.test(text)), facts);
  assert(await page.locator(".step", { hasText: "caller_place" }).locator(".facts > div", { hasText: "Org" }).filter({ hasText: "rival" }).isVisible(), facts);
  await look(page, "console-explain");
  await page.locator("button", { hasText: "Grant this access" }).click();
  await dialog.waitFor();
  await look(page, "console-grant");
  await dialog.locator("input[name=hours]").fill("nonsense");
  await dialog.locator("button", { hasText: "Grant" }).last().click();
  await dialog.locator(".notice").waitFor();
  const named = await dialog.locator(".notice").textContent();
  assert(named.includes("“Expires after” takes") && !named.includes("Reason"), named);
  assert((await page.evaluate(() => document.activeElement.name)) === "hours", "the field");
  await dialog.locator("input[name=hours]").fill("1");
  await dialog.locator("input[name=note]").fill("<b>for a test</b>");
  await dialog.locator("button", { hasText: "Grant" }).last().click();
  await page.locator(".verdict[data-tone=ok]").waitFor();
  assert((await send(tokens["rival-spy"], "acme-dev")).status === 200, "the grant is in force");
  await look(page, "console-explain-passes");
});

await show("an id that does not exist is called that, and nothing is granted to it", async () => {
  await page.evaluate(() => (location.hash = "#/explain?caller=acme-dev&target=acme-ghost"));
  await verdict.locator("strong", { hasText: "There is no workspace acme-ghost" }).waitFor();
  assert((await verdict.locator("button").count()) === 0, await verdict.textContent());
});

await show("one workspace in detail: nothing is paused by whoever changes their mind", async () => {
  await visit("Workspaces");
  await row("tree", "acme-pm").locator("a").click();
  await page.locator(".panel", { hasText: "Tokens" }).locator("td").first().waitFor();
  await page.locator(".panel", { hasText: "Recent refusals" }).last().locator("td, .nothing").first().waitFor();
  await look(page, "console-workspace");
  await page.locator("button", { hasText: "Pause" }).click();
  await look(page, "console-pause");
  await cancel();
  assert((await send(tokens["acme-dev"], "acme-pm")).status === 200, "it is not paused");
});

await show("pause and resume", async () => {
  await page.locator("button", { hasText: "Pause" }).click();
  await dialog.locator("button", { hasText: "Pause" }).click();
  await page.locator("button", { hasText: "Resume" }).waitFor();
  assert((await send(tokens["acme-dev"], "acme-pm")).reason === "WORKSPACE_OFFLINE", "it is paused");
  const focused = (word) => until(() => page.evaluate((word) => document.activeElement.textContent.startsWith(word), word), `the focus on ${word}`);
  await focused("Resume");
  await page.keyboard.press("Enter");
  await dialog.locator("button", { hasText: "Resume" }).click();
  await focused("Pause");
  await call("POST", "/workspaces/acme-pm/pause", tokens.operator);
  await page.evaluate(() => (location.hash = "#/explain?caller=acme-dev&target=acme-pm"));
  await verdict.locator("button", { hasText: "Resume" }).click();
  await dialog.locator("button", { hasText: "Resume" }).click();
  await page.locator(".verdict[data-tone=ok]").waitFor();
  const since = Date.now();
  await until(async () => (await send(tokens["acme-dev"], "acme-pm")).status === 200, "it answers again");
  console.log(`      answered ${Date.now() - since} ms after`);
});

await show("a workspace is stopped with a reason, and released", async () => {
  await page.evaluate(() => (location.hash = "#/workspaces/acme-pm"));
  await page.locator("button", { hasText: "Stop…" }).click();
  await cancel();
  assert((await send(tokens["acme-dev"], "acme-pm")).status === 200, "it is not stopped");
  await page.locator("button", { hasText: "Stop" }).click();
  await look(page, "console-stop");
  await dialog.locator("button", { hasText: "Stop" }).click();
  assert(await dialog.isVisible(), "it takes a reason");
  await dialog.locator("input[name=reason]").fill("it answers itself");
  await dialog.locator("button", { hasText: "Stop" }).click();
  await dialog.waitFor({ state: "detached" });
  assert((await send(tokens["acme-dev"], "acme-pm")).reason === "STOPPED", "it is stopped");
  await visit("Policy");
  const release = page.locator("button[aria-label='Release the stop of acme-pm']");
  await page.locator("td", { hasText: "it answers itself" }).waitFor();
  await look(page, "console-stops");
  await release.click();
  await dialog.locator("button", { hasText: "Release" }).click();
  await release.waitFor({ state: "detached" });
  assert((await send(tokens["acme-dev"], "acme-pm")).status === 200, "it is released");
});

await show("a token that is revoked is refused", async () => {
  await call("GET", "/registry/acme-intern/peers", tokens["acme-intern"]);
  await page.evaluate(() => (location.hash = "#/workspaces/acme-intern"));
  await page.locator("button[aria-label^='Revoke']").first().click();
  await dialog.locator("button", { hasText: "Revoke" }).click();
  await page.locator(".panel", { hasText: "It has no live token" }).waitFor();
  const refused = await fetch(`${demo.public}/registry/acme-intern/peers`, { headers: { Authorization: `Bearer ${tokens["acme-intern"]}` } });
  assert(refused.status === 401, refused.status);
});

await show("the audit is searched, and its chains are signed", async () => {
  await visit("Audit");
  await page.locator(".record").first().waitFor();
  await page.locator(".filters select").selectOption("TOKEN_REVOKED");
  await until(async () => {
    await page.locator(".filters button", { hasText: "Search" }).click();
    await page.locator(".records > :not([role=status])").first().waitFor();
    return (await page.locator(".record").count()) === 1;
  }, "the record of the revocation");
  const record = page.locator(".record");
  assert((await record.textContent()).match(/operator:? → acme-intern/), await record.textContent());
  await record.locator("summary").click();
  await record.locator("pre").waitFor();
  await until(async () => {
    await visit("System");
    await visit("Audit");
    await page.locator(".panel", { hasText: "Chains" }).last().locator("td, .nothing").first().waitFor();
    return (await page.locator(".panel td .state", { hasText: "signed" }).count()) > 0;
  }, "a chain whose end is signed");
  await page.locator(".record").first().waitFor();
  await look(page, "console-audit");
  const older = await page.locator(".record").count();
  assert(older > 3, older);
});

await show("of two questions the newer counts, whichever is answered last", async () => {
  const held = [];
  const slow = (pattern) => page.route(pattern, (route) => held.push(route));
  await slow(/\/audit\?event_type=TOKEN_REVOKED/);
  await page.locator(".filters select").selectOption("TOKEN_REVOKED");
  await page.locator(".filters button", { hasText: "Search" }).click();
  await until(() => held.length === 1, "the first is asked");
  await page.locator(".filters select").selectOption("GRANT_CREATED");
  await page.locator(".filters button", { hasText: "Search" }).click();
  await page.locator(".record", { hasText: "GRANT_CREATED" }).first().waitFor();
  // Let go now, it would come last; it was taken back.
  await held[0].continue().catch(() => {});
  await slow(/\/explain\?caller=operator/);
  await page.evaluate(() => (location.hash = "#/explain?caller=operator&target=acme-dev"));
  await until(() => held.length === 2, "the first is asked");
  await page.locator("input[name=caller]").fill("acme-pm");
  await page.locator("button", { hasText: "Explain" }).click();
  await page.locator(".ends", { hasText: "acme-pm → acme-dev" }).waitFor();
  await held[1].continue().catch(() => {});
  await page.waitForTimeout(300);
  assert((await page.locator(".ends").textContent()).startsWith("acme-pm"), "the newer one stays");
  await page.unrouteAll({ behavior: "ignoreErrors" });
});

await show("every grant is listed, and what is not is said", async () => {
  const grants = (from, to) => Array.from({ length: to - from }, (_, n) => ({ id: `g-${from + n}`, caller_id: "acme-dev", target_id: `t-${from + n}`, expires_at: null, note: null }));
  let endless = false;
  await page.route(/\/api\/grants\?/, (route) => {
    const asked = new URL(route.request().url()).searchParams;
    const from = Number(asked.get("cursor") ?? 0);
    const there = asked.has("caller_id") ? (endless ? 1e6 : 620) : 0;
    const to = Math.min(there, from + Number(asked.get("limit")));
    return route.fulfill({ json: { grants: grants(from, to), next_cursor: to < there ? String(to) : null } });
  });
  const open = () => page.evaluate(() => ((location.hash = "#/workspaces"), setTimeout(() => (location.hash = "#/workspaces/acme-dev"), 50)));
  const panel = page.locator(".panel", { hasText: "Grants" }).last();
  await open();
  await until(async () => (await panel.locator("tbody tr").count()) === 620, "all grants");
  endless = true;
  await open();
  await panel.locator(".notice", { hasText: "GET /grants?caller_id=acme-dev&cursor=2000" }).waitFor();
  assert((await panel.locator("tbody tr").count()) === 2_000, "as many as are shown");
  await page.unrouteAll({ behavior: "ignoreErrors" });
});

await show("what is being done is not done twice, and absurd hours are told before anything is sent", async () => {
  const sent = [];
  await page.route(/\/api\/grants$/, (route) => sent.push(route));
  await page.evaluate(() => (location.hash = "#/workspaces/acme-qa"));
  await page.locator(".panel button", { hasText: "Grant access…" }).click();
  await dialog.locator("input[name=target_id]").fill("rival-spy");
  for (const [hours, words] of [["99999999999", "at most 87600 hours"], ["0.0001", "a minute at least"], ["1e3", "a number of hours"]]) {
    await dialog.locator("input[name=hours]").fill(hours);
    await dialog.locator("button[type=submit]").click();
    await dialog.locator(".notice", { hasText: words }).waitFor();
  }
  assert(sent.length === 0, "nothing is sent");
  await dialog.locator("input[name=hours]").fill("2");
  await dialog.locator("button[type=submit]").click();
  await until(() => sent.length === 1, "it is sent");
  for (const key of ["Enter", "Escape", "Escape"]) await page.keyboard.press(key);
  await page.evaluate(() => document.querySelector("dialog form").requestSubmit());
  await page.waitForTimeout(200);
  assert(sent.length === 1 && (await dialog.isVisible()), "once, and the dialog waits for it");
  await sent[0].fulfill({ status: 400, headers: { "x-a2a-refused": "invalid_params" }, json: { error: "the target is another", reason: "invalid_params", request_id: "r" } });
  await dialog.locator(".notice", { hasText: "The target is another" }).waitFor();
  await cancel();
  await page.unrouteAll({ behavior: "ignoreErrors" });
  await visit("Audit");
});

await show("keys are rotated", async () => {
  await visit("System");
  await page.locator(".panel", { hasText: "Trust keys" }).locator("td").first().waitFor();
  const active = await page.locator("tr", { hasText: "active" }).locator("code").textContent();
  await page.locator("button", { hasText: "Rotate" }).click();
  await dialog.locator("button", { hasText: "Rotate" }).click();
  await page.locator("tr", { hasText: "retired" }).locator("code", { hasText: active }).waitFor();
  await page.locator(".panel", { hasText: "Configuration" }).locator("dd").first().waitFor();
  await look(page, "console-gateway");
});

await show("markup is text, wherever it comes from", async () => {
  const hostile = await Hostile.join();
  const { token } = await call("POST", "/canvas/tokens", tokens.operator, { user: "<img src=x onerror=alert(1)>", org: "acme" });
  await send(token, "hostile").catch(() => {});
  await send(token, "rival-spy");
  await visit("Workspaces");
  await row("tree", "<img src=x").waitFor();
  await look(page, "console-markup");
  await row("tree", "<img src=x").locator("a").click();
  await page.locator("pre").waitFor({ state: "attached" });
  await page.locator("summary", { hasText: "All of it" }).click();
  await look(page, "console-markup-workspace");
  await visit("Calls");
  await row("exchanges", "canvas:<img src=x onerror=alert(1)>").waitFor();
  await page.evaluate(() => (location.hash = "#/explain?caller=%3Cb%3Ex%3C/b%3E&target=%3Cimg%20src=x%3E"));
  await page.locator(".answer .notice, .verdict").first().waitFor();
  await page.evaluate(() => (location.hash = "#/workspaces/%3Cimg%20src=x%20onerror=alert(1)%3E"));
  await page.locator(".panels .notice").waitFor();
  await look(page, "console-no-workspace");
  const done = await page.evaluate(() => [document.images.length, document.querySelectorAll("script:not([src])").length, globalThis.pwned ?? null]);
  assert(done[0] === 0 && done[1] === 0 && done[2] === null, done);
  await hostile.leave();
});

await show("what is shown survives a line that breaks", async () => {
  await visit("Workspaces");
  await page.locator("#link[data-tone=ok]").waitFor();
  line.cut();
  await page.locator("#link", { hasText: "reconnecting" }).waitFor();
  await look(page, "console-cut");
  line.mend();
  await page.locator("#link[data-tone=ok]").waitFor();
  await row("tree", "acme-pm").waitFor();
});

await show("a foreign page neither frames nor runs it, and asks it nothing", async () => {
  await keepsForeignersOut(browser, demo.console, "console.js");
  const bearer = { Authorization: `Bearer ${tokens.operator}` };
  for (const path of ["/console/feed", "/api/grants", "/audit"]) {
    const foreign = await fetch(`${demo.admin}${path}`, { headers: { ...bearer, Origin: "http://elsewhere.example" } });
    assert(foreign.status === 403 && (await foreign.json()).reason === "origin_forbidden", path);
  }
  for (const [method, path] of [["GET", "/console/feed"], ["GET", "/api/grants"], ["POST", "/api/workspaces/acme-pm/pause"], ["POST", "/console/keys/rotate"]]) {
    const nobody = await fetch(`${demo.admin}${path}`, { method });
    assert(nobody.status === 401, `${method} ${path}: ${nobody.status}`);
    const agent = await fetch(`${demo.admin}${path}`, { method, headers: { Authorization: `Bearer ${tokens["acme-pm"]}` } });
    assert(agent.status === 403, `${method} ${path}: ${agent.status}`);
  }
});

if (process.env.A2A_PAGES_IMAGES) {
  await show("the picture of the README is made", async () => {
    for (let n = 0; n < 8; n += 1) {
      await Promise.all([send(tokens["acme-dev"], "acme-pm"), send(tokens["rival-spy"], "acme-pm"), send(tokens["acme-pm"], "acme-dev")]);
    }
    await visit("Overview");
    await page.locator(".overview .wide tbody tr").nth(1).waitFor();
    await page.mouse.move(640, 5);
    await page.emulateMedia({ colorScheme: "light" });
    await page.screenshot({ path: join(import.meta.dirname, "../../docs/images/console.png") });
  });
}

await show("whoever is logged out since the token was replaced is told so", async () => {
  const user = await visitor(browser);
  await user.goto(demo.console);
  await login(tokens.operator, user);
  await user.locator(".attention").waitFor();
  await user.route(/\/audit\?/, (route) => route.fulfill({ status: 401, headers: { "x-a2a-refused": "unauthenticated" }, json: { error: "the token is not known", reason: "unauthenticated", request_id: "r" } }));
  await user.locator("#nav a", { hasText: "Audit" }).click();
  await user.locator("#login .notice", { hasText: "You have been logged out" }).waitFor();
  await user.context().close();
});

await show("a page whose session has ended asks for the token, and says why", async () => {
  const user = await visitor(browser);
  await user.goto(demo.console);
  await login(tokens.operator, user);
  await user.locator(".attention").waitFor();
  await until(() => halfOf(user), "a session");
  await user.context().clearCookies();
  await user.reload();
  await user.locator("#login .notice", { hasText: "Your session has ended" }).waitFor();
  assert((await halfOf(user)) === null, "its half is forgotten");
  await look(user, "console-session-over");
  await user.context().close();
});

await show("logging out forgets all of it", async () => {
  await page.evaluate(() => (location.hash = "#/workspaces/acme-pm"));
  await page.locator("button", { hasText: "Pause" }).click();
  await dialog.waitFor();
  // By keyboard nobody gets there behind a dialog; a token that is over does.
  await page.evaluate(() => document.getElementById("leave").click());
  await until(async () => (await dialog.count()) === 0, "the dialog is gone");
  await page.locator("input[name=token]").waitFor();
  await login(tokens.operator);
  await page.locator("h1", { hasText: "acme-pm" }).or(page.locator(".attention")).first().waitFor();
  const half = await until(() => halfOf(page), "a session");
  const [cookie] = (await page.context().cookies()).map(({ name, value }) => `${name}=${value}`);
  const asked = () => fetch(`${demo.admin}/console/keys`, { headers: { Cookie: cookie, "X-A2A-Session": half } });
  assert((await asked()).status === 200, "the session is open");
  await page.locator("#leave").click();
  await page.locator("input[name=token]").waitFor();
  assert(!(await page.locator("body").innerText()).includes("acme"), "nothing is left");
  await until(async () => (await asked()).status === 401, "the session has ended at the gateway");
  await page.reload();
  await page.locator("input[name=token]").waitFor();
  assert((await halfOf(page)) === null && (await page.context().cookies()).length === 0, "neither half is left");
});

await show("nothing was asked of anybody else, and only the gateway's refusals were complained of", async () => {
  const elsewhere = asked.map((request) => request.url()).filter((url) => !url.startsWith(demo.console));
  assert(elsewhere.length === 0, elsewhere);
  const others = page.complaints.filter((said) => !/status of (400|401|403|404)|ERR_CONNECTION|ERR_SOCKET|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE/.test(said));
  assert(others.length === 0, others);
});

await end(browser);
