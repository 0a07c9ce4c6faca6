// What every page shares: its task from the test, and the way back for what it found.

/** What the test wants: { gateway, token, … }. */
export async function task() {
  return (await fetch("/task")).json();
}

/** Runs each step by name, one after another, and posts { name: result }. A step that throws is { error }. */
export async function report(steps) {
  const findings = {};
  for (const [name, step] of Object.entries(steps)) {
    try {
      findings[name] = await step();
    } catch (error) {
      findings[name] = { error: `${error.name}: ${error.message}` };
    }
  }
  await fetch("/findings", { method: "POST", body: JSON.stringify(findings) });
}

/** What a page can see of an answer. */
export async function seen(answer) {
  const text = await answer.text();
  let body = text;
  try {
    body = JSON.parse(text);
  } catch {}
  return { status: answer.status, type: answer.type, fields: Object.fromEntries(answer.headers), body };
}

/** Waits, so that the test sees what came one after another. */
export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** A bare A2A message: the gateway makes a call of it. */
export const message = (text) => JSON.stringify({ message: { text } });
