"""Drives the RemoteA2aAgent of google-adk 2.13.0, on a2a-sdk 0.3.26."""

import asyncio
import base64
import warnings

# Of its own experimental parts.
warnings.filterwarnings("ignore", category=UserWarning)

from a2a.client import ClientConfig, ClientFactory
from driving import BYTES, run
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types


def read(part):
    if part.inline_data:
        return ["bytes", base64.b64encode(part.inline_data.data).decode(), part.inline_data.mime_type]
    return ["text", part.text]


class Sdk:
    def __init__(self, http, job):
        self.http, self.job = http, job

    async def connect(self):
        factory = ClientFactory(ClientConfig(httpx_client=self.http, streaming=self.job["streaming"]))
        card = f"{self.job['base']}/.well-known/agent-card.json"
        agent = RemoteA2aAgent(name="remote", agent_card=card, a2a_client_factory=factory)
        self.runner = InMemoryRunner(agent=agent, app_name="tests")

    async def talk(self, texts):
        """What each turn of one conversation shows."""
        session = await self.runner.session_service.create_session(app_name="tests", user_id="alice")
        return [await self._turn(session, text) for text in texts]

    async def _turn(self, session, text):
        parts = [types.Part(text=text)]
        if text == "parts":
            parts.append(types.Part(inline_data=types.Blob(data=base64.b64decode(BYTES), mime_type="application/octet-stream")))
        seen, state = [], None
        message = types.Content(role="user", parts=parts)
        async for event in self.runner.run_async(user_id="alice", session_id=session.id, new_message=message):
            if event.error_message:
                raise RuntimeError(event.error_message)
            seen += [read(part) for part in (event.content and event.content.parts) or []]
            state = event.custom_metadata["a2a:response"].get("status", {}).get("state")
        return {"parts": seen, "state": state}


asyncio.run(run(Sdk))
