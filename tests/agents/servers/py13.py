"""An agent made with a2a-sdk 1.x, which settings in the environment join. It says who called."""

import asyncio
import logging
import os

import httpx
import uvicorn
from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from a2a_gateway_agent import caller, join
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

PORT, WORK = int(os.environ["PORT"]), float(os.environ.get("WORK", "0"))


class Executor(AgentExecutor):
    async def execute(self, context, queue):
        await asyncio.sleep(WORK)
        await queue.enqueue_event(new_text_message(f"{context.call_context.user.user_name} = {caller().id}"))

    async def cancel(self, context, queue):
        raise NotImplementedError


card = AgentCard(
    name="py13", description="says who called", version="1",
    supported_interfaces=[AgentInterface(url=f"http://127.0.0.1:{PORT}/a2a", protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(streaming=True), default_input_modes=["text/plain"], default_output_modes=["text/plain"],
    skills=[AgentSkill(id="who", name="who", description="says who called", tags=["test"])],
)
handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), card)
raw = Route("/raw", lambda request: JSONResponse(request.headers.items()))


async def ask(request):
    async with httpx.AsyncClient(follow_redirects=True) as client:
        return PlainTextResponse((await client.get(request.query_params["to"])).text)


logging.basicConfig(level=logging.INFO)
app = join(Starlette(routes=[raw, Route("/ask", ask), *create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/a2a")]))
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
