"""What the document owes its readers and those who generate clients from it."""

import re

from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import OpenAPIV31SpecValidator

METHODS = ("get", "put", "post", "patch", "delete")
REFUSALS = ("Refusal", "RpcRefusal", "RefusalOrAgentError", "RpcRefusalOrAgentError", "HttpJsonRefusal",
            "HttpJsonRefusalOrAgentError", "OAuthRefusal", "Readiness")


def operations(described):
    """(method, path, operation) of every operation."""
    for path, item in described["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def count(described):
    return sum(1 for _ in operations(described))


def complaints(described):
    """Everything that is wrong, each with its place."""
    found = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
             for error in OpenAPIV31SpecValidator(described).iter_errors()]
    if found:
        return found
    seen = {}
    for method, path, operation in operations(described):
        where = f"{method.upper()} {path}"
        name = operation.get("operationId", "")
        if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name):
            found.append(f"{where}: operationId {name!r} makes no method name")
        if name in seen:
            found.append(f"{where}: operationId {name} is also that of {seen[name]}")
        seen[name] = where
        if not operation.get("summary") or not operation.get("tags"):
            found.append(f"{where}: has no summary, or no tag")
        found += [f"{where}: {complaint}" for complaint in _answers(described, operation)]
    return found + list(_examples(described))


def bearers(described):
    """Names of the security schemes: all of them are sent as `Authorization: Bearer`."""
    schemes = described["components"]["securitySchemes"]
    return [name for name, scheme in schemes.items() if scheme.get("scheme") == "bearer"]


def endless(described):
    """Operations that answer with a stream of events."""
    return [operation["operationId"] for _, _, operation in operations(described)
            if "text/event-stream" in _resolved(described, operation["responses"].get("200", {})).get("content", {})]


def upgrades(described):
    """Operations that turn the connection into something else."""
    return [operation["operationId"] for _, _, operation in operations(described) if "101" in operation["responses"]]


def _resolved(described, node):
    while "$ref" in node:
        target = described
        for word in node["$ref"].removeprefix("#/").split("/"):
            target = target[word]
        node = target
    return node


def _answers(described, operation):
    """Every refusal is one of the shared shapes, so that a client has one error type."""
    security = operation.get("security", described.get("security"))
    for name in {name for alternative in security for name in alternative}:
        if name not in described["components"]["securitySchemes"]:
            yield f"its security {name} is no scheme of the document"
    if security and "401" not in operation["responses"]:
        yield "asks for a credential and has no 401"
    for status, answer in operation["responses"].items():
        answer = _resolved(described, answer)
        if status == "default" or int(status) < 400:
            continue
        for media_type, content in answer.get("content", {}).items():
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if media_type != "application/json" or name not in REFUSALS:
                yield f"{status} is no refusal of the shared shape, but {media_type} {name}"


def _examples(described):
    """Every example is what the schema beside it says."""
    shared = {"components": described["components"]}

    def walk(node, where):
        if isinstance(node, list):
            for index, item in enumerate(node):
                yield from walk(item, f"{where}/{index}")
        if not isinstance(node, dict):
            return
        values = [("example", node["example"])] if "example" in node else []
        if "schema" in node and isinstance(node.get("examples"), dict):
            values += [(name, example["value"]) for name, example in node["examples"].items() if "value" in example]
        schema = node.get("schema")
        if isinstance(node.get("examples"), list):
            schema, values = node, [(str(index), value) for index, value in enumerate(node["examples"])]
        for name, value in values:
            checker = Draft202012Validator({**(schema or node), **shared}, format_checker=FormatChecker())
            for error in checker.iter_errors(value):
                yield f"{where}: example {name}: {error.message}"
        for key, item in node.items():
            if key not in ("example", "examples"):
                yield from walk(item, f"{where}/{key}")

    yield from walk(described, "")
