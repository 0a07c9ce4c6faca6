#!/usr/bin/env python3
"""A guard for a2a-gateway: rejects secrets and card numbers, masks e-mail addresses.

    guard.py [--listen HOST:PORT] [--key-file FILE] [--presidio URL] [--moderation URL]

--key-file: a file with the value of the field `X-Key` that the gateway sends (`header` of the guard).
--presidio: masks what Presidio's analyzer finds (POST URL/analyze). --moderation: rejects what a moderation endpoint flags
(POST URL with {"input": [...]}; the answer has "results", each with "flagged" and "categories").
A service that fails is a failure of the guard: the gateway's on_failure decides. Python 3.9, and no package.
"""

import argparse
import hmac
import http.server
import json
import re
import urllib.request

BODY_MAX = 32 << 20
TIMEOUT = 1.5
SCORE_MIN = 0.5

SECRETS = {
    "AWS access key": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    "private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "GitHub token": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
    "token of the gateway": re.compile(r"\ba2a[awo]_[A-Za-z0-9_-]{43}"),
}
DIGITS = re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])")
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")


def is_card(text):
    """True for the number of a payment card, by its check digit."""
    digits = [int(digit) for digit in text if digit.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def reason(text):
    """Returns why a text is rejected; None: it is not."""
    for name, pattern in SECRETS.items():
        if pattern.search(text):
            return "it has a secret: " + name
    if any(is_card(found.group()) for found in DIGITS.finditer(text)):
        return "it has the number of a payment card"
    return None


def posted(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return json.load(answer)


class Judge:
    """Judges questions of the gateway."""

    def __init__(self, presidio=None, moderation=None):
        self.presidio, self.moderation = presidio, moderation

    def masked(self, text):
        text = EMAIL.sub("[email]", text)
        if not self.presidio or not text.strip():
            return text
        found = posted(self.presidio.rstrip("/") + "/analyze", {"text": text, "language": "en"})
        found = [one for one in found if one["score"] >= SCORE_MIN]
        # From the end, so that the positions before stay; of two that overlap, the one that begins later goes first.
        end = len(text)
        for one in sorted(found, key=lambda one: one["start"], reverse=True):
            if one["end"] <= end:
                text = text[: one["start"]] + "[" + one["entity_type"].lower() + "]" + text[one["end"]:]
                end = one["start"]
        return text

    def flagged(self, texts):
        if not self.moderation or not texts:
            return None
        for result in posted(self.moderation, {"input": texts})["results"]:
            if result["flagged"]:
                names = sorted(name for name, is_so in result.get("categories", {}).items() if is_so)
                return "moderation: " + ", ".join(names or ["flagged"])
        return None

    def part(self, part):
        """Masks a part of a message in place, of either generation."""
        if isinstance(part.get("text"), str):
            part["text"] = self.masked(part["text"])
        if "data" in part:
            part["data"] = self.value(part["data"])
        for named, member in ((part, "filename"), (part.get("file"), "name")):
            if isinstance(named, dict) and isinstance(named.get(member), str):
                named[member] = self.masked(named[member])

    def value(self, value):
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {name: self.value(one) for name, one in value.items()}
        return value

    def parts(self, node):
        """Masks all parts below a message, a task or an event in place."""
        if isinstance(node, list):
            for one in node:
                self.parts(one)
        elif isinstance(node, dict):
            for name, one in node.items():
                if name == "parts" and isinstance(one, list):
                    for part in one:
                        if isinstance(part, dict):
                            self.part(part)
                elif name != "metadata":
                    self.parts(one)

    def verdict(self, question):
        texts = question["texts"]
        for text in texts:
            why = reason(text)
            if why:
                return {"action": "reject", "reason": why}
        why = self.flagged(texts)
        if why:
            return {"action": "reject", "reason": why}
        payload = question["payload"]
        before = json.dumps(payload)
        self.parts(payload)
        if json.dumps(payload) == before:
            return {"action": "pass"}
        return {"action": "replace", "payload": payload}


def server(listen, judge, key=None):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            if not 0 < length <= BODY_MAX:
                self.close_connection = True
                return self.answer(413, {"error": "too large"})
            body = self.rfile.read(length)
            said = self.headers.get("X-Key", "")
            if key and not hmac.compare_digest(said.encode(), key.encode()):
                return self.answer(401, {"error": "wrong key"})
            try:
                self.answer(200, judge.verdict(json.loads(body)))
            except Exception as why:  # No verdict: on_failure decides. The type alone, which has no content.
                self.answer(500, {"error": type(why).__name__})

        def answer(self, status, body):
            body = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Says nothing: a log is no place for content."""

    host, _, port = listen.rpartition(":")
    return http.server.ThreadingHTTPServer((host, int(port)), Handler)


def main():
    parser = argparse.ArgumentParser(description="A guard for a2a-gateway.")
    parser.add_argument("--listen", default="127.0.0.1:9000")
    parser.add_argument("--key-file")
    parser.add_argument("--presidio")
    parser.add_argument("--moderation")
    said = parser.parse_args()
    key = None
    if said.key_file:
        with open(said.key_file) as file:
            key = file.read().strip()
    server(said.listen, Judge(said.presidio, said.moderation), key).serve_forever()


if __name__ == "__main__":
    main()
