// A button that copies a text, and says whether it did.

import { element, fill } from "./dom.js";

/** So long it says what it did, in milliseconds. */
const SAID_FOR = 2_000;

/** `textOf` gives the text when the button is used; `label` says what is copied. */
export function copyButton(textOf, label = "Copy") {
  const button = element("button", { type: "button", className: "quiet", "aria-label": label }, "Copy");
  const say = (said) => {
    button.setAttribute("aria-label", said === "Copy" ? label : said);
    fill(button, said);
  };
  button.addEventListener("click", async () => {
    say(await write(textOf()));
    setTimeout(() => say("Copy"), SAID_FOR);
  });
  return button;
}

/** Pages that did not come over HTTPS or from this machine have no clipboard. */
async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    return "Select it, and copy by hand";
  }
}
