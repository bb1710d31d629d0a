from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.plan import StepPlan, StepResult
from engine.errors import ConfigError
from engine.messages import AbortSequences, Admitted, EngineStats, ResetPrefixCache, SequenceId, Shutdown
from tests.engine.core.support import (
    PagedFakeRunner,
    add_message,
    make_core,
    make_info,
    next_token,
    run_alone,
    run_to_end,
)


def abort(*names: str) -> AbortSequences:
    return AbortSequences(tuple(SequenceId(name) for name in names))


def test_a_sequence_from_its_message_to_its_last_token() -> None:
    core, _ = make_core()
    message = add_message("a", range(6), max_tokens=3)
    core.handle(message)
    tokens, reasons = [], []
    while core.has_work():
        for output in core.step().outputs:
            tokens += output.token_ids
            reasons.append(output.finish_reason)
    assert (tokens, "length") == run_alone(range(6), message.params, 1000, (), 200)
    assert reasons == [None, None, "length"]


def test_eos_ends_with_the_id_named() -> None:
    eos = next_token([1, 2, 3], 1000)
    core, _ = make_core(eos_token_ids=[eos])
    core.handle(add_message("a", [1, 2, 3]))
    (output,) = core.step().outputs
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((eos,), "stop", eos)


def test_a_step_reports_its_time_size_and_admissions() -> None:
    ticks = iter([10.0, 11.0, 14.0, 20.0, 21.0, 22.5])
    runner = PagedFakeRunner(4)
    core = EngineCore(EngineConfig(model_dir=Path("unused")), make_info(64, 4, 200), runner, clock=lambda: next(ticks))
    core.handle(add_message("a", range(9)))
    core.handle(add_message("b", range(9)))
    first, second = core.step(), core.step()
    assert (first.step_seconds, first.step_tokens, first.step_sequences) == (4.0, 10, 2)
    assert first.admitted == (Admitted(SequenceId("a"), 0, 11.0), Admitted(SequenceId("b"), 8, 11.0))
    assert (second.step_seconds, second.step_tokens, second.step_sequences) == (2.5, 2, 2)
    assert second.admitted == ()


def test_stats_after_a_step() -> None:
    core, _ = make_core(num_blocks=20, max_model_len=40, max_num_seqs=2)
    for name in "ab":
        core.handle(add_message(name, range(9)))
    core.handle(add_message("c", range(5)))
    assert core.step().stats == EngineStats(
        num_running=2,
        num_waiting=1,
        num_waiting_prompt_tokens=5,
        num_blocks_used=4,  # two shared, one each
        num_blocks_cached=0,
        num_blocks_free=16,
        num_slots_allocated=16,
        num_slots_filled=10,
        steps_total=1,
        preemptions_total=0,
        prefix_query_tokens_total=18,
        prefix_hit_tokens_total=8,
    )


def test_M1_gauges_are_zero_after_aborts_with_no_step() -> None:
    core, _ = make_core(max_num_seqs=3)
    for i in range(5):
        core.handle(add_message(f"s{i}", range(i, i + 9), max_tokens=50))
    core.step()
    core.handle(abort(*(f"s{i}" for i in range(5))))
    assert not core.has_work()
    notice = core.drain_notices()
    assert notice is not None
    stats = notice.stats
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_prompt_tokens) == (0, 0, 0)
    assert (stats.num_blocks_used, stats.num_slots_allocated, stats.num_slots_filled) == (0, 0, 0)
    assert stats.num_blocks_free + stats.num_blocks_cached == 64
    assert (notice.step_seconds, notice.outputs) == (None, ())
    assert core.drain_notices() is None
    core.check_integrity()


def test_notices_come_once_and_not_after_a_step_that_told_the_same() -> None:
    core, _ = make_core()
    assert core.drain_notices() is None
    core.handle(add_message("a", range(5)))
    notice = core.drain_notices()
    assert notice is not None
    assert notice.stats.num_waiting_prompt_tokens == 5
    assert core.drain_notices() is None
    core.handle(add_message("b", range(5)))
    core.step()
    assert core.drain_notices() is None


@pytest.mark.parametrize("prompt", [[], range(16), range(100)])
def test_a_prompt_that_can_never_run_is_answered_with_an_error(prompt: list[int]) -> None:
    core, _ = make_core(num_blocks=4, max_model_len=16)
    core.handle(add_message("bad", prompt))
    assert not core.has_work()
    notice = core.drain_notices()
    assert notice is not None
    assert [(o.sequence_id, o.finish_reason, o.token_ids) for o in notice.outputs] == [("bad", "error", ())]


def test_a_refusal_comes_with_the_next_step_when_others_run() -> None:
    core, _ = make_core(max_model_len=16)
    core.handle(add_message("good", range(5)))
    core.handle(add_message("bad", range(16)))
    assert [(o.sequence_id, o.finish_reason) for o in core.step().outputs] == [("bad", "error"), ("good", None)]
    assert core.drain_notices() is None


def test_no_output_follows_an_abort() -> None:
    core, _ = make_core(max_model_len=16)
    core.handle(add_message("bad", range(16)))
    core.handle(add_message("good", range(5)))
    core.handle(abort("bad", "good", "unknown"))
    notice = core.drain_notices()
    assert notice is not None
    assert notice.outputs == ()


def test_V6_the_longest_prompt_gets_one_token() -> None:
    core, _ = make_core(num_blocks=4, max_model_len=17)
    core.handle(add_message("a", range(16), max_tokens=5))
    assert core.step().outputs[0].finish_reason == "length"
    assert not core.has_work()


def test_a_pool_too_small_for_the_context_is_refused() -> None:
    make_core(num_blocks=4, max_model_len=17)  # the 17th token is never computed
    with pytest.raises(ConfigError, match=r"max_model_len=18 .* needs 5 KV blocks"):
        make_core(num_blocks=4, max_model_len=18)


def test_step_without_work_runs_nothing() -> None:
    core, runner = make_core()
    assert core.step().step_seconds is None
    core.handle(Shutdown())
    assert core.drain_notices() is None
    assert runner.plans == []


def test_an_error_of_the_runner_rises() -> None:
    class BrokenRunner(PagedFakeRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            raise RuntimeError("device lost")

    core = EngineCore(EngineConfig(model_dir=Path("unused")), make_info(64, 4, 200), BrokenRunner(4))
    core.handle(add_message("a", range(5)))
    with pytest.raises(RuntimeError, match="device lost"):
        core.step()


def test_E2_a_scarce_pool_gives_the_outputs_of_a_big_one() -> None:
    def outputs(num_blocks: int) -> tuple[dict[str, list[int]], EngineStats]:
        core, _ = make_core(num_blocks=num_blocks, max_model_len=41, max_num_batched_tokens=16)
        for i in range(8):
            core.handle(add_message(f"s{i}", [i % 2] * (4 + i), max_tokens=20, arrival_time=float(i)))
        return run_to_end(core), core.stats()

    plenty, _ = outputs(500)
    scarce, stats = outputs(12)
    assert stats.preemptions_total >= 3
    assert scarce == plenty
    assert stats.num_blocks_free + stats.num_blocks_cached == 12


def test_E4_a_prompt_sent_twice_is_a_hit_with_the_same_answer() -> None:
    core, runner = make_core(block_size=16)
    core.handle(add_message("a", range(32), max_tokens=4))
    first = run_to_end(core)["a"]
    computed = runner.num_computed
    core.handle(add_message("b", range(32), max_tokens=4))
    assert core.step().admitted[0].num_cached_tokens == 16
    assert [next_token(range(32), 1000), *run_to_end(core)["b"]] == first
    assert runner.num_computed - computed == computed - 16


def test_E6_a_reset_leaves_no_hit() -> None:
    core, runner = make_core(block_size=16)
    core.handle(add_message("a", range(32), max_tokens=4))
    run_to_end(core)
    core.handle(ResetPrefixCache())
    runner.generation += 1
    notice = core.drain_notices()
    assert notice is not None
    assert (notice.stats.num_blocks_cached, notice.stats.num_blocks_free) == (0, 64)
    core.handle(add_message("b", range(32), max_tokens=4))
    assert core.step().admitted[0].num_cached_tokens == 0


def test_prefix_caching_can_be_off() -> None:
    core, _ = make_core(enable_prefix_caching=False)
    for name in "ab":
        core.handle(add_message(name, range(32), max_tokens=4))
    answers = run_to_end(core)
    assert answers["a"] == answers["b"]
    stats = core.stats()
    assert (stats.prefix_query_tokens_total, stats.prefix_hit_tokens_total, stats.num_blocks_cached) == (0, 0, 0)


def test_less_than_four_percent_of_kv_slots_are_wasted_at_512_tokens() -> None:
    preallocated = 4096
    core, _ = make_core(num_blocks=512, block_size=16, max_model_len=preallocated, max_num_batched_tokens=2048)
    for i in range(8):
        core.handle(add_message(f"s{i}", [i, *range(500 + i)], max_tokens=30))
    num_full_steps = 0
    while core.has_work():
        stats = core.step().stats
        assert stats.num_slots_filled <= stats.num_slots_allocated
        if stats.num_running == 8 and stats.num_slots_filled >= 8 * 500:
            num_full_steps += 1
            assert 1 - stats.num_slots_filled / stats.num_slots_allocated < 0.04
            assert stats.num_slots_filled / (8 * preallocated) < 0.13
    assert num_full_steps >= 25


def test_the_core_imports_no_torch_and_no_transport() -> None:
    code = (
        "import sys, engine.core.engine_core;"
        "bad = {'torch', 'transformers', 'zmq', 'msgspec', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
