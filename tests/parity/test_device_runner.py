"""The device runner, over the kernels' plain-torch twins on the CPU: transformers' greedy tokens in float32.

Graphs are the stand-in that runs the recorded work again over the same memory. (The kernels themselves under Triton's
interpreter: test_interpreter.py.)
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.messages import AbortSequences, AddSequence, SequenceId
from engine.runner.device_runner import DeviceRunner
from engine.sampling_params import SamplingParams
from tests.engine.runner.twins import use_twins
from tests.parity.cases import MAX_TOKENS, SHARED, Case, make_case
from tests.parity.driver import build, greedy, run
from tests.tiny_models import FAMILIES

SOME = ("mistral", "qwen3")
"""A window, norms of query and key heads, and grouped queries between them; the others run in the long suite."""


@pytest.fixture(scope="module", params=[f if f in SOME else pytest.param(f, marks=pytest.mark.full) for f in FAMILIES])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family: str = request.param
    return make_case(family, tmp_path_factory.mktemp(family))


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_twins(monkeypatch)


def device_core(case: Case, **overrides: Any) -> Any:
    return build(case.model_dir, **({"attention_backend": "triton", "block_size": 8, "num_kv_blocks": 256} | overrides))


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["eager", "graphs"])
def test_ragged_batch(case: Case, overlap: bool, cuda_graphs: bool) -> None:
    core = device_core(case, overlap=overlap, cuda_graphs=cuda_graphs, max_num_seqs=11)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected


def test_chunked_prefill(case: Case) -> None:
    core = device_core(case, max_num_batched_tokens=7, overlap=True)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected


def test_preempted(case: Case) -> None:
    core = device_core(case, num_kv_blocks=28, max_num_batched_tokens=64, overlap=True)
    assert run(core, case.prompts, greedy(MAX_TOKENS)).token_ids == case.expected
    assert core.stats().preemptions_total >= 3


def test_prefix_hits(case: Case) -> None:
    core = device_core(case, overlap=True)
    assert run(core, case.prompts, greedy(MAX_TOKENS), name="first").token_ids == case.expected
    again = run(core, case.prompts, greedy(MAX_TOKENS), name="again")
    assert again.token_ids == case.expected
    assert min(again.num_cached_tokens[-4:]) >= SHARED


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_arrival(case: Case, seed: int) -> None:
    rng = random.Random(f"device {seed}")
    core = device_core(
        case,
        overlap=rng.random() < 0.7,
        cuda_graphs=rng.random() < 0.7,
        block_size=rng.choice([8, 16]),
        num_kv_blocks=rng.choice([28, 40]),
        max_num_batched_tokens=rng.choice([7, 30, 300]),
        max_num_seqs=rng.choice([3, 9]),
    )
    assert run(core, case.prompts, greedy(MAX_TOKENS), arrivals=rng).token_ids == case.expected


SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {},
    "cut": {"top_p": 0.8, "top_k": 40, "min_p": 0.02},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "edits": {"logit_bias": {7: 3.0}, "min_tokens": 6, "logprobs": 3},
}


def sampled(core: Any, case: Case, arrivals: random.Random) -> dict[str, list[int]]:
    """Tokens by sequence, of requests with all kinds of parameters at once."""
    waiting = []
    for serial, (prompt, params) in enumerate(
        (prompt, params) for prompt in case.prompts[:5] for params in SAMPLING.values()
    ):
        sampling = SamplingParams(max_tokens=8, seed=serial, **params)
        waiting.append(AddSequence(SequenceId(f"{serial}/0"), tuple(prompt), sampling, serial, 0, float(serial)))
    tokens: dict[str, list[int]] = {message.sequence_id: [] for message in waiting}
    arrivals.shuffle(waiting)
    while waiting or core.has_work():
        while waiting and (not core.has_work() or arrivals.random() < 0.5):
            core.handle(waiting.pop())
        for output in core.step().outputs:
            tokens[output.sequence_id] += output.token_ids
            assert output.logprobs is None or len(output.logprobs) == len(output.token_ids)
    return tokens


@pytest.mark.parametrize("seed", range(2))
def test_sampled_tokens_do_not_depend_on_how_the_engine_ran(case: Case, seed: int) -> None:
    """Random numbers, penalties and edits follow positions, whatever is on its way: loops, batches and preemptions."""
    rng = random.Random(f"sampled {seed}")
    alone = sampled(device_core(case, max_num_seqs=1, overlap=False, cuda_graphs=False), case, random.Random(0))
    core = device_core(case, overlap=True, num_kv_blocks=28, max_num_seqs=7, max_num_batched_tokens=40)
    assert sampled(core, case, rng) == alone
    assert any(len(set(tokens)) > 3 for tokens in alone.values())


def test_the_device_runner_is_what_runs(case: Case) -> None:
    assert isinstance(device_core(case)._loop._runner, DeviceRunner)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_aborts_leave_the_others_alone(case: Case, backend: str) -> None:
    """Sequences are aborted while their steps run, and their rows and blocks given to others at once."""
    rng = random.Random(f"aborts {backend}")
    core = device_core(
        case, attention_backend=backend, overlap=True, num_kv_blocks=30, max_num_seqs=4, max_num_batched_tokens=40
    )
    waiting = [(f"{round_}-{i}/0", i) for round_ in range(2) for i in range(len(case.prompts))]
    rng.shuffle(waiting)
    place = dict(waiting)
    tokens: dict[str, list[int]] = {}
    finished: set[str] = set()
    while waiting or core.has_work():
        while waiting and (not core.has_work() or rng.random() < 0.6):
            name, i = waiting.pop()
            tokens[name] = []
            core.handle(AddSequence(SequenceId(name), tuple(case.prompts[i]), greedy(MAX_TOKENS), 0, 0, float(i)))
        if tokens and rng.random() < 0.25:
            victim = rng.choice([name for name in tokens if name not in finished] or [""])
            core.handle(AbortSequences((SequenceId(victim),)))
            tokens.pop(victim, None)
        for output in core.step().outputs:
            tokens[output.sequence_id] += output.token_ids
            if output.finish_reason is not None:
                finished.add(output.sequence_id)
        core.check_integrity()
    assert set(tokens) == finished
    assert 3 < len(finished) < len(place)
    for name in finished:
        assert tokens[name] == case.expected[place[name]], name
