"""Laws 1 and 3 through HTTP: 64 clients at once on a hybrid model, in a pool for a few of them. Prompts that share
beginnings, answers of all lengths, several to one prompt, streamed and whole; some clients hang up. Each answer has
the ids and log-probabilities of its solo run, every step is one stream of the weights, and nothing stays behind."""
import json
import random
import threading

import pytest
from conftest import ROOT, Server, events

MODEL = ROOT / "tests/fixtures/models/qwen35-tiny"
CLIENTS, BLOCK_BYTES, BLOCKS = 64, 8192, 40


def make_requests(rng):
    shared = [[rng.randrange(3, 900) for _ in range(130)] for _ in range(3)]
    requests = []
    for i in range(CLIENTS):
        own = [rng.randrange(3, 900) for _ in range(rng.randrange(1, 40))]
        prompt = rng.choice(shared)[:rng.randrange(0, 130)] + own
        sampled = rng.random() < 0.7
        requests.append({
            "prompt": prompt, "max_tokens": rng.randrange(1, 60), "ignore_eos": True, "logprobs": 2,
            "return_token_ids": True, "stream": rng.random() < 0.5, "seed": 1000 * i,
            "temperature": 1 if sampled else 0, "n": rng.choice([1, 1, 2, 3]) if sampled else 1,
            "hangs_up": rng.random() < 0.15})
    return requests


def body_of(request, **more):
    return {**{k: v for k, v in request.items() if k != "hangs_up"}, **more}


def whole(chunked):
    """The body of a chunked reply."""
    body = b""
    while chunked:
        size, _, chunked = chunked.partition(b"\r\n")
        body, chunked = body + chunked[:int(size, 16)], chunked[int(size, 16) + 2:]
    return body


def answers(reply, n, stream):
    """[n] of (token ids, their log-probabilities)."""
    found = [([], []) for _ in range(n)]
    for piece in events(whole(reply)) if stream else [json.loads(reply)]:
        for choice in piece["choices"]:
            ids, logprobs = found[choice["index"]]
            ids += choice["token_ids"] or []
            logprobs += (choice["logprobs"] or {}).get("token_logprobs") or []
    return found


def hang_up(server, request):
    """Reads the beginning of a stream, and goes."""
    body = json.dumps(body_of(request, stream=True)).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        s.recv(600)


@pytest.mark.parametrize("swap", ["0", "0.01"])
def test_company_changes_nothing(tmp_path, swap):
    rng = random.Random(7)
    requests = make_requests(rng)
    alone = Server(tmp_path, "--no-enable-prefix-caching", "--max-model-len", 256, model=MODEL)
    crowd = Server(tmp_path, "--max-model-len", 256, "--max-num-seqs", 12, "--kv-cache-memory-bytes",
                   BLOCK_BYTES * BLOCKS, "--max-num-batched-tokens", 96, "--swap-space", swap, model=MODEL)
    try:
        want = {}
        for i, request in enumerate(requests):
            if request["hangs_up"]:
                continue
            for k in range(request["n"]):
                status, _, reply = alone.request("POST", "/v1/completions", body_of(
                    request, n=1, stream=False, seed=request["seed"] + k))
                assert status == 200, reply
                want[i, k] = answers(reply, 1, False)[0]
                assert [len(x) for x in want[i, k]] == [request["max_tokens"]] * 2
        streams = {alone.metrics()["sluice:last_step_weight_bytes"]}

        got, seen, over = {}, set(), threading.Event()

        def ask(i, request):
            if request["hangs_up"]:
                hang_up(crowd, request)
            else:
                got[i] = crowd.request("POST", "/v1/completions", body_of(request))

        def watch():
            while not over.wait(0.01):
                seen.add(crowd.metrics()["sluice:last_step_weight_bytes"])

        threads = [threading.Thread(target=ask, args=pair) for pair in enumerate(requests)]
        watcher = threading.Thread(target=watch)
        watcher.start()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        over.set()
        watcher.join()

        for i, request in enumerate(requests):
            if request["hangs_up"]:
                continue
            status, _, reply = got[i]
            assert status == 200, reply
            for k, answer in enumerate(answers(reply, request["n"], request["stream"])):
                assert answer == want[i, k], (i, k, request)
            if not request["stream"]:
                usage = json.loads(reply)["usage"]
                assert usage["prompt_tokens"] == len(request["prompt"])
                assert usage["completion_tokens"] == request["n"] * request["max_tokens"]

        crowd.wait_idle()
        m = crowd.metrics()
        assert m["vllm:num_preemptions_total"] > 0
        assert m["sluice:forked_answers_total"] > 0
        assert m["vllm:prefix_cache_hits_total"] > 0
        assert (m["sluice:swapped_out_total"] > 0) == (swap != "0")
        for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                      "sluice:swap_used_bytes", "sluice:queued_tokens"):
            assert m[gauge] == 0, gauge
        # one stream a step: all weights, but for the head where a step holds only a piece of a prompt
        assert max(seen) == max(streams) and len(seen - {0}) <= 2, (seen, streams)
        assert m["sluice:weight_bytes_total"] <= m["sluice:steps_total"] * max(streams)
        assert crowd.stop() == 0
    finally:
        alone.kill()
        crowd.kill()
