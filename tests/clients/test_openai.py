"""The openai SDK: chat, streams, tools, parsed answers, responses, errors, async."""
import asyncio
import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "Name three rivers."}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"], "additionalProperties": False}}}


class Step(BaseModel):
    sure: bool
    colour: Literal["red", "green", "blue"]


class Plan(BaseModel):
    first: Step
    second: Step
    kind: Literal["short", "long"]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.base, api_key="sk-1", max_retries=0, timeout=60)


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_chat_and_stream(client):
    ask = dict(model="tiny", messages=MESSAGES, max_tokens=12, temperature=0)
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**ask) as stream:
        assert "".join(e.delta for e in stream if e.type == "content.delta") == whole.choices[0].message.content


def test_logprobs(client):
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2)
    for token in reply.choices[0].logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2


def test_parse(client):
    reply = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Plan, max_tokens=300)
    assert isinstance(reply.choices[0].message.parsed, Plan)
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, response_format=Plan, max_tokens=300) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Plan)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools(client, choice):
    ask = dict(model="tiny", messages=MESSAGES, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=300, seed=1)
    call = client.chat.completions.create(**ask).choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 7
    joined = ""
    for chunk in client.chat.completions.create(**ask, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            joined += part.function.arguments or ""
    assert json.loads(joined) == arguments
    # and the next turn is understood
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert client.chat.completions.create(model="tiny", messages=history, tools=[WEATHER], tool_choice="none", max_tokens=4)


def test_completions(client):
    reply = client.completions.create(model="tiny", prompt=["One", "Two"], n=2, max_tokens=5, logprobs=1)
    assert [c.index for c in reply.choices] == [0, 1, 2, 3]


def test_responses(client):
    ask = dict(model="tiny", input="Name three rivers.", max_output_tokens=10, temperature=0)
    whole = client.responses.create(**ask)
    assert whole.status in ("incomplete", "completed") and whole.usage.output_tokens <= 10
    events = list(client.responses.create(**ask, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    parsed = client.responses.parse(model="tiny", input="Plan.", text_format=Plan, max_output_tokens=300)
    assert isinstance(parsed.output_parsed, Plan)


def test_errors(server, client):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=server.base, api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert e.value.param == "temperature"


def test_async(server):
    async def ask():
        async with openai.AsyncOpenAI(base_url=server.base, api_key="sk-1", max_retries=0) as client:
            replies = await asyncio.gather(*(client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_tokens=8, temperature=0) for _ in range(8)))
            return {r.choices[0].message.content for r in replies}

    assert len(asyncio.run(ask())) == 1
