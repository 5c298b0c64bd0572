"""Thoughts and tool calls over HTTP, on qwen35-tiny: its template opens a thought in the prompt and prints calls as XML.
The weights are random, so answers are steered by allowing only tokens of which thoughts and calls are made."""
import json

import openai
import pytest
from conftest import ROOT, events, unchunk

QWEN = ROOT / "tests/fixtures/models/qwen35-tiny"
HELLO = [{"role": "user", "content": "Hello there"}]
WEATHER = {"type": "function", "function": {"name": "w", "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}


@pytest.fixture(scope="module")
def qwen(start):
    s = start("--served-model-name", "qwen", model=QWEN)
    assert "reasoning parser: qwen3; tool-call parser: qwen3_coder" in s.log()
    yield s
    assert s.stop() == 0


def ids(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def chat(server, **body):
    status, reply = server.post("/v1/chat/completions", {"messages": HELLO, "seed": 1, **body})
    assert status == 200, reply
    return reply


def join(server, **body):
    """A stream's first choice, put together as the SDK's users do."""
    status, _, reply = server.request("POST", "/v1/chat/completions",
                                      {"messages": HELLO, "seed": 1, "stream": True, **body}, ["TE: none"])
    assert status == 200, reply
    message, calls, finish = {"content": "", "reasoning": ""}, [], None
    for event in events(unchunk(reply)):
        choice = event["choices"][0]
        for field in message:
            message[field] += choice["delta"].get(field) or ""
        for piece in choice["delta"].get("tool_calls", ()):
            if piece["index"] == len(calls):
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            else:
                assert "id" not in piece and "name" not in piece["function"]
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
        finish = choice["finish_reason"]
    return message, calls, finish


def test_thinking_cut_by_the_limit(qwen):
    reply = chat(qwen, max_tokens=8, ignore_eos=True)
    choice = reply["choices"][0]
    assert choice["message"]["content"] is None and choice["message"]["reasoning"]
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}
    message, _, finish = join(qwen, max_tokens=8, ignore_eos=True)
    assert message == {"content": "", "reasoning": choice["message"]["reasoning"]} and finish == "length"
    hidden = chat(qwen, max_tokens=8, ignore_eos=True, include_reasoning=False)["choices"][0]["message"]
    assert hidden["reasoning"] is None and hidden["content"] is None


@pytest.mark.parametrize("off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}])
def test_thinking_off(qwen, off):
    reply = chat(qwen, max_tokens=8, ignore_eos=True, **off)
    message = reply["choices"][0]["message"]
    assert message["reasoning"] is None and message["content"]
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert join(qwen, max_tokens=8, ignore_eos=True, **off)[0]["content"] == message["content"]


def test_thought_and_answer(qwen):
    (close,), (letter,) = ids(qwen, "</think>"), ids(qwen, "a")
    steer = {"allowed_token_ids": [close, letter], "max_tokens": 40, "ignore_eos": True, "temperature": 2}
    seen = 0
    for seed in range(20):
        reply = chat(qwen, **{**steer, "seed": seed}, return_token_ids=True)
        choice = reply["choices"][0]
        made = choice["token_ids"]
        thought = made.index(close) if close in made else len(made)
        assert choice["message"]["reasoning"] == ("a" * thought or None)
        assert choice["message"]["content"] == ("a" * made[thought:].count(letter) or None)
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
        seen += 0 < thought < len(made)
    assert seen > 5


def test_stream_equals_whole(qwen):
    """Random sequences of marks and pieces of the format. Whole calls do not come of it (tests/unit/api has those), but
    every way to hold text back does."""
    words = ["</think>", "<tool_call>", "</tool_call>", "<function=w>", "</parameter>", "\n", "7", "x\"", "<", "\u00fc"]
    allowed = sorted({i for word in words for i in ids(qwen, word)})
    bias = {str(i): 3 for word in words[:3] for i in ids(qwen, word)}
    texts = set()
    for seed in range(25):
        body = {"allowed_token_ids": allowed, "logit_bias": bias, "max_tokens": 60, "temperature": 1.5, "seed": seed,
                "tools": [WEATHER], "parallel_tool_calls": seed % 3 > 0, "stop": ["x\"x\"x"]}
        choice = chat(qwen, **body)["choices"][0]
        message, calls, finish = join(qwen, **body)
        assert (finish, calls) == (choice["finish_reason"], [])
        assert message == {k: choice["message"][k] or "" for k in ("content", "reasoning")}
        assert "</think>" not in message["reasoning"] + message["content"]
        texts.add(message["content"])
    assert len(texts) > 5 and any("<tool_call>" in t for t in texts)


def test_tool_choice(qwen, server):
    body = {"messages": HELLO, "tools": [WEATHER], "max_tokens": 4}
    assert qwen.post("/v1/chat/completions", body)[0] == 200
    assert qwen.post("/v1/chat/completions", {**body, "tool_choice": "none"})[0] == 200
    # llama-tiny's template knows no tools
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 400 and reply["error"]["param"] == "tool_choice"
    assert "--enable-auto-tool-choice" in reply["error"]["message"]
    assert "--tool-call-parser" in reply["error"]["message"]
    assert server.post("/v1/chat/completions", {**body, "tool_choice": "none"})[0] == 200


def test_parsers_off(start):
    s = start("--reasoning-parser", "none", "--no-enable-auto-tool-choice", "--tool-call-parser", "hermes", model=QWEN)
    assert "reasoning parser: none; tool-call parser: hermes" in s.log()
    reply = chat(s, max_tokens=4, ignore_eos=True)
    assert reply["choices"][0]["message"]["content"] and reply["choices"][0]["message"]["reasoning"] is None
    assert "completion_tokens_details" not in reply["usage"]
    assert s.post("/v1/chat/completions", {"messages": HELLO, "tools": [WEATHER]})[0] == 400
    assert s.stop() == 0


def test_sdk_stream(qwen):
    """The SDK's own accumulation takes the stream."""
    with qwen.client().chat.completions.stream(model="qwen", messages=HELLO, max_tokens=6, seed=1,
                                               extra_body={"ignore_eos": True}) as stream:
        with pytest.raises(openai.LengthFinishReasonError):
            for _ in stream:
                pass
            stream.get_final_completion()


def test_history_with_calls(qwen):
    messages = HELLO + [
        {"role": "assistant", "content": None, "reasoning": "I look.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{\"a\": \"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    for field in ("reasoning", "reasoning_content"):
        messages[1] = {k: v for k, v in messages[1].items() if not k.startswith("reasoning")} | {field: "I look."}
        prompt = qwen.post("/tokenize", {"messages": messages, "tools": [WEATHER], "return_token_strs": False})[1]["tokens"]
        text = qwen.post("/detokenize", {"tokens": prompt})[1]["prompt"]
        assert "<think>\nI look.\n</think>" in text and "<parameter=a>\nParis\n</parameter>" in text
    assert chat(qwen, messages=messages, tools=[WEATHER], max_tokens=4)["choices"]


def test_metrics(qwen):
    def counts():
        return [sum(v for k, v in qwen.metrics().items() if "tool_call_parser" in k and f'mode="{m}"' in k)
                for m in ("streaming", "non_streaming")]
    before = counts()
    chat(qwen, tools=[WEATHER], max_tokens=4)
    join(qwen, tools=[WEATHER], max_tokens=4)
    assert counts() == [n + 1 for n in before]
    chat(qwen, max_tokens=4)
    assert counts() == [n + 1 for n in before]
