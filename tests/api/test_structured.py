"""Structured outputs, forced calls and budgets of thought over HTTP. The models are tiny and random, which is the best test
there is: what they write has its form from the grammar alone. jsonschema and re judge it."""
import json
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import jsonschema
import pydantic
import pytest
from conftest import BINARY, ROOT, TINY, events, unchunk

sys.path.insert(0, str(ROOT / "tests/grammar"))
from test_grammar import CORPUS, HOSTILE, Maker, Text  # noqa: E402

QWEN = ROOT / "tests/fixtures/models/qwen35-tiny"
HELLO = [{"role": "user", "content": "Hello there"}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0,
          "maximum": 150}, "kind": {"enum": ["small", "large"]}}, "required": ["name", "age", "kind"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {
    "zone": {"enum": ["CET", "UTC"]}}, "required": ["zone"]}}}
OFF = {"chat_template_kwargs": {"enable_thinking": False}}


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


@pytest.fixture(scope="module")
def qwen(start):
    s = start("--served-model-name", "qwen", "--max-num-seqs", 8, model=QWEN)
    yield s
    assert s.stop() == 0


def chat(server, **body):
    status, reply = server.post("/v1/chat/completions", {"messages": HELLO, "seed": 1, "max_tokens": 250, **body})
    assert status == 200, reply
    return reply["choices"][0]


def refused(server, body, path="/v1/chat/completions"):
    status, reply = server.post(path, {"messages": HELLO, "prompt": "x", **body})
    assert status == 400 and reply["error"]["message"], reply
    return reply["error"]["param"]


def join(server, **body):
    """(message, calls, finish_reason) of a stream, put together as clients do."""
    status, _, reply = server.request("POST", "/v1/chat/completions",
                                      {"messages": HELLO, "seed": 1, "max_tokens": 250, "stream": True, **body}, ["TE: none"])
    assert status == 200, reply
    message, calls, finish = {"content": "", "reasoning": ""}, [], None
    for event in events(unchunk(reply)):
        choice = event["choices"][0]
        for field in message:
            message[field] += choice["delta"].get(field) or ""
        for piece in choice["delta"].get("tool_calls", ()):
            if piece["index"] == len(calls):
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
        finish = choice["finish_reason"]
    return message, calls, finish


# --- JSON schemas ---------------------------------------------------------------------------------------------------


def mixture(seed):
    """Other fields of a request, at random: none of them may break the form."""
    r = random.Random(seed)
    body = {"seed": seed, "temperature": r.choice([0, 0.4, 1, 1.8]), "top_p": r.choice([1, 0.9, 0.3])}
    if r.random() < 0.3:
        body["top_k"] = r.choice([1, 5, 100])
    if r.random() < 0.3:
        body |= {"presence_penalty": r.uniform(-1, 2), "frequency_penalty": r.uniform(-1, 2), "repetition_penalty": r.uniform(0.7, 1.5)}
    if r.random() < 0.3:
        body["logit_bias"] = {str(r.randrange(1024)): r.uniform(-100, 100) for _ in range(40)}
    if r.random() < 0.3:
        body["min_tokens"] = r.randrange(20)
    if r.random() < 0.2:
        body["stop"] = ["zq", "\"\"\""]
    if r.random() < 0.2:
        body["bad_words"] = ["foo bar", "qq"]
    return body


SCHEMAS = [c[0] for c in CORPUS] + [Maker(seed).whole()[0] for seed in range(5000, 5200)]


def test_hundreds_of_schemas(server):
    """All that ends by itself is valid; a free neighbour's answer stays as it is alone."""
    neighbour = {"messages": HELLO, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    alone = server.post("/v1/chat/completions", neighbour)[1]["choices"][0]["message"]["content"]

    def ask(i):
        if i % 15 == 0:
            assert server.post("/v1/chat/completions", neighbour)[1]["choices"][0]["message"]["content"] == alone
        body = {"structured_outputs": {"json": SCHEMAS[i], "disable_any_whitespace": i % 2 == 0}}
        if isinstance(SCHEMAS[i], bool):
            body = {"structured_outputs": {"json": {}}}
        return i, chat(server, max_tokens=120, **body, **mixture(i))

    whole = 0
    with ThreadPoolExecutor(8) as pool:
        for i, choice in pool.map(ask, range(len(SCHEMAS))):
            if choice["finish_reason"] == "length" or isinstance(choice["stop_reason"], str):
                continue
            assert choice["finish_reason"] == "stop"
            value = json.loads(choice["message"]["content"])
            if "multipleOf" not in json.dumps(SCHEMAS[i]) or isinstance(value, int):
                jsonschema.Draft202012Validator(SCHEMAS[i]).validate(value)
            whole += 1
    assert whole > len(SCHEMAS) * 0.6, (whole, len(SCHEMAS))


@pytest.mark.parametrize("stream", [False, True])
def test_after_the_thought(qwen, stream):
    """The thought is free, the form begins behind it; a limit that ends it first is `length`."""
    ends = set()
    for seed in range(6):
        for limit in (3, 12, 14, 16, 20, 40, 250):
            body = {"seed": seed, "max_tokens": limit, "thinking_token_budget": 10, **form(PERSON)}
            choice = chat(qwen, **body)
            message, finish = choice["message"], choice["finish_reason"]
            if stream:
                streamed, _, end = join(qwen, **body)
                assert (streamed["content"], end) == (message["content"] or "", finish)
                assert streamed["reasoning"] == message["reasoning"]
            ends.add((limit, finish))
            assert "{" not in (message["reasoning"] or "") or finish == "length" or message["content"]
            if finish == "stop":
                jsonschema.validate(json.loads(message["content"]), PERSON)
            elif limit <= 12:
                assert message["content"] is None
    assert (3, "length") in ends and (250, "stop") in ends


def test_thinking_budget(qwen):
    for budget in (0, 1, 7, 30):
        status, reply = qwen.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 60, "thinking_token_budget": budget,
                                                           "seed": 4, "ignore_eos": True, "return_token_ids": True})
        assert status == 200
        thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert thought <= budget + 4, (budget, thought)  # a character that was half written is completed
        assert reply["choices"][0]["message"]["content"]
    assert chat(qwen, thinking_token_budget=-1, max_tokens=9, ignore_eos=True)["message"]["content"] is None
    assert refused(qwen, {"thinking_token_budget": -2}) == "thinking_token_budget"
    assert chat(qwen, thinking_token_budget=5, max_tokens=9, ignore_eos=True, **OFF)["message"]["reasoning"] is None


def test_budget_needs_a_reasoning_parser(server):
    assert refused(server, {"thinking_token_budget": 10}) == "thinking_token_budget"


# --- the other forms ------------------------------------------------------------------------------------------------


def test_other_forms(server, qwen):
    tag = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": PERSON, "end": "</f>"}], "triggers": ["<f>"]}
    inner = {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "["}, {"type": "regex", "pattern": "[0-9]{2}"},
                                                         {"type": "const_string", "value": "]"}]}}
    for s, extra in ((server, {}), (qwen, OFF)):
        for seed in range(8):
            text = lambda **so: chat(s, structured_outputs=so, seed=seed, **extra)["message"]["content"]  # noqa: E731
            assert text(choice=["red", "green", "a longer one"]) in ("red", "green", "a longer one")
            assert re.fullmatch("[a-z]{3}-[0-9]{1,4}", text(regex="[a-z]{3}-[0-9]{1,4}"))
            assert re.fullmatch("x[0-9]{1,5}y", text(grammar='root ::= "x" [0-9]{1,5} "y"'))
            assert re.fullmatch(r"\[[0-9]{2}\]", text(structural_tag=inner))
            assert re.fullmatch(r"\[[0-9]{2}\]", text(structural_tag=json.dumps(inner)))
            jsonschema.validate(json.loads(text(json=json.dumps(PERSON), disable_any_whitespace=True)), PERSON)
            tagged = chat(s, response_format=tag, seed=seed, **extra)
            found = re.search(r"<f>(.*?)</f>", tagged["message"]["content"] or "", re.S)
            if found:
                jsonschema.validate(json.loads(found[1]), PERSON)
            c = chat(s, response_format={"type": "json_object"}, seed=seed, **extra)
            if c["finish_reason"] == "stop":
                assert isinstance(json.loads(c["message"]["content"]), dict)


def test_completions_and_n(server):
    body = {"prompt": "x", "max_tokens": 60, "n": 5, "seed": 3, "structured_outputs": {"regex": "(ab|cd){2,5}(,[0-9]+)?;"}}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    texts = [c["text"] for c in reply["choices"] if c["finish_reason"] == "stop"]
    assert len(set(texts)) > 1 and all(re.fullmatch("(ab|cd){2,5}(,[0-9]+)?;", t) for t in texts)
    status, reply = server.post("/v1/completions", {**body, "structured_outputs": None, "response_format": {"type": "json_object"}})
    assert status == 200 and all(c["text"].startswith("{") for c in reply["choices"])


def test_logprobs_change_nothing(server):
    """Forced tokens are computed one by one where their log-probabilities are asked for, and are the same."""
    for seed in range(5):
        body = {"seed": seed, "structured_outputs": {"json": PERSON, "disable_any_whitespace": True}, "return_token_ids": True}
        fast, slow = chat(server, **body), chat(server, **body, logprobs=True, top_logprobs=2)
        assert fast["token_ids"] == slow["token_ids"] and fast["message"]["content"] == slow["message"]["content"]
        assert len(slow["logprobs"]["content"]) == len(slow["token_ids"])


def test_stops_mix(server):
    """Stop strings cut a form as they cut a text; an answer that is complete ends even where min_tokens is not reached."""
    cut = chat(server, structured_outputs={"choice": ["one two three"]}, stop=["two"])
    assert cut["message"]["content"] == "one " and cut["stop_reason"] == "two" and cut["finish_reason"] == "stop"
    short = chat(server, structured_outputs={"choice": ["ab"]}, min_tokens=50, ignore_eos=True)
    assert short["message"]["content"] == "ab" and short["finish_reason"] == "stop" and short["stop_reason"] is None


def test_dead_end(server):
    """A form that the request's other fields leave no way through is an error, not a free answer."""
    body = {"messages": HELLO, "allowed_token_ids": [5], "structured_outputs": {"choice": ["ab"]}}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 500 and "allowed_token_ids" in reply["error"]["message"]
    status, _, reply = server.request("POST", "/v1/chat/completions", {**body, "stream": True}, ["TE: none"])
    assert status == 200 and b"allowed_token_ids" in reply and b"[DONE]" in reply
    assert chat(server, structured_outputs={"choice": ["ab"]})["message"]["content"] == "ab"


def test_bad_words(server):
    free = chat(server, max_tokens=60, temperature=0, ignore_eos=True)["message"]["content"]
    words = sorted(set(re.findall("[a-z]{3,}", free)))[:10]
    assert words
    banned = chat(server, max_tokens=60, temperature=0, ignore_eos=True, bad_words=words, return_token_ids=True)
    for word in words:
        for text in (word, " " + word):
            ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
            assert not any(banned["token_ids"][i:i + len(ids)] == ids for i in range(60))
    assert refused(server, {"bad_words": [f"word{i}" for i in range(200)]}).startswith("bad_words.")


class Kind(str, Enum):
    small = "small"
    large = "large"


class Item(pydantic.BaseModel):
    label: Kind
    count: int = pydantic.Field(ge=0, le=99)
    tags: list[Kind] = pydantic.Field(max_length=4)


@pytest.mark.parametrize("model", ["server", "smollm"])
def test_parse_with_pydantic(request, model):
    s = request.getfixturevalue(model)
    client = s.client()
    messages = [{"role": "user", "content": "Give a label, a count and tags as JSON."}]
    done = client.chat.completions.parse(model=client.models.list().data[0].id, messages=messages, response_format=Item,
                                         max_tokens=400, temperature=0.5, seed=2)
    assert isinstance(done.choices[0].message.parsed, Item)


def test_batch(tmp_path):
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
              "body": {"messages": HELLO, "seed": i, "max_tokens": 200, **form(PERSON)}} for i in range(4)]
    (tmp_path / "in").write_text("".join(json.dumps(x) + "\n" for x in lines))
    subprocess.run([BINARY, "batch", "-i", tmp_path / "in", "-o", tmp_path / "out", TINY], check=True, timeout=60, capture_output=True)
    for line in (tmp_path / "out").read_text().splitlines():
        choice = json.loads(line)["response"]["body"]["choices"][0]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


# --- calls of tools -------------------------------------------------------------------------------------------------


def check_calls(calls, names):
    tools = {t["function"]["name"]: t["function"]["parameters"] for t in (WEATHER, CLOCK)}
    for call in calls:
        assert call["name"] in names
        jsonschema.validate(json.loads(call["arguments"]), tools[call["name"]])


@pytest.mark.parametrize("parser", ["qwen3_coder", "hermes", "llama3_json"])
def test_tool_choice(start, parser):
    """required calls, named calls that tool, none never does; the limit swept across a call gives `length`, the same in a stream
    as in a whole answer."""
    s = start("--tool-call-parser", parser, model=QWEN)
    tools = {"tools": [WEATHER, CLOCK], **OFF}
    named = {"type": "function", "function": {"name": "clock"}}
    kinds = set()
    for seed in range(4):
        for choice in ("required", named, "none"):
            for parallel in (True, False):
                for limit in list(range(1, 40, 6)) + [300]:
                    body = {**tools, "tool_choice": choice, "seed": seed, "max_tokens": limit, "parallel_tool_calls": parallel}
                    answer = chat(s, **body)
                    calls = [c["function"] for c in answer["message"].get("tool_calls", ())]
                    finish = answer["finish_reason"]
                    kinds.add((str(choice)[:8], finish, len(calls) > 1))
                    if choice == "none":
                        assert not calls and finish in ("stop", "length")
                        continue
                    message, streamed, end = join(s, **body)
                    assert end == finish and [c["name"] for c in streamed] == [c["name"] for c in calls]
                    if finish == "length":
                        continue
                    assert finish == ("stop" if choice == named else "tool_calls")
                    assert calls and answer["message"]["content"] == "" and streamed == calls
                    check_calls(calls, ["clock"] if choice == named else ["weather", "clock"])
                    assert parallel and choice != named or len(calls) == 1
    assert {("required", "tool_calls", False), ("required", "length", False)} <= kinds
    assert refused(s, {**tools, "tool_choice": {"type": "function", "function": {"name": "other"}}}) == "tool_choice"
    assert refused(s, {**tools, "tool_choice": named, **form(PERSON)}) == "response_format.json_schema.schema"
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "nope"}}}}}
    assert refused(s, {"tools": [WEATHER, bad], "tool_choice": "required"}) == "tools.1.function.parameters.properties.x"
    assert s.stop() == 0


@pytest.mark.parametrize("parser", ["qwen3_coder", "hermes"])
def test_strict_tools(start, parser):
    """tool_choice auto: the model chooses whether it calls; what it calls fits. It is led to by its bias."""
    s = start("--tool-call-parser", parser, model=QWEN)
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    tag = s.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"]
    assert len(tag) == 1
    called = 0
    for seed in range(20):
        body = {"tools": [strict], "seed": seed, "logit_bias": {str(tag[0]): 4}, "max_tokens": 200, "thinking_token_budget": seed}
        answer = chat(s, **body)
        calls = [c["function"] for c in answer["message"].get("tool_calls", ())]
        assert join(s, **body)[2] == answer["finish_reason"]
        check_calls(calls[:-1] if answer["finish_reason"] == "length" else calls, ["weather"])
        called += len(calls)
    assert called > 5
    # the form is for text, calls remain possible
    for seed in range(10):
        answer = chat(s, tools=[strict], seed=seed, logit_bias={str(tag[0]): 4}, **form(PERSON), **OFF)
        if answer["finish_reason"] == "stop":
            jsonschema.validate(json.loads(answer["message"]["content"]), PERSON)
        elif answer["finish_reason"] == "tool_calls":
            check_calls([c["function"] for c in answer["message"]["tool_calls"]], ["weather"])
    assert s.stop() == 0


# --- what is refused ------------------------------------------------------------------------------------------------

SCHEMA = "response_format.json_schema.schema"


@pytest.mark.parametrize("body, param", [
    (form({"properties": {"x": {"pattern": "(("}}}), SCHEMA + ".properties.x"), (form({"type": "nope"}), SCHEMA),
    (form({"$ref": "#/none"}), SCHEMA), (form(5), SCHEMA), (form({"properties": {"x": {"items": {"not": {}}}}}), SCHEMA + ".properties.x.items"),
    (form(None), "body." + SCHEMA), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "body.response_format.json_schema.name"),
    ({"response_format": {"type": "xml"}}, "response_format.type"), ({"response_format": 5}, "body.response_format"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"), ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({**form(PERSON), "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "foo**"}}, "structured_outputs.regex"), ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": 5}}, "body.structured_outputs.regex"), ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice"), ({"structured_outputs": {"choice": "a"}}, "body.structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"), ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json"), ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": {"format": {"type": "no"}}}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "("}}, "structured_outputs.json"),
])
def test_refused(server, body, param):
    assert refused(server, body) == param
    assert refused(server, body, "/v1/completions") == param


def test_refused_without_tools_parser(server):
    assert refused(server, {"tools": [WEATHER], "tool_choice": "required"}) == "tool_choice"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas(server, name):
    """Refused within a second, or it works; and a neighbour does not notice."""
    schema = HOSTILE[name] if isinstance(HOSTILE[name], Text) else json.dumps(HOSTILE[name])
    body = '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "response_format": {"type": "json_schema", ' \
           '"json_schema": {"name": "x", "schema": ' + schema + "}}}"
    begin = time.monotonic()
    status, _, reply = server.request("POST", "/v1/chat/completions", body)
    assert status in (200, 400), reply
    assert time.monotonic() - begin < (1 if status == 400 else 2)
    assert chat(server, structured_outputs={"choice": ["ok"]})["message"]["content"] == "ok"


def test_deep_forms(server):
    deep = lambda n: json.loads('{"items":' * n + "{}" + "}" * n)  # noqa: E731
    assert refused(server, form(deep(70))) == SCHEMA
    assert refused(server, {"structured_outputs": {"json": json.dumps(deep(70))}}) == "structured_outputs.json"
    assert refused(server, {"structured_outputs": {"regex": "(" * 60000}}) == "structured_outputs.regex"
    assert chat(server, max_tokens=3, **form(deep(20)))


def test_server_defaults(start):
    """--reasoning-budget, --structured-outputs-config and --tool-strict-level: what requests get that do not say."""
    s = start("--reasoning-budget", 5, "--structured-outputs-config", '{"backend": "auto", "disable_any_whitespace": true}',
              "--tool-strict-level", "parameter", model=QWEN)
    answer = chat(s, **form(PERSON))
    assert answer["finish_reason"] == "stop" and not re.search(r"[\[{,:]\s", answer["message"]["content"])
    assert chat(s, max_tokens=60, thinking_token_budget=-1, ignore_eos=True)["message"]["content"] is None
    tag = s.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"]
    called = 0
    for seed in range(10):
        answer = chat(s, tools=[WEATHER], seed=seed, logit_bias={str(tag[0]): 4}, max_tokens=400)
        if answer["finish_reason"] == "tool_calls":
            check_calls([c["function"] for c in answer["message"]["tool_calls"]], ["weather"])
            called += 1
    assert called
    assert s.stop() == 0


def test_thought_that_the_model_opens(start):
    """A template may leave <think> to the model: the form begins at once, or behind the thought."""
    s = start("--reasoning-parser", "qwen3", "--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}", model=QWEN)
    think = s.post("/tokenize", {"prompt": "<think>", "add_special_tokens": False})[1]["tokens"]
    assert len(think) == 1
    kinds = set()
    for seed in range(16):
        bias = {"logit_bias": {str(think[0]): 9 if seed % 2 else -9}}
        answer = chat(s, seed=seed, thinking_token_budget=8, **form(PERSON), **bias)
        assert answer["finish_reason"] in ("stop", "length")
        if answer["finish_reason"] == "stop":
            jsonschema.validate(json.loads(answer["message"]["content"]), PERSON)
            kinds.add(bool(answer["message"]["reasoning"]))
    assert kinds == {False, True}
    assert s.stop() == 0
