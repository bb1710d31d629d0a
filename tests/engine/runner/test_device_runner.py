"""The device runner step by step, over the kernels' plain-torch twins. (Parity: tests/parity/test_device_runner.py.)"""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.plan import ScheduledSequence, StepPlan
from engine.errors import ConfigError
from engine.messages import LoadProgress, SequenceId
from engine.runner.accelerator import Compute, Event, GraphRecorder, HostAccelerator
from engine.runner.decode_graphs import DecodeGraphs
from engine.runner.device_memory import SPARE_BYTES, DeviceMemory
from engine.runner.device_runner import DeviceRunner
from engine.runner.device_warm_up import DeviceWarmUp
from tests.engine.runner.test_model_runner import make_request, make_runner, next_token, whole
from tests.engine.runner.twins import use_twins
from tests.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, make_checkpoint

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_twins(monkeypatch)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


def make_device_runner(
    model_dir: Path,
    accelerator: HostAccelerator | None = None,
    memory: DeviceMemory | None = None,
    progress: Callable[[LoadProgress], None] = lambda _progress: None,
    **arguments: Any,
) -> DeviceRunner:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": 1,
        "num_kv_blocks": 32,
        "block_size": 8,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 64,
    }
    config = EngineConfig(model_dir=model_dir, **(defaults | arguments))
    return DeviceRunner(config, progress, accelerator or HostAccelerator(), memory)


def pending(request: Any) -> ScheduledSequence:
    """A decode whose token the step before is still to bring."""
    return ScheduledSequence(request, request.num_tokens, 1, samples=True)


def test_info(model_dir: Path) -> None:
    info = make_device_runner(model_dir).info
    assert (info.architecture, info.vocab_size, info.eos_token_ids) == ("LlamaForCausalLM", VOCAB_SIZE, (EOS_TOKEN_ID,))
    assert (info.block_size, info.num_blocks, info.max_model_len) == (8, 32, 256)
    assert (info.dtype, info.device) == ("float32", "cpu")


@pytest.mark.parametrize("block_size", [4, 12])
def test_block_sizes_that_the_kernels_do_not_take(model_dir: Path, block_size: int) -> None:
    with pytest.raises(ConfigError, match="powers of two from 8 to 256"):
        make_device_runner(model_dir, block_size=block_size)


def test_results_follow_the_plans_order(model_dir: Path) -> None:
    """A decode, a whole prompt, a piece of one: as the CPU's runner answers."""
    answers = []
    for runner in (make_runner(model_dir), make_device_runner(model_dir)):
        a, b, c = (
            make_request(name, tokens, [3 * i + j for j in (1, 2, 3)]) for i, (name, tokens) in enumerate(PROMPTS)
        )
        first = runner.execute(StepPlan((whole(b),), ()))
        b.token_ids += first.token_ids[0]
        partial = ScheduledSequence(c, 0, 2, samples=False)
        mixed = runner.execute(StepPlan((whole(a), partial, next_token(b)), ()))
        rest = runner.execute(StepPlan((ScheduledSequence(c, 2, 3, samples=True),), ()))
        answers.append((first.token_ids, mixed.token_ids, rest.token_ids))
    assert answers[0] == answers[1]
    assert answers[0][1][1] == ()


PROMPTS = (("a", [5, 6, 7]), ("b", [9, 8]), ("c", [11, 12, 13, 14, 15]))


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_steps_launched_ahead(model_dir: Path, cuda_graphs: bool) -> None:
    """The next step is launched before the host has seen a token; a sequence in between is dropped with its row."""
    plain, ahead = (
        make_device_runner(model_dir, cuda_graphs=False),
        make_device_runner(model_dir, cuda_graphs=cuda_graphs),
    )
    expected = []
    requests = [make_request(name, tokens, [2 * i + 1, 2 * i + 2]) for i, (name, tokens) in enumerate(PROMPTS)]
    for _ in range(5):
        items = tuple(next_token(r) if r.num_output_tokens else whole(r) for r in requests)
        expected.append(plain.execute(StepPlan(items, ())).token_ids)
        for request, tokens in zip(requests, expected[-1], strict=True):
            request.token_ids += tokens

    requests = [make_request(name, tokens, [2 * i + 1, 2 * i + 2]) for i, (name, tokens) in enumerate(PROMPTS)]
    running = ahead.launch(StepPlan(tuple(whole(r) for r in requests), ()))
    for number, tokens in enumerate(expected[:-1]):
        gone = (requests[0].sequence_id,) if number == 2 else ()
        requests = requests[1:] if gone else requests
        launched = ahead.launch(StepPlan(tuple(pending(r) for r in requests), gone))
        assert running.result().token_ids == tokens[-len(running.result().token_ids) :]
        for request, new in zip(reversed(requests), reversed(tokens), strict=False):
            request.token_ids += new
        running = launched
    assert running.result().token_ids == expected[-1][1:]


def test_a_step_that_samples_nothing(model_dir: Path) -> None:
    """Also where it is one of decodes: the first token of a longer prompt."""
    runner = make_device_runner(model_dir)
    request = make_request("a", [5, 6, 7], [1])
    for start in range(2):
        assert runner.execute(StepPlan((ScheduledSequence(request, start, 1, samples=False),), ())).token_ids == ((),)
    last = runner.execute(StepPlan((ScheduledSequence(request, 2, 1, samples=True),), ()))
    assert last.token_ids == make_runner(model_dir).execute(StepPlan((whole(request),), ())).token_ids


def test_a_plan_that_only_removes(model_dir: Path) -> None:
    runner = make_device_runner(model_dir, max_num_seqs=1)
    runner.execute(StepPlan((whole(make_request("a", [5, 6], [1])),), ()))
    assert runner.execute(StepPlan((), (SequenceId("a"),))).token_ids == ()
    runner.execute(StepPlan((whole(make_request("b", [5, 6], [1])),), ()))


def test_padded_decodes_touch_nothing_but_the_dummy_block(model_dir: Path) -> None:
    runner = make_device_runner(model_dir, max_num_seqs=8)
    requests = [make_request(f"s{i}", [5 + i, 6], [i + 1]) for i in range(5)]
    result = runner.execute(StepPlan(tuple(whole(r) for r in requests), ()))
    with torch.inference_mode():
        for cache in runner._caches:
            cache.k[6:] = cache.v[6:] = 123.0
    for request, tokens in zip(requests, result.token_ids, strict=True):
        request.token_ids += tokens
    assert runner._graphs.bucket(5) == 8
    runner.execute(StepPlan(tuple(next_token(r) for r in requests), ()))
    assert all((t[6:] == 123.0).all() for cache in runner._caches for t in (cache.k, cache.v))


class OrderedEvent:
    """An event that knows before which launch it was placed, and fails a host that waits for a later one."""

    def __init__(self, accelerator: StrictAccelerator) -> None:
        self.accelerator = accelerator
        self.placed: int | None = None

    def record(self) -> None:
        self.placed = self.accelerator.launch

    def synchronize(self) -> None:
        if self.placed is not None:
            assert self.placed <= self.accelerator.may_wait_for, "the host waits for work that may still run"


class StrictAccelerator(HostAccelerator):
    def __init__(self) -> None:
        super().__init__()
        self.launch = 0
        self.may_wait_for = 1_000_000

    def event(self) -> Event:
        return OrderedEvent(self)


def test_a_launch_waits_for_nothing_that_may_still_run(model_dir: Path) -> None:
    accelerator = StrictAccelerator()
    runner = make_device_runner(model_dir, accelerator)
    request = make_request("a", [5, 6, 7], [1, 2, 3])
    accelerator.launch = 1
    running = runner.launch(StepPlan((whole(request),), ()))
    for launch in range(2, 20):
        accelerator.launch = launch
        accelerator.may_wait_for = launch - 2  # the one before is not finished
        launched = runner.launch(StepPlan((pending(request),), ()))
        accelerator.may_wait_for = launch - 1
        request.token_ids += running.result().token_ids[0]
        running = launched


class Memory:
    """1 GiB of which 24 MiB are a context's; what runs on it allocates 3 MiB, and the driver takes 2."""

    total = 1024 * MIB
    free_at_start = 1000 * MIB

    def __init__(self) -> None:
        self.peaks = 0

    def free(self) -> int:
        return 995 * MIB

    def taken(self) -> int:
        return 3 * MIB

    def peak_of(self, run: Callable[[], None]) -> int:
        run()
        self.peaks += 1
        return MIB


def test_the_pool_is_measured_with_the_graphs_in_place(model_dir: Path) -> None:
    """3 layers, keys and values of 8 slots, 2 heads of 16 in float32: 6 KiB a block, 17 of them to measure."""
    seen: list[LoadProgress] = []
    memory = Memory()
    arguments: dict[str, Any] = {"num_kv_blocks": None, "memory_utilization": 0.125}
    runner = make_device_runner(model_dir, memory=memory, progress=seen.append, **arguments)
    block = 6 << 10
    held = (24 + 3 + 2) * MIB - 17 * block
    assert runner.info.num_blocks == (128 * MIB - held - MIB - MIB // 20 - SPARE_BYTES) // block - 1
    assert memory.peaks == 1
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == [
        "loading weights",
        "warming up",
        "recording decode graphs to measure them",
        "recording decode graphs",
    ]
    assert seen[-1] == LoadProgress("recording decode graphs", 4, 4)
    result = runner.execute(StepPlan((whole(make_request("a", [5, 6, 7], [1])),), ()))
    assert len(result.token_ids[0]) == 1


class ForgetfulAccelerator(HostAccelerator):
    """Notes how many graphs are alive whenever a recorder is made."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self.alive: list[int] = []

    def recorder(self) -> GraphRecorder:
        self.alive.append(len(self.graphs))
        graphs = self.graphs

        class Graph:
            def __init__(self, compute: Compute) -> None:
                self._compute = compute
                graphs.add(self)

            def replay(self) -> None:
                self._compute()

        class Recorder:
            def record(self, compute: Compute) -> Compute:
                compute()
                return Graph(compute).replay

        return Recorder()


def test_the_graphs_that_were_measured_are_gone_before_new_ones_are_recorded(model_dir: Path) -> None:
    """At once, by their last reference: torch may take the new ones' memory away with an old one that dies later."""
    accelerator = ForgetfulAccelerator()
    gc.disable()
    try:
        runner = make_device_runner(model_dir, accelerator, Memory(), num_kv_blocks=None, memory_utilization=0.125)
    finally:
        gc.enable()
    assert accelerator.alive == [0, 0]
    assert len(accelerator.graphs) == len(runner.graph_sizes) == 4


def test_every_graph_has_been_replayed_before_there_are_requests(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over idle decodes: a graph that cannot run stops the start, not a request."""

    class Compiling(HostAccelerator):
        compiles = True

    replayed: list[int] = []
    replay = DecodeGraphs.replay

    def noted(graphs: DecodeGraphs, size: int) -> None:
        replay(graphs, size)
        replayed.append(size)

    monkeypatch.setattr(DecodeGraphs, "replay", noted)
    monkeypatch.setattr(DeviceWarmUp, "steps", lambda _self: [])
    monkeypatch.setattr(DeviceWarmUp, "single_chunks", lambda _self: [])
    runner = make_device_runner(model_dir, Compiling())
    assert tuple(replayed[-4:]) == runner.graph_sizes == (1, 2, 4, 5)
    assert (runner._buffer.inputs(5, 5).row_indices == runner._rows.scratch_row).all()


def test_a_pool_of_given_size_is_not_measured(model_dir: Path) -> None:
    memory = Memory()
    assert make_device_runner(model_dir, memory=memory, num_kv_blocks=9, max_model_len=60).info.num_blocks == 9
    assert memory.peaks == 0
    memory.free_at_start = 0
    sized = make_device_runner(model_dir, memory=memory, num_kv_blocks=None, kv_cache_memory=40 * (6 << 10))
    assert sized.info.num_blocks == 39


def test_a_share_that_is_not_free_is_refused_before_the_model_is_read(model_dir: Path) -> None:
    memory, seen = Memory(), list[LoadProgress]()
    memory.free_at_start = 100 * MIB
    with pytest.raises(ConfigError, match=r"held by other processes.*set memory_utilization to 0\.5"):
        make_device_runner(model_dir, memory=memory, progress=seen.append, num_kv_blocks=None)
    assert not seen


@pytest.mark.parametrize(
    "arguments", [{"max_model_len": 2}, {"max_num_batched_tokens": 1}, {"max_num_seqs": 1}], ids=str
)
def test_smallest_bounds(model_dir: Path, arguments: dict[str, Any]) -> None:
    runner = make_device_runner(model_dir, **arguments)
    assert len(runner.execute(StepPlan((whole(make_request("a", [5], [1])),), ())).token_ids[0]) == 1


def test_a_step_without_memory_says_what_to_do(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the engine, whose report has the note: `engine.process` sends the formatted exception."""
    runner = make_device_runner(model_dir)

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(runner._model, "forward", fail)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        runner.launch(StepPlan((whole(make_request("a", [5, 6, 7], [1])),), ()))
    report = "".join(traceback.format_exception(raised.value, limit=-3))
    assert "Tried to allocate 2.00 GiB" in report
    assert "set max_num_batched_tokens or max_num_seqs lower" in report
    assert "another process" in report


def test_graphs_that_cannot_be_recorded_can_be_done_without(model_dir: Path) -> None:
    class NoGraphs(HostAccelerator):
        def recorder(self) -> GraphRecorder:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted") as raised:
        make_device_runner(model_dir, NoGraphs())
    assert raised.value.__notes__ == [
        "This came while decode graphs were recorded: cuda_graphs=false serves without them"
    ]
    make_device_runner(model_dir, NoGraphs(), cuda_graphs=False)


def test_the_warm_up_leaves_no_row_behind(model_dir: Path) -> None:
    runner = make_device_runner(model_dir)
    assert len(runner._rows) == 0
    assert torch.equal(runner._rows.tables[runner._rows.scratch_row], torch.zeros_like(runner._rows.tables[0]))


def test_it_needs_no_package_of_the_server() -> None:
    """A GPU machine with torch, triton, numpy, safetensors and a tokenizer's packages runs the engine."""
    script = (
        "import sys\n"
        "for name in ('zmq', 'msgspec', 'gguf', 'kserve', 'fastapi', 'grpc', 'pydantic', 'orjson'):\n"
        "    sys.modules[name] = None\n"
        "import engine.llm, engine.warm_up, engine.runner.device_runner, engine.layers.triton_backend\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
