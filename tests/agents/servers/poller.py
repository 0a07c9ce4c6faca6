"""An agent that polls. It says who called, and fails where it is asked to."""

import asyncio

from a2a_gateway_agent import caller, poll, text


async def answer(message):
    if "fail" in text(message):
        raise RuntimeError("as it was asked to")
    if "empty" in text(message):
        return {"neither": "a message nor a task"}
    return f"{caller().id} said {text(message)}"


asyncio.run(poll(answer))
