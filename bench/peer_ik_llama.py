#!/usr/bin/env python3
"""ik_llama.cpp (PyPI: ik-llama-cpp-python) as a peer of `sluice bench --against`: one JSON line as llama-batched-bench
writes it. Runs under the Python that has the wheel. Usage: peer_ik_llama.py MODEL THREADS PROMPT GEN (batch 1 only)."""
import json
import random
import sys
import time

from ik_llama_cpp._internals import make_batch_range, make_batch_single
from ik_llama_cpp.llama import IkLlama

model, threads, n_prompt, n_gen = sys.argv[1], *map(int, sys.argv[2:5])
llm = IkLlama(model, n_ctx=n_prompt + n_gen + 64, n_threads=threads, verbose=False)
context = llm._context


def run(tokens):
    """Seconds of the prompt in chunks of ubatch, and of n_gen steps of one token each; no sampling."""
    context.kv_cache_clear()
    begin = time.monotonic()
    for i in range(0, len(tokens), context._n_ubatch):
        chunk = tokens[i:i + context._n_ubatch]
        context.decode(make_batch_range(chunk, pos_start=i, logits_last=i + len(chunk) == len(tokens)))
    middle = time.monotonic()
    for i in range(n_gen):
        context.decode(make_batch_single(tokens[i % len(tokens)], len(tokens) + i))
    return middle - begin, time.monotonic() - middle


tokens = [random.randrange(10, 1000) for _ in range(n_prompt)]
run(tokens)  # warm up
prefill, decode = run(tokens)
print(json.dumps({"speed_pp": n_prompt / prefill, "speed_tg": n_gen / decode}))
