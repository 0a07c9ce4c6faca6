// What every script here needs: the demo that the test started, a browser, a line to the gateway that can be cut, and eyes.
// A script says what it shows with `show`, and ends with `end`.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";
import { join } from "node:path";

const require = createRequire(join(process.env.PAGES_PACKAGES, "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** How long anything may take to be seen, in milliseconds, on a busy machine. */
export const PATIENCE = 60_000;

/** The demo, by what it printed: `public`, `admin`, `canvas` (addresses), `tokens` by name. */
export const demo = (() => {
  const lines = process.env.PAGES_DEMO.split("\n");
  const after = (label) => lines.find((line) => line.trim().startsWith(label))?.trim().split(/\s+/).at(-1);
  const rows = lines.slice(lines.findIndex((line) => line.startsWith("Tokens")) + 1);
  const tokens = rows.map((row) => row.trim().split(/\s+/)).filter((row) => row.length === 2);
  return {
    public: after("callers and agents"),
    admin: after("metrics and health"),
    canvas: after("canvas in a browser"),
    console: after("console in a browser"),
    tokens: Object.fromEntries(tokens),
  };
})();

/** One call of the gateway's HTTP interface as whoever has `token`; the body of the answer. */
export async function call(method, path, token, body, base = demo.public) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const answer = await fetch(`${base}${path}`, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

/**
 * The line between browser and gateway, which can be cut in the middle of everything. The browser believes that its port is
 * the gateway's (`browse`), whose name for itself has the port in it.
 */
export class Line {
  #sockets = new Set();
  #cut = false;

  static async to(url) {
    const line = new Line();
    const { hostname, port } = new URL(url);
    const server = createServer((near) => line.#join(near, connect(Number(port), hostname)));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    server.unref();
    line.rule = `MAP ${hostname}:${port} 127.0.0.1:${server.address().port}`;
    return line;
  }

  #join(near, far) {
    for (const socket of [near, far]) {
      this.#sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        this.#sockets.delete(socket);
        near.destroy();
        far.destroy();
      });
    }
    if (this.#cut) return near.destroy();
    near.pipe(far);
    far.pipe(near);
  }

  /** Breaks every connection, and takes none until `mend`. */
  cut() {
    this.#cut = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend() {
    this.#cut = false;
  }
}

const failures = [];
/** What went wrong in any page, for whoever looks for the cause of a failure. */
const complaints = [];

/** Runs one step, says how it went, and goes on with the next. */
export async function show(what, step) {
  const started = Date.now();
  try {
    await step();
    console.log(`ok    ${what} (${Date.now() - started} ms)`);
  } catch (error) {
    console.log([`FAIL  ${what}`, error.stack, ...complaints.splice(0)].join("\n"));
    failures.push(what);
  }
}

/** Ends the process; not well, if a step failed. */
export async function end(browser) {
  await browser.close();
  if (failures.length > 0) console.error(`failed: ${failures.join("; ")}`);
  process.exit(failures.length === 0 ? 0 : 1);
}

export function assert(holds, what) {
  if (!holds) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
}

/** Waits until `read` gives something true, and gives that. */
export async function until(read, what, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  for (;;) {
    const found = await read();
    if (found) return found;
    assert(Date.now() < deadline, `not within ${patience} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Debian's chromium, at the near end of a line. */
export async function browse(line) {
  const executablePath = execFileSync("sh", ["-c", "command -v chromium"]).toString().trim();
  // The tests may run as root in a container, where its sandbox cannot.
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"];
  if (line) args.push(`--host-resolver-rules=${line.rule}`);
  return chromium.launch({ executablePath, args });
}

/** A page of a new user, who complains of everything that goes wrong in it into `complaints`. */
export async function visitor(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.complaints = [];
  const complain = (text) => [page.complaints, complaints].forEach((list) => list.push(text));
  page.on("pageerror", (error) => complain(String(error)));
  page.on("console", (message) => message.type() === "error" && complain(message.text()));
  return page;
}

const THEMES = ["light", "dark"];
const SIZES = [
  { width: 1440, height: 900 },
  { width: 1280, height: 800 },
  { width: 390, height: 844 },
];

/**
 * Looks at what a page shows now, in both themes and at all sizes: leaves a screenshot of each, and complains of what
 * axe-core finds serious, of text that is cut, of a page that is wider than its window, of what scrolls sideways, and of
 * buttons that cannot be reached without that.
 */
export async function look(page, name) {
  const folder = process.env.PAGES_SEEN;
  mkdirSync(folder, { recursive: true });
  const before = page.viewportSize();
  const found = [];
  for (const colorScheme of THEMES) {
    for (const size of SIZES) {
      const { width } = size;
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.setViewportSize(size);
      await page.waitForTimeout(150);
      await page.screenshot({ path: join(folder, `${name}-${colorScheme}-${width}.png`) });
      const where = `${name}, ${colorScheme}, ${width}`;
      found.push(...(await judged(page)).map((finding) => `${where}: ${finding}`));
    }
  }
  await page.setViewportSize(before);
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  assert(found.length === 0, found.join("\n"));
}

async function judged(page) {
  // By the debugger: the page's own policy lets no script in that is not the gateway's.
  const session = await page.context().newCDPSession(page);
  const run = async (expression) => {
    const options = { expression, awaitPromise: true, returnByValue: true, allowUnsafeEvalBlockedByCSP: true };
    const { result, exceptionDetails } = await session.send("Runtime.evaluate", options);
    assert(!exceptionDetails, exceptionDetails?.exception?.description);
    return result.value;
  };
  await run(`if (!window.axe) { ${axe} }; null`);
  const { violations } = await run(`axe.run(document, { resultTypes: ["violations"] })`);
  const cut = [...(await run(`(${whatIsCut})()`)), ...(await run(`(${whatIsOutOfReach})()`))];
  await session.detach();
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return [...serious.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary}`)), ...cut];
}

/** Runs in the page: what is wider than the place it has. */
function whatIsCut() {
  const found = [];
  const { clientWidth, scrollWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.push(`the page is ${scrollWidth} wide in ${clientWidth}`);
  for (const element of document.querySelectorAll("body *")) {
    const { overflowX, textOverflow, display } = getComputedStyle(element);
    const { width, height, left, right } = element.getBoundingClientRect();
    if (width <= 1 || height === 0 || display === "inline") continue;
    const said = `${element.tagName} ${element.className} "${element.textContent.trim().slice(0, 40)}"`;
    // What ends in "…" is meant to, and what scrolls can be scrolled to.
    const cut = element.scrollWidth > element.clientWidth + 1 && overflowX !== "auto" && overflowX !== "scroll" && textOverflow !== "ellipsis";
    if (cut && element.clientWidth > 0) found.push(`cut: ${said}: ${element.scrollWidth} in ${element.clientWidth}`);
    const scrolls = element.closest("[data-scrolls]");
    if (!scrolls && (left < -1 || right > clientWidth + 1)) found.push(`outside: ${said}: ${left} to ${right}`);
  }
  return found;
}

/** Runs in the page: what scrolls sideways, and the controls that are to the side of what is shown. Code may scroll. */
function whatIsOutOfReach() {
  const said = (element) => `${element.tagName} ${element.className} "${element.textContent.trim().slice(0, 40)}"`;
  const found = [];
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  for (const element of document.querySelectorAll("body *")) {
    if (element.tagName === "PRE" || element.clientWidth <= 1 || !scrolls(element)) continue;
    if (element.scrollWidth > element.clientWidth + 1) found.push(`scrolls sideways: ${said(element)}: ${element.scrollWidth} in ${element.clientWidth}`);
  }
  for (const control of document.querySelectorAll("button, a[href], input, select, textarea, summary")) {
    const { left, right, width, height } = control.getBoundingClientRect();
    if (width === 0 || height === 0 || control.closest(".spoken") || !control.checkVisibility()) continue;
    for (let around = control.parentElement; around; around = around.parentElement) {
      if (getComputedStyle(around).overflowX === "visible") continue;
      const box = around.getBoundingClientRect();
      // A name that ends in an ellipsis is reached by what is shown of it.
      if (getComputedStyle(around).textOverflow === "ellipsis" && left < box.right) break;
      if (left < box.left - 1 || right > box.right + 1) found.push(`out of reach: ${said(control)}: ${left} to ${right} in ${box.left} to ${box.right}`);
    }
  }
  return found;
}
