"""One server for all clients: the committed llama-tiny, whose answers are noise, but whose way through the API is real. What a
client makes of an answer is compared with what the server says by other means."""
import importlib.util
import os
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("api_conftest", Path(__file__).resolve().parents[1] / "api" / "conftest.py")
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false", DO_NOT_TRACK="1")


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("servers")
    started = []

    def launch(*args, **kw):
        started.append(api.Server(tmp, *args, **kw))
        return started[-1]

    yield launch
    for s in started:
        s.kill()


@pytest.fixture(scope="session")
def server(start):
    s = start("--served-model-name", "tiny", "--tool-call-parser", "hermes", "--api-key", "sk-1", "--enable-prompt-tokens-details")
    s.base = s.url + "/v1"
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="session")
def tiny():
    return api.TINY
