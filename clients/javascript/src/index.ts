// Joins an agent to an a2a-gateway: `join` wraps an Express app, `poll` calls a handler for each message of an inbox.
export { Caller, caller, join, userBuilder, type JoinOptions } from "./join.js";
export { Member, type Json, type Settings } from "./member.js";
export { poll, text, type Handler, type PollOptions } from "./poll.js";
