"""POST /v1/responses: the openai SDK, the order of a stream's events, what it adds up to, bodies of every wrong kind."""
import json
import time

import openai
import pytest
from conftest import ROOT, named_events, squeeze
from pydantic import BaseModel

QWEN = ROOT / "tests/fixtures/models/qwen35-tiny"
WEATHER = {"type": "function", "name": "w", "description": None, "strict": False, "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}

PICK = {"type": "function", "name": "pick", "parameters": {
    "type": "object", "properties": {"a": {"type": "string", "enum": ["x", "yy"]}, "b": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["a", "b"], "additionalProperties": False}}


@pytest.fixture(scope="module")
def keeping(start):
    s = start("--served-model-name", "tiny", "--responses-store-bytes", 100_000)
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def qwen(start):
    s = start("--served-model-name", "qwen", model=QWEN)
    yield s
    assert s.stop() == 0


def post(server, **body):
    return server.post("/v1/responses", {"input": "Hello there", "seed": 1, **body})


def stream(server, **body):
    found = named_events(server, "/v1/responses", {"input": "Hello there", "seed": 1, **body})
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    return found


def plain(response):
    """A response without what differs from one answer to the next: ids, the time."""
    text = json.dumps(response)
    for item in response["output"]:
        text = text.replace(item["id"], "ID").replace(item.get("call_id", "\0"), "CALL")
    found = json.loads(text)
    return {**found, "id": "", "created_at": 0, "usage": {**found["usage"], "input_tokens_details": None}}


def ids(server, text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def test_sdk(server, client):
    r = client.responses.create(model="tiny", input="Hello", max_output_tokens=5, temperature=0,
                                instructions="Be brief.", metadata={"a": "b"}, extra_body={"ignore_eos": True})
    assert r.object == "response" and r.id.startswith("resp_")
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"
    assert r.instructions == "Be brief." and r.metadata == {"a": "b"} and r.max_output_tokens == 5
    assert r.temperature == 0 and r.tools == [] and r.tool_choice == "none" and r.truncation == "disabled"
    assert r.output[0].type == "message" and r.output[0].status == "incomplete" and r.output_text
    assert r.usage.output_tokens == 5 and r.usage.total_tokens == r.usage.input_tokens + 5
    chat = client.chat.completions.create(model="tiny", max_tokens=5, temperature=0, extra_body={"ignore_eos": True}, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
    assert chat.choices[0].message.content == r.output_text
    assert chat.usage.prompt_tokens == r.usage.input_tokens
    count = client.responses.input_tokens.count(model="tiny", input="Hello", instructions="Be brief.")
    assert count.input_tokens == r.usage.input_tokens


def test_sdk_stream(client):
    with client.responses.stream(model="tiny", input="Hello", temperature=0, max_output_tokens=40,
                                 extra_body={"stop": [" "], "min_tokens": 2}) as s:
        text = ""
        for event in s:
            if event.type == "response.output_text.delta":
                text += event.delta
        last = event
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == text


def test_sdk_parse(smollm):
    class City(BaseModel):
        name: str
        big: bool

    client = smollm.client()
    model = client.models.list().data[0].id
    ask = {"model": model, "input": "Describe Paris.", "text_format": City, "max_output_tokens": 200, "temperature": 0}
    r = client.responses.parse(**ask)
    assert r.status == "completed" and isinstance(r.output_parsed, City)
    with client.responses.stream(**ask) as s:
        final = s.get_final_response()
    assert final.output_parsed == r.output_parsed


def test_events_of_a_message(server):
    events = stream(server, max_output_tokens=6, ignore_eos=True)
    assert squeeze(events) == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.incomplete"]
    first, last = events[0][1]["response"], events[-1][1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None
    assert last["id"] == first["id"] and last["usage"]["output_tokens"] == 6
    text = "".join(d["delta"] for n, d in events if n == "response.output_text.delta")
    whole = post(server, max_output_tokens=6, ignore_eos=True)[1]
    assert text == whole["output"][0]["content"][0]["text"]
    assert plain(last) == plain(whole)
    done = {n: d for n, d in events if n.endswith(".done")}
    assert done["response.output_text.done"]["text"] == text
    assert done["response.content_part.done"]["part"] == last["output"][0]["content"][0]
    assert done["response.output_item.done"]["item"] == last["output"][0]


def test_stop_string(server):
    whole = post(server, max_output_tokens=30, ignore_eos=True)[1]["output"][0]["content"][0]["text"]
    stop = whole[3:6]
    reply = post(server, max_output_tokens=30, ignore_eos=True, stop=[stop])[1]
    assert reply["status"] == "completed" and reply["incomplete_details"] is None
    assert reply["output"][0]["content"][0]["text"] == whole[:whole.index(stop)]


def steer(server, *pieces, **body):
    """Answers made of nothing but these tokens."""
    allowed = [t for p in pieces for t in ids(server, p)]
    return {"allowed_token_ids": allowed, "max_output_tokens": 60, "temperature": 2, **body}


def check_stream(server, body):
    """A stream of a body ends with the answer that is given whole, and its pieces add up to that. The answer."""
    whole = post(server, **body)[1]
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == sorted(kinds, key=["reasoning", "message", "function_call"].index)
    events = stream(server, **body)
    last = events[-1][1]["response"]
    for item, other in zip(last["output"], whole["output"]):
        if item["type"] == "function_call" and item["status"] == "incomplete":
            item["arguments"] = other["arguments"]  # a whole answer keeps the complete members of one that broke off
    assert plain(last) == plain(whole)
    for index, item in enumerate(last["output"]):
        of_item = [(n, d) for n, d in events if d.get("output_index") == index]
        call = item["type"] == "function_call"
        kind = {"reasoning": "reasoning_text", "message": "output_text", "function_call": "function_call_arguments"}[item["type"]]
        part = ["response.content_part.added"], ["response.content_part.done"]
        empty = not call and item["content"][0]["text"] == ""
        assert squeeze(of_item) == ["response.output_item.added", *([] if call else part[0]),
                                    *([] if empty else [f"response.{kind}.delta"]), f"response.{kind}.done", *([] if call else part[1]), "response.output_item.done"]
        told = "".join(d["delta"] for n, d in of_item if n.endswith(".delta"))
        done = of_item[-1][1]["item"]
        assert told == (done["arguments"] if call else done["content"][0]["text"])
        assert done["id"] == item["id"]
        assert call or done == item
    return whole


def test_thoughts_and_text(qwen):
    """Streams and whole answers agree, wherever the answer breaks off."""
    seen = set()
    for seed in range(20):
        body = steer(qwen, "</think>", "a", "\n", *(["<tool_call>", "</tool_call>"] if seed % 2 else []), seed=seed,
                     tools=[WEATHER], parallel_tool_calls=seed % 3 != 0)
        whole = check_stream(qwen, body)
        seen.update(item["type"] for item in whole["output"])
        assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0 or whole["output"][0]["type"] != "reasoning"
    assert seen == {"reasoning", "message"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "pick"}])
def test_calls(qwen, choice):
    seen = set()
    for seed in range(4):
        body = {"tools": [PICK, WEATHER], "tool_choice": choice, "max_output_tokens": 150, "seed": seed,
                "reasoning": {"effort": "none"}}
        whole = check_stream(qwen, body)
        seen.add(whole["status"])
        for item in whole["output"]:
            assert item["type"] == "function_call" and item["name"] in ("pick", "w")
            assert item["call_id"].startswith("call_") and item["id"].startswith("fc_")
            json.loads(item["arguments"])
            if item["name"] == "pick" and item["status"] == "completed":
                assert json.loads(item["arguments"])["a"] in ("x", "yy")
        assert len({item["call_id"] for item in whole["output"]}) == len(whole["output"]) >= 1
    assert "completed" in seen
    parsed = qwen.client().responses.create(model="qwen", input="x", tools=[PICK], tool_choice=choice, max_output_tokens=150,
                                            reasoning={"effort": "none"}, parallel_tool_calls=False)
    assert [item.type for item in parsed.output] == ["function_call"]


def test_answers_read_for_calls_are_counted(qwen):
    def counts():
        return [sum(v for k, v in qwen.metrics().items() if "tool_call_parser" in k and f'request_type="{kind}"' in k)
                for kind in ("responses", "chat_completions", "other")]
    before = counts()
    post(qwen, tools=[WEATHER], max_output_tokens=4)
    assert counts() == [before[0] + 1, *before[1:]]


def test_items_of_the_input(qwen):
    """What clients send back: thoughts, calls and results reach the template as one turn."""
    items = [{"role": "developer", "content": "Be kind."},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
             {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
             {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{"type": "output_text", "text": "A moment.", "annotations": []}]},
             {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "w", "arguments": "{\"a\": \"Paris\"}"},
             {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Rain."}]}]
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Weather?"},
            {"role": "assistant", "reasoning": "I look.", "content": "A moment.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{\"a\": \"Paris\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "Rain."}]
    tools = [{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}]
    n = qwen.post("/v1/responses/input_tokens", {"input": items, "tools": [WEATHER]})
    assert n[0] == 200, n
    expected = qwen.post("/tokenize", {"messages": chat, "tools": tools})[1]["count"]
    assert n[1] == {"object": "response.input_tokens", "input_tokens": expected}
    counted = qwen.post("/v1/chat/completions/input_tokens", {"messages": chat, "tools": tools})
    assert counted == (200, {"input_tokens": expected})


def test_logprobs(server):
    include = ["message.output_text.logprobs"]
    whole = post(server, max_output_tokens=5, ignore_eos=True, include=include, top_logprobs=2)[1]
    probs = whole["output"][0]["content"][0]["logprobs"]
    assert len(probs) == 5 and all(len(p["top_logprobs"]) == 2 and p["logprob"] <= 0 for p in probs)
    events = stream(server, max_output_tokens=5, ignore_eos=True, include=include, top_logprobs=2)
    assert events[-1][1]["response"]["output"][0]["content"][0]["logprobs"] == probs
    told = [p for n, d in events if n == "response.output_text.delta" for p in d["logprobs"]]
    assert told == probs[:len(told)] and told
    assert post(server, max_output_tokens=2, top_logprobs=2)[1]["output"][0]["content"][0]["logprobs"] == []


def test_truncation(server):
    long = "word " * 3000
    status, reply = post(server, input=long, max_output_tokens=8)
    assert status == 400 and "maximum context length" in reply["error"]["message"]
    status, reply = post(server, input=long, max_output_tokens=8, truncation="auto", ignore_eos=True)
    assert status == 200 and reply["usage"]["output_tokens"] == 8


def test_not_stored(server, client):
    with pytest.raises(openai.NotFoundError) as e:
        client.responses.create(model="tiny", input="x", previous_response_id="resp_1")
    assert e.value.param == "previous_response_id" and "--responses-store-bytes" in str(e.value)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    reply = post(server, store=True, max_output_tokens=1)[1]
    assert reply["store"] is False
    assert server.request("POST", "/v1/responses/resp_1")[0] == 405


def test_stored(keeping):
    client = keeping.client()
    first = client.responses.create(model="tiny", input="Hello", instructions="Shout.", max_output_tokens=4, temperature=0,
                                    extra_body={"ignore_eos": True})
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    with client.responses.stream(model="tiny", input="And now?", previous_response_id=first.id, max_output_tokens=4,
                                 temperature=0, extra_body={"ignore_eos": True}) as s:
        second = list(s)[-1].response
    assert second.previous_response_id == first.id
    history = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first.output_text},
               {"role": "user", "content": "And now?"}]  # instructions are not passed on
    assert second.usage.input_tokens == keeping.post("/tokenize", {"messages": history})[1]["count"]
    third = client.responses.create(model="tiny", input=[], previous_response_id=second.id, max_output_tokens=1)
    assert third.usage.input_tokens == keeping.post("/tokenize", {"messages": history + [
        {"role": "assistant", "content": second.output_text}]})[1]["count"]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(first.id)
    unkept = client.responses.create(model="tiny", input="Hello", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)
    for _ in range(60):  # the store is bounded: the oldest are gone
        last = client.responses.create(model="tiny", input="x" * 1000, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    assert client.responses.retrieve(last.id).id == last.id


def test_background(keeping):
    client = keeping.client()
    long = {"model": "tiny", "input": "Hello", "background": True, "extra_body": {"ignore_eos": True}}
    r = client.responses.create(**long, max_output_tokens=5, temperature=0)
    assert r.status == "in_progress" and r.background is True and r.output == []
    end = time.monotonic() + 60
    while (done := client.responses.retrieve(r.id)).status == "in_progress":
        assert time.monotonic() < end
        time.sleep(0.01)
    waited = client.responses.create(model="tiny", input="Hello", max_output_tokens=5, temperature=0,
                                     extra_body={"ignore_eos": True})
    assert done.status == "incomplete" and done.output_text == waited.output_text and done.usage.output_tokens == 5
    assert client.responses.create(model="tiny", input="And?", previous_response_id=r.id, max_output_tokens=1).output
    # one that goes on: nothing can go on from it, and it can be cancelled
    r = client.responses.create(**long, max_output_tokens=1900)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="tiny", input="And?", previous_response_id=r.id)
    assert client.responses.cancel(r.id).status == "cancelled"
    keeping.wait_idle()
    assert client.responses.retrieve(r.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(r.id)
    for wrong in ({"store": False}, {"stream": True}):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(**long, **wrong)
        assert e.value.param == "background"
    with pytest.raises(openai.BadRequestError) as e:  # never an empty stream
        client.responses.retrieve(r.id, stream=True)
    assert e.value.param == "stream"


USER = {"role": "user", "content": "x"}
WRONG = [
    ({"input": None}, "body.input"),
    ({"input": 3}, "body.input"),
    ({"input": []}, "input"),
    ({"input": ["x"]}, "body.input.0"),
    ({"input": [USER, {"type": "image_generation_call"}]}, "body.input.1.type"),
    ({"input": [{"type": 3}]}, "body.input.0.type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "body.input.0.role"),
    ({"input": [{"content": "x"}]}, "body.input.0.role"),
    ({"input": [{"role": "user"}]}, "body.input.0.content"),
    ({"input": [{"role": "user", "content": 1}]}, "body.input.0.content"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "body.input.0.content.0"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "body.input.0.content.0.type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "body.input.0.content.0.text"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type"),
    ({"input": [USER, {"type": "reasoning", "content": [{"text": 1}]}]}, "body.input.1.content.0.text"),
    ({"input": [USER, {"type": "reasoning", "summary": "x"}]}, "body.input.1.summary"),
    ({"input": [USER, {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}, "body.input.1.arguments"),
    ({"input": [USER, {"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "body.input.1.name"),
    ({"input": [USER, {"type": "function_call_output", "output": "x"}]}, "body.input.1.call_id"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "c"}]}, "body.input.1.output"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "c", "output": 1}]}, "body.input.1.output"),
    ({"instructions": 1}, "body.instructions"),
    ({"model": 1}, "body.model"),
    ({"max_output_tokens": "many"}, "body.max_output_tokens"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**9}, "max_output_tokens"),
    ({"temperature": "hot"}, "body.temperature"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"stream": "perhaps"}, "body.stream"),
    ({"stream_options": 1}, "body.stream_options"),
    ({"store": "perhaps"}, "body.store"),
    ({"metadata": []}, "body.metadata"),
    ({"include": "x"}, "body.include"),
    ({"include": [1]}, "body.include.0"),
    ({"top_logprobs": "x"}, "body.top_logprobs"),
    ({"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
    ({"truncation": 1}, "body.truncation"),
    ({"truncation": "some"}, "body.truncation"),
    ({"reasoning": "x"}, "body.reasoning"),
    ({"reasoning": {"effort": "all"}}, "body.reasoning.effort"),
    ({"reasoning": {"effort": 1}}, "body.reasoning.effort"),
    ({"text": "x"}, "body.text"),
    ({"text": {"format": "x"}}, "body.text.format"),
    ({"text": {"format": {}}}, "body.text.format.type"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "body.text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "body.text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "strange"}}}}, "text.format.schema"),
    ({"tools": {}}, "body.tools"),
    ({"tools": [1]}, "body.tools.0"),
    ({"tools": [{"name": "f"}]}, "body.tools.0.type"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "body.tools.0.name"),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "body.tools.0.parameters"),
    ({"tools": [{"type": "function", "name": "f", "description": 1}]}, "body.tools.0.description"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": 1}, "body.tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {}}, "body.tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "body.tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"parallel_tool_calls": 7}, "body.parallel_tool_calls"),
    ({"previous_response_id": 1}, "body.previous_response_id"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "x"}}, "prompt"),
    ({"conversation": "x"}, "conversation"),
    ({"stop": ["a", 1]}, "body.stop.1"),
    ({"logit_bias": {"x": 1}}, "body.logit_bias"),
]


@pytest.mark.parametrize("body,param", WRONG, ids=[f"{p}-{i}" for i, (_, p) in enumerate(WRONG)])
def test_wrong(qwen, body, param):
    status, reply = post(qwen, **body)
    assert (status, reply["error"]["param"]) == (400, param), reply
    for name in ("messages[", "max_completion", "response_format", "reasoning_effort", ".function"):
        assert name not in reply["error"]["message"]
    assert post(qwen, max_output_tokens=1)[0] == 200


def test_null_is_absent(qwen):
    fields = ["instructions", "max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls",
              "previous_response_id", "reasoning", "text", "truncation", "store", "metadata", "include", "top_logprobs",
              "background", "prompt", "conversation", "user", "service_tier", "stream", "stream_options", "model"]
    assert post(qwen, **dict.fromkeys(fields), **{"max_tokens": "ignored"}, stop=[" "], min_tokens=1)[0] == 200


def test_without_v1(server):
    assert server.post("/responses", {"input": "x", "max_output_tokens": 1})[1]["object"] == "response"
    assert server.post("/chat/completions", {"messages": [USER], "max_tokens": 1})[1]["object"] == "chat.completion"
    assert json.loads(server.request("GET", "/models")[2])["object"] == "list"
