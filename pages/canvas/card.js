// An agent's card, for reading. All of it is the agent's own word, so all of it is text.

import { element, link } from "./dom.js";

/** What is shown at most: skills, words of each, characters of one text. */
const SKILLS_MAX = 50;
const TAGS_MAX = 20;
const EXAMPLES_MAX = 5;
const TEXT_MAX = 2_000;
const NAME_MAX = 200;

/** A text that fits, and how much of it does not. */
function short(text, most = TEXT_MAX) {
  const whole = String(text);
  return whole.length <= most ? whole : `${whole.slice(0, most)} … (${whole.length - most} more characters)`;
}

/** The card as elements. `onExample` gets an example of a skill that the user wants to send. */
export function cardElements(card, workspace, onExample) {
  const { name, description, version, provider, documentationUrl } = card;
  const capabilities = card.capabilities ?? {};
  const skills = objects(card.skills);
  const can = [capabilities.streaming && "streaming", capabilities.pushNotifications && "push notifications"].filter(Boolean);
  return [
    element("p", { className: "card-name" }, short(name ?? workspace.id, NAME_MAX)),
    description && element("p", { className: "pre" }, short(description)),
    element(
      "dl",
      { className: "facts" },
      ...fact("Delivery", workspace.delivery_mode === "poll" ? "fetches its messages (poll)" : "is called (push)"),
      ...fact("Protocol", protocol(card)),
      ...fact("Version", version),
      ...fact("Can", can.join(", ")),
      ...fact("From", provider?.organization),
      ...fact("Documentation", documentationUrl && link(documentationUrl, short(documentationUrl, NAME_MAX))),
    ),
    skills.length > 0 && element("h3", {}, "Skills"),
    ...skills.slice(0, SKILLS_MAX).map((skill) => skillElement(skill, onExample)),
    skills.length > SKILLS_MAX && element("p", { className: "muted small" }, `and ${skills.length - SKILLS_MAX} more`),
  ];
}

function fact(name, value) {
  if (!value) return [];
  return [element("dt", {}, name), element("dd", {}, value instanceof Node ? value : short(value, NAME_MAX))];
}

/** Which generations of A2A it speaks: a card of 0.x has one version, one of 1.0 one for each interface. */
function protocol({ protocolVersion, supportedInterfaces }) {
  const spoken = objects(supportedInterfaces).map((one) => one.protocolVersion).concat(protocolVersion);
  return [...new Set(spoken.filter(Boolean))].map((version) => `A2A ${version}`).join(", ");
}

/** Whatever stands where a list should be: agents write `null` for what they don't have. */
const list = (value) => (Array.isArray(value) ? value : []);
const objects = (value) => list(value).filter((one) => one !== null && typeof one === "object");

function skillElement({ name, description, ...more }, onExample) {
  const [tags, examples] = [list(more.tags), list(more.examples)];
  return element(
    "section",
    { className: "skill" },
    element("h4", {}, short(name, NAME_MAX)),
    description && element("p", { className: "muted small pre" }, short(description)),
    tags.length > 0 && element("p", { className: "muted small" }, tags.slice(0, TAGS_MAX).map((tag) => `#${short(tag, NAME_MAX)}`).join(" ")),
    ...examples.slice(0, EXAMPLES_MAX).map((example) =>
      element("button", { type: "button", className: "example small", title: "Put this into the message", onclick: () => onExample(String(example)) }, short(example)),
    ),
  );
}
