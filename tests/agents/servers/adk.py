"""An agent made with google-adk and its `to_a2a`, without a model. It says who called."""

import os
import warnings

# Of its own experimental parts.
warnings.filterwarnings("ignore", category=UserWarning)

import uvicorn
from a2a_gateway_agent import caller, join
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai import types

PORT = int(os.environ["PORT"])


class Who(BaseAgent):
    async def _run_async_impl(self, context):
        text = f"{context.session.user_id} = {caller().id}"
        content = types.Content(role="model", parts=[types.Part(text=text)])
        yield Event(author=self.name, invocation_id=context.invocation_id, content=content)


app = to_a2a(Who(name="adk", description="says who called"), host="127.0.0.1", port=PORT)
app = join(app, workspace="adk")
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
