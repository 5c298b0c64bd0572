"""POST /v1/messages: the anthropic SDK, the order of a stream's events, what it adds up to, bodies of every wrong kind."""
import json

import anthropic
import pytest
from conftest import ROOT, named_events, squeeze
from pydantic import BaseModel

QWEN = ROOT / "tests/fixtures/models/qwen35-tiny"
HELLO = [{"role": "user", "content": "Hello there"}]
PICK = {"name": "pick", "description": "Picks.", "input_schema": {
    "type": "object", "properties": {"a": {"type": "string", "enum": ["x", "yy"]}, "b": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["a", "b"], "additionalProperties": False}}


def sdk(server, **kw):
    return anthropic.Anthropic(**{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 60, **kw})


@pytest.fixture(scope="module")
def qwen(start):
    s = start("--served-model-name", "qwen", model=QWEN)
    yield s
    assert s.stop() == 0


def ask(server, **body):
    model = "qwen" if server.log().count("qwen3_coder") else "tiny"
    return {"model": model, "messages": HELLO, "max_tokens": 8, "seed": 1, **body}


def post(server, **body):
    return server.post("/v1/messages", ask(server, **body))


def stream(server, **body):
    return named_events(server, "/v1/messages", ask(server, **body))


def add_up(events):
    """The message that a stream tells, as its readers put it together; the order of events is checked."""
    names = squeeze(events)
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert set(names[1:-2]) <= {"content_block_start", "content_block_delta", "content_block_stop"}
    message = json.loads(json.dumps(events[0][1]["message"]))
    assert message["content"] == [] and message["stop_reason"] is None
    open_block, pieces = False, ""
    for name, data in events[1:-2]:
        if name == "content_block_start":
            assert not open_block and data["index"] == len(message["content"])
            message["content"].append(data["content_block"])
            open_block, pieces = True, ""
        elif name == "content_block_delta":
            assert open_block and data["index"] == len(message["content"]) - 1
            delta, block = data["delta"], message["content"][-1]
            if delta["type"] == "input_json_delta":
                pieces += delta["partial_json"]
            else:
                field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
                block[field] += delta[field]
        else:
            assert open_block and data["index"] == len(message["content"]) - 1
            open_block = False
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["pieces"] = pieces
    assert not open_block
    message.update(events[-2][1]["delta"])
    message["usage"].update(events[-2][1]["usage"])
    return message


def check_stream(server, **body):
    """A stream adds up to the answer that is given whole. The answer."""
    status, whole = post(server, **body)
    assert status == 200, whole
    told = add_up(stream(server, **body))
    for block in told["content"]:
        pieces = block.pop("pieces", None)
        if pieces is not None:
            try:
                block["input"] = json.loads(pieces)
            except ValueError:
                assert told["stop_reason"] == "max_tokens"
                block["input"] = None
    for block, other in zip(told["content"], whole["content"]):
        if block.get("input", 0) is None:
            block["input"] = other["input"]  # a whole answer keeps the complete members of one that broke off
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("toolu_") and other["id"].startswith("toolu_")
    for message in (told, whole):
        assert message["id"].startswith("msg_")
    expected = json.loads(json.dumps(whole))
    for block in expected["content"]:
        if block["type"] == "tool_use":
            del block["id"]
    for message in (told, expected):
        del message["id"], message["usage"]["input_tokens"]
        message["usage"].pop("cache_read_input_tokens", None)
    assert told == expected
    return whole


def ids(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def test_sdk(server, client):
    m = sdk(server).messages.create(model="tiny", max_tokens=5, system="Be brief.", messages=HELLO,
                                    extra_body={"ignore_eos": True, "temperature": 0})
    assert m.type == "message" and m.role == "assistant" and m.model == "tiny" and m.id.startswith("msg_")
    assert m.stop_reason == "max_tokens" and m.stop_sequence is None
    chat = client.chat.completions.create(model="tiny", max_tokens=5, temperature=0, extra_body={"ignore_eos": True}, messages=[
        {"role": "system", "content": "Be brief."}, *HELLO])
    assert [b.type for b in m.content] == ["text"] and m.content[0].text == chat.choices[0].message.content
    assert m.usage.output_tokens == 5
    assert m.usage.input_tokens + m.usage.cache_read_input_tokens == chat.usage.prompt_tokens
    count = sdk(server).messages.count_tokens(model="tiny", system="Be brief.", messages=HELLO)
    assert count.input_tokens == chat.usage.prompt_tokens


def test_sdk_stream(server):
    with sdk(server).messages.stream(model="tiny", max_tokens=12, messages=HELLO,
                                     extra_body={"ignore_eos": True, "temperature": 0}) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert final.content[0].text == text and final.stop_reason == "max_tokens" and final.usage.output_tokens == 12


def test_sdk_parse(smollm):
    class City(BaseModel):
        name: str
        big: bool

    name = json.loads(smollm.request("GET", "/v1/models")[2])["data"][0]["id"]
    m = sdk(smollm).messages.parse(model=name, max_tokens=200, messages=[{"role": "user", "content": "Describe Paris."}],
                                   output_format=City, extra_body={"temperature": 0})
    assert m.stop_reason == "end_turn" and isinstance(m.parsed_output, City)


def test_sdk_tools(qwen):
    client = sdk(qwen)
    asked = {"model": "qwen", "max_tokens": 150, "messages": HELLO, "tools": [PICK], "tool_choice": {
        "type": "tool", "name": "pick", "disable_parallel_tool_use": True}, "thinking": {"type": "disabled"}}
    m = client.messages.create(**asked)
    (call,) = m.content
    assert m.stop_reason == "tool_use" and call.type == "tool_use" and call.input["a"] in ("x", "yy")
    with client.messages.stream(**asked) as s:
        streamed = s.get_final_message()
    assert streamed.content[0].input["a"] in ("x", "yy") and streamed.stop_reason == "tool_use"
    turn = [*HELLO, {"role": "assistant", "content": m.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": "done"}]}]
    assert client.messages.create(**{**asked, "messages": turn, "tool_choice": {"type": "auto"}, "max_tokens": 2}).content


def test_keys(start):
    s = start("--served-model-name", "tiny", "--api-key", "one", "two")
    ask_one = {"model": "tiny", "max_tokens": 1, "messages": HELLO}
    assert sdk(s, api_key="two").messages.create(**ask_one)
    assert sdk(s, api_key=None, auth_token="one").messages.create(**ask_one)
    with pytest.raises(anthropic.AuthenticationError) as e:
        sdk(s, api_key="three").messages.create(**ask_one)
    assert e.value.body["error"]["type"] == "authentication_error"
    # the header is this protocol's alone
    assert s.request("POST", "/v1/responses", {"input": "x"}, ["x-api-key: one"])[0] == 401
    assert s.request("POST", "/responses", {"input": "x"})[0] == 401
    assert s.request("GET", "/models")[0] == 401
    assert s.request("GET", "/v1/health")[0] == 200
    assert s.stop() == 0


def test_events_of_a_text(server):
    events = stream(server, ignore_eos=True)
    assert squeeze(events) == ["message_start", "content_block_start", "content_block_delta",
                                               "content_block_stop", "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert start["role"] == "assistant" and start["usage"]["input_tokens"] + start["usage"]["cache_read_input_tokens"] > 0
    assert events[-2][1]["usage"]["output_tokens"] == 8
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    check_stream(server, ignore_eos=True)


def test_stop_sequence(server):
    text = post(server, max_tokens=30, ignore_eos=True)[1]["content"][0]["text"]
    stop = text[3:6]
    reply = check_stream(server, max_tokens=30, ignore_eos=True, stop_sequences=["\x01never", stop])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", stop)
    assert "".join(b["text"] for b in reply["content"]) == text[:text.index(stop)]


def test_thinking(qwen):
    kinds = set()
    for seed in range(16):
        allowed = [t for p in ("</think>", "a", "\n") for t in ids(qwen, p)]
        whole = check_stream(qwen, seed=seed, allowed_token_ids=allowed, max_tokens=40, temperature=2)
        kinds.add(tuple(b["type"] for b in whole["content"]))
        for b in whole["content"]:
            assert b["type"] == "text" or len(b["signature"]) == 32
    assert ("thinking", "text") in kinds
    off = post(qwen, thinking={"type": "disabled"}, ignore_eos=True)[1]
    assert [b["type"] for b in off["content"]] == ["text"]
    on = post(qwen, thinking={"type": "adaptive", "display": "omitted"}, ignore_eos=True)[1]
    assert [b["type"] for b in on["content"]] == ["text"] and on["content"][0]["text"] == ""


def test_thinking_budget(qwen):
    """The budget closes the thought, however long the model would go on."""
    letter = ids(qwen, "a")
    reply = check_stream(qwen, max_tokens=1200, thinking={"type": "enabled", "budget_tokens": 1024}, allowed_token_ids=letter,
                         ignore_eos=True)
    assert [b["type"] for b in reply["content"]] == ["thinking", "text"]
    assert len(reply["content"][0]["thinking"]) == 1024 and set(reply["content"][0]["thinking"]) == {"a"}


def test_budget_without_thoughts(server):
    """A model that does not think stays within any budget."""
    assert post(server, max_tokens=1200, thinking={"type": "enabled", "budget_tokens": 1024}, stop_sequences=["e"])[0] == 200


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "pick"}])
def test_calls(qwen, choice):
    for seed in range(4):
        whole = check_stream(qwen, seed=seed, tools=[PICK], tool_choice=choice, max_tokens=150, thinking={"type": "disabled"})
        assert {b["type"] for b in whole["content"]} == {"tool_use"}
        assert whole["content"][0]["name"] == "pick" and whole["content"][0]["input"]["a"] in ("x", "yy")
    assert post(qwen, tools=[PICK], tool_choice={"type": "none"})[0] == 200


def test_a_call_that_breaks_off(qwen):
    for n in range(1, 60, 4):
        check_stream(qwen, tools=[PICK], tool_choice={"type": "any"}, max_tokens=n, thinking={"type": "disabled"})


def test_blocks_of_the_input(qwen):
    """Blocks reach the template as the messages of a chat do."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "now?", "cache_control": {
                    "type": "ephemeral"}}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "I look.", "signature": "s"},
                                                  {"type": "redacted_thinking", "data": "xx"},
                                                  {"type": "text", "text": "A moment."},
                                                  {"type": "tool_use", "id": "t1", "name": "pick", "input": {"a": "x", "b": 1}},
                                                  {"type": "tool_use", "id": "t2", "name": "pick", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Rain.", "is_error": False},
                                             {"type": "tool_result", "tool_use_id": "t2", "content": [
                                                 {"type": "text", "text": "Sun."}]},
                                             {"type": "text", "text": "Which?"}]}]
    chat = [{"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "now?"}]},
            {"role": "assistant", "reasoning": "I look.", "content": [{"type": "text", "text": "A moment."}], "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "pick", "arguments": {"a": "x", "b": 1}}},
                {"id": "t2", "type": "function", "function": {"name": "pick", "arguments": {}}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "Rain."}, {"role": "tool", "tool_call_id": "t2", "content": "Sun."},
            {"role": "user", "content": "Which?"}]
    tools = [{"type": "function", "function": {"name": "pick", "description": "Picks.", "parameters": PICK["input_schema"]}}]
    expected = qwen.post("/tokenize", {"messages": chat, "tools": tools})[1]["count"]
    body = {"model": "qwen", "system": [{"type": "text", "text": "Be kind."}], "messages": messages, "tools": [PICK]}
    assert qwen.post("/v1/messages/count_tokens", body) == (200, {"input_tokens": expected})
    moved = {**body, "system": None, "messages": [messages[0], {"role": "system", "content": "Be kind."}, *messages[1:]]}
    assert qwen.post("/v1/messages/count_tokens", moved) == (200, {"input_tokens": expected})


def test_going_on_from_the_assistant(server):
    """A last message of the assistant is the beginning of the answer."""
    turn = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    chat = {"messages": turn, "continue_final_message": True, "add_generation_prompt": False}
    count = server.post("/v1/messages/count_tokens", {"model": "tiny", "messages": turn})[1]["input_tokens"]
    assert count == server.post("/tokenize", chat)[1]["count"]
    reply = check_stream(server, messages=turn, temperature=0, ignore_eos=True)
    expected = server.post("/v1/chat/completions", {**chat, "max_tokens": 8, "temperature": 0, "ignore_eos": True})[1]
    assert reply["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    assert post(server, messages=[*HELLO, {"role": "assistant", "content": " "}])[0] == 200


def error(status, reply):
    assert reply["type"] == "error" and set(reply["error"]) == {"type", "message"}
    return status, reply["error"]["type"]


def test_error_shapes(start, server):
    assert error(*server.post("/v1/messages", "{")) == (400, "invalid_request_error")
    assert error(*server.post("/v1/messages", "")) == (400, "invalid_request_error")
    assert error(*post(server, model="other")) == (404, "not_found_error")
    assert error(*server.post("/v1/messages/count_tokens", {"model": "tiny"})) == (400, "invalid_request_error")
    s = start("--served-model-name", "tiny", "--max-body-bytes", 2000)
    assert error(*post(s, messages=[{"role": "user", "content": "x" * 3000}])) == (413, "request_too_large")
    assert s.post("/v1/responses", {"input": "x" * 3000})[1]["error"]["code"] == 413
    assert s.stop() == 0
    with pytest.raises(anthropic.NotFoundError):
        sdk(server).messages.create(model="other", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError) as e:
        sdk(server).messages.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "x " * 9000}])
    assert "maximum context length" in str(e.value)


TEXT = {"type": "text", "text": "x"}


def said(*blocks, role="user"):
    return {"messages": [*HELLO, {"role": role, "content": list(blocks)}]}


WRONG = [
    ({"model": None}, "body.model"),
    ({"model": 1}, "body.model"),
    ({"messages": [{"role": "user", "content": []}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
    ({"max_tokens": None}, "body.max_tokens"),
    ({"max_tokens": "x"}, "body.max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"messages": None}, "body.messages"),
    ({"messages": "x"}, "body.messages"),
    ({"messages": []}, "messages"),
    ({"messages": ["x"]}, "body.messages.0"),
    ({"messages": [{"content": "x"}]}, "body.messages.0.role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "body.messages.0.role"),
    ({"messages": [{"role": "user"}]}, "body.messages.0.content"),
    ({"messages": [{"role": "user", "content": 1}]}, "body.messages.0.content"),
    (said("x"), "body.messages.1.content.0"),
    (said({"text": "x"}), "body.messages.1.content.0.type"),
    (said({"type": "text"}), "body.messages.1.content.0.text"),
    (said({"type": "text", "text": 1}), "body.messages.1.content.0.text"),
    (said(TEXT, {"type": "image", "source": {}}), "messages.1.content.1.type"),
    (said(TEXT, {"type": "document", "source": {}}), "messages.1.content.1.type"),
    (said({"type": "tool_use", "id": "t", "name": "f", "input": {}}), "body.messages.1.content.0.type"),
    (said({"type": "tool_result", "content": "x"}), "body.messages.1.content.0.tool_use_id"),
    (said({"type": "tool_result", "tool_use_id": "t", "content": 1}), "body.messages.1.content.0.content"),
    (said({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}), "messages.1.content.0.content.0.type"),
    (said({"type": "thinking"}, role="assistant"), "body.messages.1.content.0.thinking"),
    (said({"type": "tool_result"}, role="assistant"), "body.messages.1.content.0.type"),
    (said({"type": "tool_use", "name": "f", "input": {}}, role="assistant"), "body.messages.1.content.0.id"),
    (said({"type": "tool_use", "id": "t", "input": {}}, role="assistant"), "body.messages.1.content.0.name"),
    (said({"type": "tool_use", "id": "t", "name": "f", "input": "{}"}, role="assistant"), "body.messages.1.content.0.input"),
    ({"system": 1}, "body.system"),
    ({"system": [1]}, "body.system.0"),
    ({"system": [{"type": "image"}]}, "system.0.type"),
    ({"stop_sequences": "x"}, "body.stop_sequences"),
    ({"stop_sequences": ["x", 1]}, "body.stop_sequences.1"),
    ({"stop_sequences": [""]}, "stop_sequences.0"),
    ({"stop_sequences": list("abcde")}, "stop_sequences"),
    ({"stream": "perhaps"}, "body.stream"),
    ({"temperature": "hot"}, "body.temperature"),
    ({"temperature": 9}, "temperature"),
    ({"top_k": "x"}, "body.top_k"),
    ({"top_p": 2}, "top_p"),
    ({"metadata": "x"}, "body.metadata"),
    ({"tools": {}}, "body.tools"),
    ({"tools": [1]}, "body.tools.0"),
    ({"tools": [{"name": "f"}]}, "body.tools.0.input_schema"),
    ({"tools": [{"input_schema": {}}]}, "body.tools.0.name"),
    ({"tools": [{"name": "f", "input_schema": 1}]}, "body.tools.0.input_schema"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
    ({"tools": [PICK], "tool_choice": "auto"}, "body.tool_choice"),
    ({"tools": [PICK], "tool_choice": {}}, "body.tool_choice.type"),
    ({"tools": [PICK], "tool_choice": {"type": "some"}}, "body.tool_choice.type"),
    ({"tools": [PICK], "tool_choice": {"type": "tool"}}, "body.tool_choice.name"),
    ({"tools": [PICK], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": [PICK], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 7}}, "body.tool_choice.disable_parallel_tool_use"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"thinking": "on"}, "body.thinking"),
    ({"thinking": {}}, "body.thinking.type"),
    ({"thinking": {"type": "some"}}, "body.thinking.type"),
    ({"thinking": {"type": "enabled"}}, "body.thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "body.thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 2000}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1024}, "thinking.budget_tokens"),
    ({"output_config": 1}, "body.output_config"),
    ({"output_config": {"effort": "all"}}, "body.output_config.effort"),
    ({"output_config": {"format": 1}}, "body.output_config.format"),
    ({"output_config": {"format": {}}}, "body.output_config.format.type"),
    ({"output_config": {"format": {"type": "yaml"}}}, "body.output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "body.output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}}, "output_config.format.schema"),
]


@pytest.mark.parametrize("body,place", WRONG, ids=[f"{p}-{i}" for i, (_, p) in enumerate(WRONG)])
def test_wrong(qwen, body, place):
    status, reply = post(qwen, **body)
    assert error(status, reply) == (400, "invalid_request_error")
    message = reply["error"]["message"]
    assert place.removeprefix("body.") in message, message
    for name in ("messages[", "max_completion", "response_format", "reasoning_effort", ".function", "thinking_token_budget"):
        assert name not in message
    assert post(qwen)[0] == 200


def test_null_is_absent(qwen):
    fields = ["system", "stop_sequences", "stream", "temperature", "top_p", "top_k", "tools", "tool_choice", "thinking",
              "output_config", "metadata", "service_tier", "container", "context_management"]
    assert post(qwen, **dict.fromkeys(fields))[0] == 200
