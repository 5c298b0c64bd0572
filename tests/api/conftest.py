"""Starts servers for the tests and stops them again.

The program is build/sluice, or what SLUICE (or SLUICE_BIN) names. The model is the committed llama-tiny: random
weights, but every part of the way is real. Tests marked with the `smollm` fixture want real weights, from
SLUICE_TEST_MODEL or SLUICE_MODELS, and skip themselves without.
"""
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SLUICE_BIN") or os.environ.get("SLUICE") or str(ROOT / "build" / "sluice")
TINY = ROOT / "tests/fixtures/models/llama-tiny"


class Server:
    """One `sluice serve` on a free port of 127.0.0.1."""

    def __init__(self, tmp, *args, model=TINY, env=None, wait=True):
        self.log_path = Path(tmp) / f"serve-{time.monotonic_ns()}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [BINARY, "serve", str(model), "--host", "127.0.0.1", "--port", "0", *map(str, args)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        self.port = int(self.wait_for_log(r"listening at https?://127\.0\.0\.1:(\d+)").group(1))
        self.url = f"{'https' if 'at https:' in self.log() else 'http'}://127.0.0.1:{self.port}"
        if wait:
            self.wait_for_log("Application startup complete")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, pattern, limit=60):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            found = re.search(pattern, self.log())
            if found:
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in the log:\n{self.log()}")

    def client(self, **kw):
        return openai.OpenAI(**{"base_url": self.url + "/v1", "api_key": "none", "max_retries": 0, "timeout": 60, **kw})

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def raw(self, data):
        """Sends bytes, returns all that comes until the server closes."""
        with self.connect() as s:
            s.sendall(data)
            return read_all(s)

    def request(self, method, path, body=None, headers=()):
        """(status, headers, body) of one request on a connection of its own."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        data = (body or "").encode() if not isinstance(body, bytes) else body
        lines = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
        if not any(h.lower().startswith("content-type") for h in headers):
            lines.append("Content-Type: application/json")
        if data or method == "POST":
            lines.append(f"Content-Length: {len(data)}")
        reply = self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, rest = reply.partition(b"\r\n\r\n")
        first, *more = head.decode().split("\r\n")
        fields = {k.lower(): v for k, v in (h.split(": ", 1) for h in more)}
        return int(first.split(" ")[1]), fields, rest

    def post(self, path, body, headers=()):
        status, _, reply = self.request("POST", path, body, headers)
        return status, json.loads(reply)

    @staticmethod
    def metric_of(name, page):
        """The first value of that name on a page of /metrics."""
        return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", page.decode(), re.M).group(1))

    def metrics(self):
        """{"name{label=value,…}": number}; without the labels that are always the same."""
        status, _, body = self.request("GET", "/metrics")
        assert status == 200
        found = {}
        for line in body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'model_name="[^"]*",engine="0",?', "", name).replace("{}", "")
                found[name] = float(value)
        return found

    def busy(self):
        m = self.metrics()
        return m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"]

    def wait_idle(self, limit=10):
        """Seconds until nothing runs or waits."""
        begin = time.monotonic()
        while self.busy():
            assert time.monotonic() - begin < limit, "requests go on"
            time.sleep(0.002)
        return time.monotonic() - begin

    def stop(self, number=signal.SIGTERM, limit=40):
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=limit)
        assert "Sanitizer" not in self.log() and "runtime error" not in self.log(), self.log()
        return status

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def read_all(s):
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def unchunk(data):
    """The body that chunks make, to the last of them."""
    out = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        out, data = out + data[:n], data[n + 2:]
        if n == 0:
            return out
    raise AssertionError("the last chunk is missing")


def named_events(server, path, body):
    """The events of a stream whose events have names, as (name, data); framing checked."""
    status, headers, reply = server.request("POST", path, {**body, "stream": True}, ["TE: none"])
    assert status == 200, reply
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    found = []
    for block in unchunk(reply).decode().split("\n\n"):
        if block:
            event, data = block.split("\n")
            assert event.startswith("event: ") and data.startswith("data: ")
            found.append((event[7:], json.loads(data[6:])))
            assert found[-1][1]["type"] == found[-1][0]
    return found


def squeeze(events):
    """The names of events, runs of one name as one."""
    names = [name for name, _ in events]
    return [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]


def events(reply):
    """The JSON objects of an SSE body (not chunked), which must end in [DONE]."""
    blocks = [b for b in reply.decode().split("\n\n") if b]
    assert blocks and blocks[-1] == "data: [DONE]", blocks[-1:]
    assert all(b.startswith("data: ") for b in blocks)
    return [json.loads(b[6:]) for b in blocks[:-1]]


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts servers that end with the session at the latest."""
    tmp = tmp_path_factory.mktemp("servers")
    started = []

    def launch(*args, **kw):
        started.append(Server(tmp, *args, **kw))
        return started[-1]

    yield launch
    for s in started:
        s.kill()


@pytest.fixture(scope="session")
def server(start):
    """The server that most tests share."""
    s = start("--served-model-name", "tiny", "other/name", "--enable-prompt-tokens-details")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="session")
def narrow(start):
    """One request and one token a step: long enough in every state to hang up in it."""
    s = start("--max-num-seqs", 1, "--max-num-batched-tokens", 1, "--served-model-name", "tiny")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="session")
def smollm(start):
    path = os.environ.get("SLUICE_TEST_MODEL") or os.path.join(os.environ.get("SLUICE_MODELS", ""),
                                                                "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        pytest.skip("no real model: SLUICE_TEST_MODEL, or scripts/get-model smollm2")
    s = start("--max-model-len", 2048, model=path)
    yield s
    assert s.stop() == 0


@pytest.fixture
def client(server):
    return server.client()
