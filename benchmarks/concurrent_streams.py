"""How much sooner do N concurrent streams finish than the same N one after the other, and are they equal?

Starts the real server (float32 and greedy, so that equality is exact) and drives it over OpenAI's streaming API.

    python -m benchmarks.concurrent_streams [--streams 32] [--max_tokens 64] [--rounds 3] [flags of the server]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time

import httpx

from tests.e2e.server import Server

SUBJECTS = ("sea", "mountain", "river", "city", "forest", "desert", "island", "valley")


def prompts(count: int, round_number: int) -> list[str]:
    """Prompts of different lengths, new in each round so that no prefix is cached."""
    return [
        f"[{round_number}/{i}] "
        + "Once upon a time there was a traveller. " * (i % 5)
        + f"He came to the {SUBJECTS[i % 8]} and"
        for i in range(count)
    ]


async def stream_one(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> tuple[str, float]:
    """The text and the seconds to its first token."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    started = time.perf_counter()
    first = 0.0
    text = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                text.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(text), first


async def one_round(url: str, number: int, count: int, max_tokens: int) -> tuple[float, float, float]:
    """Seconds one after the other, seconds together, median time to first token together."""
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=httpx.Limits(max_connections=count)) as client:
        started = time.perf_counter()
        alone = [await stream_one(client, prompt, max_tokens) for prompt in prompts(count, 2 * number)]
        serial = time.perf_counter() - started
        started = time.perf_counter()
        await asyncio.gather(*(stream_one(client, prompt, max_tokens) for prompt in prompts(count, 2 * number + 1)))
        together = time.perf_counter() - started
        again = await asyncio.gather(*(stream_one(client, prompt, max_tokens) for prompt in prompts(count, 2 * number)))
    differing = sum(a[0] != b[0] for a, b in zip(alone, again, strict=True))
    if differing:
        sys.exit(f"{differing} of {count} streams differ from their own run alone")
    return serial, together, statistics.median(first for _, first in again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max_tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments, rest = parser.parse_known_args()
    flags = dict(zip((flag.removeprefix("--") for flag in rest[::2]), rest[1::2], strict=True))
    factors = []
    with Server(**{"dtype": "float32", **flags}) as server:
        for number in range(arguments.rounds):
            serial, together, first = asyncio.run(
                one_round(server.http_url, number, arguments.streams, arguments.max_tokens)
            )
            tokens = arguments.streams * arguments.max_tokens
            factors.append(serial / together)
            print(
                f"round {number}: serial {serial:.1f} s ({tokens / serial:.0f} tok/s), together {together:.1f} s "
                f"({tokens / together:.0f} tok/s), factor {serial / together:.2f}, "
                f"TTFT together {first * 1000:.0f} ms; all {arguments.streams} equal",
                flush=True,
            )
    print(f"median factor {statistics.median(factors):.2f}")


if __name__ == "__main__":
    main()
