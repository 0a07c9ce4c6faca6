"""An agent made with strands and its `A2AServer`, with a model that says who called."""

import os

import uvicorn
from a2a_gateway_agent import caller, join
from strands import Agent
from strands.models import Model
from strands.multiagent.a2a import A2AServer

PORT = int(os.environ["PORT"])


class Who(Model):
    def get_config(self):
        return {}

    def update_config(self, **config):
        pass

    async def structured_output(self, *args, **more):
        raise NotImplementedError
        yield

    async def stream(self, *args, **more):
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"called by {caller().id}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


agent = Agent(model=Who(), name="strands", description="says who called", callback_handler=None)
app = A2AServer(agent, host="127.0.0.1", port=PORT).to_starlette_app()
app = join(app, workspace="strands_agent")
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
