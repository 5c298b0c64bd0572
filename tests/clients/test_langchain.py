"""LangChain's ChatOpenAI."""
from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Verdict(BaseModel):
    """What to say."""
    sure: bool
    colour: Literal["red", "green"]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return "Sunny in " + city


@pytest.fixture(scope="module")
def llm(server):
    return ChatOpenAI(model="tiny", base_url=server.base, api_key="sk-1", temperature=0, max_tokens=12, max_retries=0)


def test_invoke_and_stream(llm):
    messages = [SystemMessage("Be brief."), HumanMessage("Name three rivers.")]
    whole = llm.invoke(messages)
    assert whole.usage_metadata["output_tokens"] <= 12
    assert "".join(c.content for c in llm.stream(messages)) == whole.content
    assert [r.content for r in llm.batch([messages] * 3)] == [whole.content] * 3


def test_tools(llm):
    bound = llm.bind_tools([weather], tool_choice="weather").bind(max_tokens=200)
    call = bound.invoke("How is Rome?").tool_calls[0]
    assert call["name"] == "weather" and call["args"]["city"] in ("Paris", "Rome")
    assert weather.invoke(call).content.startswith("Sunny")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(llm, method):
    chain = ChatOpenAI(model="tiny", base_url=llm.openai_api_base, api_key="sk-1", max_tokens=200, max_retries=0)
    assert isinstance(chain.with_structured_output(Verdict, method=method).invoke("Well?"), Verdict)
