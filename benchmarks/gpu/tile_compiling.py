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
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from benchmarks.gpu.paged_batch import Heads
from kernels.tiles import Tile

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = ("-m", "benchmarks.gpu.tile_compiling")


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
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for i in range(num_workers):
            own, out = jobs[i::num_workers], Path(folder, str(i))
            words = [sys.executable, *WORKER, json.dumps([_to_json(job) for job in own])]
            with out.open("wb") as file:
                workers.append((subprocess.Popen(words, cwd=REPOSITORY, stdout=file), own, out))
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


def _launch(jobs: Iterable[Job]) -> None:
    """Writes a line for each job, in order."""
    import torch
    import triton

    from benchmarks.gpu.device import Device
    from benchmarks.gpu.paged_batch import attend, paged_batch

    shared: list[int] = []
    triton.knobs.compilation.listener = lambda *, metadata, **_: shared.append(int(metadata["shared"]))
    device = Device(is_smoke=False)
    for job in jobs:
        length = 1 if job.decode else 40
        shared.clear()
        try:
            batch = paged_batch(device, job.heads, (length,), (40,))
            attend(batch, tile=job.tile, num_splits=2 if job.is_split else 1)
            torch.cuda.synchronize()
            # NOTE: the second kernel, which adds up splits, needs less.
            outcome = {"shared": max(shared)}
        except Exception as error:
            outcome = {"shared": None, "error": f"{type(error).__name__}: {error}"[:120].replace("\n", " ")}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _launch(_from_json(fields) for fields in json.loads(sys.argv[1]))
