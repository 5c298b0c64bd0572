"""Requests from web pages: off by default, and with --allowed-origins as the Fetch standard asks."""
import json

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PREFLIGHT = ["Origin: https://a.example", "Access-Control-Request-Method: POST",
             "Access-Control-Request-Headers: authorization, content-type"]


@pytest.fixture(scope="module")
def some(start):
    s = start("--allowed-origins", '["https://a.example", "http://localhost:3000"]', "--allowed-methods", '["POST"]',
              "--allowed-headers", '["Authorization"]', "--allow-credentials", "--api-key", "k")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def everyone(start):
    s = start("--allowed-origins", "*")
    yield s
    assert s.stop() == 0


def cors(headers):
    return {k: v for k, v in headers.items() if k.startswith("access-control")}


def test_off_by_default(server):
    status, headers, _ = server.request("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)
    assert (status, cors(headers), headers["allow"]) == (405, {}, "POST")
    _, headers, _ = server.request("GET", "/v1/models", headers=["Origin: https://a.example"])
    assert cors(headers) == {} and "vary" not in headers


def test_preflight(some):
    status, headers, _ = some.request("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)  # and without a key
    assert status == 200
    assert headers["access-control-allow-origin"] == "https://a.example"
    assert headers["access-control-allow-credentials"] == "true"
    assert headers["access-control-allow-methods"] == "POST"
    assert headers["access-control-allow-headers"] == "Authorization"
    assert headers["vary"] == "Origin"


@pytest.mark.parametrize("line, word", [("Origin: https://b.example", "origin"), ("Access-Control-Request-Method: PUT", "method"),
                                        ("Access-Control-Request-Headers: x-other", "headers")])
def test_refused_preflight(some, line, word):
    name = line.split(":")[0]
    status, _, body = some.request("OPTIONS", "/v1/models", headers=[line if h.startswith(name + ":") else h for h in PREFLIGHT])
    assert status == 400 and f"Disallowed CORS {word}".encode() in body


def test_replies(some):
    ask = ["Origin: http://localhost:3000"]
    for path, headers, status in (("/v1/models", ["Authorization: Bearer k"], 200), ("/v1/models", [], 401), ("/nope", [], 404),
                                  ("/health", [], 200)):
        got, found, _ = some.request("GET", path, headers=ask + headers)
        assert (got, found["access-control-allow-origin"]) == (status, "http://localhost:3000")
    _, found, _ = some.request("GET", "/health", headers=["Origin: https://b.example"])
    assert cors(found) == {} and found["vary"] == "Origin"
    status, found, body = some.request("POST", "/v1/chat/completions", {**CHAT, "stream": True},
                                       [*ask, "Authorization: Bearer k"])
    assert status == 200 and found["access-control-allow-origin"] == "http://localhost:3000" and b"[DONE]" in body


def test_everyone(everyone):
    _, headers, _ = everyone.request("GET", "/v1/models", headers=["Origin: https://c.example"])
    assert headers["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in headers
    _, headers, _ = everyone.request("GET", "/v1/models")
    assert "access-control-allow-origin" not in headers
    status, headers, body = everyone.request("OPTIONS", "/v1/completions", headers=PREFLIGHT)
    assert (status, body) == (200, b"OK")
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert json.loads(everyone.request("GET", "/version")[2])["version"]
