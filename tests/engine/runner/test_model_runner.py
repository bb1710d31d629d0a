"""The runner on a tiny checkpoint, step by step, without the core. (Parity with transformers: tests/parity.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.ids import BlockId
from engine.core.plan import ScheduledSequence, StepPlan
from engine.core.request import Request
from engine.errors import ConfigError, ModelLoadError
from engine.messages import AddSequence, LoadProgress, SequenceId
from engine.models.decoder import DecoderModel
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from tests.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, make_checkpoint


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama"))


def make_runner(model_dir: Path, **arguments: Any) -> ModelRunner:
    defaults: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "num_kv_blocks": 32, "block_size": 4}
    return ModelRunner(EngineConfig(model_dir=model_dir, **(defaults | arguments)), lambda _progress: None)


def make_request(name: str, tokens: list[int], blocks: list[int], **params: Any) -> Request:
    params = {"temperature": 0.0, **params}
    request = Request(AddSequence(SequenceId(name), tuple(tokens), SamplingParams(**params), 0, 0, 0.0), 0)
    request.block_ids = [BlockId(b) for b in blocks]
    return request


def whole(request: Request) -> ScheduledSequence:
    return ScheduledSequence(request, 0, request.num_tokens, samples=True)


def next_token(request: Request) -> ScheduledSequence:
    return ScheduledSequence(request, request.num_tokens - 1, 1, samples=True)


def test_info(model_dir: Path) -> None:
    info = make_runner(model_dir).info
    assert info.architecture == "LlamaForCausalLM"
    assert (info.vocab_size, info.eos_token_ids) == (VOCAB_SIZE, (EOS_TOKEN_ID,))
    assert (info.block_size, info.num_blocks, info.max_model_len) == (4, 32, 128)
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert info.num_parameters > 10_000


@pytest.mark.parametrize(("num_threads", "told"), [(1, "; 1 thread"), (2, "; 2 threads")])
def test_the_line_of_the_kv_pool(
    model_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, num_threads: int, told: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    with caplog.at_level("INFO", "engine.runner.model_runner"):
        make_runner(model_dir)
    (line,) = [message for message in caplog.messages if message.startswith("KV pool: 32 blocks of 4 tokens, ")]
    assert line.endswith(told)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes_run(model_dir: Path, dtype: str) -> None:
    runner = make_runner(model_dir, dtype=dtype)
    assert runner.info.dtype == dtype
    result = runner.execute(StepPlan((whole(make_request("a", [5, 6, 7], [1])),), ()))
    assert 0 <= result.token_ids[0][0] < VOCAB_SIZE


def test_dtype_auto_follows_the_cpu(model_dir: Path) -> None:
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert make_runner(model_dir, dtype="auto").info.dtype == ("bfloat16" if supported else "float32")


def test_the_pool_is_measured_unless_given(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of what is left; a block holds keys and values of 3 layers, 4 slots, 2 heads of 16, in float32."""
    monkeypatch.setattr("engine.runner.model_runner.available_memory", lambda: 4 << 20)
    info = make_runner(model_dir, num_kv_blocks=None).info
    assert info.num_blocks == (1 << 20) // (2 * 3 * 4 * 2 * 16 * 4) - 1
    assert info.max_model_len == 256


def test_bounds_that_cannot_be_met_are_refused(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="context of 256"):
        make_runner(model_dir, max_model_len=1000)
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        make_runner(model_dir, num_kv_blocks=None, kv_cache_memory=1)
    with pytest.raises(ConfigError, match=r"no 2\d{9} MiB for the KV pool of \d+ blocks: set num_kv_blocks"):
        make_runner(model_dir, num_kv_blocks=None, kv_cache_memory=1 << 51)
    with pytest.raises(ModelLoadError):
        make_runner(tmp_path)


@pytest.mark.parametrize(
    "arguments", [{"max_model_len": 2}, {"max_num_batched_tokens": 1}, {"max_num_seqs": 1}], ids=str
)
def test_smallest_bounds(model_dir: Path, arguments: dict[str, Any]) -> None:
    runner = make_runner(model_dir, **arguments)
    result = runner.execute(StepPlan((whole(make_request("a", [5], [1])),), ()))
    assert len(result.token_ids[0]) == 1


def test_progress_ends_with_the_warm_up(model_dir: Path) -> None:
    seen: list[LoadProgress] = []
    config = EngineConfig(model_dir=model_dir, dtype="float32", num_threads=1, num_kv_blocks=8)
    ModelRunner(config, seen.append)
    assert seen[0].phase != "warming up"
    assert seen[-1] == LoadProgress("warming up", 1, 1)


def test_results_follow_the_plans_order(model_dir: Path) -> None:
    """Decodes run before prefill chunks; the answers come back where the plan has them."""
    prompts = {"a": [5, 6, 7], "b": [9, 8], "c": [11, 12, 13, 14, 15]}
    alone = {}
    for name, tokens in prompts.items():
        runner = make_runner(model_dir)
        request = make_request(name, tokens, [1, 2])
        first = runner.execute(StepPlan((whole(request),), ())).token_ids[0]
        request.token_ids += first
        alone[name] = (first, runner.execute(StepPlan((next_token(request),), ())).token_ids[0])

    runner = make_runner(model_dir)
    a, b, c = (make_request(name, tokens, [2 * i + 1, 2 * i + 2]) for i, (name, tokens) in enumerate(prompts.items()))
    (first,) = runner.execute(StepPlan((whole(b),), ())).token_ids
    b.token_ids += first
    partial = ScheduledSequence(c, 0, 2, samples=False)
    result = runner.execute(StepPlan((whole(a), partial, next_token(b)), ()))
    assert result.token_ids == (alone["a"][0], (), alone["b"][1])
    assert result.logprobs == (None, None, None)
    rest = ScheduledSequence(c, 2, 3, samples=True)
    assert runner.execute(StepPlan((rest,), ())).token_ids == (alone["c"][0],)


def test_logprobs_for_those_who_ask(model_dir: Path) -> None:
    runner = make_runner(model_dir)
    plain, asking = make_request("a", [5, 6], [1]), make_request("b", [5, 6], [2], logprobs=2)
    result = runner.execute(StepPlan((whole(plain), whole(asking)), ()))
    assert result.token_ids[0] == result.token_ids[1]
    assert result.logprobs[0] is None
    assert result.logprobs[1] is not None
    assert result.logprobs[1][0].token_id == result.logprobs[1][0].top_ids[0] == result.token_ids[1][0]


def test_only_rows_that_sample_reach_the_logits(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(model_dir)
    shapes = []
    logits = DecoderModel.logits
    monkeypatch.setattr(
        DecoderModel, "logits", lambda self, hidden: (shapes.append(tuple(hidden.shape)), logits(self, hidden))[1]
    )
    chunk = ScheduledSequence(make_request("a", [5] * 9, [1, 2]), 0, 6, samples=False)
    runner.execute(StepPlan((chunk, whole(make_request("b", [4] * 6, [3, 4])), whole(make_request("c", [4], [5]))), ()))
    runner.execute(StepPlan((chunk,), ()))
    assert shapes == [(2, 64)]


def test_a_plan_that_only_removes(model_dir: Path) -> None:
    runner = make_runner(model_dir, max_num_seqs=1)
    runner.execute(StepPlan((whole(make_request("a", [5, 6], [1])),), ()))
    assert runner.execute(StepPlan((), (SequenceId("a"),))).token_ids == ()
    runner.execute(StepPlan((whole(make_request("b", [5, 6], [1])),), ()))


def test_a_launched_step_takes_the_token_that_is_still_to_come(model_dir: Path) -> None:
    """Steps launched one ahead bring what the same steps bring one by one; a plan's own order does not matter."""
    prompts = {"a": [5, 6, 7], "b": [9, 8]}
    plain, ahead = make_runner(model_dir), make_runner(model_dir)
    expected = []
    requests = [make_request(name, tokens, [2 * i + 1, 2 * i + 2]) for i, (name, tokens) in enumerate(prompts.items())]
    for _ in range(4):
        items = [next_token(r) if r.num_output_tokens else whole(r) for r in requests]
        expected.append(plain.execute(StepPlan(tuple(items), ())).token_ids)
        for request, tokens in zip(requests, expected[-1], strict=True):
            request.token_ids += tokens

    requests = [make_request(name, tokens, [2 * i + 1, 2 * i + 2]) for i, (name, tokens) in enumerate(prompts.items())]
    running = ahead.launch(StepPlan(tuple(whole(r) for r in requests), ()))
    for tokens in expected[:-1]:
        pending = tuple(ScheduledSequence(r, r.num_tokens, 1, samples=True) for r in requests)
        launched = ahead.launch(StepPlan(pending, ()))
        assert running.result().token_ids == tokens
        for request, new in zip(requests, tokens, strict=True):
            request.token_ids += new
        running = launched
    assert running.result().token_ids == expected[-1]


def test_a_row_dropped_while_its_step_runs(model_dir: Path) -> None:
    """The third launch drops a sequence whose second step is not done, and gives its row away: both are right."""
    runner = make_runner(model_dir, max_num_seqs=1)
    expected = []
    request = make_request("a", [5, 6, 7], [1])
    for _ in range(2):
        item = next_token(request) if expected else whole(request)
        (tokens,) = runner.execute(StepPlan((item,), ())).token_ids
        request.token_ids += tokens
        expected.append(tokens)
    (other,) = runner.execute(StepPlan((whole(make_request("b", [9, 8], [2])),), (request.sequence_id,))).token_ids

    request = make_request("a", [5, 6, 7], [1])
    first = runner.launch(StepPlan((whole(request),), (SequenceId("b"),)))
    second = runner.launch(StepPlan((ScheduledSequence(request, 3, 1, samples=True),), ()))
    assert first.result().token_ids == (expected[0],)
    request.token_ids += expected[0]
    third = runner.launch(StepPlan((whole(make_request("b", [9, 8], [1])),), (request.sequence_id,)))
    assert second.result().token_ids == (expected[1],)
    assert third.result().token_ids == (other,)


def test_a_preempted_sequence_starts_over(model_dir: Path) -> None:
    runner = make_runner(model_dir)
    request = make_request("a", [5, 6, 7], [1, 2])
    plain = []
    for item in (whole(request), None, None):
        step = StepPlan((item or next_token(request),), ())
        plain.append(runner.execute(step).token_ids[0][0])
        request.token_ids.append(plain[-1])
    # The same again from its tokens but the last, on other blocks.
    request.token_ids.pop()
    request.block_ids = [BlockId(9), BlockId(7)]
    again = runner.execute(StepPlan((whole(request),), (request.sequence_id,)))
    assert again.token_ids == ((plain[-1],),)
