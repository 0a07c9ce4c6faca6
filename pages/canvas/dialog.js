// A question of the page, before something is lost that cannot be had again.

import { element } from "./dom.js";

/** Asks, and answers whether the user wants it; with `field` (`{ label, value }`) what was written, or null. Escape is no. */
export function confirm(title, text, does, field = null) {
  return new Promise((resolve) => {
    const input = field && element("input", { type: "text", value: field.value, "aria-label": field.label, maxLength: 80, autocomplete: "off" });
    const finish = (said) => {
      dialog.remove();
      before?.focus();
      resolve(said);
    };
    const before = document.activeElement;
    const yes = (event) => {
      event.preventDefault();
      finish(input ? input.value.trim() : true);
    };
    const no = () => finish(input ? null : false);
    const buttons = element("div", { className: "dialog-end" }, element("button", { type: "button", onclick: no }, "Keep it as it is"), element("button", { type: "submit", className: field ? "primary" : "danger" }, does));
    const form = element("form", { onsubmit: yes }, element("h2", {}, title), text && element("p", {}, text), input, buttons);
    const dialog = element("dialog", { className: "confirm", "aria-label": title, oncancel: no }, form);
    document.body.append(dialog);
    dialog.showModal();
    (input ?? buttons.firstChild).focus();
    input?.select();
  });
}
