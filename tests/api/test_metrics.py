"""/metrics against what the clients saw, through Prometheus' own parser; and what answers tell of themselves."""
import json
import re
import select
import time

import pytest

parser = pytest.importorskip("prometheus_client.parser", reason="pip install -r tests/requirements.txt")

B1 = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
B2 = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
B3 = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
B4 = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
B5 = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]  # llama-tiny's context is 2048
HISTOGRAMS = {
    "iteration_tokens_total": B4, "time_to_first_token_seconds": B2, "inter_token_latency_seconds": B3,
    "request_time_per_output_token_seconds": B3, "e2e_request_latency_seconds": B1,
    "request_queue_time_seconds": B1, "request_prefill_time_seconds": B1, "request_decode_time_seconds": B1,
    "request_inference_time_seconds": B1, "request_prompt_tokens": B5, "request_generation_tokens": B5,
    "request_max_num_generation_tokens": B5, "request_params_max_tokens": B5, "request_params_n": [1, 2, 5, 10, 20],
    "request_num_preemptions": [1, 2, 3, 4, 5, 10, 20], "request_prefill_kv_computed_tokens": B5}
COUNTERS = {
    "prefix_cache_queries": {}, "prefix_cache_hits": {}, "external_prefix_cache_queries": {},
    "external_prefix_cache_hits": {}, "num_preemptions": {}, "prompt_tokens": {}, "prompt_tokens_cached": {},
    "generation_tokens": {}, "prompt_tokens_by_source": {"source": {"local_compute", "local_cache_hit",
                                                                     "external_kv_transfer"}},
    "prompt_tokens_cached_by_source": {"source": {"device", "host", "p2p", "disk", "external_unspecified"}},
    "request_success": {"finished_reason": {"stop", "length", "abort", "error", "repetition"}},
    "admission_rejections": {"reason": {"max_num_queued_reqs", "max_num_queued_tokens"}}}
GAUGES = {
    "num_requests_running": {}, "num_requests_waiting": {}, "kv_cache_usage_perc": {},
    "num_requests_waiting_by_reason": {"reason": {"capacity", "deferred"}},
    "engine_sleep_state": {"sleep_state": {"awake", "weights_offloaded", "discard_all"}}}


class Page:
    """One scrape: families by name; of a histogram the buckets must rise and end at the count."""

    def __init__(self, server):
        status, headers, body = server.request("GET", "/metrics")
        assert status == 200 and headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        self.families = {f.name: f for f in parser.text_string_to_metric_families(body.decode())}
        for f in self.families.values():
            if f.type == "histogram":
                self.check_histogram(f)

    @staticmethod
    def check_histogram(f):
        rows = {}
        for s in f.samples:
            key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            row = rows.setdefault(key, {"buckets": [], "sum": None, "count": None})
            if s.name.endswith("_bucket"):
                row["buckets"].append((float(s.labels["le"]), s.value))
            else:
                row["sum" if s.name.endswith("_sum") else "count"] = s.value
        for row in rows.values():
            bounds, counts = zip(*row["buckets"])
            assert list(bounds) == sorted(bounds) and bounds[-1] == float("inf"), f.name
            assert list(counts) == sorted(counts) and counts[-1] == row["count"], f.name
            assert row["sum"] >= 0

    def samples(self, name):
        for f in self.families.values():
            for s in f.samples:
                if s.name == name:
                    yield s

    def value(self, name, **labels):
        found = [s.value for s in self.samples(name) if all(s.labels.get(k) == v for k, v in labels.items())]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def has(self, name):
        return any(True for _ in self.samples(name))


def test_all_series_from_the_start(start):
    server = start("--served-model-name", "the-model", "alias")
    page = Page(server)
    base = {"model_name": "the-model", "engine": "0"}
    for name, labels in {**COUNTERS, **GAUGES}.items():
        counter = name in COUNTERS
        family = page.families["vllm:" + name]
        assert family.type == ("counter" if counter else "gauge"), name
        samples = [s for s in family.samples if not s.name.endswith("_created")]
        for s in samples:
            assert s.name == "vllm:" + name + ("_total" if counter else "")
            expected = dict(base)
            if name == "admission_rejections":
                del expected["engine"]
            assert {k: v for k, v in s.labels.items() if k not in labels} == expected
            assert s.value == (1 if s.labels.get("sleep_state") == "awake" else 0), s
        for label, values in labels.items():
            assert {s.labels[label] for s in samples} == values
    for name, bounds in HISTOGRAMS.items():
        family = page.families["vllm:" + name]
        assert family.type == "histogram", name
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        assert [float(s.labels["le"]) for s in buckets] == [*map(float, bounds), float("inf")], name
        assert all(re.fullmatch(r"\d+\.\d+|\d+(\.\d+)?e[+-]\d+|\+Inf", s.labels["le"]) for s in buckets)
        assert page.value(f"vllm:{name}_count") == 0
    info, = page.samples("vllm:cache_config_info")
    assert info.value == 1 and "model_name" not in info.labels
    assert info.labels["block_size"] == "16" and info.labels["enable_prefix_caching"] == "True"
    assert int(info.labels["kv_cache_size_tokens"]) == 16 * int(info.labels["num_gpu_blocks"])
    assert float(info.labels["kv_cache_max_concurrency"]) > 0
    assert {"gpu_memory_utilization", "cache_dtype", "num_cpu_blocks", "engine"} <= set(info.labels)
    for name in ("resident_memory_bytes", "cpu_seconds_total", "start_time_seconds", "open_fds"):
        assert page.value("process_" + name) > 0
    assert server.stop() == 0


def stream_text(server, body):
    """(tokens by usage, finish_reason, events)"""
    status, _, data = server.request("POST", "/v1/completions", {**body, "stream": True,
                                                                "stream_options": {"include_usage": True}})
    assert status == 200
    data = re.sub(rb"(?m)^[0-9a-f]+\r\n|\r\n", b"\n", data)  # chunk sizes
    events = [json.loads(x[6:]) for x in data.decode().splitlines() if x.startswith("data: {")]
    finish = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    return events[-1]["usage"], finish, events


def test_counts_are_what_clients_saw(start):
    server = start("--max-num-seqs", 4, "--enable-prompt-tokens-details")
    prompts = ["Rivers run to the sea. " * k for k in (1, 4, 9, 9, 4, 9)]
    seen = {"prompt": 0, "completion": 0, "cached": 0, "requests": 0, "computed": 0}
    reasons = {}
    begin = time.monotonic()
    for i, prompt in enumerate(prompts):
        body = {"prompt": prompt, "max_tokens": 5 + i, "seed": i}
        if i % 2:
            usage, finish, _ = stream_text(server, body)
        else:
            status, reply = server.post("/v1/completions", body)
            assert status == 200
            usage, finish = reply["usage"], [c["finish_reason"] for c in reply["choices"]]
        seen["requests"] += 1
        seen["prompt"] += usage["prompt_tokens"]
        seen["completion"] += usage["completion_tokens"]
        seen["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
        for f in finish:
            reasons[f] = reasons.get(f, 0) + 1
    assert seen["cached"] > 0
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": -1})[0] == 400
    assert server.post("/v1/completions", {"prompt": "x", "model": "none"})[0] == 404
    spent = time.monotonic() - begin
    page = Page(server)
    v = page.value
    assert v("vllm:prompt_tokens_total") == v("vllm:request_prompt_tokens_sum") == seen["prompt"]
    assert v("vllm:generation_tokens_total") == v("vllm:request_generation_tokens_sum") == seen["completion"]
    assert v("vllm:prompt_tokens_cached_total") == v("vllm:prefix_cache_hits_total") == seen["cached"]
    assert v("vllm:prefix_cache_queries_total") == seen["prompt"]
    assert v("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == seen["cached"]
    assert v("vllm:prompt_tokens_by_source_total", source="local_compute") == seen["prompt"] - seen["cached"]
    assert v("vllm:request_prefill_kv_computed_tokens_sum") == seen["prompt"] - seen["cached"]
    for name in ("e2e_request_latency", "time_to_first_token", "request_queue_time", "request_prefill_time",
                 "request_decode_time", "request_inference_time"):
        assert v(f"vllm:{name}_seconds_count") == seen["requests"], name
        assert v(f"vllm:{name}_seconds_sum") <= spent, name
    assert v("vllm:inter_token_latency_seconds_count") == seen["completion"] - seen["requests"]
    assert v("vllm:e2e_request_latency_seconds_sum") >= v("vllm:request_inference_time_seconds_sum")
    assert v("vllm:request_params_max_tokens_sum") == sum(5 + i for i in range(len(prompts)))
    for reason, n in reasons.items():
        assert v("vllm:request_success_total", finished_reason=reason) == n
    assert sum(s.value for s in page.samples("vllm:request_success_total")) == seen["requests"]
    assert v("vllm:num_requests_running") == v("vllm:num_requests_waiting") == v("vllm:kv_cache_usage_perc") == 0
    # the ledger: each token was computed once, and the steps are the histogram's
    assert v("sluice:step_prompt_tokens_total") == seen["prompt"] - seen["cached"]
    assert v("sluice:step_decode_tokens_total") == seen["completion"] - seen["requests"]
    assert v("vllm:iteration_tokens_total_count") == v("sluice:steps_total")
    assert v("vllm:iteration_tokens_total_sum") == pytest.approx(
        v("sluice:step_prompt_tokens_total") + v("sluice:step_decode_tokens_total"))
    # HTTP
    route = {"handler": "/v1/completions", "method": "POST"}
    assert v("http_requests_total", **route, status="2xx") == seen["requests"]
    assert v("http_requests_total", **route, status="4xx") == 2
    assert v("http_request_duration_seconds_count", **route) == seen["requests"] + 2
    assert v("http_request_size_bytes_count", handler="/v1/completions") == seen["requests"] + 2
    assert v("http_request_size_bytes_sum", handler="/v1/completions") > sum(map(len, prompts))
    assert v("http_response_size_bytes_sum", handler="/v1/completions") > 200 * seen["requests"]
    assert v("http_request_duration_highr_seconds_count") == seen["requests"] + 2
    assert server.stop() == 0


def test_hang_ups(start):
    """A client that leaves: no finished request, nothing running, and the counters still agree with each other."""
    server = start("--max-num-seqs", 2, "--max-num-batched-tokens", 16)
    body = {"prompt": "word " * 90, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode()
    for wait in (0, 0.01, 0.02, 0.05):
        with server.connect() as s:
            s.sendall(head + data)
            time.sleep(wait)
    server.wait_idle()
    page = Page(server)
    v = page.value
    assert sum(s.value for s in page.samples("vllm:request_success_total")) == 0
    assert v("vllm:e2e_request_latency_seconds_count") == v("vllm:request_prompt_tokens_count") == 0
    assert v("vllm:kv_cache_usage_perc") == 0
    by_source = sum(s.value for s in page.samples("vllm:prompt_tokens_by_source_total"))
    assert by_source == v("vllm:prompt_tokens_total")
    assert sum(s.value for s in page.samples("vllm:prompt_tokens_cached_by_source_total")) == v(
        "vllm:prompt_tokens_cached_total")
    assert v("vllm:prefix_cache_hits_total") <= v("vllm:prefix_cache_queries_total")
    assert server.stop() == 0


def test_without_log_stats(start):
    server = start("--disable-log-stats")
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
    page = Page(server)
    assert not any(name.startswith(("vllm:", "sluice:")) for name in page.families)
    assert page.value("http_requests_total", handler="/v1/completions", status="2xx") == 1
    assert server.stop() == 0


def check_times(metrics, tokens, prompt):
    assert set(metrics) == {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
                            "tokens_per_second", "sluice"}
    assert metrics["time_to_first_token_ms"] > 0 and metrics["queue_time_ms"] >= 0
    assert metrics["mean_itl_ms"] * (tokens - 1) == pytest.approx(metrics["generation_time_ms"], rel=0.01, abs=0.02)
    assert metrics["tokens_per_second"] == pytest.approx(1000 / metrics["mean_itl_ms"], rel=0.05)
    own = metrics["sluice"]
    assert own["prompt_tokens_computed"] + own["prompt_tokens_from_memory"] + own["prompt_tokens_from_disk"] == prompt
    assert own["steps"] >= tokens and own["weight_bytes"] > 0 and own["preemptions"] == 0


def test_times_of_a_request(start):
    server = start("--enable-per-request-metrics")
    status, reply = server.post("/v1/completions", {"prompt": "Rivers " * 20, "max_tokens": 12, "ignore_eos": True})
    assert status == 200
    check_times(reply["metrics"], 12, reply["usage"]["prompt_tokens"])
    before = Page(server).value("sluice:weight_bytes_total")
    assert reply["metrics"]["sluice"]["weight_bytes"] == before  # it was alone: all of the stream was its own
    usage, _, events = stream_text(server, {"prompt": "Rivers " * 20, "max_tokens": 12, "ignore_eos": True})
    check_times(events[-1]["metrics"], 12, usage["prompt_tokens"])
    assert events[-1]["metrics"]["sluice"]["prompt_tokens_from_memory"] > 0
    assert all("metrics" not in e for e in events[:-1])
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True}
    status, reply = server.post("/v1/chat/completions", chat)
    check_times(reply["metrics"], 8, reply["usage"]["prompt_tokens"])
    events = list(server.client().chat.completions.create(
        model="", messages=chat["messages"], max_tokens=8, stream=True, extra_body={"ignore_eos": True}))
    assert events[-1].choices[0].finish_reason == "length"
    assert events[-1].metrics["tokens_per_second"] > 0
    status, reply = server.post("/v1/chat/completions", {**chat, "n": 2, "temperature": 1})
    assert reply["metrics"] is None
    assert server.stop() == 0
    plain = start()
    assert plain.post("/v1/chat/completions", chat)[1]["metrics"] is None
    assert plain.stop() == 0


def test_load_header(start):
    server = start()
    body = {"prompt": "a", "max_tokens": 2}
    _, headers, _ = server.request("POST", "/v1/completions", body, ["endpoint-load-metrics-format: text"])
    found = re.fullmatch(r"TEXT named_metrics\.kv_cache_usage_perc=([\d.e+-]+), "
                         r"named_metrics\.num_requests_waiting=(\d+)", headers["endpoint-load-metrics"])
    assert found and 0 <= float(found.group(1)) <= 1
    _, headers, _ = server.request("POST", "/v1/completions", body, ["endpoint-load-metrics-format: JSON"])
    kind, _, text = headers["endpoint-load-metrics"].partition(" ")
    assert kind == "JSON" and set(json.loads(text)["named_metrics"]) == {"kv_cache_usage_perc",
                                                                        "num_requests_waiting"}
    for extra in ([], ["endpoint-load-metrics-format: xml"]):
        assert "endpoint-load-metrics" not in server.request("POST", "/v1/completions", body, extra)[1]
    assert server.stop() == 0


def test_priority_header(start):
    """Under the priority policy the header decides over the body who of those that wait is first."""
    server = start("--max-num-seqs", 1, "--scheduling-policy", "priority")

    def send(sock, headers, **fields):
        data = json.dumps({"prompt": "a", "max_tokens": 30, "ignore_eos": True, **fields}).encode()
        lines = ["POST /v1/completions HTTP/1.1", "Host: t", "Connection: close", "Content-Type: application/json",
                 f"Content-Length: {len(data)}", *headers]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    with server.connect() as busy, server.connect() as low, server.connect() as high:
        send(busy, [], max_tokens=400)
        while server.metrics()["vllm:num_requests_running"] == 0:
            time.sleep(0.002)
        send(low, ["X-Vllm-Priority: 5"], priority=-9, max_tokens=200)
        while server.metrics()["vllm:num_requests_waiting"] == 0:
            time.sleep(0.002)
        send(high, ["X-Vllm-Priority: -1"], priority=9)
        first = []
        while len(first) < 2:
            ready, _, _ = select.select([s for s in (low, high) if s not in first], [], [], 60)
            assert ready
            first += [s for s in ready if s not in first]
        assert first[0] is high
    assert server.stop() == 0
