// The caps of the configuration, with who has used most of each.

import { ask, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { count, loading, pill, refusal, table, when } from "./show.js";

/** Subjects of one cap that are shown. */
const SHOWN_MAX = 5;

/** Fills `place` with the caps. */
export async function showCaps(place) {
  fill(place, loading("the caps"));
  try {
    const { caps } = await ask(`api/caps?limit=${SHOWN_MAX}`);
    const again = element("button", { type: "button", onclick: () => showCaps(place) }, "Refresh");
    fill(place, table("Caps", ["Cap", "Used", "Limit", "By", "Begins again", "State"], caps.flatMap(rowsOf), "The configuration has no caps."), element("p", {}, again));
  } catch (error) {
    fill(place, refusal(words(error), () => showCaps(place)));
  }
}

function rowsOf(cap) {
  const name = () => element("code", {}, cap.name);
  const limit = `${count(cap.limit)} ${cap.count} for each ${cap.per}`;
  if (cap.subjects.length === 0) return [[name(), "0", limit, "–", "–", pill("unused", "none")]];
  return cap.subjects.map(({ org, subject, used, reached, resets_at: resets }) => [
    name(),
    count(used),
    limit,
    org ? `${subject} (${org})` : subject || "no org",
    when(resets),
    reached ? pill("reached", "bad") : pill("below", "ok"),
  ]);
}
