"""Fields of requests beside the sampling ones, row by row: what each does, and how it is refused."""
import json

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
TEXT = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def ok(server, path, body, headers=()):
    status, reply = server.post(path, body, headers)
    assert status == 200, reply
    return reply


def refused(server, path, body, param):
    status, reply = server.post(path, body)
    assert (status, reply["error"]["param"]) == (400, param), reply
    return reply["error"]["message"]


def prompt_of(server, **body):
    ids = ok(server, "/tokenize", {"messages": CHAT["messages"], **body})["tokens"]
    return server.post("/detokenize", {"tokens": ids})[1]["prompt"]


# --- repetition_detection ----------------------------------------------------------------------------------

def circle(server, **extra):
    """An answer that can only say one token."""
    return {**TEXT, "max_tokens": 60, "allowed_token_ids": [300], **extra}


@pytest.mark.parametrize("rule, n", [
    ({"max_pattern_size": 1, "min_count": 5}, 5),
    ({"max_pattern_size": 8, "min_pattern_size": 4, "min_count": 3}, 12),
    ({"max_pattern_size": "8", "min_pattern_size": 0, "min_count": 2.0}, 2),
])
def test_repetition(server, rule, n):
    body = circle(server, repetition_detection=rule)
    reply = ok(server, "/v1/completions", body)
    choice = reply["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    assert reply["usage"]["completion_tokens"] == n
    whole = ok(server, "/v1/completions", {**body, "repetition_detection": None, "max_tokens": n})["choices"][0]["text"]
    assert choice["text"] == whole
    before = server.metrics()['vllm:request_success_total{finished_reason="repetition"}']
    ok(server, "/v1/chat/completions", {**CHAT, "max_tokens": 60, "allowed_token_ids": [300], "repetition_detection": rule})
    assert server.metrics()['vllm:request_success_total{finished_reason="repetition"}'] == before + 1


def test_repetition_of_longer_patterns(server):
    two = {**TEXT, "allowed_token_ids": [300, 301], "temperature": 2, "seed": 5, "max_tokens": 40}
    ids = ok(server, "/v1/completions", {**two, "return_token_ids": True})["choices"][0]["token_ids"]
    assert len(ids) == 40
    rule = {"max_pattern_size": 10, "min_pattern_size": 2, "min_count": 3}
    found = next(n for n in range(1, 41) for p in range(2, 11) if 3 * p <= n and ids[n - p:n] == ids[n - 2 * p:n - p] == ids[n - 3 * p:n - 2 * p])
    reply = ok(server, "/v1/completions", {**two, "repetition_detection": rule})
    assert reply["usage"]["completion_tokens"] == found


def test_repetition_refusals(server):
    assert ok(server, "/v1/completions", circle(server, repetition_detection={"max_pattern_size": 0}))["usage"]["completion_tokens"] == 60
    for rule in ({"max_pattern_size": 513, "min_count": 2}, {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2},
                 {"max_pattern_size": 2, "min_count": 1}, {"max_pattern_size": -1, "min_count": 2}, {"max_pattern_size": 2}):
        refused(server, "/v1/completions", circle(server, repetition_detection=rule), "repetition_detection")
    refused(server, "/v1/completions", circle(server, repetition_detection=[1]), "body.repetition_detection")


# --- logprob_token_ids --------------------------------------------------------------------------------------

def test_logprobs_of_given_tokens(server):
    ids = [5, 300, 5, 1023]
    body = {**TEXT, "logprobs": 0, "logprob_token_ids": ids, "return_tokens_as_token_ids": True}
    got = ok(server, "/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"]
    # the likeliest twenty, asked for in the ordinary way, have the same values
    top = ok(server, "/v1/completions", {**TEXT, "logprobs": 20, "return_tokens_as_token_ids": True})["choices"][0]["logprobs"]["top_logprobs"]
    for here, there in zip(got, top):
        assert set(here) - {"token_id:5", "token_id:300", "token_id:1023"} <= set(there)
        likely = [int(t.split(":")[1]) for t in there]
        again = ok(server, "/v1/completions", {**TEXT, "max_tokens": 1, "logprobs": 0, "logprob_token_ids": likely[:20], "return_tokens_as_token_ids": True})
        if here is got[0]:
            assert again["choices"][0]["logprobs"]["top_logprobs"][0] == there
    chat = ok(server, "/v1/chat/completions", {**CHAT, "logprobs": True, "logprob_token_ids": ids})
    for token in chat["choices"][0]["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 4 and token["top_logprobs"][0] == token["top_logprobs"][2]
    assert chat["choices"][0]["message"] == ok(server, "/v1/chat/completions", CHAT)["choices"][0]["message"]
    many = ok(server, "/v1/completions", {**TEXT, "logprobs": 1, "logprob_token_ids": list(range(128))})
    assert len(many["choices"][0]["logprobs"]["tokens"]) == 4
    for bad in ([], [1024], [-1], list(range(129))):
        refused(server, "/v1/completions", {**body, "logprob_token_ids": bad}, "logprob_token_ids")
    refused(server, "/v1/completions", {**TEXT, "logprob_token_ids": ids}, "logprob_token_ids")
    refused(server, "/v1/completions", {**body, "echo": True}, "logprob_token_ids")


# --- prompts -----------------------------------------------------------------------------------------------

def test_truncation(server):
    ids = list(range(300, 340))
    for side, kept in ((None, ids[-10:]), ("left", ids[-10:]), ("right", ids[:10])):
        reply = ok(server, "/v1/completions", {**TEXT, "prompt": ids, "truncate_prompt_tokens": 10, "truncation_side": side,
                                               "return_token_ids": True})
        assert reply["choices"][0]["prompt_token_ids"] == kept and reply["usage"]["prompt_tokens"] == 10
    long = ok(server, "/v1/completions", {**TEXT, "prompt": [300] * 5000, "truncate_prompt_tokens": -1})
    assert long["usage"]["prompt_tokens"] == 2047
    refused(server, "/v1/completions", {**TEXT, "truncate_prompt_tokens": 0}, "truncate_prompt_tokens")
    refused(server, "/v1/completions", {**TEXT, "truncate_prompt_tokens": 3, "truncation_side": "top"}, "truncation_side")


def test_echo_of_completions(server):
    for prompt in ("Once upon a time", [300, 301, 302]):
        plain = ok(server, "/v1/completions", {**TEXT, "prompt": prompt})["choices"][0]["text"]
        echo = ok(server, "/v1/completions", {**TEXT, "prompt": prompt, "echo": True})["choices"][0]["text"]
        assert echo.endswith(plain) and len(echo) > len(plain)
    scored = ok(server, "/v1/completions", {**TEXT, "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]
    assert scored["finish_reason"] == "length" and scored["logprobs"]["token_logprobs"][0] is None
    assert all(isinstance(p, float) for p in scored["logprobs"]["token_logprobs"][1:])
    refused(server, "/v1/completions", {**TEXT, "max_tokens": 0}, "max_tokens")


def test_echo_and_continuation_of_chats(server):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well then"}]
    body = {**CHAT, "messages": turns, "add_generation_prompt": False, "continue_final_message": True}
    plain = ok(server, "/v1/chat/completions", body)["choices"][0]["message"]
    assert plain["role"] == "assistant"
    assert ok(server, "/v1/chat/completions", {**body, "echo": True})["choices"][0]["message"]["content"] == "Well then" + plain["content"]
    # the role of the answer is that of the last message where no turn is opened; echo looks at it
    user = {**CHAT, "add_generation_prompt": False}
    assert ok(server, "/v1/chat/completions", {**user, "echo": True})["choices"][0]["message"]["content"].startswith("Hi")
    assert ok(server, "/v1/chat/completions", user)["choices"][0]["message"]["role"] == "user"
    opened = ok(server, "/v1/chat/completions", {**CHAT, "echo": True})["choices"][0]["message"]
    assert opened["role"] == "assistant" and opened["content"] == ok(server, "/v1/chat/completions", CHAT)["choices"][0]["message"]["content"]
    refused(server, "/v1/chat/completions", {**body, "add_generation_prompt": True}, "continue_final_message")


def test_special_tokens(server):
    with_bos = ok(server, "/tokenize", {"prompt": "x"})["tokens"]
    without = ok(server, "/tokenize", {"prompt": "x", "add_special_tokens": False})["tokens"]
    assert with_bos[-len(without):] == without
    ids = ok(server, "/v1/completions", {**TEXT, "prompt": "x", "add_special_tokens": False, "return_token_ids": True})
    assert ids["choices"][0]["prompt_token_ids"] == without
    assert ok(server, "/v1/completions", {**TEXT, "spaces_between_special_tokens": False, "skip_special_tokens": None})


def test_effort_and_documents(server):
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", None):
        ok(server, "/v1/chat/completions", {**CHAT, "reasoning_effort": effort})
    refused(server, "/v1/chat/completions", {**CHAT, "reasoning_effort": "huge"}, "body.reasoning_effort")
    ok(server, "/v1/chat/completions", {**CHAT, "documents": [{"title": "t", "text": "x"}]})
    refused(server, "/v1/chat/completions", {**CHAT, "documents": "x"}, "body.documents")


# --- the rest ----------------------------------------------------------------------------------------------

def test_request_ids(server, start):
    def id_of(body, headers=()):
        return ok(server, "/v1/completions", {**TEXT, **body}, headers)["id"]

    assert id_of({"request_id": "mine"}) == "cmpl-mine"
    assert id_of({"request_id": "mine"}, ["X-Request-Id: header"]) == "cmpl-header"
    assert id_of({"request_id": "has blanks"}).startswith("cmpl-") and " " not in id_of({"request_id": "has blanks"})
    assert len(id_of({})) == len("cmpl-") + 16 and id_of({}) != id_of({})
    refused(server, "/v1/completions", {**TEXT, "request_id": 3}, "body.request_id")


def test_null_is_absent_and_unknown_is_ignored(server):
    fields = ["temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "logit_bias", "logprobs", "stream",
              "stream_options", "max_completion_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "user",
              "tools", "tool_choice", "response_format", "structured_outputs", "bad_words", "allowed_token_ids", "min_tokens",
              "top_logprobs", "prompt_logprobs", "truncate_prompt_tokens", "truncation_side", "cache_salt", "priority", "metadata",
              "chat_template", "chat_template_kwargs", "reasoning_effort", "stream_interval", "repetition_detection",
              "logprob_token_ids", "thinking_token_budget", "include_reasoning", "echo", "model", "request_id", "documents"]
    nulls = dict.fromkeys(fields)
    ok(server, "/v1/chat/completions", {**nulls, "messages": CHAT["messages"], "max_tokens": 4})
    ok(server, "/v1/completions", {**nulls, "prompt": "x"})
    ok(server, "/v1/completions", {**TEXT, "session_id": "s", "user": "u", "vllm_xargs": {"a": 1}, "kv_transfer_params": {"b": []},
                                   "return_prompt_text": True, "metadata": {"c": "d"}, "store": True, "service_tier": "auto",
                                   "length_penalty": 1.0, "guided_json": {}, "brand_new": [{}]})


def test_lax_types(server):
    same = ok(server, "/v1/completions", {**TEXT, "seed": 3, "top_k": 2, "temperature": 0.5})["choices"]
    assert ok(server, "/v1/completions", {**TEXT, "seed": "3", "top_k": 2.0, "temperature": "0.5", "max_tokens": "4",
                                          "ignore_eos": "yes", "stream": 0, "n": True})["choices"] == same
    for field, value in (("max_tokens", "abc"), ("max_tokens", 1.5), ("n", []), ("temperature", "hot"), ("stream", "maybe"),
                         ("seed", {}), ("top_k", "1e3"), ("echo", 2)):
        refused(server, "/v1/completions", {**TEXT, field: value}, f"body.{field}")


def test_refused_honestly(server):
    refused(server, "/v1/completions", {**TEXT, "use_beam_search": True}, "use_beam_search")
    refused(server, "/v1/completions", {**TEXT, "suffix": "x"}, "suffix")
    refused(server, "/v1/completions", {**TEXT, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs")
    refused(server, "/v1/completions", {**TEXT, "prompt_logprobs": 21}, "prompt_logprobs")
    refused(server, "/v1/completions", {**TEXT, "stream_options": {}}, "stream_options")


def test_min_tokens_holds_stop_strings_back(server):
    text = ok(server, "/v1/completions", {**TEXT, "max_tokens": 20})["choices"][0]["text"]
    stop = text[2:5]
    early = ok(server, "/v1/completions", {**TEXT, "max_tokens": 20, "stop": stop})
    late = ok(server, "/v1/completions", {**TEXT, "max_tokens": 20, "stop": stop, "min_tokens": 10})
    assert early["choices"][0]["finish_reason"] == "stop" and early["usage"]["completion_tokens"] < 10
    assert late["usage"]["completion_tokens"] >= 10
    refused(server, "/v1/completions", {**TEXT, "min_tokens": 5}, "min_tokens")


def test_prompt_logprobs(server):
    reply = ok(server, "/v1/completions", {**TEXT, "prompt_logprobs": 2})["choices"][0]["prompt_logprobs"]
    assert reply[0] is None and all(2 <= len(p) <= 3 for p in reply[1:])
    chat = ok(server, "/v1/chat/completions", {**CHAT, "prompt_logprobs": 0})
    assert chat["prompt_logprobs"][0] is None and all(len(p) == 1 for p in chat["prompt_logprobs"][1:])
    assert json.dumps(chat["prompt_logprobs"]).count('"rank"') == len(chat["prompt_logprobs"]) - 1


def test_light_requests_pass_heavy_ones(server):
    """Two texts of megabytes are being tokenized; a short request does not wait for them."""
    import threading
    import time
    heavy = json.dumps({"prompt": "lorem ipsum dolor sit amet " * 200_000})
    seconds = []

    def ask():
        begin = time.monotonic()
        assert server.request("POST", "/tokenize", heavy)[0] == 200
        seconds.append(time.monotonic() - begin)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    light = []
    while any(t.is_alive() for t in threads):
        begin = time.monotonic()
        assert server.post("/tokenize", {"prompt": "short"})[0] == 200
        light.append(time.monotonic() - begin)
        time.sleep(0.01)
    for t in threads:
        t.join()
    assert len(light) >= 3 and sorted(light)[len(light) // 2] < max(seconds) / 3
