"""Drives a2a-sdk 1.3.0 as a client, to interfaces of A2A 1.0 and of 0.3."""

import asyncio
import base64
import uuid

from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from driving import BYTES, DATA, PLACE, NotOffered, run, shown, state
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value


def texts(parts):
    return shown("".join(part.text for part in parts))


def content(part):
    kind = part.WhichOneof("content")
    if kind == "text":
        return ["text", part.text]
    if kind == "data":
        return ["data", MessageToDict(part.data)]
    file = ("bytes", base64.b64encode(part.raw).decode()) if kind == "raw" else ("url", part.url)
    return [*file, part.media_type, part.filename]


def task(event):
    artifacts = [texts(artifact.parts) for artifact in event.artifacts]
    return {"task": state(TaskState.Name(event.status.state)), "artifacts": artifacts, "task_id": event.id, "context_id": event.context_id}


def read(response):
    """A message, a task or an update, in the form that all drivers share."""
    kind = response.WhichOneof("payload")
    event = getattr(response, kind)
    if kind == "message":
        return {"message": texts(event.parts)}
    if kind == "task":
        return task(event)
    ids = {"task_id": event.task_id, "context_id": event.context_id}
    if kind == "artifact_update":
        return {"artifact": texts(event.artifact.parts), "append": event.append, "last": event.last_chunk, **ids}
    n = MessageToDict(event.metadata).get("n")
    return {"status": state(TaskState.Name(event.status.state)), "n": n and int(n), **ids}


class Sdk:
    def __init__(self, http, job):
        self.http, self.job = http, job

    async def connect(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        # The one interface that this job is about; the SDK would take the best.
        wanted = [i for i in card.supported_interfaces
                  if i.protocol_binding == self.job["binding"] and i.protocol_version.startswith(self.job["version"])]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(wanted[:1])
        self.clients = {}
        for stream in (False, True):
            config = ClientConfig(httpx_client=self.http, streaming=stream, supported_protocol_bindings=[self.job["binding"]])
            self.clients[stream] = ClientFactory(config).create(card)

    async def card(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        return {"name": card.name, "skills": [skill.id for skill in card.skills]}

    async def extended(self):
        card = await self.clients[False].get_extended_agent_card(GetExtendedAgentCardRequest())
        return {"name": card.name, "skills": [skill.id for skill in card.skills]}

    def _send(self, text, stream, task=None, context=None, more=()):
        parts = [Part(text=text), *more]
        message = Message(role=Role.ROLE_USER, message_id=str(uuid.uuid4()), task_id=task, context_id=context, parts=parts)
        return self.clients[stream].send_message(SendMessageRequest(message=message))

    async def send(self, text, stream, **more):
        async for response in self._send(text, stream, **more):
            yield read(response)

    async def parts(self):
        more = [
            Part(data=ParseDict(DATA, Value())),
            Part(raw=base64.b64decode(BYTES), media_type="application/octet-stream", filename="b.bin"),
            Part(url=PLACE, media_type="image/png", filename="f.png"),
        ]
        [response] = [response async for response in self._send("parts", False, more=more)]
        return [content(part) for artifact in response.task.artifacts for part in artifact.parts]

    async def get(self, task_id):
        return task(await self.clients[False].get_task(GetTaskRequest(id=task_id)))

    async def cancel(self, task_id):
        return task(await self.clients[False].cancel_task(CancelTaskRequest(id=task_id)))

    async def subscribe(self, task_id):
        async for response in self.clients[True].subscribe(SubscribeToTaskRequest(id=task_id)):
            yield read(response)

    async def list(self, context_id):
        if self.job["version"] == "0.3":
            raise NotOffered
        listed = await self.clients[False].list_tasks(ListTasksRequest(context_id=context_id))
        return [task(one) for one in listed.tasks]

    async def push(self, task_id, url):
        client = self.clients[False]
        made = await client.create_task_push_notification_config(
            TaskPushNotificationConfig(task_id=task_id, id="p-1", url=url, token="t-1"))
        query = {"task_id": task_id, "id": "p-1"}
        read_back = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(**query))
        if self.job["version"] == "0.3":
            return [made.url, read_back.url]
        listed = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task_id))
        await client.delete_task_push_notification_config(DeleteTaskPushNotificationConfigRequest(**query))
        return [made.url, read_back.url, [config.url for config in listed.configs]]


asyncio.run(run(Sdk))
