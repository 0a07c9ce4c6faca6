// An Express app that joins the gateway, and serves the gateway's callers only.
import { AsyncLocalStorage } from "node:async_hooks";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { hostname } from "node:os";
import { createRemoteJWKSet, errors, jwtVerify, type JWTPayload } from "jose";
import { Member, type Json, type Settings } from "./member.js";

const CARD = "/.well-known/agent-card.json";
const BODY_MAX = 16 << 20;
const LEEWAY = 5;
const USED_MAX = 262_144;
const REQUIRED = ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "scope"];
/** Fields that tell the caller: none passes as it came. */
const TELL_THE_CALLER = ["x-a2a-caller", "x-workspace-id", "x-a2a-caller-token"];

export interface JoinOptions extends Settings {
  /** Where the gateway reaches the agent: A2A_GATEWAY_AGENT_URL, else what the card says. */
  url?: string;
  /** One of several processes: A2A_GATEWAY_INSTANCE, else host and port. */
  instance?: string;
  /** The path of the agent's card. */
  card?: string;
  /** `request`: the gateway binds tokens to requests, and no others are taken. */
  proof?: "pair" | "request";
  /** Paths that are read without a token, such as a health check. */
  public?: string[];
}

/** A proven caller. `@a2a-js/sdk` takes it as the user of the request. */
export class Caller {
  readonly isAuthenticated = true;
  readonly userName: string;
  readonly workspace: string | undefined;

  /** `id`: a workspace, or `canvas:<user>`, `org:<org>`, `operator:`. */
  constructor(readonly id: string, readonly claims: JWTPayload) {
    this.userName = id;
    this.workspace = id.includes(":") ? undefined : id;
  }
}

export const current = new AsyncLocalStorage<Caller | undefined>();
const callers = new WeakMap<object, Caller>();

/** The proven caller of a request; without one, of that, or of the message, that this code runs for. */
export function caller(request?: object): Caller | undefined {
  return request ? callers.get(request) : current.getStore();
}

/** For the handlers of `@a2a-js/sdk`: their `context.user` is the proven caller. */
export async function userBuilder(request: object): Promise<{ isAuthenticated: boolean; userName: string }> {
  return caller(request) ?? { isAuthenticated: false, userName: "" };
}

/** Reads the body, and puts it back for the app. */
async function wholeBody(request: IncomingMessage): Promise<Buffer> {
  const length = Number(request.headers["content-length"] ?? 0);
  if (!(length <= BODY_MAX)) throw new errors.JWTInvalid("a body that is too large");
  const parts: Buffer[] = [];
  for (let size = 0; size < length; ) {
    const part = request.read() as Buffer | null;
    if (part) size += parts.push(part) && part.length;
    else await once(request, "readable", { signal: AbortSignal.timeout(60_000) });
  }
  const body = Buffer.concat(parts);
  // In the same turn as the last read: the stream has not ended yet.
  if (body.length) request.unshift(body);
  return body;
}

/** The gateway's signed token in a request, checked as the gateway's sidecar does. */
class Verifier {
  readonly #keys;
  readonly #used = new Map<string, number>();
  #issuer?: string;

  constructor(readonly member: Member) {
    const url = new URL(`${member.gateway}/.well-known/jwks.json`);
    this.#keys = createRemoteJWKSet(url, { cooldownDuration: 10_000, cacheMaxAge: 600_000 });
  }

  /** The caller that a token proves. The body is read where the token is bound to it. */
  async verify(token: string, request: IncomingMessage): Promise<Caller> {
    const { workspace, place } = this.member;
    this.#issuer ??= (await this.member.ask("/.well-known/a2a-gateway")).issuer as string;
    const { payload, protectedHeader } = await jwtVerify(token, this.#keys, {
      typ: "a2a-pair+jwt", algorithms: ["EdDSA", "ES256"], issuer: this.#issuer, audience: workspace,
      clockTolerance: LEEWAY, requiredClaims: REQUIRED,
    });
    const head = Object.keys(protectedHeader).sort().join();
    if (token.length > 8192 || head !== "alg,kid,typ" || protectedHeader.typ !== "a2a-pair+jwt") {
      throw new errors.JWTInvalid("not a token about a caller");
    }
    const { aud, scope, token_use: use = "caller" } = payload;
    if (aud !== workspace || scope !== "a2a:message" || use !== "caller") throw new errors.JWTInvalid("for something else");
    if ("bh" in payload || "method" in payload) this.#match(payload, await wholeBody(request));
    else if (place.proof === "request") throw new errors.JWTInvalid("not bound to a request");
    return new Caller(payload.sub!, payload);
  }

  #match({ bh, method, jti, exp }: JWTPayload, body: Buffer): void {
    const [now, end] = [Date.now() / 1000, exp! + LEEWAY];
    if (bh !== createHash("sha256").update(body).digest("base64url")) throw new errors.JWTInvalid("another body");
    if (method !== undefined && method !== JSON.parse(body.toString()).method) throw new errors.JWTInvalid("another method");
    if (this.#used.size >= USED_MAX) this.#used.forEach((until, id) => until < now && this.#used.delete(id));
    if (end < now || this.#used.has(jti!) || this.#used.size >= USED_MAX) throw new errors.JWTInvalid("over, or used before");
    this.#used.set(jti!, end);
  }
}

type Handle = (request: IncomingMessage, response: ServerResponse, next: () => void) => unknown;

/** Completes what is registered by the card that the app serves. */
async function complete(member: Member, inner: Handle, path: string): Promise<void> {
  const server = createServer((request, response) => inner(request, response, () => response.writeHead(404).end()));
  await once(server.listen(0, "127.0.0.1"), "listening");
  try {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`);
    if (!answer.ok) throw new Error(`the app answers ${answer.status} at ${path}, where its card should be`);
    const card = (await answer.json()) as Json;
    const places: Json[] = [...(card.supportedInterfaces ?? []), ...(card.additionalInterfaces ?? [])];
    const rpc = places.find((one) => [one.protocolBinding, one.transport].includes("JSONRPC"));
    member.place.agent_card = card;
    member.place.url ??= rpc?.url ?? card.url;
    member.ids.instance_id ??= `${hostname().slice(0, 58)}-${new URL(member.place.url).port}`.replace(/[^\w.-]/g, "-");
  } finally {
    server.close().closeAllConnections();
  }
}

/** Joins an Express app to the gateway, in front of all that it has or gets. */
export function join(app: object, options: JoinOptions = {}): Member {
  const target = app as { handle: Handle };
  const [path, inner] = [options.card ?? CARD, target.handle.bind(app)];
  const member: Member = new Member(options, {}, () => complete(member, inner, path));
  const [url, instance] = [options.url ?? process.env.A2A_GATEWAY_AGENT_URL, options.instance ?? process.env.A2A_GATEWAY_INSTANCE];
  if (url) member.place.url = url;
  if (options.proof) member.place.proof = options.proof;
  if (instance) member.ids.instance_id = instance;
  const verifier = new Verifier(member);
  const open = new Set([CARD, "/.well-known/agent.json", path, ...(options.public ?? [])]);
  target.handle = async (request, response, next) => {
    const token = request.headers["x-a2a-caller-token"] ?? request.headers.authorization?.replace(/^bearer /i, "");
    for (const name of Object.keys(request.headers)) {
      if (TELL_THE_CALLER.includes(name.replaceAll("_", "-"))) delete request.headers[name];
    }
    if (["GET", "HEAD"].includes(request.method!) && open.has(request.url!.split("?")[0]!)) return inner(request, response, next);
    let proven: Caller;
    try {
      proven = await verifier.verify(String(token ?? ""), request);
    } catch (error) {
      // What was wrong is told here only.
      member.warn(`refused a request for ${request.url}: ${error}`);
      const isToken = error instanceof errors.JOSEError && !["ERR_JOSE_GENERIC", "ERR_JWKS_TIMEOUT"].includes(error.code);
      const message = isToken ? "no good token about the caller" : "no key of the gateway is known yet";
      response.writeHead(isToken ? 401 : 503, { "Content-Type": "application/json", "WWW-Authenticate": "Bearer" });
      return response.end(JSON.stringify({ jsonrpc: "2.0", id: null, error: { code: -32000, message } }));
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
    const leave = () => void member.leave().then(() => process.listenerCount(name) || process.kill(process.pid, name));
    process.once(name, leave);
  }
  return member;
}
