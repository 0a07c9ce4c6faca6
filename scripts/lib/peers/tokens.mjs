// The token service of the do-it-yourself gateway: `node tokens.mjs PORT FILE`. FILE has the SHA-256 of each token with
// its workspace, and the parent of each workspace; siblings, parents and children may talk.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const [port, file] = process.argv.slice(2);
const { tokens, parents } = JSON.parse(readFileSync(file, "utf8"));
const callers = new Map(Object.entries(tokens));
const parentOf = new Map(Object.entries(parents));

function may(caller, target) {
  const [mine, theirs] = [parentOf.get(caller), parentOf.get(target)];
  return caller === target || mine === target || theirs === caller || (mine !== undefined && mine === theirs);
}

function decide(request) {
  const credential = request.headers.authorization ?? "";
  if (!credential.startsWith("Bearer ")) return [401];
  const caller = callers.get(createHash("sha256").update(credential.slice(7)).digest("hex"));
  if (!caller) return [401];
  const target = /^\/workspaces\/([^/?]+)\/a2a/.exec(request.headers["x-original-uri"] ?? "")?.[1];
  return target && may(caller, target) ? [204, { "X-Caller": caller }] : [403];
}

const server = createServer((request, response) => response.writeHead(...decide(request)).end());
// Longer than nginx keeps its connections.
server.keepAliveTimeout = 120_000;
server.listen(Number(port), "127.0.0.1");
