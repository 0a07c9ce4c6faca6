// The gateway's keys, which verify its tokens about callers.
import { errors, importJWK, type JWTHeaderParameters } from "jose";
import type { Json, Member } from "./member.js";

// In milliseconds: how long keys are fresh, the pause between two questions and the longest wait for an answer to one, how long old
// keys count.
const [FRESH, PAUSE, FETCH_MAX, OLD_MAX] = [600_000, 10_000, 5_000, 86_400_000];
type Key = { alg: string; key: Awaited<ReturnType<typeof importJWK>> };

/** No token can be judged: the gateway's keys are unknown, or too old. */
export class NoKeys extends Error {}

/** Keys by their ids, and the issuer that they belong to. */
export class Keys {
  issuer: string | undefined;
  #known = new Map<string, Key>();
  #asked = -Infinity;
  #fetched = -Infinity;
  #fetching: Promise<void> | undefined;

  constructor(readonly member: Member) {}

  /** The key of a token. A known one waits for nothing; all that wait for an unknown one share a question, after a pause. */
  readonly find = async ({ kid = "", alg }: JWTHeaderParameters): Promise<Key["key"]> => {
    const [now, isKnown] = [performance.now(), this.#known.has(kid)];
    const age = now - this.#fetched;
    if ((!isKnown || age > FRESH) && now - this.#asked > (this.#known.size || this.#fetching ? PAUSE : 1000)) {
      this.#asked = now;
      this.#fetching = this.#fetch().finally(() => (this.#fetching = undefined));
    }
    if (!isKnown || age > OLD_MAX) await this.#fetching;
    if (performance.now() - this.#fetched > OLD_MAX) throw new NoKeys("no key of the gateway is known");
    const found = this.#known.get(kid);
    if (found?.alg !== alg) throw new errors.JWKSNoMatchingKey();
    return found!.key;
  };

  async #fetch(): Promise<void> {
    const paths = ["/.well-known/a2a-gateway", "/.well-known/jwks.json"];
    try {
      const [about, published] = await Promise.all(paths.map((path) => this.member.ask(path, undefined, "", FETCH_MAX)));
      const known = new Map<string, Key>();
      for (const jwk of published!.keys as Json[]) {
        try {
          const alg = jwk.alg ?? (jwk.kty === "OKP" ? "EdDSA" : "ES256");
          known.set(jwk.kid, { alg, key: await importJWK(jwk, alg) });
        } catch {} // one that is not understood is ignored (RFC 7517, 5)
      }
      [this.issuer, this.#known, this.#fetched] = [about!.issuer, known, performance.now()];
    } catch (error) {
      this.member.warn(`the gateway's keys cannot be had: ${error}`);
    }
  }
}
