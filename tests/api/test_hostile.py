"""Input that is meant to hurt: it is refused at once, costs little, and nobody else notices."""
import json
import os
import socket
import subprocess
import time

import pytest
from conftest import BINARY, TINY, read_all

TEXT = {"prompt": "hi", "max_tokens": 1}


def resident(server):
    """The server's memory in bytes: the most that it ever was."""
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'"":{}'], ids=["lists", "objects", "numbers", "keys"])
def test_json_that_grows(server, value):
    """Tens of megabytes of tiny values would be gigabytes as a tree."""
    before = resident(server)
    n = 30_000_000 // (len(value) + 1)
    inner = b",".join([value] * n)
    body = b'{"prompt":"hi","x":' + (b"{" + inner + b"}" if b":" in value else b"[" + inner + b"]") + b"}"
    status, reply = server.post("/v1/completions", body)
    assert status == 400 and "too many values" in reply["error"]["message"]
    assert reply["error"]["param"].startswith("body.")
    assert resident(server) - before < 300 << 20
    ids = {"tokens": [5] * 200_000}  # what is sent in earnest is far from that
    assert server.post("/detokenize", ids)[0] == 200


def test_one_long_word(server):
    """A prompt without a border is not merged for half a minute to learn that it is too long."""
    for text in (" " * 20_000_000, "\n" * 12_000_000):
        begin = time.monotonic()
        status, reply = server.post("/v1/completions", {"prompt": text})
        assert status == 400 and reply["error"]["param"] == "input_tokens"
        assert time.monotonic() - begin < 5


def test_numbers_at_the_edge(server):
    """What a float rounds away is still in range."""
    for extra in ({"repetition_penalty": 1e-300}, {"repetition_penalty": 1e6}, {"top_p": 1e-40}, {"min_p": 1},
                  {"temperature": 1e-300}, {"seed": -(2**63)}, {"presence_penalty": -2, "frequency_penalty": 2}):
        status, reply = server.post("/v1/completions", {**TEXT, "max_tokens": 5, **extra})
        assert status == 200, reply


def test_truncation_side(server):
    body = {"prompt": [5, 6, 7], "max_tokens": 1, "truncate_prompt_tokens": 2, "return_token_ids": True}
    for side, kept in (("left", [6, 7]), ("right", [5, 6]), (None, [6, 7])):
        assert server.post("/v1/completions", {**body, "truncation_side": side})[1]["choices"][0]["prompt_token_ids"] == kept
    status, reply = server.post("/v1/completions", {**body, "truncation_side": "middle"})
    assert status == 400 and reply["error"]["param"] == "truncation_side"


def test_stop_string_with_a_nul(server):
    """A stop string is bytes with a length, in the answer too."""
    nul = server.post("/tokenize", {"prompt": "\0", "add_special_tokens": False})[1]["tokens"]
    x = server.post("/tokenize", {"prompt": "x", "add_special_tokens": False})[1]["tokens"]
    assert len(nul) == len(x) == 1
    body = {"prompt": "a", "max_tokens": 200, "seed": 1, "temperature": 2, "allowed_token_ids": nul + x, "stop": "x\0"}
    choice = server.post("/v1/completions", body)[1]["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "x\0"
    assert "x\0" not in choice["text"]


def test_expect(server):
    """100 Continue is for clients that know it: HTTP/1.0 has no such reply."""
    data = json.dumps(TEXT).encode()
    for version, continues in ((b"1.1", True), (b"1.0", False)):
        with server.connect() as s:
            s.sendall(b"POST /v1/completions HTTP/%s\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
                      b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (version, len(data)))
            if continues:
                assert s.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
            s.sendall(data)
            assert read_all(s).startswith(b"HTTP/1.1 200")


def test_what_is_not_spoken(server):
    for head, status in ((b"GET / HTTP/2.0", 505), (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip", 501)):
        reply = server.raw(head + b"\r\nHost: x\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 %d " % status)
        error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"], error["type"]) == (status, "NotImplementedError")


@pytest.mark.parametrize("closed", [(0, 1, 2), (2,)])
def test_closed_standard_files(tmp_path, closed):
    """Started without stdin, stdout or stderr, the log must not end up in a client's connection."""
    path = tmp_path / "s"
    process = subprocess.Popen([BINARY, "serve", TINY, "--uds", path, "--enable-log-requests"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               preexec_fn=lambda: [os.close(fd) for fd in closed])
    try:
        end = time.monotonic() + 30
        reply = b""
        while not reply:
            assert time.monotonic() < end and process.poll() is None
            try:
                with socket.socket(socket.AF_UNIX) as s:
                    s.connect(str(path))
                    s.sendall(b"GET /version HTTP/1.0\r\n\r\n")
                    reply = read_all(s)
            except OSError:
                time.sleep(0.01)
        assert reply.startswith(b"HTTP/1.1 200")
        for fd in closed:
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
        process.terminate()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
