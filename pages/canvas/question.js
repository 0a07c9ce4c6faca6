// What an agent asks in the middle of a task, with a place for the answer.

import { element } from "./dom.js";

/** Answers that an agent proposes: so many are shown, of so many characters. */
const CHOICES_MAX = 8;
const CHOICE_MAX = 100;

/** Where the answers stand in data that an agent sends with its question. */
const MEMBERS = ["options", "choices", "enum"];

/** The answers that the parts of a question propose. */
export function choicesOf(parts) {
  const lists = parts.flatMap(({ data }) => (data && typeof data === "object" ? MEMBERS.map((name) => data[name]) : []));
  const found = lists.find(Array.isArray) ?? [];
  return found.filter((one) => typeof one === "string" && one.length > 0 && one.length <= CHOICE_MAX).slice(0, CHOICES_MAX);
}

/** Elements for the state that asks; `reply` gets the answer. */
export function questionElement(state, name, parts, reply) {
  if (state === "auth-required") return [element("p", { className: "small" }, `${name} needs you to sign in somewhere. Do what it says, then write to it that you have.`)];
  const field = element("input", { type: "text", "aria-label": `Answer to ${name}`, placeholder: "Answer", maxLength: 10_000, autocomplete: "off" });
  const send = (event) => {
    event.preventDefault();
    if (field.value.trim()) reply(field.value.trim());
  };
  const choices = choicesOf(parts).map((choice) => element("button", { type: "button", onclick: () => reply(choice) }, choice));
  const form = element("form", { className: "reply", onsubmit: send }, field, element("button", { type: "submit" }, "Answer"));
  return [element("p", { className: "small muted" }, `${name} asks you:`), choices.length > 0 && element("div", { className: "choices" }, ...choices), form];
}
