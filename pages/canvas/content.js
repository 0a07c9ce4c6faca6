// What an agent said in an answer, and how much of it a page takes: an agent may send as much as it likes.

import { element, fill } from "./dom.js";
import { canGrow, growText, partElement, shortened } from "./parts.js";

/** What one answer shows at most: parts, characters of all of them, and characters of one. */
const PARTS_MAX = 1_000;
const ALL_MAX = 400_000;
const TEXT_MAX = 200_000;
/** Bytes of all its files, and how many of them weigh as much as a character. */
const FILES_MAX = 32_000_000;
const BYTES_PER_CHARACTER = 16;
/** Of what is said on the way: characters and parts of each step. */
export const STEP_MAX = 10_000;
const STEP_PARTS = 20;

/** Parts of a message, one below the other. */
export function body(parts, most = TEXT_MAX) {
  const shown = parts.slice(0, PARTS_MAX).map((part) => partElement(part, most));
  const rest = parts.length - shown.length;
  return element("div", { className: "parts" }, ...shown, rest > 0 && element("p", { className: "muted small" }, `and ${rest} more parts`));
}

/** What is said on the way, as far as a step has room for it: `{ element, size }`, the characters that it takes. */
export function step(parts) {
  const fits = [];
  let size = 0;
  for (const part of parts.slice(0, STEP_PARTS)) {
    if (size >= STEP_MAX) break;
    fits.push(part.url ? part : { ...part, text: shortened(part.text, STEP_MAX - size) });
    size += Math.min(lengthOf([part]), STEP_MAX) + (part.file ? part.file.size / BYTES_PER_CHARACTER : 0);
  }
  const rest = parts.length - fits.length;
  const made = body(fits, STEP_MAX + 100);
  if (rest > 0) made.append(element("p", { className: "muted small" }, `and ${rest.toLocaleString()} more ${rest === 1 ? "part" : "parts"}`));
  return { element: made, size };
}

const isText = ({ url, isCode, isFile, isPlain }) => !url && !isCode && !isFile && !isPlain;

const lengthOf = (parts) => parts.reduce((all, { text, url = "" }) => all + String(text).length + url.length, 0);

/** Messages and artifacts of one answer, in the order in which they began. */
export class Content {
  element = element("div", { className: "content" });
  /** Artifacts by id: `{ place, characters, parts }`. */
  #artifacts = new Map();
  #taken = { characters: 0, parts: 0 };
  #bytes = 0;
  #left = { characters: 0, parts: 0 };
  #note = element("p", { className: "muted small left-out" });

  /** What it takes, in characters. */
  get size() {
    return this.#taken.characters + this.#bytes / BYTES_PER_CHARACTER;
  }

  /** More of what was said. */
  message(parts) {
    const fits = this.#take(parts);
    if (fits.length > 0) this.#append(body(fits));
  }

  /** A whole artifact, or what follows of one that is there. */
  artifact({ id, name, parts, append }) {
    let artifact = this.#artifacts.get(id);
    if (artifact && !append) this.#giveBack(artifact);
    const before = { ...this.#taken };
    const last = artifact?.place.lastElementChild;
    const grows = append && last?.matches(".parts");
    const fits = this.#take(parts, grows && canGrow(last.lastElementChild));
    if (!artifact) {
      // One with nothing in it takes the room of a part, so that they are not without number.
      if (fits.length === 0 && (parts.length > 0 || this.#taken.parts >= PARTS_MAX)) return;
      if (fits.length === 0) this.#taken.parts += 1;
      artifact = { place: element("section", { className: "artifact" }), characters: 0, parts: 0 };
      this.#artifacts.set(id, artifact);
      this.#append(artifact.place);
    }
    artifact.characters += this.#taken.characters - before.characters;
    artifact.parts += this.#taken.parts - before.parts;
    if (grows) extend(last, fits);
    else fill(artifact.place, name && element("h3", { className: "small muted" }, shortened(name, 300)), body(fits));
  }

  /** Something else, such as why there is no more. */
  add(node) {
    this.#append(node);
  }

  /** An artifact that is sent anew takes the room that it had. */
  #giveBack(artifact) {
    this.#taken.characters -= artifact.characters;
    this.#taken.parts -= artifact.parts;
    artifact.characters = artifact.parts = 0;
  }

  /** As many of the parts as there is room for; the others are counted, and that is said. `goesOn`: the first goes on with a text. */
  #take(parts, goesOn = false) {
    const fits = [];
    for (const [index, part] of parts.entries()) {
      const more = goesOn && index === 0 && isText(part);
      const length = lengthOf([part]);
      const room = ALL_MAX - this.#taken.characters;
      if ((this.#taken.parts >= PARTS_MAX && !more) || room <= 0) {
        this.#left.parts += more ? 0 : 1;
        this.#left.characters += length;
        continue;
      }
      this.#taken.parts += more ? 0 : 1;
      this.#taken.characters += Math.min(length, TEXT_MAX, room);
      if (part.file) fits.push({ ...part, file: this.#keep(part.file) });
      else if (part.url || length <= room) fits.push(part);
      else {
        fits.push({ ...part, data: undefined, text: String(part.text).slice(0, room) });
        this.#left.characters += length - room;
      }
    }
    const { characters, parts: count } = this.#left;
    if (characters > 0 || count > 0) {
      fill(this.#note, `Left out, since there is no room for more: ${characters.toLocaleString()} characters${count > 0 ? `, in ${count.toLocaleString()} parts` : ""}.`);
      this.element.append(this.#note);
    }
    return fits;
  }

  /** A file with what is in it, as long as there is room for that. */
  #keep(file) {
    if (this.#bytes + file.size > FILES_MAX) return { ...file, bytes: null };
    this.#bytes += file.size;
    return file;
  }

  /** The note of what is left out stays the last. */
  #append(node) {
    if (this.#note.parentNode) this.#note.before(node);
    else this.element.append(node);
  }
}

/** More of an artifact. Text goes on where text ended, since agents send it word by word. */
function extend(shown, parts) {
  for (const part of parts) {
    const last = shown.lastElementChild;
    if (last && canGrow(last) && isText(part)) growText(last, shortened(part.text, TEXT_MAX));
    else shown.append(partElement(part, TEXT_MAX));
  }
}
