// Characters that are not to be seen, made so. With them a name could look like another one, hide what it says, or turn round
// the text beside it.

/**
 * Controls but for tab and line ends; marks, embeddings, overrides and isolates of direction; what has no width or looks like
 * nothing; tags. Joiners (200C, 200D) belong into emoji and into many scripts: beside ASCII they only hide.
 */
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|(?<=^|[\u0000-\u007f])[\u200c\u200d]|[\u200c\u200d](?=$|[\u0000-\u007f])/gu;

/** Letters that are written from right to left. */
export const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]|[\u{10800}-\u{10fff}]|[\u{1e800}-\u{1efff}]/u;

/** The text, with what cannot be seen written out: `‹U+202E›`. */
export function visible(text) {
  return String(text).replace(UNSEEN, (one) => `‹U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`);
}
