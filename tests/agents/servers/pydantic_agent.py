"""An agent made with pydantic-ai and served by fasta2a, with a model that is a function. It says who called."""

import os

import uvicorn
from a2a_gateway_agent import caller, join
from fasta2a.pydantic_ai import agent_to_a2a
from fasta2a.storage import InMemoryStorage
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

PORT = int(os.environ["PORT"])


class Storage(InMemoryStorage):
    """The agent runs in a worker's task. The caller is known where the request is: here."""

    async def submit_task(self, context_id, message):
        message["parts"].insert(0, {"text": f"called by {caller().id}"})
        return await super().submit_task(context_id, message)


def heard(messages):
    return " ".join(str(part.content) for message in messages for part in message.parts if part.part_kind == "user-prompt")


def say(messages, info):
    return ModelResponse(parts=[TextPart(heard(messages))])


async def stream(messages, info):
    yield heard(messages)


agent = Agent(FunctionModel(say, stream_function=stream), name="pydantic")
app = agent_to_a2a(agent, storage=Storage(), url=f"http://127.0.0.1:{PORT}/")
app = join(app, workspace="pydantic_agent")
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
