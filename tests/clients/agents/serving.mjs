// What the JavaScript agents share: a port of their own, and a record of every request as it came.
import { openSync, writeSync } from "node:fs";
import { createServer } from "node:http";

/** Serves what `make` returns for the agent's own URL. Usage of an agent: FILE of the record; prints its port. */
export function serve(make) {
  const log = openSync(process.argv[2], "a");
  const server = createServer();
  server.listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    const app = make(`http://127.0.0.1:${port}`);
    server.on("request", (request, response) => {
      const body = [];
      const write = () => {
        const fields = [];
        for (let at = 0; at < request.rawHeaders.length; at += 2) {
          fields.push([request.rawHeaders[at].toLowerCase(), request.rawHeaders[at + 1]]);
        }
        const { method, url: target } = request;
        // At once: who is answered may look.
        writeSync(log, `${JSON.stringify({ method, target, fields, body: Buffer.concat(body).toString("base64") })}\n`);
      };
      if (request.method === "POST") {
        // A listener of our own would start the body before the SDK listens.
        const { emit } = request;
        request.emit = function (name, ...more) {
          if (name === "data") body.push(more[0]);
          if (name === "end") write();
          return emit.call(this, name, ...more);
        };
      } else {
        write();
      }
      app(request, response);
    });
    console.log(port);
  });
}

/** `stream 5` is ["stream", 5]; without a number it is 1. */
export function wordAndNumber(text) {
  const [word, number] = text.split(" ");
  return [word, Number(number ?? 1)];
}

/** Tasks that run until they are canceled. */
export class Waiting {
  #ends = new Map();

  until(taskId) {
    return new Promise((end) => this.#ends.set(taskId, end));
  }

  end(taskId) {
    this.#ends.get(taskId)?.();
    return this.#ends.delete(taskId);
  }
}
