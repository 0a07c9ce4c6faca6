// The text that a user sees for an error, and what to do about it. docs/reference/reasons.md has all reasons of the
// gateway; those below can occur in a canvas.

import { Cut, Left } from "./cut.js";
import { Refusal } from "./refusal.js";

const ADVICE = {
  unauthenticated: "Your token has expired or is not known. Get a new one, and sign in with that.",
  not_permitted: "Your token does not reach this workspace. Ask an operator for one that does.",
  workspace_not_found: "It was removed or renamed. Choose another one.",
  workspace_removed: "It was removed. Choose another one.",
  workspace_offline: "Its agent is away. Wait until the list shows it online, then send again.",
  workspace_restarting: "Its agent is not there yet. Wait until the list shows it online, then send again.",
  agent_unreachable: "Nothing was sent. Try again in a while, or tell whoever runs the agent.",
  guard_rejected: "A guard does not let this pass. Leave out what it names.",
  guard_unavailable: "What checks messages does not answer. Ask an operator, or send again in a moment.",
  agent_busy: "It has as much to do as it takes. Send again in a moment.",
  cap_reached: "A budget is used up. Ask an operator, or begin another conversation.",
  rate_limited: "Too many requests. Send again in a moment.",
  overloaded: "The gateway has as much to do as it takes. Send again in a moment.",
  shutting_down: "The gateway is restarting. Send again in a moment.",
  store_unavailable: "The gateway cannot look up what it needs. Send again in a moment.",
  body_too_large: "The message is too long. Send less at once.",
};

/**
 * Who failed, by reason: `[badge, title]`, `{}` being the agent's name. What is not in the table was wrong with the request:
 * the gateway rejected it.
 */
const WHO = {
  agent_unreachable: ["agent failed", "{} cannot be reached"],
  agent_protocol_error: ["agent failed", "{} broke off, or gave an answer that is none"],
  agent_redirected: ["agent failed", "{} leads elsewhere, which is not followed"],
  agent_timeout: ["agent failed", "{} did not answer in time"],
  agent_silent: ["agent failed", "{} fell silent in the middle of its answer"],
  response_too_large: ["agent failed", "{} sent more than the gateway takes"],
  address_forbidden: ["agent failed", "{} has an address that is not called"],
  agent_busy: ["busy", "{} is busy"],
  workspace_offline: ["offline", "{} is away"],
  workspace_restarting: ["starting", "{} is not there yet"],
  workspace_removed: ["removed", "{} was removed"],
  workspace_not_found: ["removed", "{} is not there any more"],
  not_permitted: ["denied", "You may not message {}"],
  stopped: ["denied", "An operator stopped this"],
  guard_rejected: ["denied", "A guard does not let this pass"],
  cap_reached: ["denied", "A budget is used up"],
  rate_limited: ["denied", "Too many requests"],
  unauthenticated: ["signed out", "The gateway does not know you any more"],
  store_unavailable: ["gateway failed", "The gateway failed: a store does not answer"],
  guard_unavailable: ["gateway failed", "The gateway failed: a guard does not answer"],
  overloaded: ["gateway failed", "The gateway is at its limit"],
  shutting_down: ["gateway failed", "The gateway is restarting"],
  internal: ["gateway failed", "The gateway failed"],
};

/** Of a workspace that an operator took out, whatever its agent does. */
const PAUSED = "An operator paused it, and only an operator can resume it. Ask one; waiting does not help.";

/** By what is known of the delivery: may the agent have got the message? */
const DELIVERED = {
  false: "The agent did not get the message: send it again.",
  true: "The agent got the message. If you send it again, it may do the work twice.",
  unknown: "Nobody knows whether the agent got the message. If you send it again, it may do the work twice.",
};

/**
 * An error for a person: `badge` (one or two words), `title`, `reason` (the gateway's word, or null), `words`, `advice`,
 * `requestId`, `facts`; whether sending `again` helps (`"no"`, `"yes"`, `"twice"`: it may run twice), and whether a new token
 * is needed (`signIn`). `status`: what the list says of the workspace; `taskId`: the task that the answer has told of; `name`: the
 * agent's.
 */
export function explained(error, { status = null, taskId = null, name = "The agent" } = {}) {
  if (error instanceof Cut) return broken(error, taskId);
  if (error instanceof Refusal) return refused(error, status, name);
  if (error instanceof Left) return left(error);
  const isNetwork = error instanceof TypeError;
  const advice = isNetwork ? "Check your connection, then send again." : "This is what the agent said. You may send again.";
  const plain = { badge: "failed", title: isNetwork ? "The gateway cannot be reached" : `${name} answered with an error`, reason: null, facts: {}, requestId: null, signIn: false };
  return { ...plain, words: wordsOf(error), advice, again: "yes" };
}

/** A message of which a reload has left nothing to hear of. */
function left(error) {
  const advice = "The agent may have got the message. If you send it again, it may do the work twice.";
  return { badge: "cut off", title: "The page was loaded anew before an answer came", reason: null, facts: {}, requestId: null, signIn: false, words: error.message, advice, again: "twice" };
}

function refused({ reason, message, facts, requestId }, status, name) {
  const isPaused = reason === "workspace_offline" && status === "paused";
  const advice = isPaused ? PAUSED : (ADVICE[reason] ?? DELIVERED[facts.delivered] ?? "Whoever runs the gateway finds more in its log, under the request's id.");
  const signIn = reason === "unauthenticated";
  const again = signIn ? "no" : ["true", "unknown"].includes(facts.delivered) ? "twice" : "yes";
  const [badge, title] = isPaused ? ["paused", "An operator paused {}"] : (WHO[reason] ?? ["rejected", "The gateway rejected the request"]);
  return { badge, title: title.replace("{}", () => name), reason, words: message, advice, facts, requestId, signIn, again };
}

/** A stream that ended before its answer did. */
function broken({ cause }, taskId) {
  const isKept = cause.reason !== "not_found";
  const words = isKept ? `The stream cannot be taken up again: ${wordsOf(cause)}` : "The gateway does not keep this stream any more.";
  const then = taskId ? "Ask what its task is now." : "It has not named a task that could be asked for.";
  const signIn = cause.reason === "unauthenticated";
  const next = signIn ? "Sign in again as the same user: it goes on where it was." : `${then} If you send the message again, it may do the work twice.`;
  const advice = `The agent was reached, and may still be working. ${next}`;
  const { reason = null, requestId = null } = cause;
  return { badge: "cut off", title: "The connection broke", reason, words, advice, facts: {}, requestId, signIn, again: signIn ? "no" : "twice" };
}

/** What the agent said, without what the SDK puts around it. */
function wordsOf(error) {
  const said = error.cause?.envelopeCode === undefined ? error : error.cause;
  return String(said.message);
}
