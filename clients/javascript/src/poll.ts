// An agent without an address: a handler is called for each message of its inbox.
import { randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { setTimeout as pause } from "node:timers/promises";
import { decodeJwt } from "jose";
import { Caller, Chain, Member, current, type Json, type Settings } from "./member.js";

const SENT = ["message/send", "message/stream", "SendMessage", "SendStreamingMessage"];
const FAILED = { error: { code: -32603, message: "the agent failed" } };

export type PollOptions = Settings & { card?: Json; atOnce?: number; signal?: AbortSignal };
/** Answers a message: a text, or the `result` of a reply. */
export type Handler = (message: Json) => Promise<string | Json> | string | Json;

/** The text of a message, of either generation of A2A. */
export function text(message: Json): string {
  return ((message.parts ?? []) as Json[]).flatMap((part) => ("text" in part ? [part.text] : [])).join(" ");
}

/** Replies until the gateway takes it, or the task is canceled or over. What it can never take becomes an error. */
async function serve(member: Member, handler: Handler, entry: Json): Promise<void> {
  let reply: Json;
  try {
    if (entry.on_behalf_of_refused) throw new Error(`the call is not to be carried out: ${entry.on_behalf_of_refused}`);
    const token: string | undefined = entry.on_behalf_of; // of the gateway itself, over its own connection
    const chain = token ? new Chain(token, decodeJwt(token) as Json) : undefined;
    const known = entry.source_id ?? chain?.root;
    const proven = known ? new Caller(known, {}, chain) : undefined;
    const said = await current.run(proven, async () => handler(entry.request_body.params.message));
    const plain = { kind: "message", role: "agent", messageId: randomUUID(), parts: [{ kind: "text", text: said }] };
    reply = { result: typeof said === "string" ? plain : said };
  } catch (error) {
    member.warn(`the handler failed at ${entry.id}: ${error}`);
    reply = FAILED;
  }
  for (let status = 0; ![404, 409, 410].includes(status); await pause(1000)) {
    try {
      await member.ask(`/workspaces/${member.workspace}/activity/${entry.id}/reply`, reply);
      return;
    } catch (error: any) {
      member.warn(`a reply is not taken: ${error}`);
      status = error.status ?? 0;
      if ([400, 413].includes(status)) reply = FAILED;
    }
  }
}

/** Calls the handler for each message until the signal, SIGTERM or SIGINT comes. What the handler returns is the reply. */
export async function poll(handler: Handler, options: PollOptions = {}): Promise<void> {
  const member = new Member(options, { delivery_mode: "poll" });
  member.place.agent_card = options.card ?? { name: member.workspace, version: "1", capabilities: { streaming: true } };
  const stopped = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"] as const) process.once(name, () => stopped.abort());
  const stop = AbortSignal.any([stopped.signal, ...(options.signal ? [options.signal] : [])]);
  void member.stay();
  const begun = new Map<string, boolean>(); // in the order of the inbox, and whether it is over
  while (!stop.aborted) {
    const silence = new AbortController();
    const clock = setTimeout(() => silence.abort(), 60_000);
    try {
      // Begins behind what was acknowledged, whatever happened in between.
      const headers = { Authorization: `Bearer ${await member.kept()}`, Accept: "text/event-stream" };
      const feed = await fetch(`${member.gateway}/activity`, { headers, signal: AbortSignal.any([stop, silence.signal]) });
      for await (const line of createInterface({ input: Readable.fromWeb(feed.body as any) })) {
        clock.refresh(); // a comment comes after 15 s of silence
        const entry: Json = line.startsWith("data:") ? JSON.parse(line.slice(5)) : {};
        if (SENT.includes(entry.method) && ["submitted", "working"].includes(entry.status) && !begun.has(entry.id)) {
          begun.set(entry.id, false);
          member.running += 1;
          void serve(member, handler, entry).finally(() => (member.running -= 1, begun.set(entry.id, true)));
        }
        while (member.running >= (options.atOnce ?? 8)) await pause(50);
        const over = [...begun.keys()].slice(0, [...begun.values(), false].indexOf(false));
        if (over.length) await member.ask(`/workspaces/${member.workspace}/activity/ack`, { up_to: over.at(-1) });
        over.forEach((id) => begun.delete(id));
      }
    } catch (error) {
      if (!stop.aborted) member.warn(`the inbox is read again: ${error}`);
    }
    clearTimeout(clock);
    await pause(1000, undefined, { signal: stop }).catch(() => {});
  }
  await member.leave();
}
