// The states of workspaces and the results of calls, as the server decides them: their words, colours and shapes.

/** By state: the word, the tone, and a shape, so that colour says nothing alone. */
export const STATES = {
  stopped: ["stopped", "bad", "■"],
  failing: ["failing", "bad", "▲"],
  offline: ["offline", "bad", "○"],
  busy: ["busy", "warn", "◆"],
  paused: ["paused", "warn", "‖"],
  never_seen: ["waiting for its agent", "none", "–"],
  asleep: ["asleep", "none", "☾"],
  healthy: ["healthy", "ok", "●"],
};

/** The results of calls, in the order in which the gateway counts them. */
export const RESULTS = ["answered", "agent_failed", "gateway_failed", "denied", "rejected", "left"];

/** By result: the word and the tone. */
export const RESULT_WORDS = {
  answered: ["answered", "ok"],
  agent_failed: ["failed by agent", "bad"],
  gateway_failed: ["failed by gateway", "bad"],
  denied: ["denied", "warn"],
  rejected: ["rejected", "warn"],
  left: ["caller left", "none"],
};

const stateOf = (state) => STATES[state] ?? [state ?? "…", "none", "–"];

/** Puts a state into a pill. */
export function setState(pill, state) {
  const [word, tone, shape] = stateOf(state);
  const text = `${shape} ${word}`;
  if (pill.textContent !== text) pill.textContent = text;
  if (pill.dataset.tone !== tone) pill.dataset.tone = tone;
  pill.dataset.shape = "";
}

/** The word of a state. */
export const wordOf = (state) => stateOf(state)[0];
