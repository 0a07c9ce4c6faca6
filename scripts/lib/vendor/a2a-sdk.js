// What the canvas takes from @a2a-js/sdk. scripts/vendor-pages makes pages/vendor/a2a-sdk.js of it.

export { AgentCard, CancelTaskRequest, GetTaskRequest, SendMessageRequest, SubscribeToTaskRequest, taskStateToJSON } from "@a2a-js/sdk";
export {
  ClientFactory,
  ClientFactoryOptions,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from "@a2a-js/sdk/client";
