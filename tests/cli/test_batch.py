"""`sluice batch`: order, errors, and above all that a run which was cut short goes on as if nothing had happened.

Needs build/sluice (SLUICE names another binary). The model is the committed llama-tiny; all is greedy, so that a run
can be compared with another, and with the server.
"""
import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLUICE = os.environ.get("SLUICE", str(ROOT / "build" / "sluice"))
TINY = ROOT / "tests/fixtures/models/llama-tiny"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def command(folder, *args):
    return [SLUICE, "batch", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", TINY, *map(str, args)]


def batch(folder, *args, timeout=60):
    return subprocess.run(command(folder, *args), capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def line(name, body, url=CHAT, method="POST"):
    return {"custom_id": name, "method": method, "url": url, "body": body}


def requests(n, tokens=24):
    """Chats and completions of various lengths, the first of them the longest."""
    made = []
    for i in range(n):
        common = {"temperature": 0, "max_tokens": 4 * tokens if i == 0 else 1 + i * 7 % tokens, "ignore_eos": True}
        if i % 3 == 1:
            made.append(line(f"r-{i}", {"prompt": f"Number {i} is" + " very" * (i % 40), **common}, COMPLETION))
        else:
            made.append(line(f"r-{i}", {"messages": [{"role": "user", "content": f"Count to {i}"}], **common}))
    return made


def write(folder, lines):
    (folder / "in.jsonl").write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))


def read(folder):
    text = (folder / "out.jsonl").read_bytes()
    assert text == b"" or text.endswith(b"\n")
    return [json.loads(x) for x in text.splitlines()]


def lasting(answers):
    """What does not change from run to run: all but ids and the time."""
    for a in answers:
        body = a["response"]["body"]
        del a["id"], a["response"]["request_id"]
        if body:
            del body["id"], body["created"]
    return answers


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with 300 requests, and their answers in one undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, requests(300))
    r = batch(folder)
    assert r.returncode == 0, r.stderr
    return folder


# --- answers ------------------------------------------------------------------------------------------


def test_answers_are_in_the_input_s_order(whole):
    answers = read(whole)
    assert [a["custom_id"] for a in answers] == [f"r-{i}" for i in range(300)]
    assert len({a["id"] for a in answers}) == 300
    for a in answers:
        assert set(a) == {"id", "custom_id", "response", "error"} and a["error"] is None
        assert a["response"]["status_code"] == 200 and a["response"]["request_id"]
    lengths = [a["response"]["body"]["usage"]["completion_tokens"] for a in answers]
    assert lengths == [r["body"]["max_tokens"] for r in requests(300)]
    assert {a["response"]["body"]["object"] for a in answers} == {"chat.completion", "text_completion"}


@pytest.mark.parametrize("args", [("--max-num-seqs", 3, "--max-num-batched-tokens", 64),
                                  ("--max-inflight", 1), ("--no-enable-prefix-caching", "--threads", 1)])
def test_company_does_not_change_the_file(whole, tmp_path, args):
    write(tmp_path, requests(300)[:60])
    assert batch(tmp_path, *args).returncode == 0
    assert lasting(read(tmp_path)) == lasting(read(whole)[:60])


def test_answers_are_the_server_s(whole, tmp_path):
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([SLUICE, "serve", TINY, "--host", "127.0.0.1", "--port", "0"],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while "startup complete" not in (tmp_path / "log").read_text():
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.01)
        url = re.search(r"listening at (http://127\.0\.0\.1:\d+)", (tmp_path / "log").read_text())[1]
        for request, answer in list(zip(requests(300), lasting(read(whole))))[:30]:
            http = urllib.request.Request(url + request["url"], json.dumps(request["body"]).encode(),
                                          {"Content-Type": "application/json"})
            body = json.loads(urllib.request.urlopen(http, timeout=30).read())
            del body["id"], body["created"]
            assert answer["response"]["body"] == body
    finally:
        server.terminate()
        server.wait(timeout=60)


def test_the_other_protocols(tmp_path):
    common = {"temperature": 0, "ignore_eos": True}
    hello = [{"role": "user", "content": "Hello"}]
    write(tmp_path, [line("chat", {"messages": hello, "max_tokens": 5, **common}),
                     line("responses", {"input": "Hello", "max_output_tokens": 5, **common}, "/v1/responses"),
                     line("messages", {"model": "tiny", "messages": hello, "max_tokens": 5, **common}, "/v1/messages"),
                     line("chats", {"messages": [hello, hello], "max_tokens": 5, **common}, "/v1/chat/completions/batch"),
                     line("wrong", {"input": 1}, "/v1/responses"),
                     line("embeddings", {"input": "Hello"}, "/v1/embeddings")])
    assert batch(tmp_path, "--served-model-name", "tiny").returncode == 0
    chat, responses, messages, chats, wrong, embeddings = [a["response"]["body"] or a["error"]["error"] for a in read(tmp_path)]
    text = chat["choices"][0]["message"]["content"]
    assert responses["output"][0]["content"][0]["text"] == messages["content"][0]["text"] == text
    assert [c["message"]["content"] for c in chats["choices"]] == [text, text]
    assert wrong["param"] == "body.input" and embeddings["code"] == 404 and embeddings["param"] == "url"


def test_a_refused_request_gets_a_line_that_says_so(tmp_path):
    good = {"prompt": "a", "temperature": 0, "max_tokens": 3}
    lines = [line("fine", good, COMPLETION), line("stream", {**good, "stream": True}, COMPLETION),
             line("hot", {**good, "temperature": 9}, COMPLETION), line("empty", {}),
             line("other", {**good, "model": "gpt-4"}, COMPLETION), line("url", good, "/v1/embeddings"),
             line("verb", good, COMPLETION, "GET"), line("long", {"prompt": "a b" * 9000}, COMPLETION),
             line("named \"\u00e4\0", {**good, "model": "tiny"}, COMPLETION)]
    write(tmp_path, lines)
    r = batch(tmp_path, "--served-model-name", "tiny")
    assert r.returncode == 0 and "9 of 9 lines" in r.stderr and "7 of these answers are errors" in r.stderr
    answers = read(tmp_path)
    assert [a["custom_id"] for a in answers] == [x["custom_id"] for x in lines]
    assert [a["response"]["status_code"] for a in answers] == [200, 400, 400, 400, 404, 404, 405, 400, 200]
    for a in answers[1:-1]:
        assert a["response"]["body"] is None
        assert a["error"]["error"]["code"] == a["response"]["status_code"] and a["error"]["error"]["message"]
    assert "streamed" in answers[1]["error"]["error"]["message"]
    assert "maximum context length" in answers[7]["error"]["error"]["message"]


# --- input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad, why", [
    ('{"custom_id": "x", ', "not valid JSON"),
    ("[1]", "must be a JSON object, and this is a list"),
    ('{"custom_id": "x", "method": "POST", "url": "/v1/completions"}', "body must be an object, and it is missing"),
    ('{"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {}}', "custom_id must be a string"),
    ('{"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": ' + '{"a":' * 200 + "1" + "}" * 201,
     "nested more than"),
    ('{"custom_id": "r-1", "method": "POST", "url": "/v1/completions", "body": {}}', "the same custom_id \"r-1\""),
])
def test_a_malformed_line_stops_the_run_before_it_starts(tmp_path, bad, why):
    write(tmp_path, [*requests(3), "", bad, *requests(9)[5:]])
    r = batch(tmp_path)
    assert r.returncode == 1 and why in r.stderr
    assert re.search(r"in\.jsonl lines? (2 and )?5\b", r.stderr), r.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_blank_lines_and_a_missing_last_line_feed(tmp_path):
    lines = [json.dumps(x) for x in requests(3)]
    (tmp_path / "in.jsonl").write_text(f"\n{lines[0]}\r\n \t\r\n\n{lines[1]}\n{lines[2]}")
    assert batch(tmp_path).returncode == 0
    assert [a["custom_id"] for a in read(tmp_path)] == ["r-0", "r-1", "r-2"]


def test_an_input_of_many_blocks(tmp_path):
    """Lines that cross the blocks in which the file is read."""
    text = "z" * 300_000
    write(tmp_path, [line(f"{i}", {"prompt": "a", "max_tokens": 1, "temperature": 0, "user": text}, COMPLETION)
                     for i in range(12)])
    assert batch(tmp_path).returncode == 0
    assert [a["custom_id"] for a in read(tmp_path)] == [f"{i}" for i in range(12)]


def test_a_line_without_an_end_is_not_read_into_memory_for_ever(tmp_path):
    write(tmp_path, requests(1))
    os.truncate(tmp_path / "in.jsonl", 80 << 20)
    r = batch(tmp_path)
    assert r.returncode == 1 and "in.jsonl line 2 is longer than a line may be (64 MiB)" in r.stderr


def test_inputs_and_outputs_that_are_none(tmp_path):
    r = batch(tmp_path)
    assert r.returncode == 1 and "cannot open" in r.stderr
    write(tmp_path, ["", ""])
    assert "holds no request" in batch(tmp_path).stderr
    write(tmp_path, requests(2))
    r = subprocess.run([SLUICE, "batch", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "in.jsonl", TINY],
                       capture_output=True, text=True)
    assert r.returncode == 1 and "is the input" in r.stderr
    r = subprocess.run([SLUICE, "batch", "-i", tmp_path / "in.jsonl", "-o", "/dev/null", TINY],
                       capture_output=True, text=True)
    assert r.returncode == 1 and "is not a file" in r.stderr
    assert subprocess.run([SLUICE, "batch", "-i", "x", TINY], capture_output=True).returncode == 2


# --- going on -----------------------------------------------------------------------------------------


def start(folder, *args):
    """A run that one request at a time and one token of prompt a step make slow enough to be caught in it."""
    return subprocess.Popen(command(folder, "--max-num-seqs", 2, "--max-num-batched-tokens", 2, *args),
                            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_lines(folder, n, process):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        out = folder / "out.jsonl"
        if out.exists() and out.read_bytes().count(b"\n") >= n:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)
    raise AssertionError(f"no {n} lines")


def test_a_killed_run_goes_on_without_repeating_or_losing_a_line(whole, tmp_path):
    write(tmp_path, requests(300))
    caught = []
    for n in (1, 40, 90):
        process = start(tmp_path)
        wait_for_lines(tmp_path, n, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
        caught.append((tmp_path / "out.jsonl").read_bytes())
        assert 0 < caught[-1].count(b"\n") < 300
    r = batch(tmp_path)
    assert r.returncode == 0, r.stderr
    final = (tmp_path / "out.jsonl").read_bytes()
    for before in caught:  # what was written stays, to the byte
        assert final.startswith(before[:before.rindex(b"\n") + 1])
    assert lasting(read(tmp_path)) == lasting(read(whole))


@pytest.mark.parametrize("cut", [1, 9, 100, "line feed"])
def test_a_torn_last_line_is_cut_off_and_made_again(whole, tmp_path, cut):
    write(tmp_path, requests(300)[:20])
    lines = (whole / "out.jsonl").read_bytes().splitlines(keepends=True)
    torn = lines[7][:-1] if cut == "line feed" else lines[7][:cut]
    (tmp_path / "out.jsonl").write_bytes(b"".join(lines[:7]) + torn)
    r = batch(tmp_path)
    assert r.returncode == 0 and "7 of 20 lines are already in" in r.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(b"".join(lines[:7]))
    assert lasting(read(tmp_path)) == lasting(read(whole)[:20])


def test_a_finished_run_is_left_alone(whole):
    before = (whole / "out.jsonl").read_bytes()
    r = batch(whole)
    assert r.returncode == 0 and "300 of 300 lines are already in" in r.stderr and "weights" not in r.stderr
    assert (whole / "out.jsonl").read_bytes() == before


def test_lines_added_to_the_input_are_answered(whole, tmp_path):
    write(tmp_path, requests(300)[:5])
    assert batch(tmp_path).returncode == 0
    write(tmp_path, requests(300)[:8])
    assert batch(tmp_path).returncode == 0
    assert lasting(read(tmp_path)) == lasting(read(whole)[:8])


@pytest.mark.parametrize("there, why", [
    ("an essay", "ends in something that is no answer"), ("an essay\n", "line 1 is not an answer"),
    ('{"custom_id": "r-1"}\n', 'answers "r-1", but request 1'), ("[]\n", "line 1 is not an answer"),
    ('{"custom_id": "r-0"}\n{"custom_id": "r-1"}\n{"custom_id": "r-2"}\n', "has more lines than"),
])
def test_an_output_that_is_not_ours_is_left_as_it_is(tmp_path, there, why):
    write(tmp_path, requests(2))
    (tmp_path / "out.jsonl").write_text(there)
    r = batch(tmp_path)
    assert r.returncode == 1 and why in r.stderr and "--overwrite" in r.stderr
    assert (tmp_path / "out.jsonl").read_text() == there
    assert batch(tmp_path, "--overwrite").returncode == 0
    assert [a["custom_id"] for a in read(tmp_path)] == ["r-0", "r-1"]


def test_overwrite_keeps_the_old_answers_until_the_model_is_loaded(tmp_path):
    write(tmp_path, requests(2))
    (tmp_path / "out.jsonl").write_text("old\n")
    r = subprocess.run([SLUICE, "batch", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--overwrite",
                        tmp_path / "no-such-model.gguf"], capture_output=True, text=True)
    assert r.returncode == 1 and "no-such-model" in r.stderr
    assert (tmp_path / "out.jsonl").read_text() == "old\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_keeps_what_is_done(whole, tmp_path, number):
    write(tmp_path, requests(300))
    process = start(tmp_path)
    wait_for_lines(tmp_path, 5, process)
    process.send_signal(number)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 128 + number and "goes on from here" in log
    kept = read(tmp_path)
    assert 5 <= len(kept) < 300 and f"{len(kept)} of 300 lines are in" in log
    assert lasting(kept) == lasting(read(whole)[:len(kept)])


def test_two_runs_do_not_share_an_output(tmp_path):
    write(tmp_path, requests(3))
    with open(tmp_path / "out.jsonl", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        r = batch(tmp_path)
    assert r.returncode == 1 and "another run" in r.stderr


def test_a_full_disk_is_an_error_and_the_next_run_goes_on(whole, tmp_path):
    write(tmp_path, requests(300)[:30])
    limited = f"ulimit -f 8; trap '' XFSZ; exec {' '.join(map(str, command(tmp_path)))}"  # 8 KiB
    r = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert r.returncode == 1 and "cannot write to" in r.stderr
    assert (tmp_path / "out.jsonl").stat().st_size == 8192
    assert batch(tmp_path).returncode == 0
    assert lasting(read(tmp_path)) == lasting(read(whole)[:30])


# --- progress -----------------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then(tmp_path):
    write(tmp_path, requests(300))
    process = start(tmp_path, "--progress-interval", 0.03)
    wait_for_lines(tmp_path, 150, process)
    process.terminate()
    _, log = process.communicate(timeout=20)
    shown = re.findall(r"info  (\d+) of 300 lines \((\d+) %\), ([\d.]+) tok/s, (\S+) left\n", log)
    assert len(shown) >= 2 and "\r" not in log
    assert [int(n) for n, *_ in shown] == sorted(int(n) for n, *_ in shown)
    assert float(shown[-1][2]) > 0 and re.fullmatch(r"\d+:\d\d", shown[-1][3])


def test_progress_is_a_bar_on_a_terminal(tmp_path):
    write(tmp_path, requests(60))
    pid, terminal = pty.fork()
    if pid == 0:
        args = command(tmp_path, "--max-num-seqs", 2, "--max-num-batched-tokens", 2)
        os.execv(args[0], [os.fspath(a) for a in args])
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    bars = re.findall(r"\r\[(#*)(\.*)\] (\d+)/60 lines, [\d.]+ tok/s, \S+ left\x1b\[K", shown.decode())
    assert bars and all(len(full) + len(rest) == 30 for full, rest, _ in bars)
    assert all(len(full) == int(n) * 30 // 60 for full, _, n in bars)
