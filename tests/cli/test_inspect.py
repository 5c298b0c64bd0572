"""`sluice inspect`: its report agrees with a reading of the same bytes in a few lines of Python, as JSON and as text."""
import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
FIXTURES = ROOT / "tests/fixtures"
GGUFS = sorted(FIXTURES.glob("gguf/*.gguf")) + [FIXTURES / "quant/types.gguf"]
DIRECTORIES = sorted(p.parent for p in FIXTURES.glob("models/*/model.safetensors"))


def inspect(*args):
    return subprocess.run([SLUICE, "inspect", *map(str, args)], capture_output=True, text=True, timeout=60)


def report(path):
    r = inspect("--json", path)
    assert r.returncode == 0 and r.stderr == ""
    return json.loads(r.stdout)


def read_gguf(path):
    """{key: value} and {tensor: shape} of a GGUF file."""
    data, pos = path.read_bytes(), 4
    formats = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?"])) | {10: "Q", 11: "q", 12: "d"}

    def take(fmt):
        nonlocal pos
        values = struct.unpack_from("<" + fmt, data, pos)
        pos += struct.calcsize("<" + fmt)
        return values[0]

    def string():
        n = take("Q")
        return take(f"{n}s").decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            kind, n = take("I"), take("Q")
            return [value(kind) for _ in range(n)]
        return take(formats[kind])

    assert take("I") == 3
    n_tensors, n_values = take("Q"), take("Q")
    values = {}
    for _ in range(n_values):
        key = string()
        values[key] = value(take("I"))
    tensors = {}
    for _ in range(n_tensors):
        name = string()
        tensors[name] = [take("Q") for _ in range(take("I"))][::-1]
        take("I"), take("Q")
    return values, tensors


@pytest.mark.parametrize("path", GGUFS, ids=lambda p: p.name)
def test_gguf_report_agrees_with_the_file(path):
    values, tensors = read_gguf(path)
    r = report(path)
    assert (r["kind"], r["version"], r["files"], r["not_read"]) == ("gguf", 3, 1, [])
    assert [m["key"] for m in r["metadata"]] == list(values)
    for m in r["metadata"]:
        want = values[m["key"]]
        if isinstance(want, list):
            assert m["length"] == len(want) and m["type"].startswith("arr[")
            assert m["first"] == pytest.approx(want[:8]) if want and isinstance(want[0], float) else want[:8]
        elif isinstance(want, float):
            assert m["value"] == pytest.approx(want, rel=1e-7)
        else:
            assert m["value"] == want and type(m["value"]) is type(want)
    assert {t["name"]: t["shape"] for t in r["tensors"]} == tensors


@pytest.mark.parametrize("path", DIRECTORIES, ids=lambda p: p.name)
def test_directory_report_agrees_with_the_files(path):
    data = (path / "model.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    header.pop("__metadata__", None)
    r = report(path)
    assert r["kind"] == "huggingface" and r["files"] == 1
    assert {t["name"]: (t["type"], t["shape"], t["bytes"]) for t in r["tensors"]} == {
        name: (t["dtype"], t["shape"], t["data_offsets"][1] - t["data_offsets"][0]) for name, t in header.items()}
    metadata = {m["key"]: m for m in r["metadata"]}
    config = json.loads((path / "config.json").read_text())
    assert metadata["config.model_type"]["value"] == config["model_type"]
    assert metadata["config.architectures"]["first"] == config["architectures"]
    assert metadata["chat_template"]["value"] == (path / "chat_template.jinja").read_text()
    assert metadata["tokenizer.model.vocab"]["length"] > 500


def test_sums_add_up():
    r = report(FIXTURES / "quant/types.gguf")
    assert len(r["types"]) == 26
    for t in r["types"]:
        tensor = next(x for x in r["tensors"] if x["name"] == t["type"])
        assert (t["tensors"], t["weights"], t["bytes"]) == (1, 1536, tensor["bytes"])
        assert t["bits_per_weight"] == pytest.approx(8 * tensor["bytes"] / 1536)
    for field in ("tensors", "weights", "bytes"):
        assert r["total"][field] == sum(t[field] for t in r["types"])


@pytest.mark.parametrize("path", [FIXTURES / "gguf/qwen3-tiny-q8_0.gguf", FIXTURES / "models/qwen35-tiny"],
                         ids=lambda p: p.name)
def test_text_says_the_same(path):
    r, text = report(path), inspect(path).stdout
    lines = [line.split() for line in text.splitlines()]
    for m in r["metadata"]:
        assert [m["key"], m["type"]] in [line[:2] for line in lines]
    for t in r["tensors"]:
        assert [t["name"], t["type"], *" x ".join(map(str, t["shape"])).split(), str(t["bytes"])] in lines
    total = r["total"]
    assert ["total", str(total["tensors"]), str(total["weights"]), str(total["bytes"]),
            f'{total["bits_per_weight"]:.3f}'] in lines


def test_layers_come_in_their_order(tmp_path):
    def string(s):
        return struct.pack("<Q", len(s)) + s

    names = [b"blk.10.x", b"blk.9.x", b"blk.2.x"]
    data = b"GGUF" + struct.pack("<IQQ", 3, 3, 0)
    for i, name in enumerate(names):
        data += string(name) + struct.pack("<IQIQ", 1, 4, 24, 32 * i)
    data += bytes(-len(data) % 32) + bytes(96)
    (tmp_path / "m.gguf").write_bytes(data)
    assert [t["name"] for t in report(tmp_path / "m.gguf")["tensors"]] == ["blk.2.x", "blk.9.x", "blk.10.x"]


def test_bytes_of_a_file_do_not_reach_the_terminal_raw(tmp_path):
    def string(s):
        return struct.pack("<Q", len(s)) + s

    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string(b"key") + struct.pack("<I", 8) + string(b"\x1b[2J\xff\x00z")
    (tmp_path / "m.gguf").write_bytes(data)
    r = inspect(tmp_path / "m.gguf")
    assert r.returncode == 0 and "\x1b" not in r.stdout and "\\u001b[2J\ufffd\\u0000z" in r.stdout.replace("001B", "001b")


@pytest.mark.parametrize("name, words, kind, rounded", [
    ("awq-g32", "awq, 4 bits, groups of 32 with zero points", "Q5_0", 0),
    ("ct-sym-g128", "compressed-tensors (pack-quantized), 4 bits, groups of 128", "Q4_0", 0),
    ("fp8-block", "fp8, e4m3, blocks of 128x128", "F16", 7)])
def test_quantised_directories_name_their_format(name, words, kind, rounded):
    path = FIXTURES / "quantised" / name
    r = report(path)
    assert r["quantised"] == {"format": words, "matrices": 7, "rounded": rounded}
    assert {t["type"] for t in r["tensors"] if "proj" in t["name"]} == {kind}
    assert f"Quantised: {words}\n  7 matrices" in inspect(path).stdout


def test_a_format_that_is_not_read_is_named(tmp_path):
    config = json.loads((FIXTURES / "quantised/awq-g32/config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl2", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(FIXTURES / "quantised/awq-g32/model.safetensors")
    assert report(tmp_path)["quantised"]["not_read"].startswith('quantization_config: quant_method "exl2" is not')
    assert "Quantised: exl2\n  not read: " in inspect(tmp_path).stdout
