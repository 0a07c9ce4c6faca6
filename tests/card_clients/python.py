"""Clients for Python that read a card without a credential: python.py BASE WRAPPED, the two agents; with A2A_TOKEN.

Each fetches the card itself, with nothing that says who asks, and sends the token only with its calls.
"""

import asyncio
import os
import sys
import uuid

import httpx

BASE, WRAPPED = sys.argv[1:]
CREDENTIAL = {"Authorization": f"Bearer {os.environ['A2A_TOKEN']}"}
TEXT = "hello from outside"


async def beeai():
    from beeai_framework.adapters.a2a.agents import A2AAgent
    from beeai_framework.memory import UnconstrainedMemory

    agent = A2AAgent(url=BASE, memory=UnconstrainedMemory())
    # This fetches the card.
    await agent.check_agent_exists()
    async with httpx.AsyncClient(headers=CREDENTIAL) as calls:
        answer = await agent.run(TEXT, httpx_client=calls)
    return answer.last_message.text


async def fasta2a():
    from fasta2a.client import A2AClient

    calls = httpx.AsyncClient(headers=CREDENTIAL)
    client = A2AClient(WRAPPED, http_client=calls, fetch_card=True)
    part = {"kind": "text", "text": TEXT}
    message = {"role": "user", "kind": "message", "message_id": str(uuid.uuid4()), "parts": [part]}
    return str(await client.send_message(message))


async def a2a_lint():
    from a2a_lint.client import A2AClient

    client = A2AClient(BASE)
    fetched = await client.fetch_card()
    card = fetched.get("card", fetched)
    # It has no setting for a credential, so its calls get one below it.
    post = httpx.AsyncClient.post

    async def with_credential(self, url, **options):
        return await post(self, url, **{**options, "headers": {**(options.get("headers") or {}), **CREDENTIAL}})

    httpx.AsyncClient.post = with_credential
    return str(await client.send_message(card["url"], TEXT))


async def python_a2a():
    from python_a2a import A2AClient, Message, MessageRole, TextContent

    # This fetches the card.
    client = await asyncio.to_thread(A2AClient, BASE)
    assert client.agent_card.name == "Echo", client.agent_card.name
    client.headers.update(CREDENTIAL)
    message = Message(content=TextContent(text=TEXT), role=MessageRole.USER)
    answer = await asyncio.to_thread(client.send_message, message)
    return answer.content.text


async def main():
    failed = False
    for client in (beeai, fasta2a, a2a_lint, python_a2a):
        try:
            said = await client()
            fine = f"echo: {TEXT}" in said
        except Exception as error:
            said, fine = f"{type(error).__name__}: {error}", False
        failed |= not fine
        print(f"{client.__name__} {'ok' if fine else 'FAILED'} {' '.join(said.split())[:400]}")
    sys.exit(failed)


asyncio.run(main())
