// Joins an agent to an a2a-gateway: `join` wraps an Express app, `poll` calls a handler for each message of an inbox.
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { hostname } from "node:os";
import { errors, jwtVerify } from "jose";
import { Keys, NoKeys } from "./keys.js";
import { Caller, Chain, Member, ON_BEHALF_OF, current, setting, type Json, type Settings } from "./member.js";

export { Caller, Chain, Member, type Json, type Settings };
export { poll, text, type Handler, type PollOptions } from "./poll.js";

const CARD = "/.well-known/agent-card.json";
const [BODY_MAX, LEEWAY, USED_MAX] = [16 << 20, 5, 262_144];
const REQUIRED = ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"];
const TELL_THE_CALLER = ["x-a2a-caller", "x-workspace-id", "x-a2a-caller-token"]; // none passes as it came
const REFUSAL = '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no good token about the caller"}}';

/** The README says what each is, and which variable stands for it. */
export type JoinOptions = Settings & Partial<{ url: string; instance: string; card: string; proof: string; public: string[] }>;
type Handle = (request: IncomingMessage, response: ServerResponse, next: () => void) => unknown;
const callers = new WeakMap<object, Caller>();

/** The proven caller of a request; without one, of that, or of the message, that this code runs for. */
export function caller(request?: object): Caller | undefined {
  return request ? callers.get(request) : current.getStore();
}

/** For the handlers of `@a2a-js/sdk`: their `context.user` is the proven caller. */
export async function userBuilder(request: object): Promise<{ isAuthenticated: boolean; userName: string }> {
  return caller(request) ?? { isAuthenticated: false, userName: "" };
}

/** Reads the body to its end, and puts it back for the app. */
async function wholeBody(request: IncomingMessage): Promise<Buffer> {
  const [parts, signal] = [[] as Buffer[], AbortSignal.timeout(60_000)];
  // A read behind the last byte would end the stream for the app.
  for (let size = 0; !request.complete || request.readableLength; ) {
    const part: Buffer | null = request.read();
    if (!part) await once(request, "readable", { signal });
    else if ((size += part.length) > BODY_MAX) throw new errors.JWTInvalid("a body that is too large");
    else parts.push(part);
  }
  const body = Buffer.concat(parts);
  // In the same turn as the last read: the stream has not ended yet.
  if (body.length) request.unshift(body);
  return body;
}

/** The method of a JSON-RPC request; nothing of anything else. */
function methodOf(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString())?.method;
  } catch {
    return undefined;
  }
}

/** Answers what checks the gateway's token in a request as the gateway's sidecar does: the proven caller. */
function verifier(member: Member): (token: string, request: IncomingMessage) => Promise<Caller> {
  const [keys, used] = [new Keys(member), new Map<string, number>()];
  const decode = async (token: string, typ: string, scope: string, use: string) => {
    const { payload, protectedHeader } = await jwtVerify(token, keys.find, {
      algorithms: ["EdDSA", "ES256"], audience: member.workspace, clockTolerance: LEEWAY, requiredClaims: REQUIRED });
    const head = Object.keys(protectedHeader).sort().join() === "alg,kid,typ" && protectedHeader.typ === typ;
    const isFor = payload.aud === member.workspace && payload.scope === scope && (payload.token_use ?? "caller") === use;
    if (!head || token.length > 8192 || payload.iss !== keys.issuer || !isFor) throw new errors.JWTInvalid("a token for something else");
    return payload;
  };
  const chainOf = async (token: string | undefined, caller: Json): Promise<Chain | undefined> => {
    const digest = token && createHash("sha256").update(token).digest("base64url");
    if (caller.tth !== digest) throw new errors.JWTInvalid("a chain token that does not belong to the caller token, or is missing");
    if (!token) return undefined;
    const chain = new Chain(token, await decode(token, "a2a-chain+jwt", "a2a:chain", "context"));
    if ([...chain.actors, chain.root][0] !== caller.sub) throw new errors.JWTInvalid("a chain of another caller");
    return chain;
  };
  return async (token, request) => {
    const payload = await decode(token, "a2a-pair+jwt", "a2a:message", "caller");
    const { bh, method, jti } = payload;
    if (bh !== undefined || method !== undefined) {
      const [body, end] = [await wholeBody(request), payload.exp! + LEEWAY];
      const [now, digest] = [Date.now() / 1000, createHash("sha256").update(body).digest("base64url")];
      const isOther = method !== undefined && method !== methodOf(body);
      if (bh !== digest || isOther) throw new errors.JWTInvalid("another body or method");
      if (used.size >= USED_MAX) used.forEach((until, id) => until < now && used.delete(id));
      if (end < now || used.has(jti!) || used.size >= USED_MAX) throw new errors.JWTInvalid("over, or used before");
      used.set(jti!, end);
    } else if (member.place.proof === "request") throw new errors.JWTInvalid("not bound to a request");
    const field = request.headers[ON_BEHALF_OF];
    return new Caller(payload.sub!, payload, await chainOf(field as string | undefined, payload));
  };
}

/** Completes what is registered by the card that the app serves. */
async function complete(member: Member, inner: Handle, { url, instance, card: path = CARD }: JoinOptions): Promise<void> {
  const server = createServer((request, response) => inner(request, response, () => response.writeHead(404).end()));
  await once(server.listen(0, "127.0.0.1"), "listening");
  try {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`);
    if (!answer.ok) throw new Error(`the app answers ${answer.status} at ${path}, where its card should be`);
    const card = (await answer.json()) as Json;
    const places: Json[] = [...(card.supportedInterfaces ?? []), ...(card.additionalInterfaces ?? [])];
    const rpc = places.find((one) => [one.protocolBinding, one.transport].includes("JSONRPC")) ?? card;
    Object.assign(member.place, { agent_card: card, url: setting(url, "AGENT_URL", rpc.url) });
    const own = `${hostname().slice(0, 58)}-${new URL(member.place.url).port}`.replace(/[^\w.-]/g, "-");
    member.ids.instance_id = setting(instance, "INSTANCE", own);
  } finally {
    server.close().closeAllConnections();
  }
}

/** Joins an Express app to the gateway, in front of all that it has or gets. */
export function join(app: object, options: JoinOptions = {}): Member {
  const [target, inner] = [app as { handle: Handle }, (app as { handle: Handle }).handle.bind(app)];
  const member = new Member(options, { proof: options.proof }, (joined) => complete(joined, inner, options));
  const verify = verifier(member);
  const open = [CARD, "/.well-known/agent.json", options.card, ...(options.public ?? [])];
  target.handle = async (request, response, next) => {
    const token = request.headers["x-a2a-caller-token"] ?? request.headers.authorization?.replace(/^bearer /i, "") ?? "";
    const isTold = (name: string) => TELL_THE_CALLER.includes(name.replaceAll("_", "-"));
    // Read once, since they are made of the raw ones.
    const views: Json[] = [request.headers, request.headersDistinct ?? {}];
    for (const view of views) for (const name of Object.keys(view).filter(isTold)) delete view[name];
    request.rawHeaders = request.rawHeaders.filter((_, at, raw) => !isTold(raw[at & ~1]!.toLowerCase()));
    const isOpen = ["GET", "HEAD"].includes(request.method!) && open.includes(request.url!.split("?")[0]);
    if (isOpen) return inner(request, response, next);
    let proven: Caller;
    try {
      proven = await verify(String(token), request);
    } catch (error) {
      member.warn(`refused a request for ${request.url}: ${error}`); // what was wrong is said here only
      response.writeHead(error instanceof NoKeys ? 503 : 401, { "Content-Type": "application/json", "WWW-Authenticate": "Bearer" });
      return response.end(REFUSAL);
    }
    request.headers["x-a2a-caller"] = encodeURI(proven.id);
    if (proven.workspace) request.headers["x-workspace-id"] = proven.workspace;
    member.running += 1;
    response.once("close", () => (member.running -= 1));
    callers.set(request, proven);
    return current.run(proven, () => inner(request, response, next));
  };
  void member.stay();
  for (const name of ["SIGTERM", "SIGINT"] as const) {
    // The process ends as it would have, unless the app has a say in it: a listener of its own.
    process.once(name, () => void member.leave().then(() => process.listenerCount(name) || process.kill(process.pid, name)));
  }
  return member;
}
