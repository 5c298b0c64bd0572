#!/usr/bin/env python3
"""What a server's users feel, as ratios measured in one run against one server that this program starts.

    bench/serve_bars.py MODEL [--sluice build/sluice] [--only turn,gap,goodput,overhead]

turn      a second turn over a 2,000-token conversation: time to its first token, to the first turn's (cold) one
gap       while a 4,000-token prompt is read, the 99th percentile of a neighbour's gaps between tokens, to the longest step that
          the token budget allows (the time of a step full of prompt)
goodput   tokens a second of answers that were completed at twice the load that fills the server, to the most it makes
overhead  at 32 running requests, the share of the time in which no step runs (scheduling, HTTP), and tokens a second beside
          `sluice bench` without any server

The clients are this one process (asyncio, the standard library only)."""
import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from async_server import Server  # noqa: E402

BUDGET = 256  # tokens a step while the gap is measured


class Loaded(Server):
    def __init__(self, args, *flags):
        super().__init__(args.sluice, args.model, "--max-model-len", 8192, *flags)

    async def metric(self, name):
        return (await self.metrics())[name]

    async def complete(self, prompt, n, times=None):
        """A streamed completion of exactly n tokens: (times of its tokens, cached prompt tokens, token ids)."""
        times, ids, usage = [] if times is None else times, [], {}
        body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0, "return_token_ids": True,
                "stream_options": {"include_usage": True}}
        async for event in self.events("/v1/completions", body):
            now = time.monotonic()
            usage.update((event or {}).get("usage") or {})
            for choice in (event or {}).get("choices", []):
                new = choice.get("token_ids") or []
                ids.extend(new)
                times.extend([now] * len(new))
        if len(ids) != n:
            sys.exit(f"{len(ids)} of {n} tokens came")
        return times, (usage.get("prompt_tokens_details") or {}).get("cached_tokens"), ids

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit("the server did not end well")


def prompt(n):
    return [random.randrange(300, 2000) for _ in range(n)]


async def second_turn(args):
    server = Loaded(args, "--enable-prompt-tokens-details")
    await server.complete(prompt(64), 4)  # warm
    results = []
    for _ in range(args.repeat):
        first = prompt(2000)
        begin = time.monotonic()
        times, _, ids = await server.complete(first, 40)
        cold = times[0] - begin
        begin = time.monotonic()
        times, cached, _ = await server.complete(first + ids + prompt(24), 4)
        results.append((100 * (times[0] - begin) / cold, cold, times[0] - begin, cached))
    server.stop()
    ratio, cold, warm, cached = min(results)
    return [("second turn over 2,000 tokens, first token, to the cold prefill's", f"{ratio:.1f} %", "at most 5 %",
             f"{warm:.2f} s to {cold:.2f} s, {cached} tokens found")]


async def neighbour_gap(args):
    server = Loaded(args, "--max-num-batched-tokens", str(BUDGET))
    times, _, _ = await server.complete(prompt(BUDGET), 2)
    steps = []
    for _ in range(3):  # a step that is full of prompt
        begin = time.monotonic()
        times, _, _ = await server.complete(prompt(BUDGET), 1)
        steps.append(times[0] - begin)
    step = sorted(steps)[1]
    gaps = []
    for _ in range(max(1, args.repeat - 1)):
        times = []
        neighbour = asyncio.create_task(server.complete(prompt(16), 3000, times))
        while len(times) < 4:
            await asyncio.sleep(0.01)
        begin = time.monotonic()
        long_times, _, _ = await server.complete(prompt(4000), 1)
        end = long_times[0]
        neighbour.cancel()
        await asyncio.gather(neighbour, return_exceptions=True)
        gaps += [b - a for a, b in zip(times, times[1:]) if b > begin and a < end]
    server.stop()
    gaps.sort()
    p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
    return [(f"99th percentile of a neighbour's gaps while 4,000 tokens are read (budget {BUDGET}), to the budget's step",
             f"{p99 / step:.2f} ×", "at most 2.5 ×", f"{1e3 * p99:.0f} ms to {1e3 * step:.0f} ms, {len(gaps)} gaps")]


async def goodput(args):
    """Peak: as many requests as run at once, each followed by the next. Overload: arrivals at twice that rate."""
    seqs, n_prompt, n_gen = 8, 48, 24
    server = Loaded(args, "--max-num-seqs", str(seqs))

    async def closed_loop(total):
        left = total

        async def worker():
            nonlocal left
            while left > 0:
                left -= 1
                await server.complete(prompt(n_prompt), n_gen)
        begin = time.monotonic()
        await asyncio.gather(*[worker() for _ in range(seqs)])
        return total / (time.monotonic() - begin)

    await closed_loop(seqs)
    peak = await closed_loop(6 * seqs)
    total, tasks, begin = 12 * seqs, [], time.monotonic()
    for i in range(total):
        await asyncio.sleep(max(0, begin + i / (2 * peak) - time.monotonic()))
        tasks.append(asyncio.create_task(server.complete(prompt(n_prompt), n_gen)))
    await asyncio.gather(*tasks)
    rate = total / (time.monotonic() - begin)
    server.stop()
    return [("goodput at twice the load, to the peak", f"{100 * rate / peak:.0f} %", "at least 95 %",
             f"{rate * n_gen:.1f} to {peak * n_gen:.1f} tok/s")]


async def overhead(args):
    seqs, n_gen = 32, 40
    server = Loaded(args, "--max-num-seqs", str(seqs))
    await server.complete(prompt(16), 4)
    best = None
    names = ("sluice:step_seconds_total", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")

    async def after_step():
        """Waits for the end of a step: (time, *metrics)."""
        first = await server.metric(names[1])
        while await server.metric(names[1]) == first:
            await asyncio.sleep(0.002)
        return time.monotonic(), *[await server.metric(m) for m in names]

    for _ in range(args.repeat):
        prompts = await server.metric(names[2])
        tasks = [asyncio.create_task(server.complete(prompt(16), n_gen)) for _ in range(seqs)]
        while await server.metric(names[2]) < prompts + 16 * seqs:  # from here on all decode
            await asyncio.sleep(0.05)
        before = await after_step()
        while await server.metric(names[1]) < before[2] + seqs * (n_gen // 2):
            await asyncio.sleep(0.2)
        wall, busy, tokens = (b - a for a, b in zip(before, (await after_step())[:3]))
        result = (max(0.0, 100 * (1 - busy / wall)), tokens / wall)
        best = result if best is None or result[0] < best[0] else best
        await asyncio.gather(*tasks)
    server.stop()
    done = subprocess.run([args.sluice, "bench", args.model, "--json", "--batch", str(seqs), "--prompt", "16", "--gen",
                           str(n_gen), "--repeat", "2"], stdout=subprocess.PIPE, text=True, check=True)
    alone = json.loads(done.stdout)["rows"][0]["decode_tok_s"]
    return [("scheduler and HTTP at 32 running requests: time outside steps", f"{best[0]:.1f} %", "under 2 %", ""),
            ("tokens a second through HTTP, to `sluice bench`", f"{100 * best[1] / alone:.0f} %", "",
             f"{best[1]:.1f} and {alone:.1f} tok/s")]


async def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--sluice", default=str(ROOT / "build/sluice"))
    p.add_argument("--repeat", type=int, default=2)
    p.add_argument("--only", default="turn,gap,goodput,overhead")
    args = p.parse_args()
    parts = {"turn": second_turn, "gap": neighbour_gap, "goodput": goodput, "overhead": overhead}
    print("| what | measured | bar | |\n| --- | --- | --- | --- |", flush=True)
    for name in args.only.split(","):
        for row in await parts[name](args):
            print("| " + " | ".join(row) + " |", flush=True)


asyncio.run(main())
