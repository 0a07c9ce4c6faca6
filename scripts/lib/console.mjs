// The console's page under load: how soon it is painted, and how long its longest frame takes. Started by console.py.

import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";

const { CONSOLE, TOKEN, WORKSPACES, PAGES_PACKAGES } = process.env;
const require = createRequire(join(PAGES_PACKAGES, "package.json"));
const { chromium } = require("playwright-core");

const SECONDS = 10;
const executablePath = execFileSync("sh", ["-c", "command -v chromium"]).toString().trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });

await page.goto(CONSOLE);
const loaded = await page.evaluate(() => performance.getEntriesByType("paint").find(({ name }) => name === "first-contentful-paint")?.startTime);
await page.fill("input[name=token]", TOKEN);
// From the click to the frame in which the first and, a moment later, all workspaces are there.
const [rows, all] = await page.evaluate(async (wanted) => {
  const began = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  document.querySelector("#login form button").click();
  while (!document.querySelector(".tree .body .row a")) await frame();
  const rows = performance.now() - began;
  while (!document.querySelector(".tools [role=status]")?.textContent.startsWith(wanted)) await frame();
  return [rows, performance.now() - began];
}, Number(WORKSPACES).toLocaleString("en"));

/** Scrolls for a while, and tells how long frames took. */
async function frames(list) {
  return page.evaluate(
    async ([list, seconds]) => {
      const body = document.querySelector(`.${list} .body`);
      const gaps = [];
      let before = performance.now();
      const end = before + seconds * 1000;
      while (before < end) {
        const now = await new Promise(requestAnimationFrame);
        body.scrollTop = (body.scrollTop + 90) % Math.max(1, body.scrollHeight - body.clientHeight);
        gaps.push(now - before);
        before = now;
      }
      gaps.sort((one, other) => one - other);
      return { count: gaps.length, p50: gaps[Math.floor(gaps.length / 2)], p99: gaps[Math.floor(gaps.length * 0.99)], longest: gaps.at(-1) };
    },
    [list, SECONDS],
  );
}

const ms = (n) => `${n.toFixed(0)} ms`;
console.log(`  page painted ${ms(loaded)} after it was asked for; after the login first rows ${ms(rows)}, all workspaces ${ms(all)}`);
await page.waitForTimeout(3000);
for (const [view, list] of [["Workspaces", "tree"], ["Exchanges", "exchanges"]]) {
  await page.locator("#nav a", { hasText: view }).click();
  await page.locator(`.${list} .body .row`).first().waitFor();
  const { count, p50, p99, longest } = await frames(list);
  console.log(`  ${view}, scrolled for ${SECONDS} s: ${count} frames, p50 ${ms(p50)}, p99 ${ms(p99)}, longest ${ms(longest)}`);
}
const heap = await page.evaluate(() => performance.memory.usedJSHeapSize);
console.log(`  the page's memory: ${(heap / 1048576).toFixed(1)} MiB`);
await browser.close();
