// An agent's place at the gateway: its token, registration, heartbeats and departure.
import { AsyncLocalStorage } from "node:async_hooks";
import { randomUUID } from "node:crypto";
import { access, constants, open, readFile, rename, stat } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

export type Json = { [name: string]: any };
/** What `join` and `poll` take: the README says what each is, and which variable stands for it. */
export type Settings = Partial<{ workspace: string; gateway: string; tokenFile: string; grace: number; warn: (said: string) => void }>;

/** On whose behalf a call is made, verified: `root` and `person` began it, `actors` passed it on, the caller first. */
export class Chain {
  readonly root: string;
  readonly person?: Json;
  readonly run: string;
  readonly actors: string[] = [];
  constructor(readonly token: string, readonly claims: Json) {
    [this.root, this.person, this.run] = [claims.sub, claims.sub_id, claims.txn];
    for (let act = claims.act; act; act = act.act) this.actors.push(act.sub);
  }
}

/** A proven caller: a workspace, or `canvas:<user>`, `org:<org>`, `operator:`. `@a2a-js/sdk` takes it as a user. */
export class Caller {
  readonly isAuthenticated = true;
  readonly workspace: string | undefined;
  constructor(readonly id: string, readonly claims: Json, readonly chain?: Chain, readonly userName = id) {
    this.workspace = id.includes(":") ? undefined : id;
  }
}

export const current = new AsyncLocalStorage<Caller | undefined>();

/** The field of a chain token, to agents and from them. */
export const ON_BEHALF_OF = "x-a2a-on-behalf-of";

/** Has each `fetch` of the gateway carry the chain of the call that is served, and none of another origin. */
function passChainOn(gateway: string): void {
  const [plain, origin] = [globalThis.fetch, new URL(gateway).origin];
  globalThis.fetch = (input, init) => {
    const chain = current.getStore()?.chain;
    const url = new URL(input instanceof Request ? input.url : String(input), "http://localhost");
    if (!chain || url.origin !== origin) return plain(input, init);
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    if (!headers.has(ON_BEHALF_OF)) headers.set(ON_BEHALF_OF, chain.token);
    // The gateway does not redirect; a redirect would take the field to another origin.
    return plain(input, { ...init, headers, redirect: "error" });
  };
}

export function setting(value: string | undefined, name: string, otherwise?: string): string {
  const found = value || process.env[`A2A_GATEWAY_${name}`] || otherwise;
  if (!found) throw new Error(`neither an option nor A2A_GATEWAY_${name} is set`);
  return found;
}

/** A token without the white space around it. What could be none is refused by its place: its content is a secret. */
function clean(text: string, place: string): string {
  if (/^[!-~]*$/.test((text = text.trim()))) return text;
  throw new Error(`${place} has more than one line, or bytes that no token has (such as NUL): write the token alone into it`);
}

/** Reads the body of an answer, of at most a mebibyte when it is unpacked. */
async function bounded(answer: Response): Promise<string> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of answer.body ?? []) {
    if ((size += part.length) > 1 << 20) throw new Error(`the answer of ${answer.url} has more than a mebibyte`);
    parts.push(part);
  }
  return Buffer.concat(parts).toString();
}

/** An agent, or one instance of it: `ids`. What it registers: `place`; `complete` adds to that. */
export class Member {
  readonly workspace: string;
  readonly gateway: string;
  readonly file: string;
  readonly ids: Json;
  running = 0;
  #registered = false;
  readonly #left = new AbortController();
  #leaving?: Promise<void>;

  constructor(readonly settings: Settings, readonly place: Json, readonly complete = async (_: Member) => {}) {
    this.workspace = setting(settings.workspace, "WORKSPACE");
    this.gateway = setting(settings.gateway, "URL", "http://127.0.0.1:8080").replace(/\/+$/, "");
    this.file = resolve(setting(settings.tokenFile, "TOKEN_FILE", "agent-token"));
    this.ids = { workspace_id: this.workspace };
    passChainOn(this.gateway);
  }

  /** What others sent is on one line, without signs that change a terminal. */
  warn(message: string): void {
    const plain = message.replace(/[\p{C}\u2028\u2029]/gu, (sign) => `\\u{${sign.codePointAt(0)!.toString(16)}}`);
    (this.settings.warn ?? console.warn)(`a2a-gateway-agent: ${this.workspace}: ${plain}`);
  }

  /** The credential in the file as it is now: one that was rotated counts at once. */
  readonly kept = (): Promise<string> => readFile(this.file, "latin1").then((text) => clean(text, this.file), () => "");

  async ask(path: string, body?: Json, token?: string, patience = 10_000): Promise<Json> {
    const headers: Record<string, string> = { "Accept-Encoding": "identity" };
    if (body) Object.assign(headers, { Authorization: `Bearer ${token ?? (await this.kept())}`, "Content-Type": "application/json" });
    const post = body && { method: "POST", body: JSON.stringify(body) };
    const answer = await fetch(this.gateway + path, { ...post, headers, signal: AbortSignal.timeout(patience), redirect: "error" });
    const [{ ok, status }, said] = [answer, await bounded(answer)];
    if (ok) return JSON.parse(said) as Json;
    throw Object.assign(new Error(`${path}: ${status} ${said.slice(0, 500)}`), { status });
  }

  /** By the token in the file, else by the enrolment token. The workspace's own token takes its place in the file. */
  async #register(): Promise<void> {
    await this.complete(this);
    const mode = process.platform === "win32" ? 0 : await stat(this.file).then((file) => file.mode & 0o777, () => 0);
    if (mode & 0o007) this.warn(`every user can read or write ${this.file} (mode ${mode.toString(8)}): chmod 600`);
    const name = "A2A_GATEWAY_ENROLMENT_TOKEN";
    for (const token of [await this.kept(), clean(process.env[name] ?? "", name)].filter(Boolean)) {
      const once = token.startsWith("a2ae_"); // not used up where its fruit cannot be kept
      if (once) await access(dirname(this.file), constants.W_OK);
      const asked = this.ask("/registry/register", { id: this.workspace, ...this.ids, ...this.place }, token);
      const answer = await asked.catch((error) => {
        if (error.status !== 401) throw error; // revoked, used up, or of another gateway
      });
      if (!answer) continue;
      if (answer.token) {
        const name = `${this.file}.${randomUUID()}`;
        const file = await open(name, "wx", 0o600);
        await file.writeFile(answer.token);
        await file.sync();
        await file.close();
        await rename(name, this.file); // a crash leaves the old one or the new one
      } else if (once) throw new Error(`the workspace has a token that is not in ${this.file}: revoke it, then enrol again`);
      if (answer.warning) this.warn(answer.warning);
      return void (this.#registered = true);
    }
    throw new Error(`no good token in ${this.file}: ask an operator for POST /workspaces/${this.workspace}/enrolment`);
  }

  /** Registers and sends heartbeats until the agent leaves. What goes wrong is tried again. */
  async stay(): Promise<void> {
    const { signal } = this.#left;
    for (let failures = 0, third = 10_000; !signal.aborted; ) {
      try {
        if (!this.#registered) await this.#register();
        const heard = await this.ask("/registry/heartbeat", { ...this.ids, active_tasks: this.running });
        third = Math.max(500, Math.min((heard.expires_in * 1000) / 3 || 0, 3_600_000));
        failures = 0;
      } catch (error: any) {
        // 401: the token was rotated or revoked. 404: the gateway does not know the agent.
        if ([401, 404].includes(error.status)) this.#registered = false;
        failures = Math.min(failures + 1, 9);
        this.warn(`the gateway does not hear it: ${error}`);
      }
      const wait = Math.min(third, failures ? 250 * 2 ** failures : third) * (0.8 + 0.4 * Math.random());
      await pause(wait, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  /** Drains, then deregisters. Both times calls may be on their way for a second, and end within the grace. */
  readonly leave = (): Promise<void> => (this.#leaving ??= this.#leave(Date.now() + (this.settings.grace ?? 25) * 1000));

  async #leave(end: number): Promise<void> {
    for (const path of ["/registry/drain", "/registry/deregister"]) {
      // A heartbeat would find that the agent is unknown, and register it again.
      if (path === "/registry/deregister") this.#left.abort();
      await this.ask(path, this.ids, undefined, 3000).catch(() => {});
      const second = Date.now() + 1000;
      while (Date.now() < second || (this.running && Date.now() < end)) await pause(50);
    }
  }
}
