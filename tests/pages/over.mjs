// Clearing a conversation of the canvas while an answer is awaited. A part of canvas.mjs.

import { assert, call, demo, look, show, until } from "./stage.mjs";

const { tokens } = demo;

/** What an agent says of a task. */
async function stateAt(id, task) {
  const asked = { jsonrpc: "2.0", id: 1, method: "tasks/get", params: { id: task } };
  const { result, error } = await call("POST", `/workspaces/${id}/a2a`, tokens.canvas, asked);
  return result?.status.state ?? JSON.stringify(error);
}

/** `page`: a canvas; `choose`, `say`, `reaches` and `working` as its script has them. */
export async function startsOver({ page, choose, say, reaches, working }) {
  const answers = page.locator(".turn:not(.said)");
  const last = answers.last();
  const taskOf = async () => (await last.locator(".turn-end .mono").textContent()).replace("task ", "");
  const startOver = page.locator("#afresh");
  const clear = async () => {
    await startOver.click();
    await page.locator("dialog button.danger").click();
  };

  await show("starting over cancels what is waited for, at an agent that polls and at one that streams", async () => {
    for (const [id, text, state] of [["acme-intern", "and now?", "waiting"], ["acme-dev", "plan the release", "working"]]) {
      await choose(id);
      await say(text);
      if (state === "working") await working.begins();
      await reaches(state);
      const task = await taskOf();
      // It asks before anything is lost, and Escape loses nothing.
      await startOver.click();
      await page.locator("dialog", { hasText: "What its agent is working on is cancelled" }).waitFor();
      if (state === "working") await look(page, "canvas-clear");
      await page.keyboard.press("Escape");
      assert((await page.locator("dialog").count()) === 0 && (await taskOf()) === task, "it is as it was");
      await clear();
      await page.locator("#log .empty").waitFor();
      await until(async () => (await stateAt(id, task)) === "canceled", `the task of ${id} is canceled`);
      assert(await startOver.isDisabled(), "nothing is left");
      // What the one before had still to say is not heard in the new conversation, which can begin at once.
      assert((await answers.count()) === 0, await page.locator("#log").textContent());
    }
    await say("once more");
    await working.begins();
    working.step();
    await reaches("completed");
    // Nothing is in progress: nothing is cancelled.
    await startOver.click();
    await page.locator("dialog", { hasText: "2 turns are gone for good." }).waitFor();
    assert(!(await page.locator("dialog").textContent()).includes("cancelled"), "what it says");
    await page.keyboard.press("Escape");
  });

  await show("what cannot be cancelled is told of", async () => {
    await say("plan the release");
    await working.begins();
    await reaches("working");
    const task = await taskOf();
    const refused = { status: 503, headers: { "x-a2a-refused": "store_unavailable" }, json: { error: "a store is away", reason: "store_unavailable", request_id: "r-3" } };
    await page.route(/\/a2a/, (route) => (route.request().postData()?.includes("CancelTask") ? route.fulfill(refused) : route.continue()));
    await clear();
    await page.locator("#log", { hasText: `The task ${task} was not cancelled` }).locator("code", { hasText: "store_unavailable" }).waitFor();
    await look(page, "canvas-not-cancelled");
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await clear();
  });
}
