// One part of a message: text, data or a file. A file is shown only if it is a picture or text; SVG, HTML and PDF are
// downloads, since a browser would run or open them.

import { copyButton } from "./copy.js";
import { element, fill, link } from "./dom.js";
import { Markdown } from "./markdown.js";
import { visible } from "./visible.js";

/** Names and addresses, in characters; a text that is shown of a file, in bytes; a picture, in bytes. */
const NAME_MAX = 300;
const PREVIEW_MAX = 200_000;
const PICTURE_MAX = 8_000_000;

/** Members of one level of data. */
const MEMBERS_MAX = 200;

/** Data that takes no more characters begins opened. */
const OPEN_MAX = 1_000;

/** The beginnings of the pictures that are shown, by type. What does not begin so is a download, whatever it is called. */
const PICTURES = {
  "image/png": [0x89, 0x50, 0x4e, 0x47],
  "image/jpeg": [0xff, 0xd8, 0xff],
  "image/gif": [0x47, 0x49, 0x46, 0x38],
  "image/webp": [0x52, 0x49, 0x46, 0x46],
};

const TEXTS = /^(text\/.*|application\/(json|x-ndjson|yaml|toml))$/;

/** The texts that may grow, by element. */
const texts = new WeakMap();

/** A text that fits, and how much of it does not. */
export function shortened(text, most) {
  const whole = String(text);
  return whole.length <= most ? whole : `${whole.slice(0, most)} … (${whole.length - most} more characters)`;
}

/** A size in bytes, for people. */
export function sizeOf(bytes) {
  if (bytes < 1_000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  return bytes < 1_000_000 ? `${(bytes / 1_000).toFixed(bytes < 10_000 ? 1 : 0)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

/** A part as an element. `most`: characters of a text. */
export function partElement(part, most) {
  const { text, url, file, data, isCode, isFile, isPlain } = part;
  if (url) return element("p", { className: "file" }, `${shortened(text, NAME_MAX)} `, link(url, shortened(url, NAME_MAX)));
  if (file) return fileElement(file);
  if (isFile) return element("p", { className: "file" }, shortened(text, NAME_MAX));
  if (data !== undefined && text.length <= most) return dataElement(data, text);
  if (isCode) return element("pre", { tabIndex: 0 }, shortened(text, most));
  if (isPlain) return element("p", { className: "text plain", dir: "auto" }, shortened(text, most));
  const markdown = new Markdown(shortened(text, most));
  texts.set(markdown.element, markdown);
  return markdown.element;
}

/** Whether a text can follow in the same element. */
export const canGrow = (shown) => texts.has(shown);

/** Adds to a text that is shown. */
export const growText = (shown, text) => texts.get(shown).add(text);

// ---- Files ------------------------------------------------------------------------------------------------------------

/** `{ name, type, bytes, size }`; without `bytes` there is nothing of it but its name. */
export function fileElement({ name, type, bytes, size }) {
  const told = [shortened(name || "a file", NAME_MAX), type && shortened(type, NAME_MAX), sizeOf(size)].filter(Boolean).join(" · ");
  const row = element("div", { className: "file-row" }, element("span", { className: "file-name" }, told));
  const made = element("div", { className: "file", role: "group", "aria-label": name || "a file" }, row);
  if (!bytes) {
    row.append(element("span", { className: "muted small" }, "not kept"));
    return made;
  }
  const picture = pictureOf(bytes, type);
  if (picture) made.prepend(pictureElement(bytes, picture, name));
  else if (TEXTS.test(type ?? "")) row.append(previewButton(bytes, made));
  row.append(element("button", { type: "button", className: "quiet", onclick: () => download(bytes, name), "aria-label": `Download ${name || "the file"}` }, "Download"));
  return made;
}

/** The type of a picture that a browser shows, by how it begins. */
function pictureOf(bytes, type) {
  const begins = PICTURES[type];
  return begins && bytes.length <= PICTURE_MAX && begins.every((byte, index) => bytes[index] === byte) ? type : null;
}

function pictureElement(bytes, type, name) {
  const address = URL.createObjectURL(new Blob([bytes], { type }));
  const done = () => URL.revokeObjectURL(address);
  const picture = element("img", { className: "picture", src: address, alt: visible(name || "a picture"), onload: done });
  picture.addEventListener("error", () => {
    done();
    picture.remove();
  });
  return picture;
}

function previewButton(bytes, place) {
  const shown = element("pre", { tabIndex: 0, hidden: true });
  const button = element("button", { type: "button", className: "quiet", "aria-expanded": "false" }, "Preview");
  button.addEventListener("click", () => {
    if (shown.childNodes.length === 0) {
      const rest = bytes.length - PREVIEW_MAX;
      fill(shown, new TextDecoder().decode(bytes.subarray(0, PREVIEW_MAX)) + (rest > 0 ? `\n… (${sizeOf(rest)} more)` : ""));
    }
    shown.hidden = !shown.hidden;
    button.setAttribute("aria-expanded", String(!shown.hidden));
  });
  place.append(shown);
  return button;
}

/** As bytes of no type: a browser opens nothing of it. */
function download(bytes, name) {
  const address = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
  element("a", { href: address, download: visible(name || "file") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

// ---- Data -------------------------------------------------------------------------------------------------------------

/** Data as a tree that opens level by level; `text` is the whole of it as JSON. */
function dataElement(data, text) {
  const tree = node("data", data, text.length <= OPEN_MAX);
  return element("div", { className: "data" }, tree, copyButton(() => text, "Copy data"));
}

function node(name, value, isOpen = false) {
  if (value === null || typeof value !== "object") {
    const said = typeof value === "string" ? JSON.stringify(value) : String(value);
    return element("p", { className: "leaf" }, element("span", { className: "muted" }, `${shortened(name, NAME_MAX)}: `), element("span", {}, shortened(said, 10_000)));
  }
  const members = Object.entries(value);
  const kind = Array.isArray(value) ? (members.length === 1 ? "item" : "items") : members.length === 1 ? "member" : "members";
  const made = element("details", {}, element("summary", {}, `${shortened(name, NAME_MAX)} `, element("span", { className: "muted small" }, `${members.length.toLocaleString()} ${kind}`)));
  // Only what is opened is made: there may be much of it.
  const open = () => {
    if (made.childElementCount > 1) return;
    const rest = members.length - MEMBERS_MAX;
    made.append(...members.slice(0, MEMBERS_MAX).map(([key, one]) => node(key, one)));
    if (rest > 0) made.append(element("p", { className: "muted small" }, `and ${rest.toLocaleString()} more`));
  };
  made.addEventListener("toggle", () => made.open && open());
  if (isOpen) {
    open();
    made.open = true;
  }
  return made;
}
