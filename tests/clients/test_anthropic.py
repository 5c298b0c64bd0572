"""The anthropic SDK on /v1/messages."""
import anthropic
import pytest

ASK = dict(model="tiny", max_tokens=10, messages=[{"role": "user", "content": "Name three rivers."}],
           extra_body={"temperature": 0})
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                                               "required": ["city"], "additionalProperties": False}}


@pytest.fixture(scope="module", params=["api_key", "auth_token"])
def client(server, request):
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=60, **{request.param: "sk-1"})


def test_message_and_stream(client):
    whole = client.messages.create(**ASK)
    assert whole.role == "assistant" and whole.stop_reason in ("max_tokens", "end_turn") and whole.usage.output_tokens <= 10
    text = "".join(b.text for b in whole.content if b.type == "text")
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason


def test_tools(client):
    reply = client.messages.create(**{**ASK, "max_tokens": 200}, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    call = next(b for b in reply.content if b.type == "tool_use")
    assert call.name == "weather" and call.input["city"] in ("Paris", "Rome") and reply.stop_reason == "tool_use"
    history = [*ASK["messages"], {"role": "assistant", "content": [call.model_dump()]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]}]
    assert client.messages.create(**{**ASK, "messages": history}, tools=[WEATHER]).role == "assistant"


def test_count_and_errors(server, client):
    n = client.messages.count_tokens(model="tiny", messages=ASK["messages"]).input_tokens
    assert n == client.messages.create(**ASK).usage.input_tokens + (client.messages.create(**ASK).usage.cache_read_input_tokens or 0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "other"})
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**ASK, "messages": []})
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0).messages.create(**ASK)
