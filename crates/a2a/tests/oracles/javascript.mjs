// The converters of @a2a-js/sdk 1.3.0, which its package does not export: they are evaluated from its text.
// node javascript.mjs NODE_MODULES; JSON lines as for python.py.
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';

const dist = path.join(process.argv[2], '@a2a-js/sdk/dist');

// Returns the named top-level values of a module without its imports and exports.
function inside(file, names) {
  const text = fs.readFileSync(path.join(dist, file), 'utf8');
  const bare = text.replace(/^import .*$/gm, '').replace(/^export \{[\s\S]*?^\};?$/gm, '');
  return new Function(`${bare}\nreturn { ${names.join(', ')} };`)();
}

const proto = inside('index.js', [
  'Task', 'Message', 'SendMessageRequest', 'GetTaskRequest', 'CancelTaskRequest', 'StreamResponse',
  'TaskPushNotificationConfig', 'AgentCard',
]);
// A server translates requests up and answers down, a client the other way round.
const server = inside('compat/v0_3/server/index.js', [
  'toCoreSendMessageRequest', 'toCoreGetTaskRequest', 'toCoreCancelTaskRequest', 'toCompatStreamResponse',
  'toCompatTask', 'toCompatMessage', 'toCoreTaskPushNotificationConfig', 'toCompatTaskPushNotificationConfig',
  'toCompatAgentCard',
]);
const client = inside('compat/v0_3/client/index.js', [
  'toCompatSendMessageRequest', 'toCompatGetTaskRequest', 'toCompatCancelTaskRequest', 'toCoreStreamResponse',
  'toCoreTask', 'toCoreMessage', 'toCoreAgentCard',
]);

const up = {
  message: (value) => proto.Message.toJSON(client.toCoreMessage(value)),
  task: (value) => proto.Task.toJSON(client.toCoreTask(value)),
  push: (value) => proto.TaskPushNotificationConfig.toJSON(server.toCoreTaskPushNotificationConfig(value)),
  event: (value) => proto.StreamResponse.toJSON(client.toCoreStreamResponse({ result: value })),
  send: (value) => proto.SendMessageRequest.toJSON(server.toCoreSendMessageRequest({ params: value })),
  get: (value) => proto.GetTaskRequest.toJSON(server.toCoreGetTaskRequest({ params: value })),
  cancel: (value) => proto.CancelTaskRequest.toJSON(server.toCoreCancelTaskRequest({ params: value })),
};
up.card = (value) => proto.AgentCard.toJSON(client.toCoreAgentCard(value));
const down = {
  card: (value) => server.toCompatAgentCard(proto.AgentCard.fromJSON(value)),
  message: (value) => server.toCompatMessage(proto.Message.fromJSON(value)),
  task: (value) => server.toCompatTask(proto.Task.fromJSON(value)),
  push: (value) => server.toCompatTaskPushNotificationConfig(proto.TaskPushNotificationConfig.fromJSON(value)),
  event: (value) => server.toCompatStreamResponse(proto.StreamResponse.fromJSON(value)).result,
  send: (value) => client.toCompatSendMessageRequest(proto.SendMessageRequest.fromJSON(value), 1).params,
  get: (value) => client.toCompatGetTaskRequest(proto.GetTaskRequest.fromJSON(value), 1).params,
  cancel: (value) => client.toCompatCancelTaskRequest(proto.CancelTaskRequest.fromJSON(value), 1).params,
};
up.outcome = up.event;
down.outcome = down.event;

for await (const line of readline.createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let said;
  try {
    said = { value: (asked.up ? up : down)[asked.shape](asked.value) };
  } catch (error) {
    said = { error: `${error.name}: ${error.message}`.slice(0, 200) };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
