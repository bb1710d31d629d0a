"""`benchmarks.gpu.tile_compiling`: processes that fail or hang cost their own tiles alone."""

from __future__ import annotations

import json
import os

import pytest
import triton

from benchmarks.gpu import tile_compiling as module
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import LLAMA_8B, Heads, PagedBatch
from benchmarks.gpu.tile_compiling import NOT_REACHED, Job, Outcome, compile_all
from kernels.tiles import Tile

JOBS = [Job(LLAMA_8B, True, False, Tile(16, keys, 4, 2, 1)) for keys in (16, 32, 64, 128)]
WRITE = "import json, os, sys, time\nfor job in json.loads(sys.argv[1]):\n    keys = job[3][1]\n"


@pytest.fixture(autouse=True)
def _two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def use(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(module, "WORKER", ("-c", WRITE + script))


def test_every_job_has_its_own_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch, "    print(json.dumps({'shared': keys} if keys < 128 else {'shared': None, 'error': 'too large'}))"
    )
    expected = {job: Outcome(job.tile.keys) for job in JOBS[:3]} | {JOBS[3]: Outcome(None, "too large")}
    assert compile_all(JOBS, 60) == expected


def test_a_process_that_dies_takes_its_own_tiles_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "    print(json.dumps({'shared': keys}), flush=True) if keys != 16 else os._exit(7)")
    outcomes = compile_all(JOBS, 60)
    assert outcomes[JOBS[0]] == Outcome(None, "its process ended with exit code 7")
    assert outcomes[JOBS[2]] is NOT_REACHED
    assert [outcomes[JOBS[i]] for i in (1, 3)] == [Outcome(32), Outcome(128)]


def test_processes_that_hang_are_ended_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "    time.sleep(600)")
    assert compile_all(JOBS, 0.0) == dict.fromkeys(JOBS, NOT_REACHED)


def test_a_line_that_was_not_written_to_its_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, """    print('{"shared":', end='', flush=True)\n    os._exit(1)""")
    errors = {outcome.error for outcome in compile_all(JOBS, 60).values()}
    assert errors == {"its process ended with exit code 1", NOT_REACHED.error}


def test_jobs_survive_the_way_to_their_process() -> None:
    words = json.dumps([module._to_json(job) for job in JOBS])
    assert [module._from_json(fields) for fields in json.loads(words)] == JOBS


def test_a_tile_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: the attention kernel is compiled where it is launched, and with splits another one after it."""
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    asked: list[tuple[int, int, int]] = []

    def launch(batch: PagedBatch, *, tile: Tile, num_splits: int) -> None:
        asked.append((batch.max_query_len, tile.keys, num_splits))
        if tile.keys == 64:
            raise RuntimeError("out of resource: shared memory\nRequired: 300000")
        for shared in (1000 * tile.keys, 512)[:num_splits]:
            triton.knobs.compilation.listener(src=None, metadata={"shared": shared}, cache_hit=False)

    monkeypatch.setattr(module, "attend", launch)
    jobs = [Job(Heads(4, 2, 16), keys > 32, keys == 32, Tile(16, keys, 4, 2, 1)) for keys in (16, 32, 64, 128)]
    assert list(module._launch(jobs, Device(is_smoke=True))) == [
        Outcome(16_000),
        Outcome(32_000),
        Outcome(None, "RuntimeError: out of resource: shared memory Required: 300000"),
        Outcome(128_000),
    ]
    assert asked == [(40, 16, 1), (40, 32, 2), (1, 64, 1), (1, 128, 1)]
