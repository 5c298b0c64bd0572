"""`sluice quantize` and `sluice eval`, from outside: files that are whole, smaller, read by gguf-py, and near to what
they were made from; and nothing left behind where there is an error."""
import json
import os
import resource
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
GGUF = ROOT / "tests/fixtures/gguf"
TYPES = ["q8_0", "q6_k", "q4_k", "q4_0", "q4_1", "f16", "bf16", "f32"]


def sluice(*args, timeout=300):
    return subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def inspect(path):
    return json.loads(sluice("inspect", "--json", path).stdout)


def quantize(source, out, *args):
    r = sluice("quantize", source, out, *args)
    assert r.returncode == 0, r.stderr
    return out


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((ROOT / "README.md").read_text())
    return path


def evaluate(model, text, *args):
    r = sluice("eval", model, "--text", text, "--context", 64, "--chunks", 6, "--json", *args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type(kind, text, tmp_path):
    source = GGUF / "llama-tiny-f16.gguf"
    out = quantize(source, tmp_path / "out.gguf", "--type", kind)
    before, after = inspect(source), inspect(out)
    assert [t["name"] for t in before["tensors"]] == [t["name"] for t in after["tensors"]]
    assert [t["shape"] for t in before["tensors"]] == [t["shape"] for t in after["tensors"]]
    keys = lambda r: {m["key"] for m in r["metadata"]}
    assert keys(before) - {"general.alignment"} <= keys(after)
    for t in after["tensors"]:
        if "norm" in t["name"]:
            assert t["type"] == "F32"
    r = evaluate(out, text, "--against", source)["against"]
    # random weights forgive nothing: their logits are steep, and no direction matters less than others
    most = {"f16": 1e-4, "f32": 1e-4, "bf16": 1e-3, "q8_0": 0.08, "q6_k": 0.12, "q4_k": 1.2, "q4_1": 2.2, "q4_0": 3}
    assert r["kl_mean"] < most[kind]
    assert not list(tmp_path.glob("*partial*"))


def test_an_architecture_with_states(text, tmp_path):
    source = GGUF / "qwen35-tiny-q8_0.gguf"
    out = quantize(source, tmp_path / "out.gguf", "--type", "q4_0", "--calibrate", text, "--calibrate-chunks", 2)
    kinds = {t["name"]: t["type"] for t in inspect(out)["tensors"]}
    before = {t["name"]: t["type"] for t in inspect(source)["tensors"]}
    for name, kind in kinds.items():
        if any(part in name for part in ("ssm_alpha", "ssm_beta", "conv1d", "norm")):
            assert kind == before[name]
    assert "Q4_0" in kinds.values()
    plain = quantize(source, tmp_path / "plain.gguf", "--type", "q4_0")
    kl = [evaluate(m, text, "--against", source)["against"]["kl_mean"] for m in (out, plain)]
    assert kl[0] < kl[1] < 4


def test_calibration_and_determinism(text, tmp_path):
    source = GGUF / "llama-tiny-f16.gguf"
    args = ("--type", "q4_0", "--calibrate", text, "--calibrate-chunks", 4)
    a = quantize(source, tmp_path / "a.gguf", *args, "--threads", 1)
    b = quantize(source, tmp_path / "b.gguf", *args, "--threads", 3)
    assert a.read_bytes() == b.read_bytes()
    plain = quantize(source, tmp_path / "plain.gguf", "--type", "q4_0")
    kl = [evaluate(m, text, "--against", source)["against"]["kl_mean"] for m in (a, plain)]
    assert kl[0] < 0.9 * kl[1]


@pytest.mark.parametrize("name", ["llama-tiny", "qwen2-tiny"])
def test_from_a_directory(name, text, tmp_path):
    source = ROOT / "tests/fixtures/models" / name
    whole = quantize(source, tmp_path / "whole.gguf", "--type", "bf16")
    r = evaluate(whole, text, "--against", source)["against"]
    assert r["kl_mean"] < 1e-6 and r["top1"] == 1
    quantize(source, tmp_path / "small.gguf", "--type", "q4_0")
    assert (tmp_path / "small.gguf").stat().st_size < 0.6 * whole.stat().st_size
    assert not list(tmp_path.glob("*source*"))


def old_imatrix(path, entries):
    """llama.cpp's older format: count; name, calls, values of each."""
    with open(path, "wb") as f:
        f.write(struct.pack("<i", len(entries)))
        for name, values in entries.items():
            f.write(struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 1, len(values)))
            f.write(struct.pack(f"<{len(values)}f", *values))
    return path


def test_imatrix(tmp_path):
    source = GGUF / "llama-tiny-f16.gguf"
    shape = {t["name"]: t["shape"] for t in inspect(source)["tensors"]}
    name = "blk.0.attn_q.weight"
    cols = shape[name][1]
    plain = quantize(source, tmp_path / "plain.gguf", "--type", "q4_0")
    good = old_imatrix(tmp_path / "good.dat", {name: [1.0 + 9.0 * (i % 3 == 0) for i in range(cols)]})
    out = quantize(source, tmp_path / "out.gguf", "--type", "q4_0", "--imatrix", good)
    assert out.read_bytes() != plain.read_bytes()
    for bad, message in (({name: [1.0] * (cols + 32)}, "columns"), ({name: [-1.0] * cols}, "sum of squares")):
        path = old_imatrix(tmp_path / "bad.dat", bad)
        r = sluice("quantize", source, tmp_path / "no.gguf", "--type", "q4_0", "--imatrix", path)
        assert r.returncode == 1 and message in r.stderr and name in r.stderr
    data = good.read_bytes()
    for cut in (2, 7, 30, len(data) - 3):
        (tmp_path / "cut.dat").write_bytes(data[:cut])
        r = sluice("quantize", source, tmp_path / "no.gguf", "--type", "q4_0", "--imatrix", tmp_path / "cut.dat")
        assert r.returncode == 1 and "cut.dat" in r.stderr
    assert not list(tmp_path.glob("no.gguf*"))


def test_errors_leave_nothing(text, tmp_path):
    source = GGUF / "llama-tiny-f16.gguf"
    data = bytearray(source.read_bytes())
    middle = len(data) // 2 // 32 * 32
    data[middle : middle + 2] = b"\x00\x7e"  # a weight of some matrix becomes NaN
    (tmp_path / "nan.gguf").write_bytes(data)
    for args, status, message in (
        (("quantize", source, tmp_path / "no.gguf"), 2, "--type"),
        (("quantize", source, tmp_path / "no.gguf", "--type", "q9"), 2, "q9"),
        (("quantize", tmp_path / "none.gguf", tmp_path / "no.gguf", "--type", "q4_0"), 1, "none.gguf"),
        (("quantize", tmp_path / "nan.gguf", tmp_path / "no.gguf", "--type", "q4_0"), 1, "NaN"),
        (("quantize", source, tmp_path / "no.gguf", "--type", "q4_0", "--calibrate", tmp_path / "none.txt"), 1, "none.txt"),
        (("quantize", source, tmp_path / "dir" / "no.gguf", "--type", "q4_0"), 1, "no.gguf"),
        (("quantize", ROOT / "tests/fixtures/models/gemma3-tiny-alt", tmp_path / "no.gguf", "--type", "q4_0"), 1, "directory"),
        (("eval", source), 2, "--text"),
        (("eval", source, "--text", text, "--context", 100000), 1, "--context"),
        (("eval", source, "--text", text, "--against", tmp_path / "none.gguf"), 1, "none.gguf"),
        (("eval", source, "--text", text, "--against", GGUF / "qwen2-tiny-f16.gguf"), 1, "different tokenizers"),
    ):
        r = sluice(*args)
        assert r.returncode == status and message in r.stderr, (args, r.returncode, r.stderr)
    assert not list(tmp_path.glob("no.gguf*"))


def test_quantised_at_load(tmp_path):
    source = GGUF / "llama-tiny-f16.gguf"
    whole = sluice("plan", source, "--max-num-seqs", 1).stdout
    small = sluice("plan", source, "--max-num-seqs", 1, "--quantization", "q4_0").stdout
    weights = lambda s: int(next(l for l in s.splitlines() if "weights" in l).split()[1].replace(",", ""))
    assert weights(small) < 0.6 * weights(whole)
    # the same codes as in a file that was written so
    written = quantize(source, tmp_path / "q.gguf", "--type", "q4_0")
    answers = [sluice("run", *args, "--prompt", "hello", "--temperature", 0, "--max-tokens", 20).stdout
               for args in ((source, "-q", "q4_0"), (written,))]
    assert answers[0] == answers[1] and answers[0].strip()


def test_a_file_that_cannot_grow(tmp_path):
    """The system's limit of a file's size (ulimit -f) is an error like a full disk; nothing is left behind."""
    r = subprocess.run([SLUICE, "quantize", GGUF / "llama-tiny-f16.gguf", tmp_path / "out", "--type", "q8_0"], capture_output=True,
                       text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert r.returncode == 1 and "File too large" in r.stderr
    assert not list(tmp_path.iterdir())
