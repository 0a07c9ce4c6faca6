// The gateway as this page calls it: with the user's token, and with what it refuses as a `Refusal`.

import { refusalOf } from "./refusal.js";

/** Where the page came from is where the gateway is: `/canvas/` is one below. */
export const BASE = new URL("..", import.meta.url).href.replace(/\/$/, "");

/** Pages of workspaces that are read at most. Who reaches more finds them by the filter of an own client. */
const PAGES_MAX = 20;

export class Gateway {
  #token;

  constructor(token) {
    this.#token = token;
  }

  /** For `kept.js`: this tab alone keeps it. */
  get token() {
    return this.#token;
  }

  /** Who the token is for, as far as it says: canvas tokens are JWTs. To be shown; only the gateway can believe it. */
  get who() {
    const said = this.#claims();
    if (!said) return this.#token ? "signed in with a token" : "no token (open gateway)";
    const name = String(said.sub).replace(/^canvas:/, "");
    return said.org ? `${name} · ${said.org}` : name;
  }

  /** The same for all tokens of one user, and for no other. */
  get user() {
    const said = this.#claims();
    return said ? JSON.stringify([said.iss, said.sub, said.org]) : this.#token;
  }

  #claims() {
    try {
      const payload = this.#token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
      return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(payload), (character) => character.charCodeAt(0))));
    } catch {
      return null;
    }
  }

  /**
   * `fetch` with the token, for this gateway only. A card names the gateway by `server.public_url`; the page may have come
   * by another of its names, and may call only where it came from, so what counts of a URL is what follows the base.
   * Throws a `Refusal` for what the gateway refuses; an agent's own errors are answers like others.
   */
  fetch = async (url, init = {}) => {
    const headers = new Headers(init.headers);
    if (this.#token) headers.set("Authorization", `Bearer ${this.#token}`);
    const asked = String(url);
    const path = asked.startsWith("/") ? asked : asked.slice(asked.indexOf("/workspaces/"));
    const response = await fetch(BASE + path, { ...init, headers, credentials: "omit", cache: "no-store" });
    const refusal = await refusalOf(response);
    if (refusal) throw refusal;
    return response;
  };

  /** The workspaces that this user may talk with, and whether there are more than were read. */
  async workspaces() {
    const found = [];
    let next = "/workspaces?limit=500";
    for (let page = 0; next && page < PAGES_MAX; page += 1) {
      const response = await this.fetch(next);
      found.push(...(await response.json()));
      next = response.headers.get("link")?.match(/<([^>]*)>; rel="next"/)?.[1];
    }
    return { workspaces: found, more: Boolean(next) };
  }

  /** One workspace as it is now. */
  async workspace(id) {
    return (await this.fetch(`/workspaces/${id}`)).json();
  }

  /** The address of a socket of events. A browser sends no token with a socket, so it buys a ticket with it first. */
  async socket(lastEventId) {
    const { ticket } = await (await this.fetch("/ws/tickets", { method: "POST" })).json();
    const after = lastEventId ? `&last_event_id=${encodeURIComponent(lastEventId)}` : "";
    return `${BASE.replace(/^http/, "ws")}/ws?ticket=${encodeURIComponent(ticket)}${after}`;
  }
}
