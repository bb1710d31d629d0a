"""`benchmarks.gpu.engine_driver` over a runner without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.engine_driver import CoreDriver, PoolTooSmallError
from engine.config import EngineConfig
from engine.core.plan import StepPlan, StepResult
from tests.engine.core.support import FixedStep, PagedFakeRunner, make_info


class Nothing:
    def result(self) -> StepResult:
        return StepResult((), ())


class ForgetfulRunner(PagedFakeRunner):
    """As a real one, it takes a plan of nothing, and the removal of a sequence that it has forgotten already."""

    def launch(self, plan: StepPlan) -> FixedStep | Nothing:
        removed = [sequence_id for sequence_id in plan.removed if sequence_id in self.rows]
        if plan.scheduled:
            return super().launch(replace(plan, removed=tuple(removed)))
        for sequence_id in removed:
            self.free_rows.append(self.rows.pop(sequence_id).index)
        return Nothing()


def make_driver(num_blocks: int, *, overlap: bool) -> CoreDriver:
    config = EngineConfig(model_dir=Path(), overlap=overlap, max_num_seqs=8, max_num_batched_tokens=32)
    return CoreDriver(config, make_info(num_blocks, 4, 4 * num_blocks), ForgetfulRunner(4))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_decodes_together(overlap: bool) -> None:
    driver = make_driver(64, overlap=overlap)
    times = driver.decode(4, 8, 5)
    assert times.step_seconds > 0
    assert 8 + 5 / 2 < times.num_keys < 8 + 4 + 5
    driver.idleness(4, 8, 5)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("prompt_tokens", "num_steps"),
    [pytest.param(30, 2, id="never-together"), pytest.param(8, 20, id="preempted-while-measured")],
)
def test_what_the_pool_does_not_hold_is_said_and_leaves_nothing(
    overlap: bool, prompt_tokens: int, num_steps: int
) -> None:
    driver = make_driver(20, overlap=overlap)
    for measure in (driver.decode, driver.idleness):
        with pytest.raises(PoolTooSmallError):
            measure(5, prompt_tokens, num_steps)
        assert driver.decode(2, 8, 3).tokens_per_second > 0
