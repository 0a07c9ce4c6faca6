"""Drives a2a-sdk 0.3.26 as a client."""

import asyncio
import uuid

from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskPushNotificationConfigParams,
    Message,
    Part,
    PushNotificationConfig,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TextPart,
)
from driving import BYTES, DATA, PLACE, NotOffered, run, shown, state


def texts(parts):
    return shown("".join(part.root.text for part in parts))


def content(part):
    part = part.root
    if isinstance(part, FilePart):
        file = part.file
        kind, value = ("bytes", file.bytes) if isinstance(file, FileWithBytes) else ("url", file.uri)
        return [kind, value, file.mime_type, file.name]
    return [part.kind, part.text if isinstance(part, TextPart) else part.data]


def read(event):
    """A message, a task or an update, in the form that all drivers share."""
    if isinstance(event, tuple):
        event = event[1] or event[0]
    if isinstance(event, Message):
        return {"message": texts(event.parts)}
    if isinstance(event, Task):
        artifacts = [texts(artifact.parts) for artifact in event.artifacts or []]
        return {"task": state(event.status.state.value), "artifacts": artifacts, "task_id": event.id, "context_id": event.context_id}
    ids = {"task_id": event.task_id, "context_id": event.context_id}
    if isinstance(event, TaskArtifactUpdateEvent):
        return {"artifact": texts(event.artifact.parts), "append": bool(event.append), "last": bool(event.last_chunk), **ids}
    return {"status": state(event.status.state.value), "n": (event.metadata or {}).get("n"), **ids}


class Sdk:
    def __init__(self, http, job):
        self.http, self.job = http, job

    async def connect(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        if self.job.get("unlisted"):
            # The card names this binding of 1.0 only.
            card.preferred_transport, card.additional_interfaces = self.job["binding"], []
        self.clients = {}
        for stream in (False, True):
            config = ClientConfig(httpx_client=self.http, streaming=stream, supported_transports=[self.job["binding"]])
            self.clients[stream] = ClientFactory(config).create(card)

    async def card(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        return {"name": card.name, "skills": [skill.id for skill in card.skills]}

    async def extended(self):
        card = await self.clients[False].get_card()
        return {"name": card.name, "skills": [skill.id for skill in card.skills]}

    def _send(self, text, stream, task=None, context=None, more=()):
        parts = [Part(root=part) for part in (TextPart(text=text), *more)]
        message = Message(role="user", message_id=str(uuid.uuid4()), task_id=task, context_id=context, parts=parts)
        return self.clients[stream].send_message(message)

    async def send(self, text, stream, **more):
        async for event in self._send(text, stream, **more):
            yield read(event)

    async def parts(self):
        more = [
            DataPart(data=DATA),
            FilePart(file=FileWithBytes(bytes=BYTES, mime_type="application/octet-stream", name="b.bin")),
            FilePart(file=FileWithUri(uri=PLACE, mime_type="image/png", name="f.png")),
        ]
        [(task, _)] = [event async for event in self._send("parts", False, more=more)]
        return [content(part) for artifact in task.artifacts for part in artifact.parts]

    async def get(self, task_id):
        return read(await self.clients[False].get_task(TaskQueryParams(id=task_id)))

    async def cancel(self, task_id):
        return read(await self.clients[False].cancel_task(TaskIdParams(id=task_id)))

    async def subscribe(self, task_id):
        async for event in self.clients[True].resubscribe(TaskIdParams(id=task_id)):
            yield read(event)

    async def list(self, context_id):
        raise NotOffered

    async def push(self, task_id, url):
        client = self.clients[False]
        config = PushNotificationConfig(id="p-1", url=url, token="t-1")
        made = await client.set_task_callback(TaskPushNotificationConfig(task_id=task_id, push_notification_config=config))
        query = GetTaskPushNotificationConfigParams(id=task_id, push_notification_config_id="p-1")
        read_back = await client.get_task_callback(query)
        return [made.push_notification_config.url, read_back.push_notification_config.url]


asyncio.run(run(Sdk))
