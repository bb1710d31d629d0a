"""One model end to end on random weights: the engine against its bytes, and transformers in the same run."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.engine_driver import SAMPLED, CoreDriver, EngineDriver
from benchmarks.gpu.models import Shape, config_of, shape_of, write_config
from benchmarks.gpu.results import Reporter, Target

STEP_TARGET = Target(at_most=1.35)
GAP_TARGET = Target(at_most=0.05)
TARGET_MODEL = "llama-3.1-8b"
TARGET_BATCH = 32


@dataclass(frozen=True, slots=True)
class _Load:
    """prompt_tokens: of each sequence that decodes. steps: of the engine; peer_steps: of transformers."""

    batches: tuple[int, ...] = (1, 32, 256)
    prompt_tokens: int = 512
    steps: int = 64
    peer_steps: int = 24
    first_token_prompts: tuple[int, ...] = (2048, 8192)
    max_model_len: int = 9216


SMOKE_LOAD = _Load(batches=(1, 2), prompt_tokens=8, steps=2, peer_steps=2, first_token_prompts=(20,), max_model_len=64)


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
    if importlib.util.find_spec("transformers") is None:
        report.missing("transformers", "not installed here")
        return
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
        self._shape: Shape = shape_of(config)
        self._has_targets = name == TARGET_MODEL

    def run(self) -> None:
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
                **({"num_kv_blocks": 32} if self._device.is_smoke else {}),
            )
        self._report.speed(
            "start: random weights, graphs, KV pool",
            time.perf_counter() - started,
            "s",
            note=f"{driver.info.num_blocks} blocks of {driver.info.block_size}",
        )
        self._num_parameters = driver.info.num_parameters
        overlapped = driver.core(overlap=True)
        for batch in load.batches:
            self._decode(overlapped, batch)
        for num_tokens in load.first_token_prompts:
            seconds = self._found.first_token[num_tokens] = overlapped.time_to_first_token(num_tokens)
            self._report.speed(f"engine: TTFT of {num_tokens} tokens", seconds * 1e3, "ms")
        batch = TARGET_BATCH if TARGET_BATCH in load.batches else load.batches[-1]
        self._gap(overlapped, batch, "overlap", has_target=True)
        plain = driver.core(overlap=False)
        times = plain.decode(batch, load.prompt_tokens, load.steps)
        self._report.speed(
            f"engine, no overlap: decode, batch {batch}",
            times.tokens_per_second,
            "tok/s",
            against=self._found.decode.get(batch),
        )
        self._gap(plain, batch, "no overlap", has_target=False)
        times = overlapped.decode(batch, load.prompt_tokens, load.steps, SAMPLED)
        self._report.speed(
            f"engine, top-k and top-p: decode, batch {batch}",
            times.tokens_per_second,
            "tok/s",
            against=self._found.decode.get(batch),
        )

    def _decode(self, core: CoreDriver, batch: int) -> None:
        load = self._load
        try:
            times = core.decode(batch, load.prompt_tokens, load.steps)
        except RuntimeError as error:
            self._report.missing(f"engine: decode, batch {batch}", str(error))
            return
        self._found.decode[batch] = times.tokens_per_second
        self._report.speed(f"engine: decode, batch {batch}", times.tokens_per_second, "tok/s")
        itemsize = 4 if self._device.is_smoke else 2
        num_bytes = self._shape.step_bytes(self._num_parameters, batch, times.num_keys, itemsize)
        self._report.speed(
            f"engine: decode step, batch {batch}, {times.num_keys:.0f} keys",
            times.step_seconds * 1e3,
            "ms",
            against=num_bytes / self._device.copy_rate * 1e3,
            target=STEP_TARGET if self._has_targets and batch == TARGET_BATCH else None,
            note=f"{num_bytes / 1e9:.2f} GB",
        )

    def _gap(self, core: CoreDriver, batch: int, loop: str, *, has_target: bool) -> None:
        case = f"engine, {loop}: device idle between steps, batch {batch}"
        activity = core.activity(batch, self._load.prompt_tokens, min(20, self._load.steps))
        if activity.step_seconds != activity.step_seconds:
            self._report.missing(case, "the profiler saw no kernel of a device")
            return
        self._report.speed(
            case,
            activity.idle_seconds * 1e3,
            "ms",
            against=activity.step_seconds * 1e3,
            target=GAP_TARGET if has_target else None,
        )


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
        import transformers

        from benchmarks.gpu.transformers_peer import TransformersPeer

        load, found = self._load, self._found
        peer = TransformersPeer(self._device, self._config)
        version = transformers.__version__
        for num_tokens in load.first_token_prompts:
            self._measure(
                f"transformers {version} generate: TTFT of {num_tokens} tokens",
                lambda n=num_tokens: 1e3 * peer.time_to_first_token(n),
                "ms",
                1e3 * found.first_token[num_tokens],
            )
        for kind, rate in (("generate", peer.decode_rate), ("continuous batching", peer.continuous_decode_rate)):
            for batch in load.batches:
                self._measure(
                    f"transformers {version} {kind}: decode, batch {batch}",
                    lambda b=batch, rate=rate: rate(b, load.prompt_tokens, load.peer_steps),
                    "tok/s",
                    found.decode.get(batch),
                )

    def _measure(self, case: str, measure: Callable[[], float], unit: str, against: float | None) -> None:
        if not self._budget.allows(5):
            self._report.missing(case, "no time left")
            return
        try:
            value = measure()
        except (RuntimeError, AttributeError, TypeError) as error:
            # NOTE: out of memory, or another release of transformers: not a fault of the engine.
            self._report.missing(case, f"{type(error).__name__}: {error}"[:120])
            return
        self._report.speed(case, value, unit, against=against, note="against the engine")
