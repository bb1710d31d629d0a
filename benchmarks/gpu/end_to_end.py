"""One model end to end on random weights: the engine against its bytes, and transformers in the same run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.compilations import Compilations
from benchmarks.gpu.device import Device
from benchmarks.gpu.engine_driver import SAMPLED, CoreDriver, EngineDriver, PoolTooSmallError
from benchmarks.gpu.models import config_of, shape_of, write_config
from benchmarks.gpu.results import Reporter, Target

STEP_TARGET = Target(at_most=1.35)
IDLE_TARGET = Target(at_most=0.05)
TARGET_MODEL = "llama-3.1-8b"
TARGET_BATCH = 32
PEER_ERRORS = (RuntimeError, AttributeError, TypeError, ValueError, TimeoutError)
"""Out of memory or time, or another release of transformers: no fault of the engine."""


@dataclass(frozen=True, slots=True)
class _Load:
    """prompt_tokens: of each sequence that decodes. steps: of the engine; peer_steps: of transformers."""

    batches: tuple[int, ...] = (32, 1, 256)
    prompt_tokens: int = 512
    steps: int = 64
    peer_steps: int = 24
    first_token_prompts: tuple[int, ...] = (2048, 8192)
    max_model_len: int = 9216


SMOKE_LOAD = _Load(batches=(2,), prompt_tokens=8, steps=2, peer_steps=2, first_token_prompts=(20,), max_model_len=48)


@dataclass(slots=True)
class _Found:
    """What the engine did, for transformers to be held against."""

    decode: dict[int, float] = field(default_factory=dict)
    first_token: dict[int, float] = field(default_factory=dict)


def run(name: str, device: Device, report: Reporter, budget: Budget) -> None:
    config = config_of(name, is_smoke=device.is_smoke)
    load = SMOKE_LOAD if device.is_smoke else _Load()
    found = _Found()
    # NOTE: measured before the KV pool takes most of the memory.
    assert device.copy_rate > 0
    device.release()
    _Engine(name, device, report, budget, config, load, found).run()
    device.release()
    _Peer(device, report, budget, config, load, found).run()


class _Engine:
    def __init__(
        self,
        name: str,
        device: Device,
        report: Reporter,
        budget: Budget,
        config: dict[str, Any],
        load: _Load,
        found: _Found,
    ) -> None:
        self._device = device
        self._report = report
        self._budget = budget
        self._config = config
        self._load = load
        self._found = found
        self._has_targets = name == TARGET_MODEL

    def run(self) -> None:
        """NOTE: what has a target comes first, should time run out."""
        driver = self._start()
        compilations = Compilations()
        overlapped, plain = driver.core(overlap=True), driver.core(overlap=False)
        batch = TARGET_BATCH if TARGET_BATCH in self._load.batches else self._load.batches[0]
        for one in self._load.batches:
            self._try(10, f"engine: decode, batch {one}", lambda b=one: self._decode(driver, overlapped, b))
        self._try(5, "engine: idleness", lambda: self._idle(overlapped, batch, "overlap", has_target=True))
        for num_tokens in self._load.first_token_prompts:
            self._try(5, f"engine: TTFT of {num_tokens} tokens", lambda n=num_tokens: self._first_token(overlapped, n))
        self._try(10, "engine, no overlap", lambda: self._without_overlap(plain, batch))
        self._try(5, "engine, top-k and top-p", lambda: self._sampled(overlapped, batch))
        names = ", ".join(sorted(set(compilations.names)))
        self._report.check("engine: kernels compiled while serving", len(compilations.names), 0, "kernels", names)

    def _try(self, seconds: float, case: str, measure: Callable[[], None]) -> None:
        if not self._budget.allows(seconds):
            self._report.missing(case, "no time left")
            return
        try:
            measure()
        except PoolTooSmallError as error:
            self._report.missing(case, str(error))

    def _start(self) -> EngineDriver:
        load = self._load
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            write_config(self._config, Path(folder))
            driver = EngineDriver(
                self._device,
                Path(folder),
                dtype="float32" if self._device.is_smoke else "bfloat16",
                load_format="dummy",
                max_model_len=load.max_model_len,
                max_num_seqs=max(load.batches),
                **({"num_kv_blocks": 16, "max_num_batched_tokens": 16} if self._device.is_smoke else {}),
            )
        seconds = time.perf_counter() - started
        note = f"random weights, {driver.info.num_blocks} KV blocks of {driver.info.block_size}"
        self._report.speed("engine: start", seconds, "s", note=note)
        return driver

    def _decode(self, driver: EngineDriver, core: CoreDriver, batch: int) -> None:
        times = core.decode(batch, self._load.prompt_tokens, self._load.steps)
        self._found.decode[batch] = times.tokens_per_second
        self._report.speed(f"engine: decode, batch {batch}", times.tokens_per_second, "tok/s")
        itemsize = 4 if self._device.is_smoke else 2
        shape = shape_of(self._config)
        num_bytes = shape.step_bytes(driver.info.num_parameters, batch, times.num_keys, itemsize)
        self._report.speed(
            f"engine: decode step, batch {batch}, {times.num_keys:.0f} keys",
            times.step_seconds * 1e3,
            "ms",
            against=num_bytes / self._device.copy_rate * 1e3,
            target=STEP_TARGET if self._has_targets and batch == TARGET_BATCH else None,
            note=f"{num_bytes / 1e9:.2f} GB",
        )

    def _first_token(self, core: CoreDriver, num_tokens: int) -> None:
        seconds = self._found.first_token[num_tokens] = core.time_to_first_token(num_tokens)
        self._report.speed(f"engine: TTFT of {num_tokens} tokens", seconds * 1e3, "ms")

    def _idle(self, core: CoreDriver, batch: int, loop: str, *, has_target: bool) -> None:
        found = core.idleness(batch, self._load.prompt_tokens, self._load.steps)
        self._report.speed(
            f"engine, {loop}: device idle between steps, batch {batch}",
            found.idle * 1e3,
            "ms",
            against=found.step * 1e3,
            target=IDLE_TARGET if has_target else None,
            note="at most",
        )

    def _without_overlap(self, core: CoreDriver, batch: int) -> None:
        times = core.decode(batch, self._load.prompt_tokens, self._load.steps)
        case = f"engine, no overlap: decode, batch {batch}"
        self._report.speed(case, times.tokens_per_second, "tok/s", against=self._found.decode.get(batch))
        self._idle(core, batch, "no overlap", has_target=False)

    def _sampled(self, core: CoreDriver, batch: int) -> None:
        times = core.decode(batch, self._load.prompt_tokens, self._load.steps, SAMPLED)
        case = f"engine, top-k 50 and top-p 0.95: decode, batch {batch}"
        self._report.speed(case, times.tokens_per_second, "tok/s", against=self._found.decode.get(batch))


class _Peer:
    def __init__(
        self, device: Device, report: Reporter, budget: Budget, config: dict[str, Any], load: _Load, found: _Found
    ) -> None:
        self._device = device
        self._report = report
        self._budget = budget
        self._config = config
        self._load = load
        self._found = found

    def run(self) -> None:
        from benchmarks.gpu.transformers_peer import TransformersPeer

        try:
            import transformers
        except ImportError as error:
            self._report.missing("transformers", _brief(error))
            return
        load, found = self._load, self._found
        name = f"transformers {transformers.__version__}"
        if not self._budget.allows(20):
            self._report.missing(name, "no time left")
            return
        try:
            peer = TransformersPeer(self._device, self._config)
        except PEER_ERRORS as error:
            self._report.missing(name, _brief(error))
            return
        for num_tokens in load.first_token_prompts:
            seconds = found.first_token.get(num_tokens)
            self._measure(
                5,
                f"{name} generate: TTFT of {num_tokens} tokens",
                lambda n=num_tokens: 1e3 * peer.time_to_first_token(n),
                "ms",
                None if seconds is None else 1e3 * seconds,
            )
        for kind, rate, seconds in (
            ("generate", peer.decode_rate, 10),
            ("continuous batching", peer.continuous_decode_rate, 20),
        ):
            for batch in load.batches:
                self._measure(
                    seconds,
                    f"{name} {kind}: decode, batch {batch}",
                    lambda b=batch, rate=rate: rate(b, load.prompt_tokens, load.peer_steps),
                    "tok/s",
                    found.decode.get(batch),
                )

    def _measure(
        self, seconds: float, case: str, measure: Callable[[], float], unit: str, against: float | None
    ) -> None:
        """seconds: that it may take. against: what the engine did."""
        if not self._budget.allows(seconds):
            self._report.missing(case, "no time left")
            return
        try:
            with self._budget.enforced():
                value = measure()
        except PEER_ERRORS as error:
            self._report.missing(case, _brief(error))
            return
        self._report.speed(case, value, unit, against=against, note="against the engine")


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]
