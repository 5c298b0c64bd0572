"""`sluice make-model`: well-formed files of the right shapes, the same for the same seed, that the program itself serves;
and `sluice plan`, which says what a model will take."""
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
FIXTURES = ROOT / "tests/fixtures"


def sluice(*args, timeout=120):
    return subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def make(path, *args):
    r = sluice("make-model", path, *args)
    assert r.returncode == 0, r.stderr
    return path


def inspect(path):
    return json.loads(sluice("inspect", "--json", path).stdout)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One layer of SmolLM2: 30 MB."""
    path = make(tmp_path_factory.mktemp("small") / "small.gguf", "--like", "smollm2-135m", "--layers", 1, "--bits", 8)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Four layers of Qwen3.5 0.8B, one of them attention: 190 MB."""
    path = make(tmp_path_factory.mktemp("hybrid") / "hybrid.gguf", "--like", "qwen3.5-0.8b", "--layers", 4, "--bits", 4)
    yield path
    path.unlink()


def test_shapes_and_keys(hybrid):
    r = inspect(hybrid)
    keys = {m["key"]: m.get("value", m.get("first")) for m in r["metadata"]}
    assert keys["general.architecture"] == "qwen35" and keys["qwen35.block_count"] == 4
    assert keys["qwen35.attention.recurrent_layers"] == [1, 1, 1, 0]
    assert keys["qwen35.ssm.inner_size"] == 2048 and keys["qwen35.rope.dimension_count"] == 64
    shapes = {t["name"]: (t["type"], t["shape"]) for t in r["tensors"]}
    assert shapes["token_embd.weight"] == ("Q4_0", [248320, 1024])
    assert shapes["blk.0.attn_qkv.weight"] == ("Q4_0", [6144, 1024])
    assert shapes["blk.0.ssm_conv1d.weight"] == ("F32", [6144, 4])
    assert shapes["blk.3.attn_q.weight"] == ("Q4_0", [4096, 1024])
    assert shapes["blk.3.ffn_down.weight"] == ("Q4_0", [1024, 3584])
    assert "output.weight" not in shapes and "blk.0.attn_q.weight" not in shapes and "blk.3.ssm_a" not in shapes


def test_gguf_py_reads_it(hybrid):
    gguf = pytest.importorskip("gguf")
    r = gguf.GGUFReader(hybrid)
    assert len(r.fields["tokenizer.ggml.tokens"].contents()) == 248320
    assert r.fields["tokenizer.ggml.merges"].contents() == []
    for t in r.tensors:
        if t.data.ndim > 1:
            w = gguf.quants.dequantize(t.data[:16], t.tensor_type)
            assert 0.8 < w.std() * int(t.shape[0]) ** 0.5 < 1.2, t.name


@pytest.mark.parametrize("args", [("--bits", 16), ("--bits", 8), ("--bits", 4)])
def test_every_form_answers(tmp_path, args):
    path = make(tmp_path / "m.gguf", "--like", "smollm2-135m", "--layers", 2, *args)
    r = sluice("run", path, "--prompt", "hello", "--max-tokens", 8, "--temperature", 1, "--seed", 1)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    assert len(r.stdout) > 20  # eight ids, most of them written <|unused_N|>


def test_hybrid_answers_and_k_quants(hybrid, tmp_path):
    k = make(tmp_path / "k.gguf", "--like", "qwen3.5-0.8b", "--layers", 4, "--bits", 4, "--k-quants", "--mtp")
    assert {t["type"] for t in inspect(k)["types"]} == {"F32", "Q4_K"}
    for path in (hybrid, k):
        answers = {sluice("run", path, "--prompt", "hello", "--max-tokens", 8, "--temperature", 0).stdout for _ in range(2)}
        assert len(answers) == 1 and len(answers.pop()) > 20
    k.unlink()


def test_a_seed_names_a_file(small, tmp_path):
    args = ("--like", "smollm2-135m", "--layers", 1, "--bits", 8)
    again = make(tmp_path / "again.gguf", *args, "--threads", 1)
    other = make(tmp_path / "other.gguf", *args, "--seed", 1)
    assert again.read_bytes() == small.read_bytes() != other.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.gguf", "other.gguf"]


def test_a_tokenizer_comes_along(tmp_path):
    tiny = FIXTURES / "models/llama-tiny"
    for source in (tiny, tiny / "tokenizer.json"):
        path = make(tmp_path / "m.gguf", "--like", "smollm2-135m", "--layers", 1, "--bits", 4, "--tokenizer", source)
        assert sluice("tokenize", path, "Hello, world").stdout == sluice("tokenize", tiny, "Hello, world").stdout != ""


def test_it_is_refused_by_name(tmp_path):
    out = tmp_path / "m.gguf"
    cases = [
        ((out,), 2, "--like is missing"),
        ((out, "--like", "gpt-5"), 2, "qwen3.5-4b"),
        ((out, "--like", "qwen3.5-4b", "--k-quants"), 2, "--k-quants needs --bits 4"),
        ((out, "--like", "qwen3-0.6b", "--mtp"), 2, "qwen3-0.6b has no such block"),
        (("--like", "qwen3.5-4b"), 2, "OUT is missing"),
        ((out, "--like", "smollm2-135m", "--bits", 4, "--k-quants"), 1, "rows of 576"),
        ((tmp_path, "--like", "smollm2-135m"), 1, "is not a regular file"),
        ((tmp_path / "no/m.gguf", "--like", "smollm2-135m"), 1, "No such file or directory"),
        ((out, "--like", "smollm2-135m", "--tokenizer", tmp_path), 1, "there is no tokenizer.json"),
        ((out, "--like", "smollm2-135m", "--tokenizer", FIXTURES / "models/gemma3-tiny"), 1, "byte-level BPE"),
    ]
    for args, status, words in cases:
        r = sluice("make-model", *args)
        assert (r.returncode, words in r.stderr) == (status, True), (args, r.stderr)
    assert list(tmp_path.iterdir()) == []


def test_help():
    r = sluice("make-model", "--help")
    assert r.returncode == 0 and all(len(line) <= 112 for line in r.stdout.splitlines())
    assert "qwen3.5-4b" in r.stdout and "make-model" in sluice("help").stdout


def test_interrupted_leaves_nothing(tmp_path):
    p = subprocess.Popen([SLUICE, "make-model", tmp_path / "m.gguf", "--like", "qwen3.5-0.8b", "--layers", "8",
                          "--threads", "1"],
                         stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 130 and "interrupted" in p.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_it_serves_chats(hybrid):
    p = subprocess.Popen([SLUICE, "serve", hybrid, "--host", "127.0.0.1", "--port", "0", "--max-model-len", "512"],
                         stderr=subprocess.PIPE, text=True)
    try:
        log = ""
        while "startup complete" not in log:
            line = p.stderr.readline()
            assert line, log
            log += line
        url = re.search(r"http://[0-9.:]+", log)[0]
        body = {"model": str(hybrid), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        assert answer["usage"]["completion_tokens"] == 5 and len(answer["choices"][0]["message"]["content"]) > 20
        assert "state slots" in log and "one more request takes" in log
    finally:
        p.terminate()
        p.wait(60)


# --- sluice plan ---


def plan(*args):
    """{row: bytes} and the whole text."""
    r = sluice("plan", *args)
    assert r.returncode == 0, r.stderr
    rows = {m[1].strip(): int(m[2].replace(",", "")) for m in re.finditer(r"^  ([A-Za-z ]+?) +([0-9,]+)  ", r.stdout, re.M)}
    return rows, r.stdout


@pytest.mark.parametrize("model", ["models/llama-tiny", "models/qwen35-tiny", "gguf/qwen35-tiny-q8_0.gguf"])
def test_plan_adds_up(model):
    rows, text = plan(FIXTURES / model, "--max-num-seqs", 4, "--max-model-len", 512)
    parts = {"weights", "KV pool", "bookkeeping", "scratch", "logits"} | ({"state slots", "state cache"} if "qwen35" in model else set())
    assert set(rows) == parts | {"total", "granted"}
    assert sum(rows[part] for part in parts) == rows["total"] <= rows["granted"]
    per_token = int(re.search(r"one more token of it ([0-9,]+)", text)[1].replace(",", ""))
    assert rows["KV pool"] == 4 * 512 * per_token and "(4 at once)" in text and "(up to 512)" in text


def test_plan_of_types():
    model = FIXTURES / "models/qwen35-tiny"
    sizes = ["--max-num-seqs", 2, "--num-gpu-blocks-override", 100, "--max-model-len", -1]
    wide, text = plan(model, *sizes, "--dtype", "float32")
    assert "float32, 100 blocks" in text and "(up to 1600)" in text and "int8_per_token_head: a token takes" in text
    small, text = plan(model, *sizes, "--kv-cache-dtype", "int8", "--mamba-ssm-cache-dtype", "bfloat16",
                       "--mamba_cache_dtype=bfloat16", "--gpu-memory-utilization", 0.5)
    assert "int8_per_token_head, 100 blocks" in text and "bfloat16 (convolutions bfloat16)" in text
    assert small["state slots"] * 2 == wide["state slots"]
    assert wide["KV pool"] / 4 < small["KV pool"] < wide["KV pool"] / 3
    for args, status, words in [(("--kv-cache-dtype", "fp8"), 2, "int8_per_token_head"),
                                (("--dtype", "half"), 1, "weights keep the type of their file"),
                                (("--mamba-ssm-cache-dtype", "float16"), 2, "bfloat16")]:
        r = sluice("plan", model, *args)
        assert (r.returncode, words in r.stderr) == (status, True), r.stderr


def test_plan_is_refused_where_serving_would_be(tmp_path):
    for args, status, words in [
        ((FIXTURES / "models/llama-tiny", "--max-model-len", 100000), 1, "longer than the model's context"),
        ((FIXTURES / "models/llama-tiny", "--memory-utilization", 2), 2, "memory-utilization"),
        ((tmp_path / "none.gguf",), 1, "cannot open"),
        ((), 2, "MODEL is missing"),
    ]:
        r = sluice("plan", *args)
        assert (r.returncode, words in r.stderr, r.stdout) == (status, True, ""), (args, r.stderr)
