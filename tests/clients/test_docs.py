"""Every piece of docs/clients.md runs as it stands, against another port."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[2] / "docs/clients.md").read_text()
PIECES = re.findall(r"^```(python|bash)\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.fixture(scope="module")
def open_server(start):
    s = start("--served-model-name", "tiny")
    yield s
    assert s.stop() == 0


def test_there_are_pieces():
    assert len(PIECES) >= 7


@pytest.mark.parametrize("kind, code", PIECES, ids=[p[1].split("\n")[0][:40] for p in PIECES])
def test_piece(open_server, kind, code, tmp_path):
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{open_server.port}")
    script = tmp_path / ("piece.py" if kind == "python" else "piece.sh")
    script.write_text(code)
    done = subprocess.run([sys.executable if kind == "python" else "bash", script], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-3000:]
