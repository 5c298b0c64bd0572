"""LiteLLM, as a library: the OpenAI-compatible and the vLLM provider, and its names for errors."""
import litellm
import pytest

MESSAGES = [{"role": "user", "content": "Name three rivers."}]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_chat_and_stream(server, provider):
    ask = dict(model=provider + "/tiny", api_base=server.base, api_key="sk-1", messages=MESSAGES, max_tokens=10, temperature=0,
               num_retries=0)
    whole = litellm.completion(**ask)
    assert whole.usage.completion_tokens <= 10
    assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(**ask, stream=True)) == whole.choices[0].message.content


def test_errors(server):
    ask = dict(model="openai/tiny", api_base=server.base, api_key="sk-1", num_retries=0)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**ask, messages=[{"role": "user", "content": "river " * 5000}])
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**ask, "api_key": "wrong"}, messages=MESSAGES)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**ask, "model": "openai/other"}, messages=MESSAGES)
