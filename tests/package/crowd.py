"""Callers at the gateway while its process is exchanged, and what became of each of their calls and streams."""

import http.client
import json
import threading
import time

CALLERS = 8
STREAMS = 3

# Between two calls of one caller.
PAUSE = 0.02


class Crowd:
    """Loops of calls and streams, each on a connection that it keeps for as long as the gateway lets it. Any answer but
    the agent's own is a failure; nothing is tried again."""

    def __init__(self, port, token):
        self.port, self.token = port, token
        self.over, self.lock = threading.Event(), threading.Lock()
        self.calls = self.streams = self.connections = 0
        self.failures, self.threads = [], []

    def __enter__(self):
        loops = [self._calls] * CALLERS + [self._streams] * STREAMS
        self.threads = [threading.Thread(target=loop, daemon=True) for loop in loops]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(timeout=60)

    def _count(self, name):
        with self.lock:
            setattr(self, name, getattr(self, name) + 1)

    def _fail(self, text):
        with self.lock:
            self.failures.append(f"{time.strftime('%H:%M:%S')} {text}")

    def _request(self, connection, path, body, accept):
        if connection.sock is None:
            self._count("connections")
        connection.request("POST", path, json.dumps(body), {
            "Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "Accept": accept})
        return connection.getresponse()

    def _repeat(self, work):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.over.is_set():
            try:
                work(connection)
            except (OSError, http.client.HTTPException) as error:
                self._fail(repr(error))
                connection.close()
            time.sleep(PAUSE)
        connection.close()

    def _calls(self):
        def call(connection):
            answer = self._request(connection, "/workspaces/echo/a2a", {"message": {"text": "hello"}}, "application/json")
            text = answer.read().decode()
            if answer.status == 200 and "echo: hello" in text:
                self._count("calls")
            else:
                self._fail(f"{answer.status}: {text[:300]}")
        self._repeat(call)

    def _streams(self):
        message = {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "plan"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/stream", "params": {"message": message}}

        def stream(connection):
            answer = self._request(connection, "/workspaces/slow/a2a", body, "text/event-stream")
            text = answer.read().decode()
            if answer.status == 200 and "step 1 of 10" in text and "done in 10 steps: plan" in text:
                self._count("streams")
            else:
                self._fail(f"stream, {answer.status}: {text[-300:]}")
        self._repeat(stream)
