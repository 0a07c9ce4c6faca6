"""Joins an agent to an a2a-gateway: `join` wraps an ASGI app, `poll` calls a handler for each message of an inbox."""

from ._join import Joined, join
from ._member import Caller, caller
from ._poll import poll, text

__all__ = ["Caller", "Joined", "caller", "join", "poll", "text"]
