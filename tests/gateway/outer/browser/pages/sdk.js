// A page made with @a2a-js/sdk: the agent's card, streams and a cancel, through the gateway.

import { AgentCard, CancelTaskRequest, SendMessageRequest, taskStateToJSON } from "@a2a-js/sdk";
import { ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { report, task } from "./page.js";

const { gateway, token, card } = await task();
const base = `${gateway}/workspaces/target/a2a`;

const fetchImpl = (url, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${token}`);
  return fetch(url, { ...init, headers });
};

const factory = (Transport) =>
  new ClientFactory(
    ClientFactoryOptions.createFrom(
      { ...ClientFactoryOptions.default, transports: [] },
      { transports: [new Transport({ fetchImpl })], cardResolver: new DefaultAgentCardResolver({ fetchImpl }) },
    ),
  );

const request = (text) => SendMessageRequest.fromJSON({ message: { role: "ROLE_USER", messageId: crypto.randomUUID(), parts: [{ text }] } });

/** What each event of a stream says; `act` is given each as it comes. */
async function streamed(client, text, act = () => {}) {
  const seen = [];
  for await (const { payload } of client.sendMessageStream(request(text))) {
    const { $case, value } = payload;
    seen.push($case === "artifactUpdate" ? $case : `${$case} ${taskStateToJSON(value.status.state)}`);
    await act($case, value);
  }
  return seen;
}

async function discovered(Transport) {
  const client = await factory(Transport).createFromUrl(`${base}/`);
  return streamed(client, "stream 3");
}

report({
  given: async () => streamed(await factory(JsonRpcTransportFactory).createFromAgentCard(AgentCard.fromJSON(card)), "stream 3"),
  canceled: async () => {
    const client = await factory(JsonRpcTransportFactory).createFromAgentCard(AgentCard.fromJSON(card));
    return streamed(client, "wait", async ($case, value) => {
      const working = $case === "statusUpdate" && taskStateToJSON(value.status.state) === "TASK_STATE_WORKING";
      if (working) await client.cancelTask(CancelTaskRequest.fromJSON({ id: value.taskId }));
    });
  },
  discovered: () => discovered(JsonRpcTransportFactory),
  discoveredRest: () => discovered(RestTransportFactory),
});
