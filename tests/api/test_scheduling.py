"""What the scheduler promises through HTTP: bounded queues, priorities, and the prefix cache."""
import json
import threading
import time

import pytest
from conftest import ROOT, Server

LONG = {"prompt": [7] * 20, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": [9] * 20, "max_tokens": 4, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def serve(tmp_path):
    """Starts servers with the given arguments; stops them at the end."""
    started = []

    def start(*args, **kw):
        started.append(Server(tmp_path, *args, **kw))
        return started[-1]

    yield start
    for s in started:
        s.kill()


def in_background(s, body):
    """Sends a completion on a thread; the thread's `reply` is (status, headers, body, time of arrival)."""
    def run():
        t.reply = (*s.request("POST", "/v1/completions", body), time.monotonic())
    t = threading.Thread(target=run)
    t.start()
    return t


def wait_for(s, running, waiting, limit=10):
    end = time.monotonic() + limit
    while True:
        m = s.metrics()
        if (m["vllm:num_requests_running"], m["vllm:num_requests_waiting"]) == (running, waiting):
            return
        assert time.monotonic() < end, m
        time.sleep(0.002)


def test_a_full_queue_says_try_again(serve):
    s = serve("--max-num-seqs", 1, "--max-num-queued-reqs", 1)
    first = in_background(s, LONG)
    wait_for(s, 1, 0)
    second = in_background(s, SHORT)
    wait_for(s, 1, 1)
    status, headers, body = s.request("POST", "/v1/completions", SHORT)
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert "--max-num-queued-reqs" in json.loads(body)["error"]["message"]
    for t in (first, second):
        t.join()
        assert t.reply[0] == 200


def test_more_answers_than_may_wait_are_refused(serve):
    """A request that can never be taken is not told to come back."""
    s = serve("--max-num-seqs", 2, "--max-num-queued-reqs", 4)
    assert s.post("/v1/completions", {**SHORT, "n": 4, "temperature": 1})[0] == 200
    for extra in ({"n": 5, "temperature": 1}, {"prompt": ["a"] * 5}):
        status, reply = s.post("/v1/completions", {**SHORT, **extra})
        assert status == 400 and reply["error"]["param"] == "n", reply


def test_prompt_tokens_that_wait_are_bounded(serve):
    s = serve("--max-num-seqs", 1, "--max-num-queued-tokens", 30, "--max-queue", 100)
    first = in_background(s, LONG)
    wait_for(s, 1, 0)
    while s.metrics()["sluice:queued_tokens"] > 0:  # its prompt counts until it is computed
        time.sleep(0.002)
    second = in_background(s, SHORT)
    wait_for(s, 1, 1)
    status, headers, body = s.request("POST", "/v1/completions", SHORT)
    assert status == 503 and int(headers["retry-after"]) >= 1
    assert "--max-num-queued-tokens" in json.loads(body)["error"]["message"]
    m = s.metrics()
    rejected = {k: v for k, v in m.items() if k.startswith("vllm:admission_rejections_total")}
    assert sorted(rejected.values()) == [0, 1] and m["sluice:queued_tokens"] == 20
    for t in (first, second):
        t.join()
        assert t.reply[0] == 200
    assert s.post("/v1/completions", {**SHORT, "prompt": [9] * 200})[0] == 200  # long, but nobody waits


@pytest.mark.parametrize("model", ["llama-tiny", "qwen35-tiny"])
def test_answers_share_their_prompt(serve, model):
    """n answers: the prompt is computed and counted once, also where only two run at a time."""
    s = serve("--max-num-seqs", 2, "--no-enable-prefix-caching", model=ROOT / "tests/fixtures/models" / model)
    body = {**SHORT, "prompt": [(i * 37) % 900 + 3 for i in range(150)], "temperature": 1, "return_token_ids": True}
    _, reply = s.post("/v1/completions", {**body, "n": 5, "seed": 3})
    assert reply["usage"]["prompt_tokens"] == 150 and reply["usage"]["completion_tokens"] == 20
    m = s.metrics()
    assert m["vllm:prompt_tokens_total"] == m["sluice:step_prompt_tokens_total"] == 150
    assert m["vllm:generation_tokens_total"] == 20
    for i, choice in enumerate(reply["choices"]):
        _, alone = s.post("/v1/completions", {**body, "seed": 3 + i})
        assert alone["choices"][0]["token_ids"] == choice["token_ids"]


def test_lower_priority_numbers_go_first(serve):
    """The one that goes last is long: its end is behind the other's however late the threads here hear of them."""
    s = serve("--max-num-seqs", 1, "--scheduling-policy", "priority")
    first = in_background(s, LONG)
    wait_for(s, 1, 0)
    late = in_background(s, {**LONG, "priority": 5})
    wait_for(s, 1, 1)
    soon = in_background(s, {**SHORT, "priority": -5})
    wait_for(s, 1, 2)
    for t in (first, late, soon):
        t.join()
        assert t.reply[0] == 200
    assert soon.reply[3] < late.reply[3]


def test_a_priority_must_fit(serve):
    status, body = serve().post("/v1/completions", {**SHORT, "priority": 2**40})
    assert status == 400 and body["error"]["param"] == "priority"


@pytest.mark.parametrize("model", ["llama-tiny", "qwen35-tiny"])
def test_the_next_turn_reads_only_what_is_new(serve, model):
    args = ("--enable-prompt-tokens-details",)
    path = ROOT / "tests/fixtures/models" / model
    warm, cold = serve(*args, model=path), serve(*args, "--no-enable-prefix-caching", model=path)
    prompt = [(i * 37) % 900 + 3 for i in range(300)]
    body = {"max_tokens": 80, "temperature": 0, "ignore_eos": True, "logprobs": 3, "return_token_ids": True}
    for turn in range(3):
        replies = [s.post("/v1/completions", {**body, "prompt": prompt})[1] for s in (warm, cold)]
        hit, miss = (r["choices"][0] for r in replies)
        assert hit["token_ids"] == miss["token_ids"]
        assert hit["logprobs"] == miss["logprobs"]
        cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in replies]
        assert cached[1] == 0
        if turn:  # the whole of the last prompt, and its answer up to the last point where state was kept
            assert cached[0] >= len(prompt) - 20 - 64
        prompt = prompt + hit["token_ids"] + [(turn * 11 + i) % 900 + 3 for i in range(20)]
    assert warm.metrics()["vllm:prefix_cache_hits_total"] > 0


def test_tenants_do_not_share(serve):
    s = serve("--enable-prompt-tokens-details")
    prompt = [(i * 37) % 900 + 3 for i in range(200)]
    for salt, hits in (("a", False), ("b", False), ("a", True)):
        _, reply = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "cache_salt": salt})
        assert (reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == hits


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(serve):
    s = serve("--kv-cache-memory-bytes", 32 * 16 * 2 * 4 * 2 * 2 * 20, "--max-model-len", 2048)
    status, body = s.post("/v1/completions", {**SHORT, "prompt": [5] * 1500})
    assert status == 400 and "maximum context length is" in body["error"]["message"]
    assert s.post("/v1/completions", SHORT)[0] == 200
