"""What schemathesis cannot know of this gateway. It loads this file itself (SCHEMATHESIS_HOOKS)."""

import json
import os
from datetime import datetime, timedelta, timezone

import schemathesis
from hypothesis import strategies
from schemathesis.core.parameters import ParameterLocation

from gateway import NO_CALL, call

PORT, TOKEN, AGENT = int(os.environ["A2A_PUBLIC"]), os.environ["A2A_TOKEN"], os.environ["A2A_AGENT"]
SEEDED = json.loads(os.environ["A2A_WORKSPACES"])

# Nothing is broken, nothing is drained and little is asked here.
UNHEALTHY = ("internal", "overloaded", "shutting_down", "request_timeout", "agent_protocol_error")

# Members of a change that need a URL, or are one.
ADDRESSED = {"url", "delivery_mode", "liveness"}

# Where a message is sent without an envelope.
SENDS = ("/message:send", "/message:stream", "/tasks/send", "/tasks/send/stream")

# Names that resolve nowhere would only wait for a resolver.
schemathesis.openapi.format("uri", strategies.sampled_from([AGENT, f"{AGENT}a2a", "http://127.0.0.1:9/"]))


def make_good(case):
    """What a schema cannot say of a valid request."""
    # Routes below /api are those of the public listener.
    path = case.operation.path.removeprefix("/api")
    # An operator proves no workspace: the claim of one would turn every other check into `caller_mismatch`.
    if case.headers and "X-Workspace-ID" in case.headers:
        del case.headers["X-Workspace-ID"]
    # Opaque: only what a list answered with is one.
    for name in ("cursor", "pageToken"):
        if case.query and name in case.query:
            del case.query[name]
        if isinstance(case.body, dict):
            case.body.pop(name, None)
    # What a token claims is a canvas user's to say.
    if path == "/explain" and not str(case.query.get("caller", "")).startswith("canvas:"):
        for claim in ("org", "workspaces"):
            case.query.pop(claim, None)
    # In a chain of calls the next ones ask for what was made, and not for what was deleted.
    if case.query and case.meta.phase.name == "stateful" and "dry_run" in case.query:
        del case.query["dry_run"]
    # Nothing comes while it waits.
    if case.query and "wait" in case.query:
        case.query["wait"] = 0
    # JSON has one kind of number and so has its schema; the gateway takes 5 and not 5.0 (docs/reference/http-api.md, conventions).
    case.body = whole(case.body)
    # Agents that are called need an address: then every choice of the other members is good.
    if isinstance(case.body, dict) and path in ("/workspaces", "/registry/register"):
        case.body["url"] = case.body.get("url") or AGENT
    # A probe is for an agent that is called and does not register.
    if isinstance(case.body, dict) and isinstance(case.body.get("probe"), dict):
        case.body.update(liveness="assumed", delivery_mode="push")
    # One that stays from a case before keeps its workspace from becoming another kind.
    elif isinstance(case.body, dict) and path == "/workspaces/{id}" and ADDRESSED & case.body.keys():
        case.body["probe"] = None
    if isinstance(case.body, dict) and path == "/workspaces/{id}" and ADDRESSED & case.body.keys():
        case.body["url"] = case.body.get("url") or AGENT
    # Its URLs are of addresses, which no name has.
    if isinstance(case.body, dict) and case.body.get("resolve") == "each":
        case.body["resolve"] = "first"
    # A list of URLs takes the place of the others; each is there once, and none of its servers sends heartbeats.
    if isinstance(case.body, dict) and isinstance(case.body.get("urls"), list):
        case.body["urls"] = list(dict.fromkeys(case.body["urls"]))
        case.body["liveness"] = "assumed"
        for name in ("url", "internal_url"):
            case.body.pop(name, None)
    # An inbox has no instances.
    if isinstance(case.body, dict) and "instance_id" in case.body and path == "/registry/register":
        case.body["delivery_mode"] = "push"
    # In a chain of calls what one answers with is put into the next, and may take the place of what is required.
    if isinstance(case.body, dict) and path.endswith(SENDS):
        case.body.setdefault("message", {"text": "hello"})
    # A member that stands loose goes into `metadata`: one that is there with another value is refused.
    if isinstance(case.body, dict) and isinstance(case.body.get("metadata"), dict):
        for name in case.body.keys() & case.body["metadata"].keys():
            del case.body["metadata"][name]
    # No schema can say what a certificate is.
    if isinstance(case.body, dict):
        case.body.pop("upstream_tls", None)
    if isinstance(case.body, dict) and path == "/grants":
        # A grant ends in the future, and a workspace needs none for itself.
        if case.body.get("expires_at"):
            case.body["expires_at"] = "2099-01-01T00:00:00Z"
        if case.body.get("caller_id") == case.body.get("target_id"):
            case.body["target_id"] = f"{str(case.body['target_id'])[:120]}-other"
    if isinstance(case.body, dict) and path.endswith(("/workspaces/{id}/tokens", "/operators/tokens")):
        # A token ends in the future, at a time or after one.
        if case.body.get("expires_at"):
            case.body["expires_at"] = "2099-01-01T00:00:00Z"
            case.body.pop("expires_in", None)
    if isinstance(case.body, dict) and path == "/stops":
        # A stop ends in the future, and soon: other cases make calls. Only one that ends calls cancels their tasks.
        soon = datetime.now(timezone.utc) + timedelta(seconds=2)
        case.body["expires_at"] = soon.strftime("%Y-%m-%dT%H:%M:%SZ")
        if case.body.get("cancel_tasks"):
            case.body["mode"] = "running"
    if isinstance(case.body, dict) and case.operation.path == "/policy":
        # No schema can say what a tree is, and the seeded workspaces are needed until the last case.
        case.body = {"version": 1}
    if path == "/policy/prove" and isinstance(case.body, dict):
        # Its workspaces would have to be a tree, and its rules and filters whole.
        case.body = {"version": 1, "statements": ["never: org:rival -> org:acme"]}
    if path == "/search" and isinstance(case.body, dict):
        case.body["query"] = {"text": case.body["query"]["text"]}
    if path == "/agents" and case.query:
        case.query.pop("filter", None)
    if path == "/revocations" and isinstance(case.body, dict):
        # It is of one thing.
        case.body = {"reason": case.body.get("reason"), "root": {"iss": "https://login.example.com", "sub": "ada"}}
    if path == "/canvas/tokens" and isinstance(case.body, dict) and case.body.get("groups"):
        case.body["groups"] = ["payers"]
    if path == "/access/matrix" and case.query and case.query.get("format") == "csv":
        case.query.pop("limit", None)
    if path == "/usage" and case.query:
        # The days are in order and not too many, a sum by org is of no workspace, and a file has no pages.
        if "from" in case.query:
            case.query["to"] = case.query["from"]
        if case.query.get("by") == "org":
            case.query.pop("workspace", None)
        case.query.pop("limit", None)


def whole(value):
    """The same value, with whole numbers written without a fraction."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is not None and case.meta.generation.mode.is_positive:
        make_good(case)
    # What ends a workspace gets one to end: the seeded ones are needed until the last case.
    ends = case.method.upper() == "DELETE" and case.operation.path == "/workspaces/{id}" or case.operation.path.endswith("/pause")
    if ends and case.path_parameters.get("id") in SEEDED:
        made = call(PORT, TOKEN, "POST", "/workspaces", {"name": "to be ended"})
        case.path_parameters["id"] = made["id"]


@schemathesis.check
def every_answer_names_its_request(ctx, response, case):
    if not response.headers.get("x-request-id"):
        raise AssertionError("no X-Request-Id in the answer")


@schemathesis.check
def every_refusal_has_a_reason(ctx, response, case):
    """Also where the document is silent: paths, methods and heads that are in no document."""
    agents_own = response.text == NO_CALL
    if response.status_code < 400 or case.method.upper() == "HEAD" or agents_own:
        return
    body = json.loads(response.content)
    # JSON-RPC has the facts in `data`, HTTP+JSON in `details`, the control plane at top level.
    error = body.get("error")
    facts = (error.get("data") or error.get("details")) if isinstance(error, dict) else None
    if facts:
        assert facts[0]["reason"], body
        assert facts[0]["metadata"]["requestId"] == response.headers["x-request-id"][0], body
    elif "reason" in body or response.status_code != 503:
        assert body.get("reason") and body.get("error"), (response.status_code, response.headers, body, case.headers, case.body)
        assert body["request_id"] == response.headers["x-request-id"][0], body
    reason = str(body.get("reason") or facts[0]["reason"]).lower() if "error" in body else None
    assert reason not in UNHEALTHY, body
    assert TOKEN not in response.text, "the credential is repeated in the answer"


# A valid call may ask for a thing that its agent's generation does not have, or be of a version that is not translated
# (docs/reference/bridge.md).
NOT_IN_EVERY_GENERATION = ("PUSH_NOTIFICATION_NOT_SUPPORTED", "UNSUPPORTED_OPERATION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                           "VERSION_NOT_SUPPORTED")


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Two bodies that break the schema are taken for good: none where it may be missing, and a call that the agent took.

    What is in a call is the agent's to judge (docs/reference/a2a.md, completion): the schema is for those who write calls.
    """
    if failure.code == "ST202":
        # No schema can say what a signed token is, and facets are not offered.
        if case.operation.path.removeprefix("/api").startswith(("/oauth/", "/explore")):
            return False
        return not any(f'"reason":"{reason}"' in response.text for reason in NOT_IN_EVERY_GENERATION)
    if failure.code == "ST101":
        return response.status_code != 501
    if failure.code != "ST201":
        return True
    empty = not isinstance(case.body, (dict, list, str, bytes, int, float, bool))
    required = case.operation.definition.raw.get("requestBody", {}).get("required")
    body = case.meta.components.get(ParameterLocation.BODY) if case.meta else None
    agents_own = response.text == NO_CALL and body is not None and body.mode.is_negative
    return not (empty and not required or agents_own)
