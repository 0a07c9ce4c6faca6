"""Drives a2a-sdk 0.3.26 as a client."""

import asyncio
import uuid

from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import (
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
from driving import NotOffered, run, shown, state


def texts(parts):
    return shown("".join(part.root.text for part in parts))


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
        return {"artifact": texts(event.artifact.parts), **ids}
    return {"status": state(event.status.state.value), "n": (event.metadata or {}).get("n"), **ids}


class Sdk:
    def __init__(self, http, job):
        self.http, self.job = http, job

    async def connect(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        self.clients = {}
        for stream in (False, True):
            config = ClientConfig(httpx_client=self.http, streaming=stream, supported_transports=[self.job["binding"]])
            self.clients[stream] = ClientFactory(config).create(card)

    async def card(self):
        card = await A2ACardResolver(self.http, self.job["base"]).get_agent_card()
        return {"name": card.name, "skills": [skill.id for skill in card.skills]}

    async def send(self, text, stream, task=None, context=None):
        message = Message(role="user", message_id=str(uuid.uuid4()), task_id=task, context_id=context,
                          parts=[Part(root=TextPart(text=text))])
        async for event in self.clients[stream].send_message(message):
            yield read(event)

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
