// An agent's place at the gateway: its token, registration, heartbeats and departure.
import { randomUUID } from "node:crypto";
import { constants } from "node:fs";
import { access, open, readFile, rename } from "node:fs/promises";
import { dirname, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

export type Json = { [name: string]: any };

/** What both `join` and `poll` take; what is left out comes from the variable, or is the default. */
export interface Settings {
  /** The agent's workspace: A2A_GATEWAY_WORKSPACE. */
  workspace?: string;
  /** The gateway's base URL: A2A_GATEWAY_URL, else http://127.0.0.1:8080. */
  gateway?: string;
  /** The file of the workspace's token, or at first of an enrolment token: A2A_GATEWAY_TOKEN_FILE, else `agent-token`. */
  tokenFile?: string;
  /** Seconds for calls in progress when the agent leaves; 25. */
  grace?: number;
  /** Hears what goes wrong; `console.warn`. */
  warn?: (message: string) => void;
}

/** A refusal of the gateway. */
export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export function setting(value: string | undefined, name: string, otherwise?: string): string {
  const found = value || process.env[`A2A_GATEWAY_${name}`] || otherwise;
  if (!found) throw new Error(`neither an option nor A2A_GATEWAY_${name} is set`);
  return found;
}

export const statusOf = (error: unknown): number => (error instanceof Refused ? error.status : 0);

/** An agent, or one instance of it: `ids`. What it registers: `place`; `complete` adds to that. */
export class Member {
  readonly workspace: string;
  readonly gateway: string;
  readonly file: string;
  readonly ids: Json;
  readonly grace: number;
  readonly warn: (message: string) => void;
  running = 0;
  #registered = false;
  readonly #left = new AbortController();
  #leaving?: Promise<void>;

  constructor(settings: Settings, readonly place: Json, readonly complete = async (): Promise<void> => {}) {
    this.workspace = setting(settings.workspace, "WORKSPACE");
    this.gateway = setting(settings.gateway, "URL", "http://127.0.0.1:8080").replace(/\/+$/, "");
    this.file = resolve(setting(settings.tokenFile, "TOKEN_FILE", "agent-token"));
    this.ids = { workspace_id: this.workspace };
    this.grace = (settings.grace ?? 25) * 1000;
    this.warn = settings.warn ?? ((message) => console.warn(`a2a-gateway-agent: ${message}`));
  }

  /** The credential in the file as it is now: one that was rotated counts at once. */
  async kept(): Promise<string> {
    return readFile(this.file, "utf8").then((text) => text.trim(), () => "");
  }

  async ask(path: string, body?: Json, token?: string, milliseconds = 10_000): Promise<Json> {
    const asked: RequestInit = { signal: AbortSignal.timeout(milliseconds), redirect: "error" };
    if (body) {
      asked.headers = { Authorization: `Bearer ${token ?? (await this.kept())}`, "Content-Type": "application/json" };
      Object.assign(asked, { method: "POST", body: JSON.stringify(body) });
    }
    const answer = await fetch(this.gateway + path, asked);
    if (!answer.ok) throw new Refused(answer.status, `${path}: ${answer.status} ${(await answer.text()).slice(0, 500)}`);
    return (await answer.json()) as Json;
  }

  /** By the token in the file, else by the enrolment token. The workspace's own token takes its place in the file. */
  async #register(): Promise<void> {
    await this.complete();
    for (const token of [await this.kept(), process.env.A2A_GATEWAY_ENROLMENT_TOKEN]) {
      if (!token) continue;
      const once = token.startsWith("a2ae_");
      // An enrolment token is good once: it is not used up where its fruit cannot be kept.
      if (once) await access(dirname(this.file), constants.W_OK);
      let answer;
      try {
        answer = await this.ask("/registry/register", { id: this.workspace, ...this.ids, ...this.place }, token);
      } catch (error) {
        if (statusOf(error) === 401) continue; // revoked, used up, or of another gateway
        throw error;
      }
      if (answer.token) await this.#keep(answer.token);
      else if (once) throw new Error(`the workspace has a token that is not in ${this.file}: revoke it, then enrol again`);
      if (answer.warning) this.warn(answer.warning);
      this.#registered = true;
      return;
    }
    throw new Error(`no good token in ${this.file}: ask an operator for POST /workspaces/${this.workspace}/enrolment`);
  }

  /** A crash leaves the old file or the new one. */
  async #keep(token: string): Promise<void> {
    const name = `${this.file}.${randomUUID()}`;
    const file = await open(name, "wx", 0o600);
    await file.writeFile(token);
    await file.sync();
    await file.close();
    await rename(name, this.file);
  }

  /** Registers and sends heartbeats until the agent leaves. What goes wrong is tried again. */
  async stay(): Promise<void> {
    const { signal } = this.#left;
    for (let failures = 0, third = 10_000; !signal.aborted; ) {
      try {
        if (!this.#registered) await this.#register();
        const heard = await this.ask("/registry/heartbeat", { ...this.ids, active_tasks: this.running });
        [third, failures] = [(heard.expires_in * 1000) / 3, 0];
      } catch (error) {
        // 401: the token was rotated or revoked. 404: the gateway does not know the agent.
        if ([401, 404].includes(statusOf(error))) this.#registered = false;
        failures = Math.min(failures + 1, 9);
        this.warn(`the gateway does not hear ${this.workspace}: ${error}`);
      }
      const wait = Math.min(third, failures ? 250 * 2 ** failures : third) * (0.8 + 0.4 * Math.random());
      await pause(wait, undefined, { signal, ref: false }).catch(() => {});
    }
  }

  /** Drains, then deregisters. Both times calls may be on their way for a second, and end within the grace. */
  leave(): Promise<void> {
    return (this.#leaving ??= this.#leave());
  }

  async #leave(): Promise<void> {
    const end = Date.now() + this.grace;
    for (const path of ["/registry/drain", "/registry/deregister"]) {
      // A heartbeat would find that the agent is unknown, and register it again.
      if (path === "/registry/deregister") this.#left.abort();
      await this.ask(path, this.ids, undefined, 3000).catch(() => {});
      const second = Date.now() + 1000;
      while (Date.now() < second || (this.running && Date.now() < end)) await pause(50);
    }
  }
}
