// An agent that polls. It says who called, and fails where it is asked to.
import { caller, poll, text } from "a2a-gateway-agent";

await poll((message) => {
  if (text(message).includes("fail")) throw new Error("as it was asked to");
  if (text(message).includes("empty")) return { neither: "a message nor a task" };
  return `${caller().id} said ${text(message)}`;
});
