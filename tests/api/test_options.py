"""The options of `serve` that shape answers, logs and what is offered: each is tried by what it changes."""
import json
import re
import subprocess
import time

import pytest

from conftest import BINARY, TINY, events, unchunk

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0, "ignore_eos": True}
TEXT = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def stream(server, path, body, headers=()):
    status, _, reply = server.request("POST", path, {**body, "stream": True}, ["Accept: text/event-stream", *headers])
    assert status == 200, reply
    return events(unchunk(reply))


def fails(*args, status=(1, 2)):
    done = subprocess.run([BINARY, "serve", TINY, "--host", "127.0.0.1", "--port", "0", *args], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode in status, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def shaped(start):
    """Most of them at once."""
    s = start("--served-model-name", "m", "--stream-interval", 3, "--enable-force-include-usage", "--return-tokens-as-token-ids",
              "--response-role", "oracle", "--enable-server-load-tracking", "--enable-tokenizer-info-endpoint",
              "--root-path", "/llm", "--trust-request-chat-template", "--enable-request-id-headers",
              "--override-generation-config", '{"max_new_tokens": 6, "temperature": 0}', "--max-logprobs", -1,
              "--default-chat-template-kwargs", '{"tone": "kind"}',
              env={"VLLM_SKIP_MODEL_NAME_VALIDATION": "1", "VLLM_MAX_COMPLETION_PROMPTS": "2"})
    yield s
    assert s.stop() == 0


# --- answers ---------------------------------------------------------------------------------------------

def test_stream_interval(server, shaped):
    whole = server.post("/v1/completions", {**TEXT, "return_token_ids": True})[1]["choices"][0]
    for interval, sizes in ((1, [1] * 8), (3, [1, 3, 3, 1]), (5, [1, 5, 2]), (100, [1, 7])):
        got = [e["choices"][0] for e in stream(server, "/v1/completions", {**TEXT, "stream_interval": interval,
                                                                          "return_token_ids": True})]
        assert [len(c["token_ids"]) for c in got] == sizes
        assert "".join(c["text"] for c in got) == whole["text"]
        assert sum((c["token_ids"] for c in got), []) == whole["token_ids"]
        assert [c["finish_reason"] for c in got] == [None] * (len(got) - 1) + ["length"]
    # the server's own is the least
    got = [e["choices"][0] for e in stream(shaped, "/v1/completions", {**TEXT, "max_tokens": 6, "return_token_ids": True})
           if e["choices"]]
    assert [len(c["token_ids"]) for c in got] == [1, 3, 2]
    status, body = server.post("/v1/completions", {**TEXT, "stream_interval": 0})
    assert status == 400 and body["error"]["param"] == "stream_interval"


def test_forced_usage(shaped):
    got = stream(shaped, "/v1/chat/completions", CHAT)
    assert all(e["usage"]["completion_tokens"] >= 0 for e in got)
    assert got[-1]["choices"] == [] and got[-1]["usage"]["completion_tokens"] == 3
    got = stream(shaped, "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": False}})
    assert got[-1]["choices"] == []


def test_tokens_as_ids(shaped):
    reply = shaped.post("/v1/completions", {**TEXT, "max_tokens": 2, "logprobs": 1})[1]
    assert all(re.fullmatch(r"token_id:\d+", t) for t in reply["choices"][0]["logprobs"]["tokens"])
    reply = shaped.post("/v1/completions", {**TEXT, "max_tokens": 2, "logprobs": 1, "return_tokens_as_token_ids": False})[1]
    assert not any(t.startswith("token_id:") for t in reply["choices"][0]["logprobs"]["tokens"])


def test_more_logprobs(shaped, server):
    assert shaped.post("/v1/completions", {**TEXT, "max_tokens": 1, "logprobs": 50})[0] == 200
    assert server.post("/v1/completions", {**TEXT, "max_tokens": 1, "logprobs": 50})[0] == 400


def test_response_role(shaped):
    assert shaped.post("/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["role"] == "oracle"
    assert stream(shaped, "/v1/chat/completions", CHAT)[0]["choices"][0]["delta"]["role"] == "oracle"


def test_override_generation_config(shaped, server):
    body = {k: v for k, v in TEXT.items() if k not in ("max_tokens", "temperature")}
    greedy = server.post("/v1/completions", {**body, "max_tokens": 6, "temperature": 0})[1]["choices"][0]["text"]
    # max_new_tokens caps, whatever is asked for; the temperature is a default
    for asked in ({}, {"max_tokens": 100}):
        reply = shaped.post("/v1/completions", {**body, **asked})[1]
        assert reply["usage"]["completion_tokens"] == 6 and reply["choices"][0]["text"] == greedy
    assert shaped.post("/v1/completions", {**body, "max_tokens": 2})[1]["usage"]["completion_tokens"] == 2
    assert "not a default that this server has" in fails("--override-generation-config", '{"temprature": 1}')
    assert "temperature must be a number in [0, 2]" in fails("--override-generation-config", '{"temperature": 9}')
    assert "is not a JSON object" in fails("--override-generation-config", "[1]")


def test_generation_config_folder(start, server, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0, "max_new_tokens": 4, "transformers_version": "1"}')
    s = start("--generation-config", tmp_path)
    body = {"prompt": TEXT["prompt"], "ignore_eos": True}
    greedy = server.post("/v1/completions", {**body, "max_tokens": 4, "temperature": 0})[1]["choices"][0]["text"]
    assert s.post("/v1/completions", body)[1]["choices"][0]["text"] == greedy
    assert s.stop() == 0
    assert "cannot open /nowhere/generation_config.json" in fails("--generation-config", "/nowhere")


def test_any_model_and_limits_of_the_environment(shaped):
    assert shaped.post("/v1/completions", {**TEXT, "model": "whatever"})[0] == 200
    status, body = shaped.post("/v1/completions", {**TEXT, "prompt": ["a", "b", "c"]})
    assert status == 400 and "at most 2 prompts" in body["error"]["message"]


# --- templates -------------------------------------------------------------------------------------------

def rendered(server, **extra):
    reply = server.post("/tokenize", {"messages": CHAT["messages"], **extra})
    assert reply[0] == 200, reply
    return server.post("/detokenize", {"tokens": reply[1]["tokens"]})[1]["prompt"]


def test_template_of_the_request(shaped, server):
    template = "{{ tone }}:{% for m in messages %}{{ m.content }};{% endfor %}"
    assert rendered(shaped, chat_template=template) == "kind:Hi;"
    assert rendered(shaped, chat_template=template, chat_template_kwargs={"tone": "curt"}) == "curt:Hi;"
    assert shaped.post("/v1/chat/completions", {**CHAT, "chat_template": template})[1]["usage"]["prompt_tokens"] > 0
    status, body = shaped.post("/v1/chat/completions", {**CHAT, "chat_template": "{% if %}"})
    assert status == 400 and body["error"]["param"] == "chat_template"
    status, body = server.post("/v1/chat/completions", {**CHAT, "chat_template": template})
    assert status == 400 and "--trust-request-chat-template" in body["error"]["message"]


def test_template_on_the_command_line(start):
    s = start("--chat-template", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert rendered(s) == "<user>Hi"
    assert s.stop() == 0
    assert "--chat-template" in fails("--chat-template", "{% for %}")
    assert "cannot open /nowhere.jinja" in fails("--chat-template", "/nowhere.jinja")
    assert "may not set messages" in fails("--default-chat-template-kwargs", '{"messages": []}')


def test_tools_hidden_with_none(start):
    template = "{% if tools %}TOOLS {% endif %}{{ messages[0].content }}"
    body = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}
    shown = start("--chat-template", template)
    hidden = start("--chat-template", template, "--exclude-tools-when-tool-choice-none")
    assert rendered(shown, **body) == "TOOLS Hi" and rendered(hidden, **body) == "Hi"
    assert rendered(hidden, tools=body["tools"]) == "TOOLS Hi"
    assert shown.stop() == 0 and hidden.stop() == 0


# --- what is offered --------------------------------------------------------------------------------------

def test_root_path(shaped):
    assert shaped.request("GET", "/llm/health")[0] == 200 and shaped.request("GET", "/health")[0] == 200
    assert shaped.post("/llm/v1/completions", TEXT)[0] == 200
    assert shaped.request("GET", "/llmx/health")[0] == 404 and shaped.request("GET", "/llm")[0] == 404
    assert json.loads(shaped.request("GET", "/llm/openapi.json")[2])["servers"] == [{"url": "/llm"}]
    assert "must begin with /" in fails("--root-path", "llm")


def test_root_path_is_guarded(start):
    s = start("--root-path", "/llm", "--api-key", "k")
    assert s.request("GET", "/llm/v1/models")[0] == 401
    assert s.request("GET", "/llm/v1/models", headers=["Authorization: Bearer k"])[0] == 200
    assert s.stop() == 0


def test_tokenizer_info(shaped, server):
    info = json.loads(shaped.request("GET", "/tokenizer_info")[2])
    assert info["vocab_size"] > 100 and info["model_max_length"] > 0 and "messages" in info["chat_template"]
    for id, text in info["special_tokens"].items():
        assert shaped.post("/detokenize", {"tokens": [int(id)]})[1]["prompt"] == text
    assert server.request("GET", "/tokenizer_info")[0] == 404


def test_load(start):
    s = start("--enable-server-load-tracking", "--max-num-seqs", 1, "--max-num-batched-tokens", 1)
    with s.connect() as c:
        body = json.dumps({**TEXT, "max_tokens": 1500, "stream": True}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                  % (len(body), body))
        c.recv(100)
        assert json.loads(s.request("GET", "/load")[2]) == {"server_load": 1}
    s.wait_idle()
    assert json.loads(s.request("GET", "/load")[2]) == {"server_load": 0}
    assert s.stop() == 0


def test_docs_switched_off(start, server):
    s = start("--disable-fastapi-docs")
    assert s.request("GET", "/openapi.json")[0] == 404 and s.request("GET", "/docs")[0] == 404
    assert s.stop() == 0
    status, headers, body = server.request("GET", "/docs")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"openapi.json" in body


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics", "/load", "/openapi.json"])
def test_head_of_probes(server, path):
    status, headers, body = server.request("HEAD", path)
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) == len(server.request("GET", path)[2]) or path == "/metrics"
    assert server.request("DELETE", path)[1]["allow"].startswith("GET, HEAD")


def test_openapi_names_every_route(server):
    """Each path that it names is there, and each that is counted is named."""
    doc = json.loads(server.request("GET", "/openapi.json")[2])
    assert doc["openapi"].startswith("3.1")
    for path, methods in doc["paths"].items():
        for method in methods:
            status, _, body = server.request(method.upper(), path.replace("{id}", "tiny"), "{}" if method == "post" else None)
            assert status != 405 and (body != b'{"detail":"Not Found"}' or path == "/tokenizer_info"), path
    for model in ("tiny",):
        assert server.request("GET", f"/v1/models/{model}")[0] == 200
    counted = re.findall(r'http_requests_total\{handler="([^"]+)"', server.request("GET", "/metrics")[2].decode())
    assert set(counted) <= set(doc["paths"])


# --- streams and logs --------------------------------------------------------------------------------------

def test_sse_keep_alive(start):
    s = start("--sse-keep-alive-interval", 0.2, "--max-num-seqs", 1, "--max-num-batched-tokens", 1,
              env={"SLUICE_CPU": "reference"})  # slow enough to be waited for, also on an idle machine
    with s.connect() as first, s.connect() as waiting:
        for c, n in ((first, 2000), (waiting, 2)):
            body = json.dumps({**TEXT, "max_tokens": n, "stream": True}).encode()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(body), body))
            c.recv(10)
            time.sleep(0.05)
        # the second waits for the first, and hears of it
        data = b""
        end = time.monotonic() + 20
        while b": keep-alive\n\n" not in data and time.monotonic() < end:
            data += waiting.recv(4096)
        assert b": keep-alive\n\n" in data and b"data:" not in data
    s.wait_idle()
    assert s.stop() == 0


def test_logs(start):
    secret = "a quite secret question"
    s = start("--enable-log-requests", "--disable-access-log-for-endpoints", "/v1/models,/nope")
    s.post("/v1/completions", {**TEXT, "prompt": secret})
    s.request("GET", "/v1/models")
    s.post("/tokenize", {"prompt": secret})
    s.wait_for_log("POST /tokenize -> 200")
    assert secret not in s.log() and "/v1/models" not in s.log() and "POST /v1/completions -> 200" in s.log()
    assert s.stop() == 0

    s = start("--enable-log-requests", "--max-log-len", 7, "--enable-log-outputs", "--disable-uvicorn-access-log")
    answer = s.post("/v1/completions", {**TEXT, "prompt": secret})[1]["choices"][0]["text"]
    s.post("/tokenize", {"prompt": secret})
    shown = s.wait_for_log(r'prompt: "(.*)"…\n').group(1)
    assert shown == secret[:7] or secret.startswith(shown.removeprefix("<s>").lstrip())
    assert s.wait_for_log(r'answer: (".*")').group(1) and len(json.loads(s.wait_for_log(r'answer: (".*")').group(1))) <= 7
    assert answer and "POST /tokenize" not in s.log()
    assert s.stop() == 0
    assert "needs --enable-log-requests" in fails("--enable-log-outputs")


def test_log_level(start):
    s = start("--uvicorn-log-level", "info")
    assert s.stop() == 0
    done = fails("--uvicorn-log-level", "loud")
    assert "is not one of" in done


def test_keep_alive_of_the_environment(start):
    s = start(env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"})
    with s.connect() as c:
        begin = time.monotonic()
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        while c.recv(4096):
            pass
        assert 0.9 < time.monotonic() - begin < 10
    assert s.stop() == 0
    s = start("--keep-alive-timeout", 60, env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "nonsense"})
    assert s.stop() == 0
    s = start(env={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "nonsense"})
    assert "HTTP_TIMEOUT_KEEP_ALIVE is \"nonsense\"" in s.log()
    assert s.stop() == 0


# --- the command line ---------------------------------------------------------------------------------------

def test_config_file(start, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("""
served_model_name: [one, two]
enable-prompt-tokens-details: yes
enable-log-requests: false
default-chat-template-kwargs: {tone: kind, level: 3}
trust-request-chat-template: true
max-model-len: 1k
api-key: from-the-file
keep-alive-timeout: null
""")
    s = start("--config", config, "--api-key", "k", "--max_model_len=512")
    models = json.loads(s.request("GET", "/v1/models", headers=["Authorization: Bearer k"])[2])["data"]
    assert [m["id"] for m in models] == ["one", "two"] and models[0]["max_model_len"] == 512
    assert s.request("GET", "/v1/models", headers=["Authorization: Bearer from-the-file"])[0] == 401
    assert rendered(s, chat_template="{{ tone }}{{ level }}") == "kind3"
    assert s.stop() == 0


@pytest.mark.parametrize("text, says", [
    ("- a\n- b\n", "must be a map"), ("a: [1\n", "line"), ("no-such-option: 1\n", "unknown option"), ("max-num-seqs: x\n", "--max-num-seqs"),
    ("config: other.yaml\n", "cannot name another"), ("? [a]\n: 1\n", "the key must be"), ("enable-log-requests: 3\n", "takes no value"),
    ("default-chat-template-kwargs: &a {x: [*a]}\n", "nested deeper"),
])
def test_wrong_config_files(tmp_path, text, says):
    config = tmp_path / "c.yaml"
    config.write_text(text)
    assert says in fails("--config", config)


def test_config_file_names():
    assert "must end in .yaml" in fails("--config", "/etc/hostname")
    assert "cannot open /nowhere.yaml" in fails("--config", "/nowhere.yaml")


def test_options_that_are_gone():
    err = fails("--max-num-partial-prefills", "4", "--max-long-partial-prefills=2", "--enforce-eager", "--enable-chunked-prefill", "--bogus-option")
    assert err.count("does nothing here") == 4 and "unknown option '--bogus-option'" in err
