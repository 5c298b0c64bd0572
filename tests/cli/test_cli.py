"""The program from outside: its commands, their help and errors, chat in a terminal, the demo of `make run`.

Needs build/sluice (SLUICE names another binary). Tests of real models read SLUICE_MODELS (scripts/get-model).
"""
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TINY = ROOT / "tests/fixtures/models/llama-tiny"
TINY_GGUF = ROOT / "tests/fixtures/gguf/llama-tiny-f16.gguf"
COMMANDS = ["serve", "run", "batch", "bench", "plan", "inspect", "tokenize"]


def sluice(*args, stdin=None, timeout=120):
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=timeout, **given)


def smollm2():
    path = Path(os.environ.get("SLUICE_MODELS", "")) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not os.environ.get("SLUICE_MODELS") or not path.exists():
        pytest.skip("SmolLM2 is not in SLUICE_MODELS: scripts/get-model smollm2")
    return path


# --- commands, help, usage errors ---------------------------------------------------------------------


def test_without_a_command_the_list_is_printed():
    r = sluice()
    assert r.returncode == 2 and all(c in r.stderr for c in COMMANDS)


def test_help_lists_every_command():
    r = sluice("help")
    assert r.returncode == 0 and all(c in r.stdout for c in COMMANDS + ["version", "help"])
    assert sluice("--help").stdout == r.stdout


def test_version():
    r = sluice("version")
    assert r.returncode == 0 and re.fullmatch(r"sluice \d+\.\d+\.\d+\n", r.stdout)
    assert sluice("--version").stdout == r.stdout


@pytest.mark.parametrize("args", [("plan", TINY), ("inspect", TINY), ("tokenize", TINY, "hi"), ("help",),
                                  ("serve", "--help"), ("version",)], ids=lambda args: args[0])
def test_lost_output_is_a_failure(args):
    """A full disk and a closed stdout."""
    with open("/dev/full", "wb") as full:
        r = subprocess.run([SLUICE, *map(str, args)], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert r.returncode == 1 and b"cannot write to standard output" in r.stderr
    r = subprocess.run([SLUICE, *map(str, args)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                       preexec_fn=lambda: os.close(1))
    assert r.returncode == 1 and b"cannot write to standard output" in r.stderr


def test_unknown_command_suggests_the_nearest():
    r = sluice("serv")
    assert r.returncode == 2 and "did you mean 'serve'?" in r.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command):
    r = sluice(command, "--help")
    assert r.returncode == 0 and r.stderr == ""
    assert r.stdout.startswith(f"Usage: sluice {command} ")
    assert all(len(line) <= 112 for line in r.stdout.splitlines())
    assert sluice("help", command).stdout == r.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_in_the_help_has_a_meaning(command):
    text = sluice(command, "--help").stdout
    options = re.findall(r"^  (?:-\w+, )?(--\S+)", text, re.M)
    assert options
    for line in text.splitlines():
        if re.match(r"  (-\w+, )?--", line):
            assert re.search(r"\S {2,}\S", line), line


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_a_usage_error(command):
    r = sluice(command, "model", "--hepl")
    assert r.returncode == 2
    assert "unknown option '--hepl'" in r.stderr and f"See 'sluice {command} --help'" in r.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_missing_model_is_a_usage_error(command):
    r = sluice(command)
    assert r.returncode == 2 and "MODEL" in r.stderr


@pytest.mark.parametrize("command", ["serve", "run", "bench", "inspect"])
def test_missing_file_is_named(command, tmp_path):
    path = tmp_path / "none.gguf"
    r = sluice(command, path)
    assert r.returncode == 1
    assert str(path) in r.stderr and "No such file" in r.stderr


@pytest.mark.parametrize("command", ["serve", "run", "bench", "inspect"])
@pytest.mark.parametrize("keep", [0, 3, 20, 5000, -1])
def test_truncated_file_is_refused(command, keep, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(TINY_GGUF.read_bytes()[:keep])
    r = sluice(command, path)
    assert r.returncode == 1 and str(path) in r.stderr
    assert "Sanitizer" not in r.stderr


def test_unknown_architecture_is_named(tmp_path):
    data = TINY_GGUF.read_bytes()
    i = data.index(b"general.architecture")
    j = data.index(b"llama", i)
    path = tmp_path / "other.gguf"
    path.write_bytes(data[:j] + b"mamba" + data[j + 5:])
    for command in ("serve", "run", "bench"):
        r = sluice(command, path, stdin="hi")
        assert r.returncode == 1 and "mamba" in r.stderr


def test_bad_value_names_option_and_bounds():
    r = sluice("serve", TINY, "--port", "70000")
    assert r.returncode == 2 and "--port" in r.stderr and "65535" in r.stderr


def test_a_reader_that_goes_away_is_not_a_crash():
    p = subprocess.Popen(f"{SLUICE} serve --help | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}", shell=True,
                         executable="/bin/bash")
    assert p.wait(20) in (0, 1)


# --- run ------------------------------------------------------------------------------------------------


def test_run_answers_one_prompt_the_same_each_time_and_from_a_pipe():
    args = ["run", TINY, "--temperature", "0", "--max-tokens", "12"]
    a, b = sluice(*args, "--prompt", "Hello there"), sluice(*args, stdin="Hello there")
    assert a.returncode == 0 and a.stdout == b.stdout and len(a.stdout) > 1
    assert a.stderr == ""


def test_run_seed_decides():
    def text(seed):
        return sluice("run", TINY, "--temperature", "1", "--seed", seed, "--max-tokens", "30", "-p", "Hi").stdout
    assert text(1) == text(1)
    assert len({text(n) for n in range(1, 6)}) > 1


def test_run_threads_and_levels_of_batches_do_not_change_the_answer():
    def text(*args):
        return sluice("run", TINY, "-t", "0", "-n", "24", "-p", "One two", *args).stdout
    assert text("--threads", "1") == text("--threads", "2") == text("--threads", "3")


def test_run_statistics_go_to_stderr():
    r = sluice("run", TINY, "-t", "0", "-n", "8", "-p", "Hi", "--stats")
    assert re.search(r"^\[8 tokens, [\d.]+ tok/s; first after .* stream [\d.]+ GB/s", r.stderr, re.M), r.stderr


def test_run_refuses_a_prompt_longer_than_the_context():
    r = sluice("run", TINY, "--ctx", "64", stdin="word " * 500)
    assert r.returncode == 1 and "context holds 64" in r.stderr


def test_run_survives_bytes_that_are_not_text():
    r = subprocess.run([SLUICE, "run", str(TINY), "-n", "4"], input=bytes(range(256)), capture_output=True, timeout=60)
    assert r.returncode == 0
    r.stdout.decode()


def test_run_empty_stdin_is_an_error():
    r = sluice("run", TINY, stdin="")
    assert r.returncode == 1 and "stdin is empty" in r.stderr


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(SLUICE, [SLUICE, *map(str, args)])
        self.text = ""
        self.at = 0

    def wait_for(self, pattern, seconds=60):
        """The text up to and with the next match of pattern after the last one."""
        limit = time.monotonic() + seconds
        while not (m := re.compile(pattern).search(self.text, self.at)):
            left = limit - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.text[self.at:]!r}"
            if select.select([self.fd], [], [], left)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    raise AssertionError(f"ended before {pattern!r}: {self.text[self.at:]!r}") from None
        begin, self.at = self.at, m.end()
        return self.text[begin:m.end()]

    def send(self, text):
        os.write(self.fd, text.encode())

    def end(self, seconds=30):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"does not end: {self.text[-500:]!r}")


def test_chat_in_a_terminal():
    t = Terminal("run", TINY, "-t", "0", "-n", "8", "--ctx", "512")
    t.wait_for(">>> ")
    t.send("Hello\n")
    first = t.wait_for(r"\[8 tokens.*?(\d+) prompt tokens.*\]")
    t.wait_for(">>> ")
    t.send("And again\n")  # the history is in the prompt
    second = t.wait_for(r"\[8 tokens.*?(\d+) prompt tokens.*\]")
    count = r"(\d+) prompt tokens"
    assert int(re.search(count, second)[1]) > int(re.search(count, first)[1]) + 8
    t.wait_for(">>> ")
    t.send("/clear\n")
    t.wait_for("forgotten")
    t.wait_for(">>> ")
    t.send("Hello\n")
    assert re.search(count, t.wait_for(r"\[8 tokens.*\]"))[1] == re.search(count, first)[1]
    t.wait_for(">>> ")
    t.send("/system You are a pirate.\n")
    t.wait_for("with this system message")
    t.wait_for(">>> ")
    t.send("/nonsense\n")
    t.wait_for("unknown command /nonsense")
    t.wait_for(">>> ")
    t.send("two \\\nlines\n")
    t.wait_for(r"\.\.\. ")
    t.wait_for(r"\[8 tokens")
    t.wait_for(">>> ")
    t.send("/exit\n")
    assert t.end() == 0


def test_full_context_forgets_the_oldest():
    t = Terminal("run", TINY, "-t", "0", "-n", "40", "--ctx", "160")
    for _ in range(6):
        t.wait_for(">>> ")
        t.send("Tell me more\n")
        if "forgotten" in t.wait_for(r"\[\d+ tokens.*\]"):
            break
    else:
        raise AssertionError(t.text)
    t.wait_for(">>> ")
    t.send("\x04")
    assert t.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program():
    model = smollm2()
    t = Terminal("run", model, "-t", "0", "--ctx", "2048")
    t.wait_for(">>> ")
    t.send("Tell me the whole history of Rome.\n")
    t.wait_for(r"\n")  # the echo
    t.wait_for(r"\w+ \w+ \w+ \w+")
    t.send("\x03")
    t.wait_for(r"; stopped\]", 10)
    t.wait_for(">>> ")
    t.send("What is 2+2? Answer with one number.\n")
    t.wait_for(r"\[\d+ tokens")
    t.wait_for(">>> ")
    t.send("\x03")
    t.wait_for("Ctrl-C once more")
    t.send("\x03")
    assert t.end() == 0


def test_a_real_model_answers():
    # The first words of transformers' answer over the same weights (tests/fixtures/real): each is likelier than the
    # next best token by more than 8-bit activations move.
    r = sluice("run", smollm2(), "-t", "0", "-n", "40", "-p", "Write a haiku about a river.")
    assert r.returncode == 0 and r.stdout.startswith("In the heart of the river"), r.stdout


# --- bench ------------------------------------------------------------------------------------------------


def test_bench_json():
    r = sluice("bench", TINY, "--json", "--batch", "1,8", "--prompt", "32", "--gen", "16", "--repeat", "2")
    assert r.returncode == 0, r.stderr
    d = json.loads(r.stdout)
    assert all(d["limits"][k] > 0 for k in ("read_gbs", "fp32_gflops", "int8_gops"))
    assert [row["batch"] for row in d["rows"]] == [1, 8]
    for row in d["rows"]:
        assert row["prefill_tok_s"] > 0 and row["step_ms"] > 0 and row["kv_bytes"] > 0
        assert row["decode_tok_s_min"] <= row["decode_tok_s"] <= row["decode_tok_s_max"]
        assert abs(row["batch"] * 1000 / row["step_ms_min"] / row["decode_tok_s_max"] - 1) < 1e-3
        assert 0 < row["read_share"] and 0 < row["compute_share"]
    # Law 1: eight requests stream the weights once, as one does.
    one, eight = d["rows"]
    assert one["weight_bytes"] == eight["weight_bytes"] > 0
    assert abs(eight["kv_bytes"] / one["kv_bytes"] - 8) < 0.01


def test_bench_limits_alone():
    r = sluice("bench", "--limits", "--threads", "1")
    assert r.returncode == 0 and re.search(r"read [\d.]+ GB/s", r.stdout)


@pytest.mark.parametrize("batch", ["", "0", "1,,2", "1,", "x", "1;2"])
def test_bench_bad_batch(batch):
    r = sluice("bench", TINY, f"--batch={batch}")
    assert r.returncode == 2 and "--batch" in r.stderr


def test_bench_longer_than_the_context_is_refused():
    r = sluice("bench", TINY, "--prompt", "100k")
    assert r.returncode == 1 and "context" in r.stderr


# --- the demo of `make run` -------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def demo(model, port):
    return subprocess.Popen([sys.executable, ROOT / "scripts/serve-demo", SLUICE, str(model), str(port)],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_demo_streams_one_answer_and_stays_until_it_is_stopped(how):
    port = free_port()
    p = demo(TINY, port)
    try:
        lines = []
        for line in p.stdout:
            lines.append(line)
            if "curl" in line:
                break
        text = "".join(lines)
        assert f"http://127.0.0.1:{port}/v1" in text, text
        assert "you:   Why is the sky blue" in text and re.search(r"\[\d+ prompt tokens, .* tokens/s\]", text), text
        time.sleep(0.3)
        assert p.poll() is None
        p.send_signal(how)
        rest = p.stdout.read()
        assert p.wait(30) == 0, rest
        with socket.socket() as s:  # the port is free again
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
    finally:
        if p.poll() is None:
            p.kill()


def test_demo_port_in_use():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        p = demo(TINY, port)
        out = p.communicate(timeout=30)[0]
        assert p.returncode == 1 and f"port {port} is in use" in out and f"PORT={port + 1}" in out
        r = sluice("serve", TINY, "--host", "127.0.0.1", "--port", port)
        assert r.returncode == 1 and str(port) in r.stderr and "in use" in r.stderr


def test_demo_model_that_does_not_load(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF junk")
    out = demo(path, free_port()).communicate(timeout=30)[0]
    assert str(path) in out and "ended before it was ready" in out
