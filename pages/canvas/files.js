// Files that a user sends with a message: chosen, dropped or pasted. What does not fit is said before anything is sent.

import { element, fill } from "./dom.js";
import { fileElement, sizeOf } from "./parts.js";

/** Files of one message, and bytes of all of them. The gateway takes a body of 10 MiB, and base64 makes a third more of it. */
const FILES_MAX = 10;
const BYTES_MAX = 7_000_000;

export class Files {
  /** Where they and their complaints are shown. */
  element = element("div", { className: "files" });
  /** `{ name, type, bytes, size }` */
  #files = [];
  #complaint = element("p", { className: "notice small", "data-tone": "bad", role: "alert", hidden: true });
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
    this.element.append(this.#complaint);
  }

  get isEmpty() {
    return this.#files.length === 0;
  }

  /** Adds what fits of a list of `File`s. */
  async add(list) {
    this.#complain(null);
    for (const file of list) {
      const wrong = this.#wrong(file);
      if (wrong) return this.#complain(wrong);
      const entry = { name: file.name || "pasted", type: file.type || "application/octet-stream", size: file.size, bytes: null };
      // Its place is taken before it is read, so that two that are added at once are counted together.
      this.#files.push(entry);
      try {
        entry.bytes = new Uint8Array(await file.arrayBuffer());
      } catch {
        this.#remove(entry);
        return this.#complain(`${entry.name} cannot be read: it may be a folder, or gone.`);
      }
    }
    this.#show();
  }

  /** Gives them away: the next message begins with none. */
  take() {
    const files = this.#files.filter(({ bytes }) => bytes);
    this.#files = [];
    this.#complain(null);
    this.#show();
    return files;
  }

  #wrong({ name, size }) {
    if (this.#files.length >= FILES_MAX) return `${name} was not added: a message takes ${FILES_MAX} files.`;
    const all = this.#files.reduce((sum, one) => sum + one.size, size);
    if (all <= BYTES_MAX) return null;
    const others = this.#files.length > 0 ? ` With the others it would be ${sizeOf(all)}.` : "";
    return `${name} was not added: it has ${sizeOf(size)}, and all files of a message may have ${sizeOf(BYTES_MAX)}.${others}`;
  }

  #remove(entry) {
    this.#files = this.#files.filter((one) => one !== entry);
    this.#show();
  }

  #complain(text) {
    this.#complaint.hidden = !text;
    fill(this.#complaint, text ?? "");
  }

  #show() {
    const chips = this.#files.map((entry) => {
      const remove = element("button", { type: "button", className: "quiet", "aria-label": `Remove ${entry.name}`, onclick: () => this.#remove(entry) }, "✕");
      return element("span", { className: "chip" }, element("span", { className: "chip-name" }, `${entry.name} · ${sizeOf(entry.size)}`), remove);
    });
    fill(this.element, ...chips, this.#complaint);
    this.#onChange();
  }
}

/** Bytes as base64, in pieces that an argument list takes. */
export function base64Of(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

/** A file that was sent, in the user's own turn. */
export const sentFile = (file) => fileElement(file);
