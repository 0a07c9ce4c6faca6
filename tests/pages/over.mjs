// Starting over in the canvas while an answer is awaited. A part of canvas.mjs.

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

  await show("starting over cancels what is waited for, at an agent that polls and at one that streams", async () => {
    for (const [id, text, state] of [["acme-intern", "and now?", "waiting"], ["acme-dev", "plan the release", "working"]]) {
      await choose(id);
      await say(text);
      if (state === "working") await working.begins();
      await reaches(state);
      assert((await startOver.isEnabled()) && (await startOver.textContent()) === "Cancel and start over", id);
      const task = await taskOf();
      await startOver.click();
      await page.locator("#log .empty").waitFor();
      await until(async () => (await stateAt(id, task)) === "canceled", `the task of ${id} is canceled`);
      assert((await startOver.textContent()) === "Start over" && (await startOver.isDisabled()), "nothing is left");
      // What the one before had still to say is not heard in the new conversation, which can begin at once.
      assert((await answers.count()) === 0, await page.locator("#log").textContent());
    }
    await say("once more");
    await working.begins();
    working.step();
    await reaches("completed");
    // Nothing is in progress: nothing is cancelled.
    assert((await startOver.textContent()) === "Start over", "its name");
  });

  await show("what cannot be cancelled is told of", async () => {
    await say("plan the release");
    await working.begins();
    await reaches("working");
    const task = await taskOf();
    const refused = { status: 503, headers: { "x-a2a-refused": "store_unavailable" }, json: { error: "a store is away", reason: "store_unavailable", request_id: "r-3" } };
    await page.route(/\/a2a/, (route) => (route.request().postData()?.includes("CancelTask") ? route.fulfill(refused) : route.continue()));
    await startOver.click();
    await page.locator("#log", { hasText: `The task ${task} was not cancelled` }).locator("code", { hasText: "store_unavailable" }).waitFor();
    await look(page, "canvas-not-cancelled");
    await page.unrouteAll({ behavior: "ignoreErrors" });
    await startOver.click();
  });
}
