// An agent that says what it is asked to: markdown, files, data, questions; and a stream that goes on when it is let.

import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { call, demo } from "./stage.mjs";
import { PWNED } from "./hostile.mjs";

/** A red square. */
export const PNG = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAYAAAAf8/9hAAAAGUlEQVR4nGP4z8DwnxLMMGrAqAGjBgwXAwAwxP4QHCfkAAAAAABJRU5ErkJggg==";

export const MARKDOWN = [
  "## Result",
  "",
  "It has **bold**, *slanted*, ~~gone~~ and `code` &amp; a [link](https://example.com/a?b=1&c=2), also https://example.org/bare .",
  "",
  "1. one",
  "2. two",
  "   - nested",
  "",
  "| Month | Sum |",
  "|:--|--:|",
  "| January | 1,200 |",
  "",
  "```python",
  "print('<b>hello</b>')",
  "```",
  "",
  "> said before",
].join("\n");

/** Markdown that would run, load, hide or overflow, if it could. */
export const CORPUS = [
  `<img src=x onerror="${PWNED}">`,
  `<svg onload="${PWNED}"><script>${PWNED}</script></svg>`,
  `<script>${PWNED}</script><style>*{display:none}</style><iframe src="javascript:${PWNED}"></iframe>`,
  `[run](javascript:${encodeURIComponent(PWNED)}) [run](JaVaScRiPt:alert(1)) [run](&#106;avascript:alert(1)) [run](java\tscript:alert(1))`,
  `[vb](vbscript:msgbox(1)) [data](data:text/html;base64,PHNjcmlwdD4=) [blob](blob:https://example.com/1) [file](file:///etc/passwd) [rel](../admin)`,
  `![picture](https://elsewhere.example/track.png) ![data](data:image/svg+xml;base64,PHN2Zz4=) ![run](javascript:alert(1))`,
  `<javascript:alert(1)> <https://example.com/"onmouseover="${PWNED}>`,
  `[title](https://example.com/ "x\\" onmouseover=\\"${PWNED}")`,
  `\`\`\`"><script>${PWNED}</script>\n</code></pre><img src=x onerror="${PWNED}">\n\`\`\``,
  `| <b onclick="${PWNED}">a</b> | ${"w".repeat(400)} |\n|--|--|\n| ${"cell ".repeat(60)} | ${"|".repeat(3)} |`,
  "w".repeat(3_000),
  `**${"bold".repeat(300)}** \`${"code".repeat(300)}\` [${"link".repeat(200)}](https://example.com/${"x".repeat(900)})`,
  `# ${"HEADING".repeat(120)}`,
  "שלום **עולם** abc ‮txt.exe‬ \u2066hidden\u2069 مرحبا `code` \u200b\u200b",
  `${"> ".repeat(200)}deep`,
  `${"- ".repeat(150)}deep`,
  Array.from({ length: 12 }, (_, depth) => `${"  ".repeat(depth)}- level ${depth}`).join("\n"),
  `${"[".repeat(300)}a${"](b)".repeat(300)}`,
  "*".repeat(400) + "a" + "_*".repeat(200),
  "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x&#62;",
  `<details open ontoggle="${PWNED}"><math><mtext></mtext></math><template><base href="https://elsewhere.example/"></template>`,
];

export class Saying {
  /** The bytes of the files that came, as base64. */
  got = [];
  #held = [];

  static async join() {
    const saying = new Saying();
    const server = createServer((request, response) => saying.#answer(request, response));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    server.unref();
    const url = `http://127.0.0.1:${server.address().port}/`;
    const wanted = { id: "saying", name: "saying", parent_id: "acme-pm", org: "acme", delivery_mode: "push", liveness: "assumed", url };
    const { enrolment_token: enrolment } = await call("POST", "/workspaces", demo.tokens.operator, wanted);
    const card = { protocolVersion: "0.3.0", name: "saying", description: "", version: "1", url, preferredTransport: "JSONRPC", capabilities: { streaming: true }, skills: [], defaultInputModes: ["text/plain"], defaultOutputModes: ["text/plain"] };
    await call("POST", "/registry/register", enrolment, { id: "saying", url, delivery_mode: "push", agent_card: card });
    return saying;
  }

  /** How many streams wait to be let. */
  get held() {
    return this.#held.length;
  }

  /** Says another piece in the newest stream that waits, or ends it with the last one. */
  go(text, isLast = false) {
    this.#held.at(-1)(text, isLast);
    if (isLast) this.#held.pop();
  }

  async #answer(request, response) {
    if (request.method !== "POST") return response.writeHead(404).end();
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { id, method, params } = JSON.parse(Buffer.concat(chunks));
    // It keeps no tasks.
    if (method !== "message/stream") {
      response.setHeader("Content-Type", "application/json");
      return response.end(JSON.stringify({ jsonrpc: "2.0", id, error: { code: -32001, message: "it does not keep its tasks" } }));
    }
    const { message } = params;
    const asked = message.parts.find(({ kind }) => kind === "text")?.text ?? "";
    const names = { taskId: message.taskId ?? randomUUID(), contextId: message.contextId ?? randomUUID() };
    response.setHeader("Content-Type", "text/event-stream");
    const say = (result) => response.write(`data: ${JSON.stringify({ jsonrpc: "2.0", id, result })}\n\n`);
    const status = (state, parts) => say({ kind: "status-update", ...names, status: { state, message: parts && { kind: "message", role: "agent", messageId: randomUUID(), parts } }, final: state !== "working" });
    const artifact = (parts, append = false) => say({ kind: "artifact-update", ...names, artifact: { artifactId: "a", parts }, append });
    const text = (words) => ({ kind: "text", text: words });
    const file = (name, mimeType, bytes) => ({ kind: "file", file: { name, mimeType, bytes } });
    const base64 = (words) => Buffer.from(words).toString("base64");
    say({ kind: "task", id: names.taskId, contextId: names.contextId, status: { state: "submitted" } });
    if (asked === "markdown") for (const [index, piece] of MARKDOWN.match(/[^]{1,7}/g).entries()) artifact([text(piece)], index > 0);
    else if (asked === "corpus") for (const [index, one] of CORPUS.entries()) say({ kind: "artifact-update", ...names, artifact: { artifactId: `c${index}`, name: one.slice(0, 300), parts: [text(one)] } });
    else if (asked === "files") {
      const svg = `<svg xmlns="http://www.w3.org/2000/svg"><script>${PWNED}</script></svg>`;
      artifact([
        file("plot.png", "image/png", PNG),
        file("fake.png", "image/png", base64(svg)),
        file("drawing.svg", "image/svg+xml", base64(svg)),
        file("page.html", "text/html", base64(`<script>${PWNED}</script>`)),
        file("paper.pdf", "application/pdf", base64("%PDF-1.4")),
        file(`${"long".repeat(60)}.csv`, "text/csv", base64("a,b\n1,2\n")),
        { kind: "data", data: { rows: [{ month: "January", sum: 1200 }, null], done: true, "<b>": "<i>" } },
      ]);
    } else if (asked === "ask" && !message.taskId) {
      return void (status("input-required", [text("Which **colour** shall it be?"), { kind: "data", data: { options: ["red", "blue"] } }]), response.end());
    } else if (asked === "hold") {
      status("working", [text("begun")]);
      this.#held.push((words, isLast) => {
        artifact([text(words)], words !== "one ");
        if (isLast) {
          status("completed");
          response.end();
        }
      });
      return;
    } else {
      const files = message.parts.filter(({ kind }) => kind === "file");
      this.got.push(...files.map(({ file }) => file.bytes));
      artifact([text(`you said: ${asked}, in ${names.contextId}`), ...files]);
    }
    status("completed");
    response.end();
  }
}
