"""What launches ask of torch, over kernels that do nothing: no reads from the device, and few calls a decode step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.plan import PendingStep, StepPlan
from engine.messages import AddSequence, SequenceId
from engine.runner.accelerator import HostAccelerator
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.device_runner import DeviceRunner
from engine.sampling_params import SamplingParams
from tests.engine.runner.launches import record_launches
from tests.tiny_models import make_checkpoint

READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that wait for the device."""
WAITING_OPS = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
"""Operators that do, for the shape of what they return."""
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"top_k": 5, "min_p": 0.1},
    {"top_p": 0.9, "repetition_penalty": 1.1, "logit_bias": {3: 1.0}, "min_tokens": 4, "logprobs": 5},
    {"temperature": 0.0, "frequency_penalty": 0.5, "logprobs": 0},
)


class Operators(TorchDispatchMode):
    """Notes the operators that are called, and refuses those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        assert name not in WAITING_OPS, f"{name} waits for the device"
        if name == "aten::index":
            masks = [i for i in args[1] if i is not None and i.dtype in {torch.bool, torch.uint8}]
            assert not masks, "a mask as an index waits for the device"
        self.names.append(name)
        return func(*args, **kwargs or {})


class WatchedRunner:
    """A `Runner` whose launches must read nothing."""

    def __init__(self, runner: DeviceRunner, patch: pytest.MonkeyPatch) -> None:
        self._runner = runner
        self._patch = patch
        self.launches: list[tuple[StepPlan, list[str]]] = []

    def execute(self, plan: StepPlan) -> Any:
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> PendingStep:
        operators = Operators()
        with self._patch.context() as patch:
            for name in READS:
                patch.setattr(torch.Tensor, name, _refuse(name))
            with operators:
                step = self._runner.launch(plan)
        self.launches.append((plan, operators.names))
        return step


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError(f"Tensor.{name} waits for the device")

    return refuse


def make_core(tmp_path: Path, patch: pytest.MonkeyPatch, **arguments: Any) -> tuple[EngineCore, WatchedRunner]:
    model_dir = make_checkpoint("qwen3", tmp_path, tokenizer=False, max_position_embeddings=512, num_hidden_layers=2)
    record_launches(patch, "hopper", 132)
    defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "num_kv_blocks": 32, "num_threads": 1}
    config = EngineConfig(
        model_dir=model_dir, attention_backend="triton", dtype="float32", overlap=True, **(defaults | arguments)
    )
    runner = DeviceRunner(config, lambda _progress: None, HostAccelerator(), None)
    watched = WatchedRunner(runner, patch)
    return EngineCore(config, runner.info, watched), watched


def add(core: EngineCore, serial: int, prompt: Sequence[int], params: SamplingParams) -> None:
    core.handle(AddSequence(SequenceId(f"{serial}/0"), tuple(prompt), params, serial, 0, float(serial)))


@pytest.mark.parametrize("cuda_graphs", [True, False], ids=["graphs", "eager"])
def test_no_launch_reads_the_device(cuda_graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill, mixed and decode steps, with every parameter, prefix hits and preemptions."""
    core, runner = make_core(tmp_path, monkeypatch, cuda_graphs=cuda_graphs)
    rng = random.Random(1)
    for serial in range(16):
        params = SamplingParams(max_tokens=rng.randrange(4, 90), ignore_eos=True, **KINDS[serial % len(KINDS)])
        add(core, serial, [7 + serial % 7] * rng.choice([1, 16, 33, 70, 150]), params)
    while core.has_work():
        core.step()
    lengths = [{item.num_new_tokens == 1 for item in plan.scheduled} for plan, _ in runner.launches]
    assert all(kind in lengths for kind in ({True}, {False}, {True, False}))
    assert core.stats().preemptions_total
    assert core.stats().prefix_hit_tokens_total


def test_a_recorded_greedy_step_makes_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the step's arrays, and new blocks where there are some, in one copy each; sampling; one copy back."""
    core, runner = make_core(tmp_path, monkeypatch)
    monkeypatch.setattr(DecodeGraphs, "replay", lambda _self, _size: None)
    for serial in range(5):
        add(core, serial, [7] * 20, SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.0))
    while core.has_work():
        core.step()
    decodes = [names for plan, names in runner.launches if all(item.num_new_tokens == 1 for item in plan.scheduled)]
    assert len(decodes) > 40
    assert max(len(names) for names in decodes) <= 22
    assert sorted(len(names) for names in decodes)[len(decodes) // 2] <= 12, "most steps bring no new blocks"
    assert all(names.count("aten::copy_") <= 2 for names in decodes)
