"""Refusals: status, shape and field of each, through the SDK and by hand."""
import json

import openai
import pytest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}


def check(server, path, body, status, param, kind=None):
    got, reply = server.post(path, body)
    error = reply["error"]
    assert (got, error["code"]) == (status, status), reply
    assert error["param"] == param, reply
    assert error["message"] and isinstance(error["type"], str)
    if kind:
        assert error["type"] == kind
    return error


@pytest.mark.parametrize("extra,param", [
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -5}, "max_tokens"), ({"max_tokens": 2049}, "max_tokens"),
    ({"temperature": -1}, "temperature"), ({"temperature": 2.1}, "temperature"), ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"), ({"min_p": 2}, "min_p"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"), ({"n": 0}, "n"), ({"n": 2, "temperature": 0}, "n"),
    ({"stop": ""}, "stop"), ({"stop": list("abcde")}, "stop"), ({"stop_token_ids": [1024]}, "stop_token_ids"),
    ({"logit_bias": {"1024": 1}}, "logit_bias"), ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"), ({"stream_options": {}}, "stream_options"),
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"), ({"bad_words": [" "]}, "bad_words.0"),
])
def test_bad_values(server, extra, param):
    check(server, "/v1/completions", {**TEXT, **extra}, 400, param, "BadRequestError")
    check(server, "/v1/chat/completions", {**CHAT, **extra}, 400, param, "BadRequestError")


@pytest.mark.parametrize("extra,param", [
    ({"max_tokens": "abc"}, "max_tokens"), ({"temperature": []}, "temperature"), ({"stream": "maybe"}, "stream"),
    ({"stop": {}}, "stop"), ({"logit_bias": [1]}, "logit_bias"), ({"seed": 1.5}, "seed"), ({"n": {}}, "n"),
])
def test_bad_types(server, extra, param):
    error = check(server, "/v1/completions", {**TEXT, **extra}, 400, f"body.{param}", "Bad Request")
    assert error["message"].startswith("1 validation error")
    check(server, "/v1/chat/completions", {**CHAT, **extra}, 400, f"body.{param}", "Bad Request")


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, [-1], [1024], [[1], [1024]]])
def test_bad_prompts(server, prompt):
    check(server, "/v1/completions", {"prompt": prompt}, 400, "prompt")
    check(server, "/v1/completions", {"prompt": prompt, "stream": True}, 400, "prompt")
    assert server.post("/v1/completions", {"prompt": [1023], "max_tokens": 1})[0] == 200  # and the last valid id works


def test_bad_chats(server):
    check(server, "/v1/chat/completions", {}, 400, "body.messages")
    check(server, "/v1/chat/completions", {"messages": []}, 400, "messages")
    check(server, "/v1/chat/completions", {"messages": "hi"}, 400, "body.messages")
    for messages in ([5], [{}], [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]):
        got, reply = server.post("/v1/chat/completions", {"messages": messages})
        assert got == 400 and reply["error"]["message"], reply
    check(server, "/v1/chat/completions", {**CHAT, "tools": []}, 400, "tools")
    check(server, "/v1/chat/completions", {**CHAT, "tool_choice": "auto"}, 400, "tool_choice")
    check(server, "/v1/chat/completions", {**CHAT, "chat_template": "x"}, 400, "chat_template")
    check(server, "/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"x_token": "<|im_end|>"}}, 400,
          "chat_template_kwargs")


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"5", b'{"prompt": "a"} x', b'{"prompt": "\xff"}', b'{"prompt": "\\ud83d"}',
    b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": -Infinity}',
    b'{"prompt": "a", "temperature": 1e400}', b'{"prompt": "a", "max_tokens": 1' + b"0" * 400 + b"}",
    b'{"prompt": "a", "x": ' + b"[" * 100_000, b'{"a":' * 50_000, b'{"prompt": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}",
])
def test_bad_json(server, body):
    got, reply = server.post("/v1/completions", body)
    assert got == 400
    assert reply["error"]["param"].split(".")[0] == "body" and reply["error"]["type"] == "Bad Request"


def test_context_length(server):
    error = check(server, "/v1/completions", {"prompt": [5] * 2049}, 400, "input_tokens", "BadRequestError")
    assert "this model's maximum context length is 2048 tokens" in error["message"]
    check(server, "/v1/completions", {"prompt": [5] * 2048}, 400, "max_tokens")
    status, reply = server.post("/v1/completions", {"prompt": [5] * 2040, "max_tokens": 100, "ignore_eos": True})
    assert status == 200 and reply["usage"]["completion_tokens"] == 8  # clamped to what is left
    assert reply["choices"][0]["finish_reason"] == "length"
    check(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 5000}]}, 400,
          "input_tokens")


def test_sdk_exceptions(server):
    client = server.client()
    with pytest.raises(openai.NotFoundError) as e:
        client.completions.create(model="nope", prompt="x")
    assert e.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="tiny", messages=CHAT["messages"], temperature=9)
    assert e.value.param == "temperature" and "(parameter=temperature, value=9" in e.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")


def test_routes(server):
    status, _, body = server.request("GET", "/nope")
    assert (status, json.loads(body)) == (404, {"detail": "Not Found"})
    status, headers, body = server.request("GET", "/v1/chat/completions")
    assert (status, json.loads(body), headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")
    status, headers, body = server.request("HEAD", "/v1/models")
    assert (status, body) == (405, b"")
    assert server.request("DELETE", "/health")[0] == 405
    assert server.request("POST", "/v1/completions", TEXT, ["Content-Type: text/plain"])[0] == 400
    assert server.request("POST", "/v1/completions", TEXT, ["Content-Type: application/json; charset=utf-8"])[0] == 200
    status, headers, body = server.request("GET", "/health")
    assert (status, body) == (200, b"")
    assert json.loads(server.request("GET", "/version")[2])["version"]
    assert json.loads(server.request("GET", "/load")[2]) == {"server_load": 0}


def test_detokenize_errors(server):
    check(server, "/detokenize", {}, 400, "body.tokens")
    check(server, "/detokenize", {"tokens": [-1]}, 400, "tokens")
    check(server, "/detokenize", {"tokens": ["a"]}, 400, "body.tokens.0")
    check(server, "/tokenize", {}, 400, "body.prompt")
    check(server, "/tokenize", {"prompt": "x", "model": "nope"}, 404, "model")
    assert server.post("/tokenize", {"prompt": ""})[1]["count"] == 0


def test_http_noise(server):
    for data in (b"\x00" * 100 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 20 + b"\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                 b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"):
        reply = server.raw(data)
        assert reply.startswith(b"HTTP/1.1 4") or reply.startswith(b"HTTP/1.1 5"), reply[:100]
    assert server.request("GET", "/health")[0] == 200


def test_nothing_was_lost(server):
    """After all of that, ordinary requests work and nothing is left behind."""
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 3})[0] == 200
    assert server.busy() == 0
    assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
