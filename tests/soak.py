#!/usr/bin/env python3
"""A soak: many clients, random cancels and hang-ups, a KV pool of 30 % of what they ask for.

    tests/soak.py [MODEL] [--sluice build/sluice] [--minutes 20] [--clients 24] [--seed 1]

Every job (prompt, sampling, length) has one right answer: what an idle server with a large pool gives. Under load, with
preemption, swapping, prefix-cache hits and neighbours that vanish, an answer must be that, and a stream that the client
cut must be its beginning. Afterwards no request runs or waits, no block is used, memory has not grown since the
first minutes, and SIGTERM drains what is left and ends with 0. Prints a line every half minute; exits 1 at the first
wrong token. `make test` runs it for some seconds."""
import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from async_server import Server

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/fixtures/models/qwen35-tiny"
KINDS = ("whole", "stream", "cut stream", "cut whole", "several")


async def stream(server, body, most):
    """Token ids of each choice of a stream, and whether it came to its end; hangs up once `most` events came."""
    ids, events = {}, 0
    async with contextlib.aclosing(server.events("/v1/completions", body)) as stream:
        async for event in stream:
            if event is None:
                return ids, True
            for choice in event["choices"]:
                ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
            events += 1
            if events == most:
                break
    return ids, False


def make_jobs(rng, vocab, longest, n):
    """Bodies of /v1/completions; prompts share beginnings, so that the prefix cache has work."""
    shared = [[rng.randrange(10, vocab) for _ in range(longest // 2)] for _ in range(4)]
    jobs = []
    for i in range(n):
        prompt = rng.choice(shared)[:rng.randrange(longest // 2)] if rng.random() < 0.7 else []
        prompt = prompt + [rng.randrange(10, vocab) for _ in range(rng.randrange(1, longest // 4))]
        job = {"prompt": prompt, "max_tokens": rng.randrange(1, longest // 3), "ignore_eos": True, "seed": i,
               "temperature": rng.choice([0, 0, 0.7, 1.2]), "top_p": rng.choice([1, 0.9]), "return_token_ids": True}
        if rng.random() < 0.2:
            job["repetition_penalty"] = 1.1
        if job["temperature"] > 0 and rng.random() < 0.3:
            job["n"] = rng.randrange(2, 4)
        jobs.append(job)
    return jobs


def ids_of(body):
    return [choice["token_ids"] for choice in json.loads(body)["choices"]]


class Soak:
    def __init__(self, args, server, jobs, right):
        self.args, self.server, self.jobs, self.right = args, server, jobs, right
        self.count = dict.fromkeys(KINDS, 0)
        self.tokens = 0
        self.end = time.monotonic() + 60 * args.minutes

    def check(self, job, index, ids, whole):
        expected = self.right[job][index]
        if ids != (expected if whole else expected[:len(ids)]):
            raise AssertionError(f"job {job}, answer {index}: {ids} is not {expected}: {self.jobs[job]}")
        self.tokens += len(ids)

    async def client(self, number):
        rng = random.Random(self.args.seed * 1000 + number)
        while time.monotonic() < self.end:
            job = rng.randrange(len(self.jobs))
            body, kind = dict(self.jobs[job]), rng.choice(KINDS)
            if kind == "whole":
                status, reply = await self.server.whole("POST", "/v1/completions", body)
                if status != 200:
                    raise AssertionError(f"job {job}: status {status}: {reply[:500]}")
                for index, ids in enumerate(ids_of(reply)):
                    self.check(job, index, ids, True)
            elif kind == "cut whole":  # hangs up while waiting
                _, writer = await self.server.open("POST", "/v1/completions", body)
                await asyncio.sleep(rng.random() * rng.choice([0.01, 0.2, 1]))
                writer.close()
            elif kind == "several":  # a body of two prompts
                other = next((i for i in range(len(self.jobs)) if i != job and self.same_but_prompt(i, job)), None)
                prompts = [body["prompt"]] + ([self.jobs[other]["prompt"]] if other is not None else [])
                status, reply = await self.server.whole("POST", "/v1/completions", {**body, "prompt": prompts, "n": 1})
                if status == 200 and body["temperature"] == 0:
                    self.check(job, 0, ids_of(reply)[0], True)
            else:
                most = rng.randrange(1, 30) if kind == "cut stream" else 1 << 30
                ids, done = await stream(self.server, body, most)
                if kind == "stream" and not done:
                    raise AssertionError(f"job {job}: the stream broke off")
                for index, got in ids.items():
                    self.check(job, index, got, done)
            self.count[kind] += 1
            if rng.random() < 0.1:
                await asyncio.sleep(rng.random())

    def same_but_prompt(self, a, b):
        x, y = dict(self.jobs[a], prompt=0, seed=0), dict(self.jobs[b], prompt=0, seed=0)
        return x == y

    async def report(self):
        early = None
        while True:
            await asyncio.sleep(30)
            m = await self.server.metrics()
            memory = self.server.resident()
            early = early or (memory if time.monotonic() > self.end - 50 * self.args.minutes else None)
            print(f"{sum(self.count.values())} requests, {self.tokens} tokens right, running "
                  f"{m['vllm:num_requests_running']:.0f}, waiting {m['vllm:num_requests_waiting']:.0f}, KV "
                  f"{100 * m['vllm:kv_cache_usage_perc']:.0f} %, preempted {m['vllm:num_preemptions_total']:.0f}, cached "
                  f"{m['vllm:prompt_tokens_cached_total']:.0f} of {m['vllm:prompt_tokens_total']:.0f}, {memory:.0f} MB", flush=True)
            if early and memory > 1.2 * early + 64:
                raise AssertionError(f"memory grew from {early:.0f} to {memory:.0f} MB")


async def right_answers(server, jobs):
    answers = []
    for job in jobs:
        status, reply = await server.whole("POST", "/v1/completions", job)
        if status != 200:
            sys.exit(f"status {status}: {reply[:500]}")
        answers.append(ids_of(reply))
    return answers


async def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", default=MODEL)
    p.add_argument("--sluice", default=os.environ.get("SLUICE_BIN") or str(ROOT / "build/sluice"))
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--clients", type=int, default=24)
    p.add_argument("--jobs", type=int, default=60)
    p.add_argument("--longest", type=int, default=400, help="tokens of the longest prompt and answer together, about")
    p.add_argument("--vocab", type=int, default=250, help="prompts are ids below this")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--flags", default="--swap-space 0.01", help="more flags of `sluice serve`")
    args = p.parse_args()
    jobs = make_jobs(random.Random(args.seed), args.vocab, args.longest, args.jobs)
    calm = Server(args.sluice, args.model, "--no-enable-prefix-caching", "--max-num-seqs", 4, "--max-model-len", 512)
    right = await right_answers(calm, jobs)
    calm.process.terminate()
    if calm.process.wait(60) != 0:
        sys.exit("the calm server did not end well:\n" + calm.text())

    # what all clients together would hold at once, on average, and 30 % of it
    demand = args.clients * sum((len(j["prompt"]) + j["max_tokens"] * j.get("n", 1)) for j in jobs) / len(jobs)
    blocks = max(int(0.3 * demand / 16), args.longest // 16 + 2)
    server = Server(args.sluice, args.model, "--num-gpu-blocks-override", blocks, "--max-num-seqs", args.clients,
                    "--max-num-batched-tokens", 128, "--max-model-len", 512, *args.flags.split())
    print(f"{len(jobs)} jobs, {args.clients} clients, {blocks} blocks for a demand of {demand / 16:.0f}", flush=True)
    soak = Soak(args, server, jobs, right)
    reporter = asyncio.create_task(soak.report())
    clients = asyncio.gather(*[soak.client(i) for i in range(args.clients)])
    await asyncio.wait([reporter, clients], return_when=asyncio.FIRST_COMPLETED)
    if reporter.done():
        reporter.result()  # raises what is wrong
    await clients
    reporter.cancel()

    end = time.monotonic() + 60
    while True:  # those that were cut leave before the next step
        m = await server.metrics()
        held = {k: m[k] for k in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                                  "sluice:swap_used_bytes")}
        if not any(held.values()):
            break
        if time.monotonic() > end:
            sys.exit(f"still held when all was over: {held}")
        await asyncio.sleep(0.1)
    job = max(range(len(jobs)), key=lambda i: jobs[i]["max_tokens"])
    last = asyncio.create_task(stream(server, jobs[job], 1 << 30))
    await asyncio.sleep(0.05)
    server.process.send_signal(signal.SIGTERM)
    ids, finished = await last
    for index, got in ids.items():
        soak.check(job, index, got, finished)
    code = server.process.wait(90)
    if code != 0 or not finished:
        sys.exit(f"the drained exit was {code}, the last stream {'finished' if finished else 'broke off'}:\n" + server.text()[-2000:])
    print(f"{soak.count}: {soak.tokens} tokens, none wrong; preempted {m['vllm:num_preemptions_total']:.0f}, swapped out "
          f"{m.get('sluice:swapped_out_total', 0):.0f}, nothing held, drained, exit 0")


asyncio.run(main())
