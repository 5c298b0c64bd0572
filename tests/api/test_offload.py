"""Prefixes on disk through the server: --kv-offload-dir."""
import os
import resource
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from conftest import BINARY, ROOT

QWEN = Path(os.environ.get("SLUICE_FIXTURES", ROOT / "tests/fixtures")) / "models/qwen35-tiny"
TURNS = [{"role": "user", "content": "Tell me about rivers. " + "They run to the sea, slowly, and then they do not. " * 12}]


def chat(server, messages, **fields):
    status, reply = server.post("/v1/chat/completions", {
        "messages": messages, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields})
    assert status == 200, reply
    return reply["choices"][0]["message"]["content"] or reply["choices"][0]["message"].get("reasoning"), reply["usage"]


def start_with(start, directory, model, *args):
    return start("--kv-offload-dir", directory, "--enable-prompt-tokens-details", *args, model=model)


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def files(directory):
    return [p for p in Path(directory).glob("*/*") if p.suffix in (".kv", ".state")]


def test_conversation_after_restart(start, tmp_path, any_model):
    directory = tmp_path / "kv"
    server = start_with(start, directory, any_model)
    first, usage = chat(server, TURNS)
    assert cached(usage) == 0
    salted, _ = chat(server, TURNS, cache_salt="tenant")
    assert salted == first
    assert server.stop() == 0
    assert files(directory)
    for path in [directory, *directory.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

    more = [*TURNS, {"role": "assistant", "content": first}, {"role": "user", "content": "And lakes?"}]
    cold = start(model=any_model)
    want, _ = chat(cold, more)
    want_first, _ = chat(cold, TURNS)
    assert cold.stop() == 0

    server = start_with(start, directory, any_model)
    got, usage = chat(server, more)
    assert got == want
    hit = cached(usage)
    assert hit >= 64
    m = server.metrics()
    assert m['vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'] == hit
    assert m['vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'] == 0
    assert m['vllm:prompt_tokens_cached_by_source_total{source="disk"}'] == hit
    assert m["vllm:external_prefix_cache_hits_total"] == hit
    assert m["vllm:external_prefix_cache_queries_total"] == usage["prompt_tokens"]
    assert m["vllm:prefix_cache_hits_total"] == 0
    assert m["sluice:kv_offload_read_bytes_total"] > 0
    got, usage = chat(server, TURNS, cache_salt="tenant")  # found again: the salt's key is kept with the files
    assert got == want_first == first and cached(usage) >= 64
    got, usage = chat(server, TURNS, cache_salt="another")
    assert got == first and cached(usage) == 0
    assert server.stop() == 0


def test_damaged_files_are_misses(start, tmp_path, any_model):
    directory = tmp_path / "kv"
    server = start_with(start, directory, any_model)
    want, _ = chat(server, TURNS)
    assert server.stop() == 0
    for i, path in enumerate(files(directory)):
        data = bytearray(path.read_bytes())
        data[(i * 7919 + 11) % len(data)] ^= 1 << i % 8
        path.write_bytes(data)
    server = start_with(start, directory, any_model)
    got, usage = chat(server, TURNS)
    assert got == want and cached(usage) == 0
    m = server.metrics()
    assert sum(v for k, v in m.items() if k.startswith("sluice:kv_offload_misses_total") and (
        "damaged" in k or "foreign" in k or "other" in k)) >= 1
    assert server.stop() == 0


def test_directory_lost_under_the_server(start, tmp_path):
    directory = tmp_path / "kv"
    server = start_with(start, directory, QWEN)
    want, _ = chat(server, TURNS)
    shutil.rmtree(directory)
    got, usage = chat(server, TURNS)
    assert got == want and cached(usage) > 0  # from memory
    assert server.stop() == 0
    assert server.log().count("failed (") == 1


def test_files_that_cannot_grow(start, tmp_path):
    """At the system's limit of a file's size (ulimit -f) the prefixes stay in memory, and the server lives."""
    directory = tmp_path / "kv"
    server = start_with(start, directory, QWEN)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (8192, 8192))
    want, _ = chat(server, TURNS)
    got, usage = chat(server, TURNS)
    assert got == want and cached(usage) > 0
    assert server.stop() == 0
    assert "File too large" in server.log()


def test_small_bound(start, tmp_path):
    directory = tmp_path / "kv"
    server = start_with(start, directory, QWEN, "--kv-offload-bytes", 40000)
    for i in range(5):
        chat(server, [{"role": "user", "content": f"{i} " + TURNS[0]["content"]}])
    assert server.stop() == 0
    assert 0 < sum(p.stat().st_size for p in files(directory)) <= 40000


def test_eviction_goes_to_disk_and_comes_back(start, tmp_path):
    """A pool that holds one conversation: the others live on disk, and no token changes."""
    directory = tmp_path / "kv"
    conversations = [[{"role": "user", "content": f"{i}: " + TURNS[0]["content"]}] for i in range(4)]
    cold = start(model=QWEN)
    want = [chat(cold, c)[0] for c in conversations]
    assert cold.stop() == 0
    server = start_with(start, directory, QWEN, "--max-model-len", 512, "--max-num-seqs", 2,
                        "--kv-cache-memory-bytes", 512 * 1024, "--state-cache-memory-bytes", 512 * 1024)
    hits = 0
    for _ in range(3):
        for c, text in zip(conversations, want):
            got, usage = chat(server, c)
            assert got == text
            hits += cached(usage) > 0
    m = server.metrics()
    assert m["sluice:kv_offload_written_bytes_total"] > 0
    assert hits >= 4
    assert server.stop() == 0


def test_one_server_a_directory(start, tmp_path):
    directory = tmp_path / "kv"
    server = start_with(start, directory, QWEN)
    second = subprocess.run([BINARY, "serve", str(QWEN), "--host", "127.0.0.1", "--port", "0",
                             "--kv-offload-dir", str(directory)], capture_output=True, text=True, timeout=60)
    assert second.returncode != 0 and "another server" in second.stderr
    assert server.stop(signal.SIGINT) == 0


def test_not_a_directory(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    done = subprocess.run([BINARY, "serve", str(QWEN), "--host", "127.0.0.1", "--port", "0", "--kv-offload-dir",
                           str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and str(path) in done.stderr


@pytest.fixture(params=["qwen35-tiny", "llama-tiny", "smollm"])
def any_model(request):
    if request.param != "smollm":
        return QWEN.parent / request.param
    path = os.environ.get("SLUICE_TEST_MODEL") or os.path.join(os.environ.get("SLUICE_MODELS", ""),
                                                                "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        pytest.skip("no real model: SLUICE_TEST_MODEL, or scripts/get-model smollm2")
    return path
