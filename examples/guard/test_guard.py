"""Tests of guard.py: `python3 -m unittest` in this folder. The services are stubs of their HTTP interfaces."""

import http.server
import json
import threading
import unittest
import urllib.error
import urllib.request

from guard import Judge, server


def message(*texts):
    return {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": text} for text in texts]}


def judged(payload, texts, **services):
    return Judge(**services).verdict({"texts": texts, "payload": payload})


class Stub:
    """A service that answers every POST by a function of its body."""

    def __init__(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = json.dumps(answer(body)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d" % self.server.server_port


class Guard(unittest.TestCase):
    def test_secrets_and_cards_are_rejected(self):
        for text in ("AKIAABCDEFGHIJKLMNOP", "pay by 4111 1111 1111 1111", "-----BEGIN RSA PRIVATE KEY-----"):
            self.assertEqual(judged(message(text), [text])["action"], "reject", text)
        for text in ("4111 1111 1111 1112", "hello", "2026-01-01T00:00:00Z"):
            self.assertEqual(judged(message(text), [text]), {"action": "pass"}, text)

    def test_addresses_are_masked_in_every_part(self):
        payload = {"kind": "task", "id": "a@b.example", "history": [message("to a@b.example")],
                   "status": {"message": {"parts": [{"data": {"k": ["c@d.example"]}}]}}}
        said = judged(payload, ["to a@b.example", "c@d.example"])
        self.assertEqual(said["action"], "replace")
        self.assertEqual(said["payload"]["history"][0]["parts"][0]["text"], "to [email]")
        self.assertEqual(said["payload"]["status"]["message"]["parts"][0]["data"], {"k": ["[email]"]})
        self.assertEqual(said["payload"]["id"], "a@b.example")

    def test_presidio_masks_and_moderation_rejects(self):
        def analyze(body):
            at = body["text"].find("Jane")
            found = {"entity_type": "PERSON", "start": at, "end": at + 4, "score": 0.85}
            return [found, {**found, "score": 0.1}] if at >= 0 else []

        presidio = Stub(analyze)
        said = judged(message("call Jane now"), ["call Jane now"], presidio=presidio.url)
        self.assertEqual(said["payload"]["parts"][0]["text"], "call [person] now")
        self.assertEqual(judged(message("x"), ["x"], presidio=presidio.url), {"action": "pass"})
        moderation = Stub(lambda body: {"results": [{"flagged": "bad" in text, "categories": {"violence": True}}
                                                    for text in body["input"]]})
        said = judged(message("bad"), ["bad"], moderation=moderation.url)
        self.assertEqual(said, {"action": "reject", "reason": "moderation: violence"})
        with self.assertRaises(OSError):
            judged(message("x"), ["x"], moderation="http://127.0.0.1:1")

    def test_the_key_is_asked_for(self):
        served = server("127.0.0.1:0", Judge(), "s3cret")
        threading.Thread(target=served.serve_forever, daemon=True).start()
        body = json.dumps({"texts": ["hi"], "payload": message("hi")}).encode()
        url = "http://127.0.0.1:%d/" % served.server_port
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, body))
        self.assertEqual(refused.exception.code, 401)
        with urllib.request.urlopen(urllib.request.Request(url, body, {"X-Key": "s3cret"})) as answer:
            self.assertEqual(json.load(answer), {"action": "pass"})
        served.shutdown()


if __name__ == "__main__":
    unittest.main()
