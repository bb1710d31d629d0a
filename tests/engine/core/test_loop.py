from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.plan import StepPlan, StepResult
from engine.messages import AbortSequences, Admitted, Preempted, ResetPrefixCache, Resumed, SequenceId
from tests.engine.core.support import (
    FixedStep,
    PagedFakeRunner,
    add_message,
    make_core,
    make_info,
    next_token,
    run_alone,
    run_to_end,
)


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedStep:
    def __init__(self, device: Device, step: FixedStep, end: float) -> None:
        self._device, self._step, self._end = device, step, end

    def result(self) -> StepResult:
        clock = self._device.clock
        clock.now = max(clock.now, self._end)
        return self._step.result()


class Device(PagedFakeRunner):
    """A device that takes `step_seconds` a step, in the order of the launches, while the host goes on.

    launch_seconds: what a launch takes of the host. busy: from when to when the device computed.
    """

    def __init__(self, clock: Clock, step_seconds: float, launch_seconds: float = 0.0) -> None:
        super().__init__(block_size=4)
        self.clock = clock
        self.step_seconds = step_seconds
        self.launch_seconds = launch_seconds
        self.busy: list[tuple[float, float]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        return self._start(plan).result()

    def launch(self, plan: StepPlan) -> TimedStep:  # type: ignore[override]  # both are a PendingStep
        return self._start(plan)

    def _start(self, plan: StepPlan) -> TimedStep:
        self.clock.now += self.launch_seconds
        start = max(self.clock.now, self.busy[-1][1] if self.busy else -math.inf)
        self.busy.append((start, start + self.step_seconds))
        return TimedStep(self, super().launch(plan), start + self.step_seconds)


def make_timed(overlap: bool, step_seconds: float, launch_seconds: float = 0.0) -> tuple[EngineCore, Device, Clock]:
    clock = Clock()
    device = Device(clock, step_seconds, launch_seconds)
    config = EngineConfig(model_dir=Path("unused"), overlap=overlap)
    return EngineCore(config, make_info(64, 4, 200), device, clock), device, clock


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device_seconds", "host_seconds"), [(8.0, 2.0), (2.0, 8.0), (4.0, 4.0), (8.0, 0.0)])
def test_a_step_takes_the_longer_of_device_and_host_instead_of_their_sum(
    device_seconds: float, host_seconds: float
) -> None:
    def seconds_of(overlap: bool) -> tuple[float, float]:
        """From the first step to the last of 50, and the time the device stood still in between."""
        core, device, clock = make_timed(overlap, device_seconds, launch_seconds=host_seconds / 2)
        core.handle(add_message("a", range(5), max_tokens=50))
        started = clock.now
        while core.has_work():
            core.step()
            clock.now += host_seconds / 2  # what the caller does with the outputs
        assert len(device.busy) == 50
        gaps = sum(after[0] - before[1] for before, after in zip(device.busy, device.busy[1:], strict=False))
        return clock.now - started, gaps

    plain, plain_gaps = seconds_of(overlap=False)
    overlapped, gaps = seconds_of(overlap=True)
    assert plain == 50 * (device_seconds + host_seconds)
    assert plain_gaps == 49 * host_seconds
    assert overlapped == pytest.approx(50 * max(device_seconds, host_seconds), abs=device_seconds + host_seconds)
    assert gaps <= 49 * max(0.0, host_seconds - device_seconds) + host_seconds


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("device_seconds", "host_seconds"), [(8.0, 2.0), (2.0, 8.0)])
def test_the_seconds_of_steps_never_overlap(overlap: bool, device_seconds: float, host_seconds: float) -> None:
    core, _, clock = make_timed(overlap, device_seconds)
    seconds: list[float] = []
    elapsed = 0.0
    for name in "ab":  # with a pause between them
        clock.now += 1000.0
        started = clock.now
        core.handle(add_message(name, range(5), max_tokens=10))
        while core.has_work():
            seconds.append(core.step().step_seconds or math.nan)
            clock.now += host_seconds
        elapsed += clock.now - started
    assert sum(seconds) <= elapsed
    steady = {False: device_seconds, True: max(device_seconds, host_seconds)}[overlap]
    assert seconds[1:9] == seconds[11:19] == [steady] * 8


def test_admissions_carry_the_time_of_their_plan_and_come_before_the_first_token() -> None:
    core, _, clock = make_timed(overlap=True, step_seconds=8.0)
    core.handle(add_message("a", range(5), max_tokens=9))
    first = core.step()
    assert first.admitted == (Admitted(SequenceId("a"), 0, 100.0),)
    core.handle(add_message("b", range(5), max_tokens=9))
    second = core.step()
    assert clock.now == 116.0
    assert second.admitted == (Admitted(SequenceId("b"), 4, 108.0),)
    assert [o.sequence_id for o in second.outputs] == ["a"]
    assert (second.step_tokens, second.step_sequences) == (1, 1)
    third = core.step()  # launched when b came, so b is in the one after it
    assert [o.sequence_id for o in third.outputs] == ["a", "b"]
    assert (third.step_tokens, third.step_sequences) == (2, 2)


@pytest.mark.parametrize("overlap", [False, True])
def test_preemptions_carry_the_time_of_their_plan(overlap: bool) -> None:
    clock = Clock()
    device = Device(clock, step_seconds=8.0)
    config = EngineConfig(model_dir=Path("unused"), overlap=overlap)
    core = EngineCore(config, make_info(8, 4, 30), device, clock)
    for i in range(2):
        core.handle(add_message(f"s{i}", range(i, i + 5), max_tokens=20))
    # 25 tokens each, and room for 32: the later one loses its place once, and has it again when the other has ended.
    preempted: list[Preempted] = []
    resumed: list[Resumed] = []
    ends: dict[str, float] = {}
    while core.has_work():
        step = core.step()
        preempted += step.preempted
        resumed += step.resumed
        ends |= {output.sequence_id: clock.now for output in step.outputs if output.finish_reason}
    assert [one.sequence_id for one in (*preempted, *resumed)] == ["s1", "s1"]
    assert core.stats().preemptions_total == 1
    assert 100.0 < preempted[0].time < resumed[0].time < ends["s1"]
    assert resumed[0].time in {start for start, _ in device.busy}
    assert abs(resumed[0].time - ends["s0"]) <= 8.0


# --- order -----------------------------------------------------------------------------------------------------------


class Log(PagedFakeRunner):
    """Notes what is asked of it, by the number of the step."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.events: list[str] = []

    def launch(self, plan: StepPlan) -> LoggedStep:  # type: ignore[override]  # both are a PendingStep
        self.events.append(f"launch {len(self.plans)}")
        return LoggedStep(self, len(self.plans), super().launch(plan))


class LoggedStep:
    def __init__(self, log: Log, number: int, step: FixedStep) -> None:
        self._log, self._number, self._step = log, number, step

    def result(self) -> StepResult:
        self._log.events.append(f"result {self._number}")
        return self._step.result()


def make_overlapped(runner: PagedFakeRunner, *, max_model_len: int = 200, eos: int | None = None) -> EngineCore:
    config = EngineConfig(model_dir=Path("unused"), overlap=True)
    return EngineCore(config, make_info(64, 4, max_model_len, [] if eos is None else [eos]), runner)


def test_the_next_step_is_launched_before_the_result_is_awaited() -> None:
    core = make_overlapped(log := Log(4))
    core.handle(add_message("a", range(5), max_tokens=3))
    core.step()
    assert log.events == ["launch 0", "launch 1", "result 0"]
    core.step()
    assert log.events[3:] == ["launch 2", "result 1"]
    core.step()
    assert log.events[5:] == ["result 2"]
    assert not core.has_work()


@pytest.mark.parametrize(
    ("device", "overlap", "is_overlapped"),
    [
        ("cpu", None, False),
        ("cpu", True, True),
        ("cuda", None, True),
        ("cuda:1", None, True),
        ("cuda", False, False),
        ("cpu", False, False),
    ],
)
def test_the_loop_is_the_configured_one_or_the_device_s(device: str, overlap: bool | None, is_overlapped: bool) -> None:
    runner = PagedFakeRunner(4)
    info = replace(make_info(64, 4, 200), device=device)
    core = EngineCore(EngineConfig(model_dir=Path("unused"), overlap=overlap), info, runner)
    core.handle(add_message("a", range(5)))
    core.step()
    assert len(runner.unfinished) == is_overlapped


def test_both_loops_run_as_many_steps_to_an_end_by_length() -> None:
    def steps_of(overlap: bool) -> tuple[int, int, dict[str, list[int]]]:
        core, runner = make_core(overlap=overlap)
        for i in range(3):
            core.handle(add_message(f"s{i}", range(i, i + 9), max_tokens=4 + i))
        tokens = run_to_end(core)
        return core.stats().steps_total, len(runner.plans), tokens

    assert steps_of(overlap=True) == steps_of(overlap=False)


def test_a_stop_token_costs_one_step_that_brings_nothing() -> None:
    eos = next_token([1, 2, 3], 1000)
    core = make_overlapped(runner := PagedFakeRunner(4), eos=eos)
    core.handle(add_message("a", [1, 2, 3]))
    (output,) = core.step().outputs
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((eos,), "stop", eos)
    assert core.has_work()
    last = core.step()
    assert (last.outputs, last.step_tokens, last.stats.steps_total) == ((), 1, 2)
    assert not core.has_work()
    assert len(runner.plans) == 2


# --- what comes in between steps -------------------------------------------------------------------------------------


def abort(*names: str) -> AbortSequences:
    return AbortSequences(tuple(SequenceId(name) for name in names))


def test_M1_gauges_are_zero_after_aborts_while_a_step_still_runs() -> None:
    core, runner = make_core(max_num_seqs=3, overlap=True)
    for i in range(5):
        core.handle(add_message(f"s{i}", range(i, i + 9), max_tokens=50))
    core.step()
    core.handle(abort(*(f"s{i}" for i in range(5))))
    notice = core.drain_notices()
    assert notice is not None
    stats = notice.stats
    assert (stats.num_running, stats.num_waiting, stats.num_waiting_prompt_tokens) == (0, 0, 0)
    assert (stats.num_blocks_used, stats.num_slots_allocated, stats.num_slots_filled) == (0, 0, 0)
    assert core.has_work()
    last = core.step()
    assert (last.outputs, last.step_sequences) == ((), 3)
    assert (last.stats.num_running, last.stats.num_blocks_used) == (0, 0)
    assert not core.has_work()
    assert len(runner.plans) == 2
    core.check_integrity()


def test_no_token_of_a_running_step_follows_an_abort() -> None:
    core, _ = make_core(overlap=True)
    for name in "ab":
        core.handle(add_message(name, range(5), max_tokens=6))
    assert [o.sequence_id for o in core.step().outputs] == ["a", "b"]
    core.handle(abort("a"))
    assert [o.sequence_id for o in core.step().outputs] == ["b"]
    core.handle(abort("a"))
    assert set(run_to_end(core)) == {"b"}
    assert core.stats().num_blocks_used == 0


def test_a_refusal_does_not_wait_for_the_running_step() -> None:
    core, _ = make_core(max_model_len=16, overlap=True)
    core.handle(add_message("good", range(5)))
    core.step()
    core.handle(add_message("bad", range(16)))
    notice = core.drain_notices()
    assert notice is not None
    assert [(o.sequence_id, o.finish_reason) for o in notice.outputs] == [("bad", "error")]
    core.handle(add_message("worse", range(16)))
    assert [(o.sequence_id, o.finish_reason) for o in core.step().outputs] == [("worse", "error"), ("good", None)]
    assert core.drain_notices() is None


def test_E6_a_reset_while_a_step_runs_leaves_no_hit() -> None:
    core, runner = make_core(overlap=True)
    message = add_message("a", range(30), max_tokens=20)
    core.handle(message)
    tokens = [t for o in (*core.step().outputs, *core.step().outputs) for t in o.token_ids]
    core.handle(ResetPrefixCache())
    runner.generation += 1
    core.handle(add_message("b", range(30), max_tokens=20))
    admitted: list[Admitted] = []
    while core.has_work():
        step = core.step()
        core.check_integrity()
        admitted += step.admitted
        tokens += [t for o in step.outputs if o.sequence_id == "a" for t in o.token_ids]
    assert [(a.sequence_id, a.num_cached_tokens) for a in admitted] == [("b", 0)]
    assert (tokens, "length") == run_alone(range(30), message.params, 1000, (), 200)


def test_work_can_begin_anew_behind_a_step_that_has_lost_its_sequences() -> None:
    core, _ = make_core(overlap=True)
    core.handle(add_message("a", range(5), max_tokens=50))
    core.step()
    core.handle(abort("a"))
    core.handle(add_message("b", range(5), max_tokens=4))
    assert run_to_end(core) == {"b": run_alone(range(5), add_message("b", [1], max_tokens=4).params, 1000, (), 200)[0]}


# --- errors ----------------------------------------------------------------------------------------------------------


class Failing(PagedFakeRunner):
    """Raises `error` in place of the result of one step, once."""

    def __init__(self, at_step: int, error: BaseException) -> None:
        super().__init__(block_size=4)
        self.at_step, self.error = at_step, error
        self.has_failed = False

    def launch(self, plan: StepPlan) -> FixedStep:
        step = super().launch(plan)
        take = step.result

        def result() -> StepResult:
            if len(self.plans) - len(self.unfinished) == self.at_step and not self.has_failed:
                self.has_failed = True
                raise self.error
            return take()

        step.result = result  # type: ignore[method-assign]
        return step


def test_an_error_of_a_running_step_rises() -> None:
    core = make_overlapped(Failing(2, RuntimeError("device lost")))
    core.handle(add_message("a", range(5), max_tokens=9))
    core.step()
    core.step()
    with pytest.raises(RuntimeError, match="device lost"):
        core.step()


def test_an_interrupted_wait_can_be_taken_up_again() -> None:
    core = make_overlapped(Failing(2, KeyboardInterrupt()))
    message = add_message("a", range(5), max_tokens=9)
    core.handle(message)
    tokens = [t for o in (*core.step().outputs, *core.step().outputs) for t in o.token_ids]
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert core.has_work()
    tokens += run_to_end(core)["a"]
    assert (tokens, "length") == run_alone(range(5), message.params, 1000, (), 200)
