// Refusals of the gateway, on all of its routes (docs/reference/reasons.md). Agents can write any body, so
// a body proves nothing: an answer is the gateway's own if it has the field X-A2A-Refused, which no agent can send
// through, and an event of a stream if it names the stream, which no agent knows.

/** A refusal of the gateway: a word that says why, a sentence, and the id under which the log has it. */
export class Refusal extends Error {
  constructor({ reason, message, requestId, status = null, retryAfter = null, facts = {} }) {
    super(message);
    this.name = "Refusal";
    Object.assign(this, { reason, requestId, status, retryAfter, facts });
  }
}

// An error that A2A defines has the protocol's own domain over HTTP+JSON.
const DOMAINS = ["a2a-gateway", "a2a-protocol.org"];

/** What an error of JSON-RPC or HTTP+JSON says if it has the form of the gateway's; whose it is, is for the caller to know. */
function read(error, status) {
  const details = [error?.data, error?.details].find(Array.isArray) ?? [];
  const info = details.find((detail) => DOMAINS.includes(detail?.domain));
  if (!info) return null;
  const { requestId, retryAfter, stream, ...facts } = info.metadata ?? {};
  const refusal = new Refusal({
    reason: String(info.reason).toLowerCase(),
    message: String(error.message),
    requestId,
    status,
    retryAfter: retryAfter === undefined ? null : Number(retryAfter),
    facts,
  });
  return { refusal, stream };
}

/** Why the gateway cut the stream of that name (`X-A2A-Stream`), if an event's JSON says that, and is the gateway's. */
export function partingOf(said, stream) {
  const found = read(said?.error, null);
  return found && stream && found.stream === stream ? found.refusal : null;
}

/** The refusal that an answer is; `null` where it is none of the gateway's. The answer can still be read. */
export async function refusalOf(response) {
  const reason = response.headers.get("x-a2a-refused");
  if (!reason) return null;
  const body = await response
    .clone()
    .json()
    .catch(() => null);
  const { status } = response;
  if (body?.error && typeof body.error === "object") {
    const found = read(body.error, status)?.refusal;
    return found ? Object.assign(found, { reason }) : null;
  }
  const { error = "the gateway refused", reason: _, request_id: requestId = response.headers.get("x-request-id"), retry_after: retryAfter = null, ...facts } = body ?? {};
  return new Refusal({ reason, message: String(error), requestId, status, retryAfter, facts });
}
