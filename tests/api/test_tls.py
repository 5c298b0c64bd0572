"""TLS: the same server behind OpenSSL. What could differ from plain sockets is tried again: keep-alive, streams, hang-ups,
clients that are slow or speak no TLS, and files that are wrong at the start or change later."""
import http.client
import json
import resource
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import openai
import pytest

from conftest import BINARY, TINY, read_all

BODY = {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}


def make_certificate(folder, name, ca=None):
    """(certificate, key) for localhost, signed by itself or by `ca`."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    signer = ["-CA", ca[0], "-CAkey", ca[1]] if ca else []
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", key, "-out", cert, *signer], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder, name) for name in ("one", "two", "ca")} | {
        "client": make_certificate(folder, "client", make_certificate(folder, "ca2")),
        "ca2": (folder / "ca2.pem", folder / "ca2.key")}


@pytest.fixture(scope="module")
def tls(start, files):
    s = start("--ssl-certfile", files["one"][0], "--ssl-keyfile", files["one"][1], "--keep-alive-timeout", 3)
    assert "listening at https://" in s.log()
    yield s
    assert s.stop() == 0


def context(files, name="one"):
    return ssl.create_default_context(cafile=str(files[name][0]))


def fetch(server, trust, method="GET", path="/health", body=None):
    """(status, body) of one request on a connection of its own."""
    c = http.client.HTTPSConnection("127.0.0.1", server.port, context=trust, timeout=60)
    c.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    reply = c.getresponse()
    data = reply.read()
    c.close()
    return reply.status, data


def dial(server, files, name="one"):
    return context(files, name).wrap_socket(server.connect(), server_hostname="localhost")


def test_sdk(tls, files):
    client = openai.OpenAI(base_url=tls.url + "/v1", api_key="none", max_retries=0,
                           http_client=openai.DefaultHttpxClient(verify=context(files)))
    model = client.models.list().data[0].id
    whole = client.completions.create(model=model, **BODY).choices[0].text
    pieces = client.completions.create(model=model, stream=True, **BODY)
    assert "".join(p.choices[0].text for p in pieces) == whole


def test_keep_alive_and_large_bodies(tls, files):
    c = http.client.HTTPSConnection("127.0.0.1", tls.port, context=context(files), timeout=30)
    text = "lorem ipsum " * 100_000  # 1.2 MB: many records
    for _ in range(3):
        c.request("POST", "/tokenize", json.dumps({"prompt": text}), {"Content-Type": "application/json"})
        reply = c.getresponse()
        assert reply.status == 200
        body = json.loads(reply.read())
        assert len(body["tokens"]) == body["count"] > 100_000
        port = c.sock.getsockname()[1]
    c.request("GET", "/health")
    assert c.getresponse().status == 200 and c.sock.getsockname()[1] == port
    c.close()


def test_farewell(tls, files):
    """An answer that ends with its connection ends with a farewell, so no one can cut it short unseen."""
    with dial(tls, files) as s:
        s.suppress_ragged_eofs = False
        s.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        data = b""
        while piece := s.recv(4096):
            data += piece
        assert b'{"version"' in data


def test_refusal_before_the_body_is_in(tls, files):
    with dial(tls, files) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: 999999999999\r\n\r\n" + b"x" * 100_000)
        assert read_all(s).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("farewell", [False, True])
def test_hang_up(tls, files, farewell):
    body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
    s = dial(tls, files)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert s.recv(100).startswith(b"HTTP/1.1 200")
    if farewell:
        try:
            s.unwrap()
        except (OSError, ssl.SSLError):
            pass  # data was still on its way
    s.close()
    end = time.monotonic() + 10
    while metric(tls, files, "vllm:num_requests_running") > 0:
        assert time.monotonic() < end, "it runs on without a client"
        time.sleep(0.005)


def metric(tls, files, name):
    return tls.metric_of(name, fetch(tls, context(files), path="/metrics")[1])


def test_others_are_not_disturbed(tls, files):
    """Plain HTTP, garbage, silence and half a handshake: each loses its own connection and nothing else."""
    with tls.connect() as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" not in read_all(plain)
    with tls.connect() as garbage:
        garbage.sendall(bytes(range(256)) * 40)
        read_all(garbage)
    hello = ssl.MemoryBIO()
    half = context(files).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    try:
        half.do_handshake()
    except ssl.SSLWantReadError:
        pass
    with tls.connect() as silent, tls.connect() as slow:
        slow.sendall(hello.read()[:50])
        begin = time.monotonic()
        assert read_all(silent) == b"" and read_all(slow) == b""
        assert time.monotonic() - begin < 10  # --keep-alive-timeout 3
    assert fetch(tls, context(files))[0] == 200


def test_slow_reader(start, files):
    """A client that stops reading is dropped when its buffer is full or its time is over; others go on."""
    s = start("--ssl-certfile", files["one"][0], "--ssl-keyfile", files["one"][1])
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", s.port))
    slow = context(files).wrap_socket(raw, server_hostname="localhost")
    body = json.dumps({"prompt": "x", "n": 16, "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    s.wait_for_log("its client does not read")
    slow.close()
    assert fetch(s, context(files))[0] == 200
    assert s.stop() == 0


def test_many_at_once(tls, files):
    done = []

    def ask():
        done.append(json.loads(fetch(tls, context(files), "POST", "/v1/completions", BODY)[1])["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(done) == 16 and len(set(done)) == 1


def test_a_thousand_idle_connections(start, files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"no more than {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    s = start("--ssl-certfile", files["one"][0], "--ssl-keyfile", files["one"][1])
    before = s.metric_of("process_resident_memory_bytes", fetch(s, context(files), path="/metrics")[1])
    trust = context(files)
    idle = [trust.wrap_socket(s.connect(), server_hostname="localhost") for _ in range(1000)]
    for c in idle:
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for c in idle:
        assert c.recv(4096).startswith(b"HTTP/1.1 200")
    begin = time.monotonic()
    status, page = fetch(s, trust, path="/metrics")
    assert status == 200 and time.monotonic() - begin < 5
    assert s.metric_of("process_open_fds", page) > 1000
    each = 1e6 if b"__asan_init" in Path(BINARY).read_bytes() else 1e5  # a sanitizer's allocator keeps 300 KB
    assert s.metric_of("process_resident_memory_bytes", page) - before < 1000 * each
    for c in idle:
        c.close()
    assert s.stop() == 0


def test_client_certificates(start, files):
    s = start("--ssl-certfile", files["one"][0], "--ssl-keyfile", files["one"][1], "--ssl-ca-certs", files["ca2"][0],
               "--ssl-cert-reqs", 2)
    with pytest.raises(OSError):
        fetch(s, context(files))
    with_one = context(files)
    with_one.load_cert_chain(*files["client"])
    assert fetch(s, with_one)[0] == 200
    with_other = context(files)
    with_other.load_cert_chain(*files["two"])
    with pytest.raises(OSError):
        fetch(s, with_other)
    assert s.stop() == 0


def test_refresh(start, files, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name):
        for target, source in zip((cert, key), files[name]):
            target.write_bytes(source.read_bytes())

    put("one")
    s = start("--ssl-certfile", cert, "--ssl-keyfile", key, "--enable-ssl-refresh")
    dial(s, files).close()
    time.sleep(1.1)
    cert.write_text("nothing of use")  # half way through: the old pair goes on
    dial(s, files).close()
    time.sleep(1.1)
    put("two")
    dial(s, files, "two").close()
    assert "is not usable, the old one stays" in s.log() and "was read again" in s.log()
    assert s.stop() == 0


@pytest.mark.parametrize("args, says", [
    (["--ssl-certfile", "/nowhere.pem"], "--ssl-certfile: cannot open /nowhere.pem: No such file"),
    (["--ssl-certfile", "{one}"], "must hold the key too"),
    (["--ssl-certfile", "{one}", "--ssl-keyfile", "/nowhere.key"], "--ssl-keyfile: cannot open /nowhere.key"),
    (["--ssl-certfile", "{one}", "--ssl-keyfile", "{two_key}"], "--ssl-keyfile"),
    (["--ssl-certfile", "{one_key}", "--ssl-keyfile", "{one_key}"], "--ssl-certfile"),
    (["--ssl-certfile", "{one}", "--ssl-keyfile", "{one_key}", "--ssl-ciphers", "ROT13"], "--ssl-ciphers ROT13"),
    (["--ssl-certfile", "{one}", "--ssl-keyfile", "{one_key}", "--ssl-cert-reqs", "2"], "needs --ssl-ca-certs"),
    (["--ssl-keyfile", "{one_key}"], "--ssl-keyfile needs --ssl-certfile"),
    (["--ssl-certfile", "{one}", "--ssl-keyfile", "{one_key}", "--ssl-ca-certs", "{one_key}", "--ssl-cert-reqs", "1"],
     "--ssl-ca-certs"),
])
def test_wrong_files(files, args, says):
    names = {"one": files["one"][0], "one_key": files["one"][1], "two_key": files["two"][1]}
    done = subprocess.run([BINARY, "serve", TINY, "--host", "127.0.0.1", "--port", "0", *[a.format(**names) for a in args]],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode in (1, 2) and says in done.stderr, done.stderr
