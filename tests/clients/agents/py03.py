"""An agent made with a2a-sdk 0.3.26: JSON-RPC and REST of A2A 0.3. What it does is said by the message's first word."""

import asyncio
from contextlib import suppress

from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.apps.rest.rest_adapter import RESTAdapter
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TaskState, TextPart
from a2a.utils import new_agent_text_message, new_task
from serving import serve, word_and_number
from sse_starlette.sse import EventSourceResponse
from starlette.routing import Route

# So that a stream on which nothing happens is soon pinged.
EventSourceResponse.DEFAULT_PING_INTERVAL = 1

close_at_once = EventQueue.close


async def close_when_read(queue, immediate=False):
    """Closes a queue when its followers have read theirs.

    The SDK empties the followers' queues as it closes. One whose poll (each 0.5 s) ends just then loses the last event.
    """
    for follower in queue._children:
        with suppress(TimeoutError):
            await asyncio.wait_for(follower.queue.join(), 1)
    await close_at_once(queue, immediate)


EventQueue.close = close_when_read


def text_parts(text):
    return [Part(root=TextPart(text=text))]


async def in_pieces(task):
    for n, text in enumerate(("one, ", "two, ", "three"), 1):
        await task.add_artifact(text_parts(text), artifact_id="pieces", append=n > 1, last_chunk=n == 3)
    await task.complete()


class Executor(AgentExecutor):
    def __init__(self):
        self.waiting = {}

    async def execute(self, context, queue):
        word, number = word_and_number(context.get_user_input())
        if word == "hello":
            return await queue.enqueue_event(new_agent_text_message("hello, too"))
        if context.current_task is None:
            await queue.enqueue_event(new_task(context.message))
        task = TaskUpdater(queue, context.task_id, context.context_id)
        await task.start_work()
        if word == "pieces":
            return await in_pieces(task)
        if word == "wait":
            asked, done = self.waiting[context.task_id] = asyncio.Event(), asyncio.Event()
            await asked.wait()
            await task.cancel()
            return done.set()
        if word == "zombie":
            # This version of the SDK never ends its stream: only pings follow a cancel.
            return await asyncio.Event().wait()
        if word == "ask":
            return await task.update_status(TaskState.input_required, final=True)
        if word == "fail":
            return await task.failed()
        if word == "stream":
            for n in range(1, number + 1):
                await task.update_status(TaskState.working, metadata={"n": n})
        made = context.message.parts if word == "parts" else text_parts("x" * number if word == "big" else "made")
        await task.add_artifact(made, name="result", last_chunk=True)
        await task.complete()

    async def cancel(self, context, queue):
        if context.task_id not in self.waiting:
            return await TaskUpdater(queue, context.task_id, context.context_id).cancel()
        # The SDK cancels `execute` after this: what it still has to say is waited for.
        asked, done = self.waiting.pop(context.task_id)
        asked.set()
        await done.wait()


def make(url):
    card = AgentCard(
        name="py03", description="a2a-sdk 0.3.26", version="1", protocol_version="0.3.0",
        url=f"{url}/a2a/jsonrpc", preferred_transport="JSONRPC",
        additional_interfaces=[
            AgentInterface(url=f"{url}/a2a/jsonrpc", transport="JSONRPC"),
            AgentInterface(url=f"{url}/a2a/rest", transport="HTTP+JSON"),
            AgentInterface(url=f"{url}/a2a/grpc", transport="GRPC"),
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True), supports_authenticated_extended_card=True,
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        skills=[AgentSkill(id="act", name="act", description="does what it is told", tags=["test"])],
    )
    extended = card.model_copy(update={"skills": [*card.skills, card.skills[0].model_copy(update={"id": "more"})]})
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(),
                                    push_config_store=InMemoryPushNotificationConfigStore())
    app = A2AStarletteApplication(card, handler, extended_agent_card=extended).build(rpc_url="/a2a/jsonrpc")
    for (path, method), endpoint in RESTAdapter(card, handler, extended_agent_card=extended).routes().items():
        app.routes.append(Route(f"/a2a/rest{path}", endpoint, methods=[method]))
    return app


serve(make)
