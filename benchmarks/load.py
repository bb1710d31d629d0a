"""Load on a running server: N streams at a time for a while, and what their readers see.

    python -m benchmarks.load --url http://localhost:8080 [--streams 16] [--seconds 30] [--prompt_words 100]
                              [--max_tokens 128] [--api_key KEY]

Prints requests and tokens a second, the time to the first token and the time between tokens (median and 95th
percentile), and how many requests were refused. Prompts differ from each other, so that no prefix is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field

import httpx

WORDS = (
    "sea",
    "mountain",
    "river",
    "city",
    "forest",
    "desert",
    "island",
    "valley",
    "bridge",
    "tower",
    "garden",
    "road",
)
RETRY_SECONDS = 1.0


@dataclass
class Seen:
    """What the readers saw; times in seconds."""

    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    tokens: int = 0
    finished: int = 0
    refused: int = 0


async def one_request(client: httpx.AsyncClient, body: dict[str, object], seen: Seen) -> None:
    started = last = time.perf_counter()
    tokens = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code in (429, 503):
            seen.refused += 1
            await asyncio.sleep(float(response.headers.get("retry-after", RETRY_SECONDS)))
            return
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            now = time.perf_counter()
            grown = event["usage"]["completion_tokens"] - tokens
            if event["choices"] and grown:
                if tokens == 0:
                    seen.first_token.append(now - started)
                else:
                    seen.between_tokens += [(now - last) / grown] * grown
                tokens += grown
                last = now
    seen.tokens += tokens
    seen.finished += 1


async def reader(client: httpx.AsyncClient, arguments: argparse.Namespace, number: int, end: float, seen: Seen) -> None:
    words = random.Random(number)
    while True:
        prompt = " ".join(words.choices(WORDS, k=arguments.prompt_words))
        await one_request(
            client,
            {
                "prompt": f"{number} {words.random()} {prompt}",
                "max_tokens": arguments.max_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
            seen,
        )
        if time.perf_counter() >= end:
            return


async def run(arguments: argparse.Namespace) -> tuple[Seen, float]:
    headers = {"authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {}
    limits = httpx.Limits(max_connections=arguments.streams)
    seen = Seen()
    async with httpx.AsyncClient(base_url=arguments.url, headers=headers, timeout=600.0, limits=limits) as client:
        # NOTE: not before, as making a client (its certificates) takes a while.
        started = time.perf_counter()
        end = started + arguments.seconds
        await asyncio.gather(*(reader(client, arguments, i, end, seen) for i in range(arguments.streams)))
    return seen, time.perf_counter() - started


def percentiles(name: str, seconds: list[float]) -> str:
    if len(seconds) < 2:
        return f"{name}: too few to tell"
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return f"{name}: p50 {1000 * cuts[9]:.0f} ms, p95 {1000 * cuts[18]:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--prompt_words", type=int, default=100)
    parser.add_argument("--max_tokens", type=int, default=128)
    parser.add_argument("--api_key")
    arguments = parser.parse_args()
    seen, seconds = asyncio.run(run(arguments))
    print(
        f"{arguments.streams} streams for {seconds:.0f} s: {seen.finished} requests, {seen.refused} refused, "
        f"{seen.finished / seconds:.2f} requests/s, {seen.tokens / seconds:.0f} tokens/s"
    )
    print(percentiles("time to first token", seen.first_token))
    print(percentiles("between tokens", seen.between_tokens))


if __name__ == "__main__":
    main()
