"""An agent made with a2a-sdk 1.3.0: JSON-RPC and REST, of A2A 1.0 and of 0.3, and gRPC of 1.0. What it does is said by the
message's first word."""

import asyncio
import contextlib
import socket
import sys

import grpc
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from a2a.types import a2a_pb2_grpc
from serving import serve, word_and_number
from starlette.applications import Starlette


async def in_pieces(task):
    for n, text in enumerate(("one, ", "two, ", "three"), 1):
        await task.add_artifact([new_text_part(text)], artifact_id="pieces", append=n > 1, last_chunk=n == 3)
    await task.complete()


class Executor(AgentExecutor):
    async def execute(self, context, queue):
        word, number = word_and_number(context.get_user_input())
        if word == "hello":
            return await queue.enqueue_event(new_text_message("hello, too"))
        if context.current_task is None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(queue, context.task_id, context.context_id)
        await task.start_work()
        if word == "pieces":
            return await in_pieces(task)
        if word == "wait":
            # Ended by a cancel, which cancels this call.
            return await asyncio.Event().wait()
        if word == "ask":
            return await task.requires_input()
        if word == "fail":
            return await task.failed()
        if word == "stream":
            for n in range(1, number + 1):
                await task.update_status(TaskState.TASK_STATE_WORKING, metadata={"n": n})
        made = context.message.parts if word == "parts" else [new_text_part("x" * number if word == "big" else "made")]
        await task.add_artifact(made, name="result", last_chunk=True)
        await task.complete()

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def make(url):
    # Both versions, or the one that a second argument names; with `grpc` its card names gRPC alone.
    only_grpc = sys.argv[2:] == ["grpc"]
    versions = ["1.0"] if only_grpc else sys.argv[2:] or ["1.0", "0.3"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        grpc_place = f"127.0.0.1:{free.getsockname()[1]}"
    places = {"JSONRPC": f"{url}/a2a/jsonrpc", "HTTP+JSON": f"{url}/a2a/rest", "GRPC": grpc_place}
    if only_grpc:
        places = {"GRPC": grpc_place}
    card = AgentCard(
        name="py13", description="a2a-sdk 1.3.0", version="1",
        supported_interfaces=[AgentInterface(url=place, protocol_binding=binding, protocol_version=version)
                              for version in versions for binding, place in places.items()],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        skills=[AgentSkill(id="act", name="act", description="does what it is told", tags=["test"])],
    )
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.skills.add().CopyFrom(card.skills[0])
    extended.skills[1].id = "more"
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), card, extended_agent_card=extended,
                                    push_config_store=InMemoryPushNotificationConfigStore())

    @contextlib.asynccontextmanager
    async def serving_grpc(_):
        server = grpc.aio.server()
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
        server.add_insecure_port(grpc_place)
        await server.start()
        yield
        await server.stop(0)

    return Starlette(lifespan=serving_grpc, routes=[
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/a2a/jsonrpc", enable_v0_3_compat="0.3" in versions),
        *create_rest_routes(handler, path_prefix="/a2a/rest", enable_v0_3_compat="0.3" in versions),
    ])


serve(make)
