// What a page from elsewhere tries with one of the gateway's: to frame it, to hold it, to read it, to run it.

import { createServer } from "node:http";
import { assert, until, visitor } from "./stage.mjs";

/** Opens a foreign page that tries everything on `target` (a page of the gateway), and asserts that nothing works. */
export async function keepsForeignersOut(browser, target, script) {
  const server = createServer((request, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end("<!doctype html><title>elsewhere</title><p>elsewhere</p>");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  // Of another site by its name, and of the same site on another port.
  for (const host of ["localhost", "127.0.0.1"]) {
    const page = await visitor(browser);
    await page.goto(`http://${host}:${server.address().port}/`);
    await framed(page, target);
    await scripted(page, target, script);
    await opened(page, target);
    await page.context().close();
  }
  server.close();
}

/** In a frame is the browser's word that it was not let in, or the gateway's; nothing of the page. */
async function framed(page, target) {
  await page.evaluate((src) => document.body.append(Object.assign(document.createElement("iframe"), { src })), target);
  const isThere = (frame) => frame !== page.mainFrame() && !["", "about:blank"].includes(frame.url());
  const frame = await until(() => page.frames().find(isThere), "a frame");
  const look = () => ({ isReady: document.readyState === "complete", elements: document.querySelectorAll("main, script").length, text: document.body?.innerText });
  const { elements, text } = await until(async () => {
    const seen = await frame.evaluate(look).catch(() => null);
    return seen?.isReady && seen;
  }, "what it shows");
  const isRefused = frame.url().startsWith("chrome-error:") || JSON.parse(text).reason === "origin_forbidden";
  assert(isRefused && (elements === 0 || frame.url().startsWith("chrome-error:")), `in a frame: ${frame.url()} ${text}`);
}

/** Its scripts run nowhere else, and its files are read by nobody else. */
async function scripted(page, target, script) {
  const found = await page.evaluate(
    async ([target, script]) => {
      const tried = (promise) => promise.then(() => "worked", () => "kept");
      const tag = (type) =>
        new Promise((resolve, reject) => {
          const element = Object.assign(document.createElement("script"), { src: new URL(script, target).href, type, onload: resolve, onerror: reject });
          document.head.append(element);
        });
      return {
        read: await tried(fetch(target)),
        module: await tried(import(new URL(script, target).href)),
        tag: await tried(tag("module")),
        plain: await tried(tag("text/javascript")),
      };
    },
    [target, script],
  );
  assert(Object.values(found).every((result) => result === "kept"), found);
}

/** In a window of its own it can be visited, but the page that opened it holds nothing of it. */
async function opened(page, target) {
  const [window] = await Promise.all([
    page.context().waitForEvent("page"),
    page.evaluate((url) => {
      globalThis.held = open(url);
    }, target),
  ]);
  await window.waitForLoadState();
  assert(window.url().startsWith(target), window.url());
  const [held, opener] = [await page.evaluate(() => globalThis.held.closed), await window.evaluate(() => globalThis.opener === null)];
  assert(held && opener, `held: ${!held}, opener: ${!opener}`);
}
