"""Tiles of the attention kernel against those of its table, and the line for `kernels/tiles.py` where one is faster.

Not among the default sections. Every tile is compiled beforehand, in parallel; its result is held once against the
table's; a tile that the device cannot hold, or that fails, is left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import PagedBatch, attend, paged_batch
from benchmarks.gpu.results import Reporter
from benchmarks.gpu.tile_candidates import (
    GROUPS,
    ITEMSIZE,
    RESERVED,
    SMOKE_GROUPS,
    Group,
    Load,
    candidates,
    least_shared,
    programs_per_sm,
)
from benchmarks.gpu.tile_compiling import Job, Outcome, compile_all
from kernels.tiles import Tile, attention_tile, device_of

COMPILING_SHARE = 0.45
"""Of the section's time, at most."""
BOUND = 1e-2
"""On ‖out − the table's‖ / ‖the table's‖."""
WORTH = 1.02
"""A tile must be so much faster than the table's to take its place."""
TILE_SECONDS = 0.5
REPEATS = 10
REPEATS_AT_LAST = 30


def run(device: Device, report: Reporter, budget: Budget) -> None:
    sweep = _Sweep(device, report, budget)
    groups = SMOKE_GROUPS if device.is_smoke else GROUPS
    sweep.compile(groups)
    for group in groups:
        if budget.allows(len(group.loads) * TILE_SECONDS):
            sweep.measure(group)
        else:
            report.missing(_name(group), "no time left")


class _Sweep:
    def __init__(self, device: Device, report: Reporter, budget: Budget) -> None:
        self._device = device
        self._report = report
        self._budget = budget
        self._family = device_of(device.torch_device).family
        self._shared_of_sm = _shared_of_sm(device)
        self._outcomes: Mapping[Job, Outcome] = {}

    def compile(self, groups: tuple[Group, ...]) -> None:
        jobs = {
            Job(load.heads, load.decode, is_split, tile): None
            for group in groups
            for tile in self._tiles(group)
            for load in group.loads
            for is_split in ((False, True) if load.decode else (False,))
        }
        if self._device.is_smoke:
            self._outcomes = dict.fromkeys(jobs, Outcome(0))
            return
        before = self._budget.left
        self._outcomes = compile_all(list(jobs), COMPILING_SHARE * before)
        reached = sum(outcome.shared is not None for outcome in self._outcomes.values())
        note = f"{reached} of {len(jobs)} kernels"
        self._report.speed("compiling", before - self._budget.left, "s", note=note)

    def measure(self, group: Group) -> None:
        table_tile = attention_tile(self._family, group.head_dim, ITEMSIZE, group.decode)
        tiles, errors = self._usable(group)
        # By tile, its time over the table's, load by load.
        ratios: dict[Tile, list[float]] = {tile: [] for tile in tiles}
        num_loads = 0
        for load in group.loads:
            if not self._budget.allows((1 + len(ratios)) * TILE_SECONDS / 2):
                self._report.missing(str(load), "no time left")
                continue
            try:
                found = self._measure(load, table_tile, list(ratios))
            except torch.cuda.OutOfMemoryError:
                self._report.missing(str(load), "too large for the device's memory")
                continue
            finally:
                self._device.release()
            num_loads += 1
            ratios = {tile: [*ratios[tile], ratio] for tile, ratio in found.items()}
        if errors:
            kinds = ", ".join(f"{number} {kind}" for kind, number in errors.items())
            self._report.missing(f"{_name(group)}: tiles left out", kinds)
        if num_loads and ratios:
            self._advise(group, table_tile, {tile: math.exp(_mean_log(found)) for tile, found in ratios.items()})

    def _tiles(self, group: Group) -> list[Tile]:
        """The candidates that are not the table's."""
        table_tile = attention_tile(self._family, group.head_dim, ITEMSIZE, group.decode)
        own = replace(table_tile, programs_per_sm=1)
        found = candidates(group, is_smoke=self._device.is_smoke)
        return [
            tile
            for tile in found
            if tile != own and least_shared(tile, group.head_dim) + RESERVED <= self._shared_of_sm
        ]

    def _usable(self, group: Group) -> tuple[list[Tile], dict[str, int]]:
        """Tiles that every kernel of the group was compiled for, and how many were not, by error."""
        usable: list[Tile] = []
        errors: dict[str, int] = {}
        for tile in self._tiles(group):
            own = [
                outcome
                for job, outcome in self._outcomes.items()
                if job.tile == tile and job.decode == group.decode and job.heads.head_dim == group.head_dim
            ]
            shared = [outcome.shared for outcome in own if outcome.shared is not None]
            if len(shared) == len(own):
                programs = programs_per_sm(tile, group.decode, max(shared), self._shared_of_sm)
                usable.append(replace(tile, programs_per_sm=programs))
            else:
                error = next(outcome.error for outcome in own if outcome.shared is None)
                errors[error] = errors.get(error, 0) + 1
        return usable, errors

    def _measure(self, load: Load, table_tile: Tile, tiles: list[Tile]) -> dict[Tile, float]:
        """Of each tile that has a right result, its time over the table's."""
        length = 1 if load.decode else load.num_keys
        batch = paged_batch(self._device, load.heads, (length,) * load.batch, (load.num_keys,) * load.batch)
        expected = attend(batch, tile=table_tile)
        table_seconds = self._seconds(batch, load, table_tile, REPEATS)
        seconds: dict[Tile, float] = {}
        for tile in tiles:
            if not self._budget.allows(TILE_SECONDS):
                break
            try:
                error = _relative_error(attend(batch, tile=tile), expected)
                if not error <= BOUND:
                    self._report.failed(f"{load}: {tile}", f"differs from the table's by {error:.2g}")
                    continue
                seconds[tile] = self._seconds(batch, load, tile, REPEATS)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as failure:
                self._report.missing(f"{load}: {tile}", f"{type(failure).__name__}: {failure}"[:120])
        self._report_load(batch, load, table_tile, table_seconds, seconds)
        return {tile: found / table_seconds for tile, found in seconds.items()}

    def _report_load(
        self, batch: PagedBatch, load: Load, table_tile: Tile, table_seconds: float, seconds: Mapping[Tile, float]
    ) -> None:
        amount, unit, ceiling = self._work(load)
        case = f"{load}: the table's {_brief(table_tile)}"
        self._report.speed(case, amount / table_seconds, unit, against=ceiling, note=f"{table_seconds * 1e6:.0f} µs")
        if not seconds:
            return
        best = min(seconds, key=lambda tile: seconds[tile])
        # NOTE: once more, since the least of many times is a lucky one.
        again = self._seconds(batch, load, best, REPEATS_AT_LAST)
        note = f"{again * 1e6:.0f} µs; the best of {len(seconds)}"
        self._report.speed(f"{load}: {_brief(best)}", amount / again, unit, against=ceiling, note=note)

    def _work(self, load: Load) -> tuple[float, str, float]:
        """What a call moves in GB or computes in TFLOP, and the measured ceiling of either a second."""
        if load.decode:
            return load.heads.decode_bytes(load.batch, load.num_keys) / 1e9, "GB/s", self._device.copy_rate / 1e9
        operations = load.heads.prefill_operations(load.batch, load.num_keys)
        return operations / 1e12, "TFLOP/s", self._device.matmul_rate / 1e12

    def _seconds(self, batch: PagedBatch, load: Load, tile: Tile, repeats: int) -> float:
        return self._device.seconds(lambda: attend(batch, tile=tile), repeats=repeats, in_graph=load.decode)

    def _advise(self, group: Group, table_tile: Tile, means: Mapping[Tile, float]) -> None:
        """means: by tile, its time over the table's, the geometric mean over the group's loads."""
        best = min(means, key=lambda tile: means[tile])
        if means[best] * WORTH < 1:
            place = "first" if group.decode else "second"
            entry = f'_TABLE["{self._family}", {ITEMSIZE}][{group.head_dim}]'
            note = f"kernels/tiles.py: {place} of {entry} becomes {best}; then make test-full"
        else:
            note = f"the table's {_brief(table_tile)} stays; next is {_brief(best)}"
        self._report.speed(_name(group), 1 / means[best], "times as fast", note=note)


def _shared_of_sm(device: Device) -> int:
    """Bytes of shared memory of a multiprocessor."""
    if device.is_smoke:
        return 1 << 20
    return int(torch.cuda.get_device_properties(device.torch_device).shared_memory_per_multiprocessor)


def _name(group: Group) -> str:
    return f"tile of {'decode' if group.decode else 'prefill'}, head_dim {group.head_dim}"


def _brief(tile: Tile) -> str:
    return f"({tile.rows}, {tile.keys}, {tile.num_warps}, {tile.num_stages}, {tile.programs_per_sm})"


def _mean_log(values: list[float]) -> float:
    return sum(map(math.log, values)) / len(values)


def _relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())
