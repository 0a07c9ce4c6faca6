"""The converters of a2a-sdk 1.3.0: JSON lines in, JSON lines out.

Each line is `{"up": bool, "shape": …, "value": …, "ours": …}`: an object of 0.3 (`up`) or of 1.0, and its translation
by the bridge. The answer is `{"value": …}` in the other generation, or `{"error": …}`. It is an error, too, if a parser
of the other generation that knows no leniency refuses `ours`.
"""

import json
import sys

from google.protobuf.json_format import MessageToDict, ParseDict

from a2a.compat.v0_3 import conversions as convert
from a2a.compat.v0_3 import types as old
from a2a.types import a2a_pb2 as new

# By shape: the model of 0.3, the message of 1.0, and the converters up and down.
SHAPES = {
    "message": (old.Message, new.Message, convert.to_core_message, convert.to_compat_message),
    "task": (old.Task, new.Task, convert.to_core_task, convert.to_compat_task),
    "card": (old.AgentCard, new.AgentCard, convert.to_core_agent_card, convert.to_compat_agent_card),
    "push": (
        old.TaskPushNotificationConfig,
        new.TaskPushNotificationConfig,
        convert.to_core_task_push_notification_config,
        convert.to_compat_task_push_notification_config,
    ),
}
# Requests, which the converters take with their envelope.
REQUESTS = {
    "send": (
        old.SendMessageRequest,
        new.SendMessageRequest,
        "message/send",
        convert.to_core_send_message_request,
        convert.to_compat_send_message_request,
    ),
    "get": (
        old.GetTaskRequest,
        new.GetTaskRequest,
        "tasks/get",
        convert.to_core_get_task_request,
        convert.to_compat_get_task_request,
    ),
    "cancel": (
        old.CancelTaskRequest,
        new.CancelTaskRequest,
        "tasks/cancel",
        convert.to_core_cancel_task_request,
        convert.to_compat_cancel_task_request,
    ),
}


def dumped(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def parsed(kind, value):
    return ParseDict(value, kind(), ignore_unknown_fields=True)


def converted(up, shape, value):
    if shape in ("event", "outcome"):
        if up:
            answer = old.SendStreamingMessageSuccessResponse.model_validate({"id": 1, "result": value})
            return MessageToDict(convert.to_core_stream_response(answer))
        return dumped(convert.to_compat_stream_response(parsed(new.StreamResponse, value)))["result"]
    if shape in REQUESTS:
        before, after, method, core, compat = REQUESTS[shape]
        if up:
            call = before.model_validate({"id": 1, "method": method, "params": value})
            return MessageToDict(core(call))
        return dumped(compat(parsed(after, value), 1))["params"]
    before, after, core, compat = SHAPES[shape]
    if up:
        return MessageToDict(core(before.model_validate(value)))
    return dumped(compat(parsed(after, value)))


def check(up, shape, ours):
    """Parses a translation strictly: servers of 1.0 refuse members that they do not know."""
    if up:
        kind = new.StreamResponse if shape in ("event", "outcome") else (SHAPES.get(shape) or REQUESTS.get(shape))[1]
        ParseDict(ours, kind())
    elif shape in ("event", "outcome"):
        old.SendStreamingMessageSuccessResponse.model_validate({"id": 1, "result": ours})
    elif shape in REQUESTS:
        REQUESTS[shape][0].model_validate({"id": 1, "method": REQUESTS[shape][2], "params": ours})
    else:
        SHAPES[shape][0].model_validate(ours)


for line in sys.stdin:
    asked = json.loads(line)
    try:
        check(asked["up"], asked["shape"], asked["ours"])
        said = {"value": converted(asked["up"], asked["shape"], asked["value"])}
    except Exception as error:  # noqa: BLE001: each kind is a refusal
        said = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(said), flush=False)
