"""A short load run by aiperf, of fixed length, whose numbers must be sane: counts exact, times in order, and what it says agrees
with the server's own counters."""
import json
import os
import subprocess

import pytest

REQUESTS, TOKENS = 24, 16


def test_aiperf(start, tiny, tmp_path):
    aiperf = os.environ.get("SLUICE_AIPERF")
    if not aiperf:
        pytest.skip("no aiperf: " + os.environ.get("SLUICE_NO_AIPERF", "start this by tests/clients/run"))
    server = start("--served-model-name", "tiny")
    done = subprocess.run(
        [aiperf, "profile", "-m", "tiny", "--url", server.url, "--endpoint-type", "completions", "--streaming", "--tokenizer", tiny,
         "--request-count", str(REQUESTS), "--concurrency", "4", "--synthetic-input-tokens-mean", "40",
         "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(TOKENS), "--output-tokens-stddev", "0",
         "--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--random-seed", "1", "--ui", "simple", "--no-gpu-telemetry",
         "--artifact-dir", tmp_path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stdout[-5000:]
    report = json.loads(next(tmp_path.rglob("profile_export_aiperf.json")).read_text())
    value = lambda name, stat="avg": report[name][stat]  # noqa: E731
    assert value("request_count") == REQUESTS
    assert value("output_sequence_length") == TOKENS and value("output_sequence_length", "min") == TOKENS
    assert 0 < value("time_to_first_token") <= value("request_latency")
    assert 0 < value("inter_token_latency") * (TOKENS - 1) <= value("request_latency") * 1.01
    assert value("output_token_throughput") > 0
    m = server.metrics()
    assert m["vllm:generation_tokens_total"] >= REQUESTS * TOKENS
    assert server.stop() == 0
