"""Batches of chats, rendered prompts, the paths and forms of llama.cpp's server, what does not exist."""
import json

import pytest
from conftest import unchunk

HELLO = [{"role": "user", "content": "Hello there"}]
OTHER = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "And you?"}]
BODY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


def chat(server, **body):
    status, reply = server.post("/v1/chat/completions", {"messages": HELLO, **BODY, **body})
    assert status == 200, reply
    return reply


def test_batch_of_chats(server):
    status, reply = server.post("/v1/chat/completions/batch", {"messages": [HELLO, OTHER, HELLO], **BODY})
    assert status == 200, reply
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2] and reply["object"] == "chat.completion"
    alone = [chat(server, messages=m) for m in (HELLO, OTHER, HELLO)]
    assert [c["message"]["content"] for c in reply["choices"]] == [a["choices"][0]["message"]["content"] for a in alone]
    assert reply["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)
    assert reply["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize("body,param", [
    ({}, "body.messages"), ({"messages": 1}, "body.messages"), ({"messages": []}, "messages"),
    ({"messages": [1]}, "body.messages.0"), ({"messages": [HELLO, []]}, "messages.1"),
    ({"messages": [HELLO, [{"role": "user", "content": 1}]]}, "messages.1"),
    ({"messages": [HELLO], "stream": True}, "stream"), ({"messages": [HELLO], "n": 2}, "n"),
    ({"messages": [HELLO], "tools": [1]}, "tools"), ({"messages": [HELLO], "use_beam_search": True}, "use_beam_search"),
    ({"messages": [HELLO], "max_tokens": "x"}, "body.max_tokens"), ({"messages": [HELLO] * 5000}, "messages"),
    ({"messages": [HELLO, [{"role": "user", "content": "x " * 9000}]]}, "input_tokens"),
])
def test_wrong_batch(server, body, param):
    status, reply = server.post("/v1/chat/completions/batch", body)
    assert (status, reply["error"]["param"]) == (400, param), reply


def test_render(server):
    status, reply = server.post("/v1/chat/completions/render", {"messages": OTHER, **BODY})
    assert status == 200, reply
    assert reply["token_ids"] == server.post("/tokenize", {"messages": OTHER})[1]["tokens"]
    assert reply["model"] == "tiny" and reply["sampling_params"]["max_tokens"] == 6
    status, reply = server.post("/v1/completions/render", {"prompt": ["One", "Two"], "max_tokens": 3})
    assert [r["token_ids"] for r in reply] == [server.post("/tokenize", {"prompt": p})[1]["tokens"] for p in ("One", "Two")]
    assert server.post("/v1/chat/completions/render", {"messages": []})[0] == 400
    assert not server.busy()


def test_llamacpp_tokenize(server):
    text = "Hello \u00fc \U0001f600"
    plain = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
    assert server.post("/tokenize", {"content": text}) == (200, {"tokens": plain})
    special = server.post("/tokenize", {"prompt": text})[1]["tokens"]
    assert server.post("/tokenize", {"content": text, "add_special": True})[1]["tokens"] == special
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True})[1]["tokens"]
    assert [p["id"] for p in pieces] == plain
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert joined == text.encode()
    assert server.post("/detokenize", {"tokens": plain})[1]["content"] == text
    assert server.post("/tokenize", {"content": ""}) == (200, {"tokens": []})
    assert server.post("/tokenize", {"content": "x", "with_pieces": "perhaps"})[1]["error"]["param"] == "body.with_pieces"


def test_llamacpp_template_and_props(server):
    prompt = server.post("/apply-template", {"messages": OTHER})[1]["prompt"]
    ids = server.post("/tokenize", {"messages": OTHER})[1]["tokens"]
    assert server.post("/tokenize", {"prompt": prompt, "add_special_tokens": False})[1]["tokens"] == ids
    props = json.loads(server.request("GET", "/props")[2])
    assert props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] >= 1
    assert props["model_alias"] == "tiny" and "messages" in props["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False}


def test_paths_without_v1(server):
    body = {"messages": HELLO, **BODY}
    status, _, reply = server.request("POST", "/chat/completions", {**body, "stream": True}, ["TE: none"])
    assert status == 200 and unchunk(reply).endswith(b"data: [DONE]\n\n")
    assert server.request("GET", "/v1/health")[0] == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/speech", "/rerank", "/v1/files", "/v1/batches"])
def test_what_does_not_exist(server, path):
    assert server.post(path, {"input": "x", "model": "tiny"}) == (404, {"detail": "Not Found"})
