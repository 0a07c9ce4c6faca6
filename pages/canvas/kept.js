// What of a tab survives its reload: the token, the conversations and what was not sent yet. It is in `sessionStorage`, which
// this tab alone reads, and which ends with it; signing out clears it. Only this file touches it.

import { base64Of, bytesOf } from "./files.js";

const NAME = "a2a-canvas";

/** Characters of all that is kept; a browser gives a page about five million. */
const ALL_MAX = 2_000_000;

/** Bytes of a file that is kept: what is larger has only its name after a reload. */
const FILE_MAX = 200_000;

/** What was kept, or null. */
export function recall() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NAME), revived);
    return kept?.version === 1 ? kept : null;
  } catch {
    return null;
  }
}

/** Bytes as they were. An agent may have written something of that form that is none. */
function revived(key, value) {
  if (key !== "bytes" || typeof value?.$bytes !== "string") return value;
  try {
    return bytesOf(value.$bytes);
  } catch {
    return null;
  }
}

/**
 * Keeps `{ token, user, chosen, talks }`; the talks that were used last come first, and those that do not fit are left out.
 * Answers how many were.
 */
export function keep({ talks, ...state }) {
  const fits = [];
  let room = ALL_MAX;
  for (const talk of talks) {
    room -= textOf(talk).length;
    if (room < 0) break;
    fits.push(talk);
  }
  try {
    sessionStorage.setItem(NAME, textOf({ version: 1, ...state, talks: fits }));
    return talks.length - fits.length;
  } catch {
    // A browser may allow no storage, or less: then a reload forgets.
    return talks.length;
  }
}

export function forget() {
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // There is no storage, so there is nothing in it.
  }
}

function textOf(value) {
  return JSON.stringify(value, (_, one) => {
    if (!(one instanceof Uint8Array)) return one;
    return one.length <= FILE_MAX ? { $bytes: base64Of(one) } : null;
  });
}
