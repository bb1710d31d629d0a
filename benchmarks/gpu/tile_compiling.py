"""Compiles the attention kernel for many tiles, in as many processes as there are CPUs, into Triton's cache on disk.

Each process launches the kernel on a few tokens, so that what it is compiled for is what a real launch asks for, and a
tile that the device has not the resources for shows. A process that a launch kills takes only its own tiles with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import torch
import triton

from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import Heads, attend, paged_batch
from kernels.tiles import Tile

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = ("-m", "benchmarks.gpu.tile_compiling")
NUM_TOKENS = 40
"""Keys of the sequence that is launched, and queries where it is no decode."""


@dataclass(frozen=True, slots=True)
class Job:
    """One way to compile the kernel."""

    heads: Heads
    decode: bool
    is_split: bool
    tile: Tile


@dataclass(frozen=True, slots=True)
class Outcome:
    """shared: bytes of shared memory of a program; None where the tile cannot be used, and `error` says why."""

    shared: int | None
    error: str = ""


NOT_REACHED = Outcome(None, "not compiled in time")


def compile_all(jobs: Sequence[Job], seconds: float) -> dict[Job, Outcome]:
    """An outcome for each of the jobs, which must differ. Takes `seconds` at most; what is not done is NOT_REACHED."""
    end = time.monotonic() + seconds
    outcomes = dict.fromkeys(jobs, NOT_REACHED)
    num_workers = min(len(jobs), len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = []
        for i in range(num_workers):
            own, out = jobs[i::num_workers], Path(folder, str(i))
            words = [sys.executable, *WORKER, json.dumps([_to_json(job) for job in own])]
            with out.open("wb") as file:
                process = stack.enter_context(subprocess.Popen(words, cwd=REPOSITORY, stdout=file))
            stack.callback(process.kill)
            workers.append((process, own, out))
        for process, own, out in workers:
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = 0
            found = [Outcome(**json.loads(line)) for line in _whole_lines(out)]
            outcomes |= zip(own, found, strict=False)
            if code != 0 and len(found) < len(own):
                outcomes[own[len(found)]] = Outcome(None, f"its process ended with exit code {code}")
    return outcomes


def _whole_lines(path: Path) -> list[str]:
    """Those that a process has written to their end."""
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _to_json(job: Job) -> list[object]:
    return [astuple(job.heads), job.decode, job.is_split, astuple(job.tile)]


def _from_json(fields: list) -> Job:
    heads, decode, is_split, tile = fields
    return Job(Heads(*heads), decode, is_split, Tile(*tile))


def _launch(jobs: Iterable[Job], device: Device) -> Iterator[Outcome]:
    """An outcome for each job, in order."""
    shared: list[int] = []
    triton.knobs.compilation.listener = lambda *, metadata, **_: shared.append(int(metadata["shared"]))
    for job in jobs:
        shared.clear()
        try:
            batch = paged_batch(device, job.heads, (1 if job.decode else NUM_TOKENS,), (NUM_TOKENS,))
            attend(batch, tile=job.tile, num_splits=2 if job.is_split else 1)
            if not device.is_smoke:
                torch.cuda.synchronize()
            # NOTE: the kernel that adds up splits, where it is compiled with this one, needs less.
            yield Outcome(max(shared))
        except Exception as error:
            yield Outcome(None, f"{type(error).__name__}: {error}"[:120].replace("\n", " "))


if __name__ == "__main__":
    parent = os.getppid()
    for outcome in _launch(map(_from_json, json.loads(sys.argv[1])), Device(is_smoke=False)):
        print(json.dumps(asdict(outcome)), flush=True)
        if os.getppid() != parent:
            break  # the sweep itself was ended
