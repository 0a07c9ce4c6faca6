"""An agent made with google-adk, without a model: it answers in Markdown, in pieces, with a picture. Prints its port."""

import base64
import os
import socket
import sys
import warnings
from pathlib import Path

# Of its own experimental parts.
warnings.filterwarnings("ignore", category=UserWarning)

# What serves events is in the environment of the SDK that ADK uses, and not in its own.
sys.path += map(str, Path(sys.prefix).parent.parent.glob("py03/python/lib/python*/site-packages"))

import uvicorn
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.genai import types

PICTURE = base64.b64decode(os.environ["PICTURE"])
TEXT = "## Plan\n\n1. **read** the file\n2. count\n\n```sh\necho done\n```\n"


class Plans(BaseAgent):
    async def _run_async_impl(self, context):
        parts = [types.Part(text=TEXT), types.Part(inline_data=types.Blob(data=PICTURE, mime_type="image/png", display_name="plot.png"))]
        yield Event(author=self.name, invocation_id=context.invocation_id, content=types.Content(role="model", parts=parts))


listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
app = to_a2a(Plans(name="adk", description="plans"), host="127.0.0.1", port=port)
print(port, flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
