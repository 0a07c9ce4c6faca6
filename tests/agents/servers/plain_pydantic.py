"""An agent made with pydantic-ai and served by fasta2a, which knows of no gateway. It says what it heard."""

import os

import uvicorn
from fasta2a.pydantic_ai import agent_to_a2a
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

PORT = int(os.environ["PORT"])


def heard(messages):
    return " ".join(str(part.content) for message in messages for part in message.parts if part.part_kind == "user-prompt")


def say(messages, info):
    return ModelResponse(parts=[TextPart(f"heard: {heard(messages)}")])


async def stream(messages, info):
    yield f"heard: {heard(messages)}"


agent = Agent(FunctionModel(say, stream_function=stream), name="pydantic")
# Its card has another port than the one at which it listens: `run` registers the right one.
uvicorn.run(agent_to_a2a(agent, url="http://localhost:8000/"), host="127.0.0.1", port=PORT, log_level="warning")
