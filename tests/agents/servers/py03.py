"""An agent made with a2a-sdk 0.3. It says who called."""

import asyncio
import os

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from a2a.utils import new_agent_text_message
from a2a_gateway_agent import caller, join

PORT, WORK = int(os.environ["PORT"]), float(os.environ.get("WORK", "0"))


class Executor(AgentExecutor):
    async def execute(self, context, queue):
        await asyncio.sleep(WORK)
        await queue.enqueue_event(new_agent_text_message(f"{context.call_context.user.user_name} = {caller().id}"))

    async def cancel(self, context, queue):
        raise NotImplementedError


card = AgentCard(
    name="py03", description="says who called", version="1", url=f"http://127.0.0.1:{PORT}/a2a", preferred_transport="JSONRPC",
    capabilities=AgentCapabilities(streaming=True), default_input_modes=["text/plain"], default_output_modes=["text/plain"],
    skills=[AgentSkill(id="who", name="who", description="says who called", tags=["test"])],
)
app = A2AStarletteApplication(card, DefaultRequestHandler(Executor(), InMemoryTaskStore())).build(rpc_url="/a2a")
app = join(app, workspace="py03", proof="request")
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
