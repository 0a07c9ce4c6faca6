// What a token looks like, for whoever pasted a wrong one. Whether one is good, only the gateway knows.

/** What the tokens that the gateway makes begin with (docs/reference/credentials.md). */
const FORMS = {
  a2aa_: "an admin token",
  a2ae_: "an enrolment token",
  a2ao_: "a token of an org",
  a2at_: "a ticket for a socket",
  a2aw_: "a workspace's token",
};

/** What kind of token this looks like, with an article; `null` for none. */
export function kindOf(token) {
  if (/^eyJ[\w-]*\.[\w-]+\.[\w-]+$/.test(token)) return "a canvas token";
  return FORMS[token.slice(0, 5)] ?? null;
}

/** An admin token from its beginning to its end. */
const ADMIN = /^a2aa_[\w-]{43}$/;

/** Why the gateway does not take this token for an operator's, for a person. */
export function notOperators(token) {
  const kind = kindOf(token);
  if (ADMIN.test(token)) return "the gateway does not know this admin token: it was replaced, or is another gateway's";
  if (kind === FORMS.a2aa_) return "this is not a whole admin token: one is a2aa_ and 43 characters; copy it again";
  if (kind) return `this is ${kind}, and the console needs an admin token, which begins with a2aa_`;
  return "this is not an admin token: one begins with a2aa_";
}

/** Why the gateway does not take this token for a user's, for a person. */
export function notUsers(token) {
  const kind = kindOf(token);
  if (token === "") return "the gateway needs a token: paste the canvas token that its operator gave you";
  if (kind === "a canvas token") return "this canvas token has expired, was signed by a key that is gone, or is another gateway's: get a new one";
  if (kind === FORMS.a2ae_ || kind === FORMS.a2at_) return `this is ${kind}, and the canvas needs a canvas token, which begins with eyJ`;
  if (kind) return `the gateway does not know this token: it looks like ${kind}, and was replaced, revoked or is another gateway's`;
  return "this is not a canvas token: one begins with eyJ and has two dots in it; copy it again, whole";
}
