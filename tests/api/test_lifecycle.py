"""Start, stop, hang-ups, slow and many clients, keys, metrics."""
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import openai
import pytest
from conftest import BINARY, TINY, read_all

JSON = "Content-Type: application/json"


def send(s, path, body):
    data = json.dumps(body).encode()
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def wait_until(condition, limit=10):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# --- hang-ups -------------------------------------------------------------------------------------------
# On `narrow` a step is one token of one request, and these bodies hold minutes of work: what the client leaves
# behind must be gone at once.

DECODE = {"prompt": "x", "n": 400, "max_tokens": 2000, "ignore_eos": True, "seed": 1}
PREFILL = {"prompt": [[5] * 2000] * 400, "max_tokens": 1}


@pytest.mark.parametrize("body", [{**DECODE, "stream": True}, DECODE, {**PREFILL, "stream": True}, PREFILL],
                         ids=["stream", "whole", "prefill-stream", "prefill"])
@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
def test_hang_up(narrow, body, reset):
    with narrow.connect() as s:
        send(s, "/v1/completions", body)
        wait_until(lambda: narrow.busy() > 300)
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert narrow.wait_idle() < 1
    m = narrow.metrics()
    assert m["vllm:kv_cache_usage_perc"] == 0
    assert m['vllm:request_success_total{finished_reason="abort"}'] == 0


def test_hang_up_while_queued(narrow):
    with narrow.connect() as first:
        send(first, "/v1/completions", PREFILL)
        wait_until(lambda: narrow.busy() > 300)
        for _ in range(20):  # each is behind the 400 of the first
            with narrow.connect() as s:
                send(s, "/v1/completions", {**DECODE, "n": 500})
                wait_until(lambda: narrow.busy() > 800)
            wait_until(lambda: narrow.busy() <= 400, 2)
    assert narrow.wait_idle() < 1


def test_hang_up_in_steps(smollm):
    """Real steps are long enough to count: at most the one under way and two more."""
    for body in ({"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True},
                 {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}):
        tokens = smollm.metrics()["vllm:generation_tokens_total"]
        with smollm.connect() as s:
            send(s, "/v1/completions", body)
            wait_until(lambda: smollm.metrics()["vllm:generation_tokens_total"] > tokens + 5)
            before = smollm.metrics()["sluice:steps_total"]
        smollm.wait_idle()
        assert smollm.metrics()["sluice:steps_total"] - before <= 4  # one may pass before the close


def test_stream_cut_by_the_sdk(server):
    client = server.client()
    with client.completions.create(model="tiny", prompt="x", n=50, max_tokens=2000, stream=True,
                                   extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert server.wait_idle() < 2


# --- slow and many --------------------------------------------------------------------------------------

def test_slow_client_holds_up_nobody(start):
    server = start()
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    send(slow, "/v1/completions", {"prompt": "x", "n": 16, "max_tokens": 2000, "ignore_eos": True, "logprobs": 20,
                                   "stream": True})
    begin = time.monotonic()
    for _ in range(5):
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 5})[0] == 200
    assert time.monotonic() - begin < 10
    server.wait_for_log("its client does not read")  # tens of megabytes wait for it: it is dropped
    assert server.wait_idle() < 5
    slow.close()
    assert server.stop() == 0


def test_idle_connections(start):
    server = start("--keep-alive-timeout", 2, "--max-connections", 2000)
    idle = [server.connect() for _ in range(900)]
    begin = time.monotonic()
    client = server.client()
    for _ in range(10):
        client.completions.create(model="", prompt="x", max_tokens=2)
    assert time.monotonic() - begin < 5
    assert server.metrics()["process_open_fds"] > 900
    wait_until(lambda: server.metrics()["process_open_fds"] < 100, 15)
    for s in idle:
        s.settimeout(5)
        assert s.recv(1) == b""
        s.close()
    assert server.stop() == 0


def test_keep_alive_and_pipelining(server):
    with server.connect() as s:
        body = b'{"prompt": "x", "max_tokens": 2}'
        one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (
            JSON.encode(), len(body), body)
        s.sendall(one * 5 + b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        reply = read_all(s)
    assert reply.count(b"HTTP/1.1 200 OK") == 6 and reply.count(b"text_completion") == 5
    assert reply.rindex(b"version") > reply.rindex(b"text_completion")


def test_body_limit(start):
    server = start("--max-body-bytes", "10k")
    assert server.post("/tokenize", {"prompt": "a" * 9000})[0] == 200
    data = json.dumps({"prompt": "a" * 200_000}).encode()
    for head in (f"Content-Length: {len(data)}", "Transfer-Encoding: chunked"):
        with server.connect() as s:
            s.sendall(f"POST /tokenize HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{head}\r\n\r\n".encode())
            try:
                s.sendall((b"%x\r\n" % len(data) if "chunked" in head else b"") + data)
            except OSError:
                pass
            reply = read_all(s)
        assert reply.startswith(b"HTTP/1.1 413")
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"] == 413
    assert server.stop() == 0


# --- keys -----------------------------------------------------------------------------------------------

def test_keys(start):
    server = start("--api-key", "sk-a", "sk-b")
    for key, ok in (("sk-a", True), ("sk-b", True), ("sk-c", False), ("sk-", False)):
        client = server.client(api_key=key)
        if ok:
            assert client.models.list().data
        else:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
    status, headers, body = server.request("GET", "/v1/models")
    assert status == 401 and json.loads(body)["error"]["code"] == 401
    for path in ("/health", "/metrics", "/version"):
        assert server.request("GET", path)[0] == 200
    assert server.post("/tokenize", {"prompt": "x"})[0] == 200
    assert "sk-a" not in server.log()
    assert server.stop() == 0
    server = start(env={"SLUICE_API_KEY": "sk-env"})
    assert server.request("GET", "/v1/models")[0] == 401
    assert server.request("GET", "/v1/models", headers=["Authorization: bearer sk-env"])[0] == 200
    assert server.stop() == 0


# --- start and stop -------------------------------------------------------------------------------------

def serve(*args, timeout=30):
    return subprocess.run([BINARY, "serve", *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def test_port_in_use(server):
    begin = time.monotonic()
    done = serve(TINY, "--host", "127.0.0.1", "--port", server.port)
    assert done.returncode == 1 and time.monotonic() - begin < 5
    assert f"127.0.0.1:{server.port}" in done.stderr and "--port" in done.stderr


def test_bad_starts(tmp_path):
    done = serve(tmp_path / "none.gguf", "--host", "127.0.0.1", "--port", 0)
    assert done.returncode == 1 and "none.gguf" in done.stderr
    done = serve(TINY, "--host", "no.such.host.invalid", "--port", 0)
    assert done.returncode == 1 and "no.such.host.invalid" in done.stderr
    done = serve(TINY, "--host", "127.0.0.1", "--port", 0, "--chat-template", tmp_path / "none.jinja")
    assert done.returncode == 1 and "none.jinja" in done.stderr
    (tmp_path / "bad.jinja").write_text("{% for x in %}")
    done = serve(TINY, "--host", "127.0.0.1", "--port", 0, "--chat-template", tmp_path / "bad.jinja")
    assert done.returncode == 1 and "bad.jinja" in done.stderr
    assert serve(TINY, "--port", "99999").returncode == 2
    assert serve(TINY, "--no-such-flag").returncode == 2
    assert serve().returncode == 2


def test_answers_while_loading(start, tmp_path):
    """The port is bound before anything is read: a chat template that is a fifo keeps the model loading."""
    fifo = tmp_path / "template"
    os.mkfifo(fifo)
    server = start("--chat-template", fifo, wait=False)
    status, _, body = server.request("GET", "/health")
    assert status == 503 and json.loads(body)["error"]["message"] == "Loading model"
    assert server.post("/v1/completions", {"prompt": "x"})[0] == 503
    assert server.request("GET", "/v1/models")[0] == 503
    assert server.request("GET", "/version")[0] == 200
    fifo.write_text("{{ messages[0].content }}")
    server.wait_for_log("Application startup complete")
    assert server.request("GET", "/health")[0] == 200
    assert server.stop() == 0
    server = start("--chat-template", fifo, wait=False)
    assert server.stop() == 0  # it can be stopped while it loads


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain(start, number):
    """What runs is finished, nothing new is taken, and the exit code is 0."""
    server = start("--shutdown-timeout", 300)
    reply = []

    def ask():
        with server.connect() as s:
            send(s, "/v1/completions", {"prompt": "x", "n": 20, "max_tokens": 1000, "ignore_eos": True, "stream": True})
            reply.append(read_all(s))
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: server.busy() > 0)
    waiting = server.connect()
    waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
    time.sleep(0.05)
    server.process.send_signal(number)
    server.wait_for_log("no new requests")
    waiting.sendall(f"{JSON}\r\nContent-Length: 2\r\n\r\n".encode())
    assert read_all(waiting).startswith(b"HTTP/1.1 503")
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    thread.join()
    assert server.process.wait(timeout=300) == 0
    assert reply[0].count(b'"finish_reason":"length"') == 20
    assert b"data: [DONE]\n\n" in reply[0]


def test_drain_ends_at_the_limit(start):
    server = start("--shutdown-timeout", 0.2, "--max-num-seqs", 1)
    with server.connect() as s:
        send(s, "/v1/completions", {**DECODE, "stream": True})
        wait_until(lambda: server.busy() > 0)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        reply = read_all(s)
    assert server.process.wait(timeout=10) == 0
    assert time.monotonic() - begin < 5
    assert b'"finish_reason":"abort"' in reply and b"data: [DONE]\n\n" in reply


def test_second_signal_ends_now(start):
    server = start("--max-num-seqs", 1)
    with server.connect() as s:
        send(s, "/v1/completions", DECODE)
        wait_until(lambda: server.busy() > 0)
        server.process.send_signal(signal.SIGINT)
        server.wait_for_log("no new requests")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=5) == 0


def test_unix_socket(start, tmp_path):
    path = tmp_path / "s"
    process = subprocess.Popen([BINARY, "serve", TINY, "--uds", path], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        for line in process.stderr:
            if b"startup complete" in line:
                break
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
            s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert read_all(s).startswith(b"HTTP/1.1 200")
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.stderr.close()


# --- what it says of itself -----------------------------------------------------------------------------

def test_metrics_add_up(start):
    server = start("--served-model-name", "m")
    client = server.client()
    for i in range(3):
        client.completions.create(model="m", prompt=[5] * 10, max_tokens=7, extra_body={"ignore_eos": True})
    with client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], max_tokens=5,
                                        stream=True, extra_body={"ignore_eos": True}) as stream:
        list(stream)
    m = server.metrics()
    assert m["vllm:generation_tokens_total"] == 26
    assert m['vllm:request_success_total{finished_reason="length"}'] == 4
    assert m["vllm:time_to_first_token_seconds_count"] == 4
    assert m["vllm:inter_token_latency_seconds_count"] == 22
    assert m["vllm:request_generation_tokens_sum"] == 26
    assert m["vllm:e2e_request_latency_seconds_count"] == 4
    assert m['vllm:request_prompt_tokens_bucket{le="10.0"}'] == 3
    assert m["sluice:steps_total"] >= 26 and m["sluice:weight_bytes_total"] > 0
    assert m["vllm:iteration_tokens_total_count"] == m["sluice:steps_total"]
    assert m["vllm:prompt_tokens_total"] == m["vllm:request_prompt_tokens_sum"]
    assert any(k.startswith("vllm:cache_config_info{") and 'block_size="16"' in k for k in m)
    assert server.stop() == 0


def test_request_log(start):
    server = start("--enable-log-requests", "--enable-request-id-headers")
    status, headers, body = server.request("POST", "/v1/completions",
                                           {"prompt": "my secret prompt", "max_tokens": 2},
                                           ["X-Request-Id: trace-1"])
    assert status == 200 and headers["x-request-id"] == "trace-1"
    assert json.loads(body)["id"] == "cmpl-trace-1"
    assert server.post("/v1/completions", {"prompt": "secret", "request_id": "from-body", "max_tokens": 1})[1][
        "id"] == "cmpl-from-body"
    line = server.wait_for_log(r"trace-1 POST /v1/completions -> 200.*answer 2 tokens.*")
    assert line and "secret" not in server.log()
    assert server.stop() == 0


def test_stats_line(start):
    """A line every so often while busy."""
    server = start("--max-num-seqs", 1, env={"SLUICE_LOG_STATS_INTERVAL": "0.3"})
    with server.connect() as s:
        send(s, "/v1/completions", DECODE)
        line = server.wait_for_log(r"Avg prompt throughput.*Avg generation throughput: ([\d.]+) tokens/s, "
                                   r"Running: 1 reqs, Waiting: \d+ reqs.*KV cache usage: [\d.]+%", 15)
        assert float(line.group(1)) > 0
    server.wait_idle()
    assert server.stop() == 0
