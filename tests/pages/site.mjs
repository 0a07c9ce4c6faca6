// The site of the documents, served from a folder of a host as Git hosts do: it loads nothing that is not there, and its
// search finds pages.

import { mkdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { assert, browse, end, show, until, visitor } from "./stage.mjs";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const PREFIX = "/a2a-gateway/";

const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://site").pathname);
  try {
    assert(path.startsWith(PREFIX), "outside of the site");
    const file = join(process.env.SITE, normalize(path.slice(PREFIX.length - 1)));
    const body = readFileSync(file);
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
server.unref();
const base = `http://127.0.0.1:${server.address().port}${PREFIX}`;

const browser = await browse();
const page = await visitor(browser);
const seen = (name) => page.screenshot({ path: join(process.env.PAGES_SEEN, `site-${name}.png`) });
mkdirSync(process.env.PAGES_SEEN, { recursive: true });

/** Opens the search and types a word, key by key: mdBook searches at each key, and again when its index is there. */
async function search(word, found) {
  await page.goto(`${base}docs/README.html`);
  await page.keyboard.press("/");
  await page.locator("input[type=search]").pressSequentially(word);
  await found.waitFor();
}

await show("the first page is the README, and lists the guide and the reference", async () => {
  await page.goto(`${base}index.html`);
  assert((await page.locator("main h1").first().innerText()) === "a2a-gateway", "another heading");
  const listed = await page.locator(".sidebar a").evaluateAll((links) => links.map((link) => link.href));
  for (const wanted of ["docs/guide/install", "docs/reference/reasons", "docs/reference/settings", "ARCHITECTURE"]) {
    assert(listed.includes(`${base}${wanted}.html`), `no ${wanted} in ${listed}`);
  }
  await seen("first");
});

await show("a search finds the page about a word, and leads to it", async () => {
  for (const [word, folder, name] of [
    ["idempotency", "docs/guide", "reliable-calls"],
    ["workspace_offline", "docs/guide", "find-out-why-a-call-failed"],
    ["kill switch", "docs/guide", "stop-a-runaway-agent"],
  ]) {
    const file = `${folder}/${name}.html`;
    const found = page.locator(`#mdbook-searchresults a[href*="/${name}.html"]`).first();
    await search(word, found);
    await seen(`search-${word}`);
    await found.click();
    await until(() => page.url().startsWith(base + file), `${file} in ${page.url()}`);
    assert((await page.locator("main").innerText()).includes(word), `${file} does not say ${word}`);
  }
});

await show("a search finds what the field calls it", async () => {
  for (const [words, name] of [
    ["rate limit", "http-api"],
    ["langgraph", "connect-an-agent"],
    ["crewai", "connect-an-agent"],
    ["docker", "deploy"],
    ["kubernetes", "run-on-kubernetes"],
    ["quota", "budget-a-run"],
    ["SSO", "who-may-operate"],
    ["audit log", "audit"],
    ["429", "reasons"],
    ["load balancer", "deploy"],
    ["backup", "maintenance"],
  ]) {
    await search(words, page.locator(`#mdbook-searchresults a[href*="/${name}.html"]`).first());
  }
});

await show("a search for a word that no page has finds nothing", async () => {
  await search("zyzzyva", page.getByText("No search results"));
});

await show("the description of the API can be loaded down", async () => {
  await page.goto(`${base}docs/README.html`);
  const answer = await fetch(await page.locator('main a[href$="openapi.yaml"]').first().evaluate((link) => link.href));
  assert(answer.ok && (await answer.text()).startsWith("openapi: 3"), `${answer.status}`);
});

await show("llms.txt lists pages that are there as Markdown", async () => {
  const list = await (await fetch(`${base}llms.txt`)).text();
  const links = [...list.matchAll(/\]\((.+?)\)/g)].map((link) => link[1]);
  assert(links.includes("docs/guide/install.md"), list);
  for (const link of links) {
    const answer = await fetch(base + link);
    assert(answer.ok && (await answer.text()).startsWith("# "), `${link}: ${answer.status}`);
  }
});

await show("an old address leads to the section that took its place", async () => {
  await page.goto(`${base}docs/guide/join-in-three-lines.html#what-happens-then`);
  await until(() => page.url().endsWith("/connect-an-agent.html#what-the-packages-do"), page.url());
});

await show("no page asked for what is not there", async () => {
  assert(page.complaints.length === 0, page.complaints);
});

await end(browser);
