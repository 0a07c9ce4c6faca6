// An OpenID provider: oidc-provider, with people who are made up. Prints its issuer, reads one line of JSON, `{ redirect_uri,
// secret, people: { login: { email, groups } }, ttl }`, and serves until its input ends. People sign in with any password.

import { createRequire } from "node:module";
import { createServer } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.PROVIDER_PACKAGES, "package.json"));
const { default: Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));

const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;
console.log(issuer);

const lines = createInterface({ input: process.stdin });
const { value } = await lines[Symbol.asyncIterator]().next();
const { redirect_uri, secret, people } = JSON.parse(value);

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "a2a-gateway",
      ...(secret ? { client_secret: secret } : { token_endpoint_auth_method: "none" }),
      redirect_uris: [redirect_uri],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], email: ["email"], profile: ["groups"] },
  // Into the ID token, where the gateway reads them.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ["one that is made up"] },
  ttl: { AuthorizationCode: 60, IdToken: 300, AccessToken: 300, Grant: 3600, Interaction: 600, Session: 3600 },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
});
server.on("request", provider.callback());
// Tells that it serves.
console.log("ready");
process.stdin.on("end", () => process.exit(0));
