"""Each row of "Completion" in docs/reference/a2a.md: the request, the completion that the gateway reports, and
that a real SDK agent accepts the result."""

import json

from stage import call, events

# The last is one that speaks A2A 1.0 only: what is put in then follows that.
AGENTS = ("py03", "py13", "js03", "js13", "py13 1.0")
TEXT = {"kind": "text", "text": "hello"}
MESSAGE = {"role": "user", "messageId": "m-1", "parts": [TEXT]}
FILE = {"type": "file", "name": "a.txt", "uri": "http://127.0.0.1:9/a.txt"}
BYTES = {"type": "file", "name": "a.txt", "bytes_data": "aGk="}
STREAM = "text/event-stream"


def without(*names, **more):
    return {name: value for name, value in MESSAGE.items() if name not in names} | more


def bare_rows():
    """What it is, the body, the words for a 0.x target, those that a 1.0 one adds; what else is asked."""
    respelled = {"method", "role"}
    yield "method and params", {"method": "message/send", "params": {"message": MESSAGE}}, {"envelope"}, respelled, {}
    yield "an id of its own", {"id": "c-7", "method": "message/send", "params": {"message": MESSAGE}}, {"envelope"}, respelled, {"id": "c-7"}
    yield "an id that is a number", {"id": 7, "method": "message/send", "params": {"message": MESSAGE}}, {"envelope"}, respelled, {"id": 7}
    inferred = {"envelope", "method"}
    yield "params.message", {"params": {"message": MESSAGE}}, inferred, respelled, {}
    yield "message", {"message": MESSAGE}, inferred, respelled, {}
    yield "message, to be streamed", {"message": MESSAGE}, inferred, respelled, {"accept": STREAM}
    members = {"run_id": "r-1", "metadata": {"a": 1}, "configuration": {"acceptedOutputModes": ["text/plain"]}}
    yield "members beside message", {"message": MESSAGE, **members}, inferred, respelled, {
        "sent": lambda call: call["params"]["metadata"] == {"a": 1, "run_id": "r-1"} and call["params"]["configuration"] == members["configuration"]}
    yield "source_workspace_id of another", {"message": MESSAGE, "source_workspace_id": "mallory"}, {*inferred, "source"}, respelled, {
        "sent": lambda call: call["params"]["metadata"]["source_workspace_id"] == "alice"}
    yield "parts", {"parts": [TEXT]}, {*inferred, "message-id", "role"}, respelled, {}
    made = {*inferred, "message-id", "parts", "role"}
    yield "content", {"content": "hello"}, made, set(), {}
    yield "text", {"text": "hello"}, made, set(), {}


def message_rows():
    """The same of messages within an envelope; the words are the same for both generations."""
    made = {"message-id"}
    for what, message in (("no messageId", without("messageId")), ("messageId null", without(messageId=None)), ("messageId empty", without(messageId=""))):
        yield what, message, made, {"sent": lambda call: len(call["params"]["message"]["messageId"]) == 36}
    named = {"sent": lambda call: call["params"]["message"]["messageId"] == "m-9" and "message_id" not in call["params"]["message"]}
    yield "message_id", without("messageId", message_id="m-9"), made, named
    yield "both, the same", without(messageId="m-9", message_id="m-9"), made, named
    yield "task_id", without(task_id="t-1"), {"task-id"}, {"sent": lambda call: call["params"]["message"]["metadata"] == {"task_id": "t-1"}}
    yield "content, a string", without("parts", content="hello"), {"parts"}, {}
    yield "content, an object", without("parts", content=TEXT), {"parts"}, {}
    yield "content, a list", without("parts", content=[TEXT]), {"parts"}, {}
    yield "text", without("parts", text="hello"), {"parts"}, {}
    yield "a text part with type", without(parts=[{"type": "text", "text": "hello"}]), {"parts"}, {}
    yield "a data part with type", without(parts=[TEXT, {"type": "data", "data": {"a": 1}}]), {"parts"}, {}
    yield "a file part with type and uri", without(parts=[TEXT, FILE]), {"parts"}, {}
    yield "a file part with type and bytes_data", without(parts=[TEXT, BYTES]), {"parts"}, {}
    yield "text and no role", without("parts", "role", text="hello"), {"parts", "role"}, {}


def envelope(message, generation, method=None, **params):
    """A call of the generation. What is not about spelling is as it came in the row."""
    if generation == "1.0":
        message = dict(message)
        if message.get("role"):
            message["role"] = "ROLE_USER"
        for name in ("parts", "content"):
            if isinstance(message.get(name), list):
                message[name] = [unkinded(part) for part in message[name]]
            elif isinstance(message.get(name), dict):
                message[name] = unkinded(message[name])
    method = method or ("SendMessage" if generation == "1.0" else "message/send")
    return {"jsonrpc": "2.0", "id": "c-1", "method": method, "params": {"message": message, **params}}


def unkinded(part):
    return {name: value for name, value in part.items() if name != "kind"}


def refused_rows():
    yield "message_id and another messageId", envelope(without(message_id="m-2"), "0.3"), -32602
    yield "target_agent_id of another", envelope(MESSAGE, "0.3", target_agent_id="elsewhere"), -32602
    yield "method that is no string", {"method": 7, "params": {"message": MESSAGE}}, -32600
    yield "a result", {"result": {"message": MESSAGE}}, -32600
    yield "nothing to make a call of", {"prompt": "hello"}, -32600


def rows(agent, name):
    """All that an agent is sent: what, body, words, and what else is asked."""
    generation = "1.0" if agent == "py13 1.0" else "0.3"
    for what, body, words, more, asked in bare_rows():
        yield f"bare: {what}", body, words | (more if generation == "1.0" else set()), asked
    for what, message, words, asked in message_rows():
        yield f"message: {what}", envelope(message, generation), words, asked
    yield "well-formed", envelope(MESSAGE, generation), set(), {}
    yield "well-formed, oddly spelled", json.dumps(envelope(MESSAGE, generation), indent=3).encode(), set(), {}
    gone = {"sent": lambda call: "target_agent_id" not in call["params"]}
    yield "target_agent_id of the path", envelope(MESSAGE, generation, target_agent_id=name), {"target"}, gone
    forged = {"sent": lambda call: call["params"]["metadata"]["source_workspace_id"] == "alice"}
    yield "source_workspace_id of another", envelope(MESSAGE, generation, metadata={"source_workspace_id": "mallory"}), {"source"}, forged
    if generation == "0.3":
        yield "message/sendSubscribe", envelope(MESSAGE, generation, "message/sendSubscribe"), {"alias"}, {"accept": STREAM}


def holds(claim, call):
    try:
        return claim(call)
    except (KeyError, TypeError):
        return False


def judge(answer, words, asked, body, received):
    """What is wrong with the answer to one row, or None."""
    done = set(filter(None, answer.fields.get("x-a2a-completed", "").split(", ")))
    if done != words:
        return f"X-A2A-Completed: {sorted(done)}, not {sorted(words)}"
    if answer.status != 200:
        return f"{answer.status} {answer.body}"
    streamed = answer.fields["content-type"].startswith(STREAM)
    if streamed != (asked.get("accept") == STREAM):
        return f"answered with {answer.fields['content-type']}"
    told = events(answer.body)[-1] if streamed else answer.json()
    if "hello, too" not in json.dumps(told.get("result")):
        return f"the agent does not accept it: {told}; it got {received['body']}"
    if "id" in asked and told["id"] != asked["id"]:
        return f"the id became {told['id']}"
    if "sent" in asked and not holds(asked["sent"], json.loads(received["body"])):
        return f"the agent got {received['body']}"
    if not words and received["body"] != body:
        return f"the agent got other bytes: {received['body']}"
    return None


def run(stage):
    agents = stage.agents(*AGENTS)
    gateway = stage.gateway()
    token, failures, table = gateway.tokens["alice"], [], {}
    for name, agent in agents.items():
        base = gateway.seat(agent)
        version = {"A2A-Version": "1.0"} if name == "py13 1.0" else {}
        for what, body, words, asked in rows(name, base.split("/")[-2]):
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            bare = b'"jsonrpc"' not in body
            # A client of 1.0 says so; who sends a bare body knows of no versions.
            fields = {"Accept": asked.get("accept", "application/json"), **({} if bare else version)}
            answer = call("POST", base, token, body, fields)
            received = agent.requests()[-1]
            wrong = judge(answer, words, asked, body, received)
            table.setdefault(what, {})[name] = "FAILED" if wrong else "accepted"
            if wrong:
                failures.append(f"{what}, {name}: {wrong}")
        for what, body, code in refused_rows():
            before = len(agent.requests())
            answer = call("POST", base, token, body)
            fine = answer.status == 400 and answer.json()["error"]["code"] == code and len(agent.requests()) == before
            table.setdefault(f"refused: {what}", {})[name] = "refused" if fine else "FAILED"
            if not fine:
                failures.append(f"{what}, {name}: {answer}")
    print(f"{'sent':50} " + " ".join(f"{name:9}" for name in AGENTS))
    for what, of in table.items():
        print(f"{what:50} " + " ".join(f"{of.get(name, ''):9}" for name in AGENTS))
    return failures
