// Signing in with a provider: the way there, what the address says when the browser comes back, and who is in.

import { ask } from "./ask.js";
import { element } from "./dom.js";
import { Refusal } from "./refusal.js";

/** Why a sign-in failed, by the word that the gateway puts into the address. */
const WHY = {
  away: "the provider does not answer, or not as one; try again shortly, or log in with a token",
  broken: "the sign-in broke off; try again",
  busy: "many people are signing in right now; try again shortly",
  code: "the provider does not know this sign-in any more: it was used, or took too long; try again",
  foreign: "another page sent you here; sign in from this one",
  no_role: "you are signed in at the provider, but have no role here: ask an administrator of this gateway for one",
  off: "people do not sign in here; log in with a token",
  refused: "the provider did not sign you in; try again",
  setup: "the provider refuses this gateway: its administrator should look at the gateway's log, and at admin.sign_in",
  state: "this sign-in was not begun in this browser within the last 10 minutes; try again from here",
  token: "what the provider said of you is not valid for this sign-in; try again, and look at the gateway's log if it stays so",
};

/** What the browser came back with, `{ code }` or `{ why }`, which is then in the address no more; `null`: nothing. */
export function cameBack() {
  const [name, value] = location.hash.slice(1).split("=");
  if (name !== "signed-in" && name !== "sign-in") return null;
  history.replaceState(null, "", `${location.pathname}${location.search}`);
  if (name === "signed-in") return { code: value ?? "" };
  return { why: new Refusal({ reason: "sign_in", message: WHY[value] ?? "the sign-in failed; try again" }) };
}

/** The way to the provider, if people sign in here. */
export async function wayIn() {
  try {
    const { issuer } = await ask("console/sign-in/provider");
    if (!issuer) return null;
    return element("a", { className: "button primary", href: "console/sign-in" }, `Sign in with ${new URL(issuer).host}`);
  } catch {
    // The token is the other way.
    return null;
  }
}

/** Who is in, in a few words: `ada@example.com · operate`. */
export async function whoIsIn() {
  try {
    const { name, subject, label, role } = await ask("api/operators/me");
    return `${name ?? subject ?? label ?? "admin token"} · ${role}`;
  } catch {
    // It is told with what is asked for next.
    return "";
  }
}
