"""Public bug reports of other servers, tried here; tests/README.md lists all of them and where each is tried."""
import json

import pytest

from conftest import events, unchunk

TEXT = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True}


def post(server, body, path="/v1/completions"):
    return server.post(path, body)


def answer(server, body):
    status, reply = post(server, body)
    assert status == 200, reply
    return reply["choices"][0]


def streamed(server, body, path="/v1/completions"):
    status, _, reply = server.request("POST", path, {**body, "stream": True})
    assert status == 200, reply
    return events(unchunk(reply))


def joined(server, body):
    return "".join(e["choices"][0]["text"] for e in streamed(server, body))


# 1: empty prompts ended the engine
@pytest.mark.parametrize("path, body", [("/v1/completions", {"prompt": ""}), ("/v1/completions", {"prompt": [""]}),
                                        ("/v1/completions", {"prompt": []}), ("/v1/completions", {"prompt": [[]]}),
                                        ("/v1/chat/completions", {"messages": []})])
def test_empty_prompts(server, path, body):
    assert post(server, body, path)[0] == 400
    assert answer(server, TEXT)["finish_reason"] == "length"


# 2: no tokens asked for: a crash
@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens(server, stream):
    status, reply = post(server, {**TEXT, "max_tokens": 0, "stream": stream})
    assert status == 400 and reply["error"]["param"] == "max_tokens"
    body = {**TEXT, "max_tokens": 0, "echo": True, "logprobs": 1}
    choices = [e["choices"][0] for e in streamed(server, body)] if stream else [answer(server, body)]
    assert "".join(c["text"] for c in choices) == TEXT["prompt"] and choices[-1]["finish_reason"] == "length"
    scores = choices[0]["logprobs"]["token_logprobs"]
    assert scores[0] is None and len(scores) > 1


# 3: ids at the border of the vocabulary wrote into a neighbour's row
def test_ids_at_the_border(server):
    vocab = 1024
    last = answer(server, {**TEXT, "prompt": [vocab - 1], "max_tokens": 2})
    assert last["finish_reason"] == "length"
    for body, param in (({"prompt": [vocab]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"stop_token_ids": [vocab], "min_tokens": 1}, "stop_token_ids"),
                        ({"logit_bias": {str(vocab): 1}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "body.logit_bias"),
                        ({"allowed_token_ids": [vocab]}, "allowed_token_ids")):
        status, reply = post(server, {**TEXT, **body})
        assert (status, reply["error"]["param"]) == (400, param)
    forced = answer(server, {**TEXT, "max_tokens": 3, "logit_bias": {str(vocab - 1): 100}, "return_token_ids": True})
    assert forced["token_ids"] == [vocab - 1] * 3
    assert answer(server, {**TEXT, "stop_token_ids": [vocab - 1], "min_tokens": 1, "max_tokens": 2})


# 5: characters made of several tokens were lost or broken in streams
@pytest.mark.parametrize("character", ["é", "한", "🦙", "👩‍🚀"])
def test_characters_of_several_tokens(server, character):
    ids = server.post("/tokenize", {"prompt": character, "add_special_tokens": False})[1]["tokens"]
    for cut in range(1, len(ids) + 1):
        # the answer begins inside the character, goes on with noise, and is cut anywhere
        for n in (1, 2, 5):
            body = {**TEXT, "prompt": ids[:cut], "allowed_token_ids": sorted(set(ids)), "max_tokens": n, "temperature": 1, "seed": cut}
            whole = answer(server, body)["text"]
            assert joined(server, body) == whole
            pieces = [e["choices"][0]["text"] for e in streamed(server, body)]
            for piece in pieces:
                piece.encode()  # whole characters: no half of a pair


# 6: stop strings leaked, or ate
@pytest.mark.parametrize("interval", [1, 4])
def test_stop_strings(server, interval):
    text = answer(server, {**TEXT, "max_tokens": 40})["text"]
    assert len(text) > 30
    for begin in range(3, 20):
        for length in (1, 4, 9):
            stop = text[begin:begin + length]
            cut = text.index(stop)
            stops = [stop, stop[:2] + "\x01", text[begin:begin + 2] + "zzz"]
            body = {**TEXT, "max_tokens": 40, "stop": stops, "stream_interval": interval}
            got = answer(server, body)
            assert (got["text"], got["finish_reason"], got["stop_reason"]) == (text[:cut], "stop", stop)
            if begin % 4 == 0:
                assert joined(server, body) == text[:cut]


# 7: an answer that ends inside what may become a stop string lost its end
def test_end_inside_a_stop_string(server):
    for n in (3, 8, 16):
        text = answer(server, {**TEXT, "max_tokens": n})["text"]
        body = {**TEXT, "max_tokens": n, "stop": [text[-3:] + "never", text[-1:] + "\x00"]}
        got = answer(server, body)
        assert (got["text"], got["finish_reason"]) == (text, "length")
        assert joined(server, body) == text


# 13: half characters in prompts leaked the prompt; lone surrogates were a 500
def test_half_characters(server):
    ids = server.post("/tokenize", {"prompt": "secret 🦙", "add_special_tokens": False})[1]["tokens"]
    for cut in range(1, len(ids)):
        events_ = streamed(server, {**TEXT, "prompt": ids[:cut], "max_tokens": 3})
        assert "secret" not in "".join(e["choices"][0]["text"] for e in events_)
    for text, expect in ((r'"a\ud83d"', (200, 400)), (r'"\udc00b"', (200, 400)), (r'"\ud83d\ude00"', (200,))):
        status, _, reply = server.request("POST", "/v1/completions", b'{"max_tokens": 2, "prompt": %s}' % text.encode())
        assert status in expect, reply
        status, _, reply = server.request("POST", "/tokenize", b'{"prompt": %s, "add_special_tokens": false}' % text.encode())
        assert status in expect
        if expect == (200,):
            assert server.post("/detokenize", {"tokens": json.loads(reply)["tokens"]})[1]["prompt"] == "\U0001F600"


# 14: arguments of calls in the history
@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', "{}", "", "[1, 2]", "not JSON", "null", {"city": "Rome"}])
def test_arguments_in_the_history(server, arguments):
    messages = [{"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "w", "arguments": arguments}}]},
                {"role": "tool", "tool_call_id": "1", "content": "Sunny"}, {"role": "user", "content": "Thanks"}]
    status, reply = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert status == 200 or (status == 400 and "messages" in reply["error"]["message"] + str(reply["error"]["param"])), reply


# 24: temperatures and cuts at the edge
def test_extremes_of_sampling(server):
    greedy = answer(server, TEXT)["text"]
    for temperature in (1e-12, 1e-6, 0, "0"):
        assert answer(server, {**TEXT, "temperature": temperature})["text"] == greedy
    assert answer(server, {**TEXT, "temperature": 1e-4, "seed": 1})["text"] == greedy
    assert answer(server, {**TEXT, "temperature": 1, "top_k": 1_000_000, "seed": 1}) == answer(server, {**TEXT, "temperature": 1, "top_k": 0, "seed": 1})
    assert answer(server, {**TEXT, "temperature": 1, "top_p": 1e-4, "seed": 1})["text"] == greedy
    for field, value in (("temperature", -1), ("temperature", 2.1), ("top_p", 0), ("top_p", 1.01), ("top_k", -2), ("min_p", -0.1)):
        status, reply = post(server, {**TEXT, field: value})
        assert (status, reply["error"]["param"]) == (400, field)


# 26: penalties and numbers that are none
def test_penalties_and_odd_numbers(server):
    for field, value in (("repetition_penalty", "0"), ("repetition_penalty", "NaN"), ("temperature", "NaN"), ("temperature", "Infinity"),
                         ("top_p", "1e400"), ("presence_penalty", "-Infinity"), ("seed", "1e400"), ("n", "1e999")):
        status, _, _ = server.request("POST", "/v1/completions", b'{"prompt": "x", "%s": %s}' % (field.encode(), value.encode()))
        assert status == 400, (field, value)
    long = {**TEXT, "prompt": [300] * 1500, "repetition_penalty": 1.8, "presence_penalty": 2, "frequency_penalty": 2, "logprobs": 3}
    probs = answer(server, long)["logprobs"]["token_logprobs"]
    assert len(probs) == 16 and all(isinstance(p, float) and -1e4 < p <= 0 for p in probs)
