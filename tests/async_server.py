"""A `sluice serve` and its clients in one asyncio process, with the standard library only: what tests/soak.py and
bench/serve_bars.py put load on."""
import asyncio
import atexit
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Server:
    def __init__(self, binary, model, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="sluice-serve-")
        self.process = subprocess.Popen([binary, "serve", str(model), "--host", "127.0.0.1", "--port", "0", *map(str, flags)],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        atexit.register(self.process.kill)  # whatever happens here, no server stays behind
        end = time.monotonic() + 60
        while "startup complete" not in self.text():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit("the server did not start:\n" + self.text())
            time.sleep(0.02)
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)", self.text()).group(1))

    def text(self):
        return Path(self.log.name).read_text(errors="replace")

    def resident(self):
        """MB of memory that is really there."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0

    async def open(self, method, path, body=None):
        """Sends a request; returns the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        data = json.dumps(body).encode() if body is not None else b""
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return reader, writer

    async def whole(self, method, path, body=None):
        """(status, body) of a reply that isn't streamed."""
        reader, writer = await self.open(method, path, body)
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), rest

    async def events(self, path, body):
        """The events of a stream as they come, and None for its [DONE]; hangs up when it is closed before."""
        reader, writer = await self.open("POST", path, {**body, "stream": True})
        try:
            status = int((await reader.readline()).split()[1])
            if status != 200:
                raise RuntimeError(f"status {status}: {(await reader.read())[-500:]!r}")
            while line := await asyncio.wait_for(reader.readline(), 300):
                if line == b"data: [DONE]\n":
                    yield None
                    return
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"])
                    yield event
        finally:
            writer.close()

    async def metrics(self):
        """{name: value}, summed over labels."""
        out = {}
        for line in (await self.whole("GET", "/metrics"))[1].decode().splitlines():
            if line and line[0] != "#":
                name = re.split(r"[ {]", line, maxsplit=1)[0]
                out[name] = out.get(name, 0) + float(line.split()[-1])
        return out
