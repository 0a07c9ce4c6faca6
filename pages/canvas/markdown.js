// Markdown as elements. markdown-it reads it into tokens, and each kind that is known here becomes an element with text in it:
// no markup is made of a string anywhere, so there is nothing to sanitise. HTML in it is text, and a picture in it is a link.

import { copyButton } from "./copy.js";
import { element, link } from "./dom.js";
import MarkdownIt from "./markdown-it.js";
import { visible } from "./visible.js";

/** A longer text is shown as it was written, in characters: its reader would wait for its parsing. */
export const MARKDOWN_MAX = 50_000;

/** So deep it may be nested, in levels of the parser, and so long is the name of a language, in characters. */
const DEPTH_MAX = 30;
const LANGUAGE_MAX = 30;

/** What is drawn anew takes this part of the time at most: a draw that took 10 ms is the last one for 80 ms. */
const DRAW_SHARE = 8;
/** A draw that is faster, in milliseconds, is done at once. */
const DRAW_FAST = 4;

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.options.maxNesting = DEPTH_MAX;
// `example.py` is a file and no address.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

/** Elements by kind of token. Headings stand below those of the page. */
const ELEMENTS = {
  paragraph: "p", blockquote: "blockquote", bullet_list: "ul", ordered_list: "ol", list_item: "li",
  thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td", strong: "strong", em: "em", s: "s",
};
const HEADINGS = { h1: "h3", h2: "h4", h3: "h5", h4: "h6", h5: "h6", h6: "h6" };

let drawn = (act) => act();

/** `around` is called with each draw that comes later, and does it. */
export function drawWithin(around) {
  drawn = around;
}

/** A text that may grow. What is drawn of it already, and has not changed, stays the same elements. */
export class Markdown {
  element = element("div", { className: "text markdown", dir: "auto" });
  #source = "";
  /** Of each block at the top: `{ key, node }`. */
  #blocks = [];
  #links = "{}";
  #cost = 0;
  #timer = null;

  constructor(text) {
    this.add(text);
  }

  add(text) {
    this.#source += text;
    if (this.#timer) return;
    if (this.#cost < DRAW_FAST) return this.#draw();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      drawn(() => this.#draw());
    }, this.#cost * DRAW_SHARE);
  }

  #draw() {
    const started = performance.now();
    const { blocks, links } = this.#source.length > MARKDOWN_MAX ? {} : blocksOf(this.#source);
    const wasPlain = this.element.classList.contains("plain");
    this.element.classList.toggle("plain", !blocks);
    if (wasPlain) this.element.textContent = "";
    if (!blocks) {
      this.#blocks = [];
      this.element.textContent = visible(this.#source);
      this.#cost = performance.now() - started;
      return;
    }
    let same = 0;
    // What a link leads to may be said far below it.
    if (links !== this.#links) for (const { node } of this.#blocks.splice(0)) node.remove();
    this.#links = links;
    while (same < blocks.length && this.#blocks[same]?.key === blocks[same].key) same += 1;
    for (const { node } of this.#blocks.splice(same)) node.remove();
    for (const { key, tokens } of blocks.slice(same)) {
      const node = nodesOf(tokens);
      this.element.append(node);
      this.#blocks.push({ key, node });
    }
    this.#cost = performance.now() - started;
  }
}

/**
 * The `blocks` at the top of a text: `{ key, tokens }`; two with one key are drawn alike if the `links` are the same. Neither, of
 * a text that is nested too deeply: the parser leaves out what is deeper.
 */
function blocksOf(source) {
  const env = {};
  const tokens = parser.parse(source, env);
  if (tokens.some(({ level }) => level >= DEPTH_MAX - 2)) return {};
  const lines = source.split("\n");
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push({ key: `${token.type} ${lines.slice(...(token.map ?? [0, 0])).join("\n")}`, tokens: [] });
    blocks.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return { blocks, links: JSON.stringify(env.references ?? {}) };
}

/** One block as one element. */
function nodesOf(tokens) {
  const root = document.createDocumentFragment();
  grow(root, tokens);
  return root.childNodes.length === 1 ? root.firstChild : element("div", {}, ...root.childNodes);
}

/** Puts what tokens say into `root`. */
function grow(root, tokens) {
  const open = [root];
  for (const token of tokens) {
    const top = open.at(-1);
    if (token.nesting < 0) {
      if (open.length > 1) open.pop();
    } else if (token.nesting > 0) {
      const made = opened(token);
      top.append(made);
      // A table has a frame that scrolls.
      open.push(made.matches(".table") ? made.firstChild : made);
    } else if (token.type === "inline") grow(top, token.children ?? []);
    else top.append(single(token));
  }
}

function opened(token) {
  const kind = token.type.replace(/_open$/, "");
  if (kind === "table") {
    return element("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table", "data-scrolls": "" }, element("table"));
  }
  if (kind === "link") {
    const address = token.attrGet("href") ?? "";
    const made = link(address, "");
    return made instanceof Element ? Object.assign(made, { title: visible(address) }) : element("span");
  }
  // A list without blank lines has no paragraphs of its own.
  if (kind === "paragraph" && token.hidden) return element("span");
  const made = element(kind === "heading" ? (HEADINGS[token.tag] ?? "p") : (ELEMENTS[kind] ?? "div"), { dir: "auto" });
  const align = token.attrGet("style")?.match(/^text-align:(left|right|center)$/)?.[1];
  if (align) made.dataset.align = align;
  if (kind === "ordered_list" && token.attrGet("start")) made.start = Number(token.attrGet("start"));
  return made;
}

/** What has nothing in it but text. */
function single({ type, content, info, children, ...token }) {
  if (type === "fence" || type === "code_block") return code(content, info);
  if (type === "code_inline") return element("code", {}, content);
  if (type === "softbreak" || type === "hardbreak") return element("br");
  if (type === "hr") return element("hr");
  if (type === "image") {
    const address = token.attrs?.find(([name]) => name === "src")?.[1] ?? "";
    return link(address, content || address);
  }
  return document.createTextNode(visible(content));
}

function code(text, info = "") {
  const language = info.trim().split(/\s+/)[0].slice(0, LANGUAGE_MAX);
  const body = text.replace(/\n$/, "");
  const top = element("div", { className: "code-top" }, element("span", { className: "muted small" }, language || "code"), copyButton(() => body, "Copy code"));
  return element("div", { className: "code" }, top, element("pre", { tabIndex: 0 }, element("code", {}, body)));
}
