"""schemathesis reads /openapi.json and makes requests of it, meant and not meant: no 5xx, and every answer as described."""
import os
import subprocess
import sys
from pathlib import Path


def test_answers_are_as_described(start):
    server = start("--served-model-name", "tiny", "--max-model-len", 64, "--tool-call-parser", "hermes",
                   env={"VLLM_MAX_N_SEQUENCES": "4", "VLLM_MAX_COMPLETION_PROMPTS": "4"})
    done = subprocess.run(
        [Path(sys.executable).with_name("st"), "run", server.url + "/openapi.json", "--no-color", "--seed", "1", "--phases",
         "examples,coverage,fuzzing", "--max-examples", os.environ.get("SLUICE_SCHEMATHESIS_EXAMPLES", "8"), "--no-shrink",
         "--generation-deterministic", "--suppress-health-check", "all", "--request-timeout", "30",
         "--continue-on-failure", "--exclude-path", "/metrics", "--checks",
         "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, cwd=server.log_path.parent)
    assert done.returncode == 0, done.stdout[-6000:]
    assert server.request("GET", "/health")[0] == 200
    assert server.stop() == 0
