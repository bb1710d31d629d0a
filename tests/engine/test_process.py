"""The engine process's loop, on a channel that is a list."""

from __future__ import annotations

import pytest

from engine.messages import AbortSequences, EngineMessage, FrontMessage, SequenceId, Shutdown, StepOutputs
from engine.process import run_loop
from tests.engine.core.support import add_message, make_core, run_alone


class Script:
    """A channel that gives one batch of messages a call, and ends with `Shutdown`.

    blocked: how many messages of the engine had been sent when it waited.
    """

    def __init__(self, *batches: list[FrontMessage]) -> None:
        self.batches = list(batches)
        self.sent: list[StepOutputs] = []
        self.blocked: list[int] = []

    def receive(self, block: bool) -> list[FrontMessage]:
        if block:
            self.blocked.append(len(self.sent))
        if self.batches:
            return self.batches.pop(0)
        return [Shutdown()] if block else []

    def send(self, message: EngineMessage) -> None:
        assert isinstance(message, StepOutputs)
        self.sent.append(message)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sequence_is_served_to_its_end(overlap: bool) -> None:
    message = add_message("a", range(5), max_tokens=6)
    core, _ = make_core(overlap=overlap)
    channel = Script([message])
    run_loop(core, channel)
    outputs = [output for sent in channel.sent for output in sent.outputs]
    assert [t for o in outputs for t in o.token_ids] == run_alone(range(5), message.params, 1000, (), 200)[0]
    assert outputs[-1].finish_reason == "length"


@pytest.mark.parametrize("overlap", [False, True])
def test_M1_an_abort_is_told_at_once_and_the_loop_waits_only_when_the_device_is_idle(overlap: bool) -> None:
    core, runner = make_core(overlap=overlap)
    abort = AbortSequences((SequenceId("a"),))
    channel = Script([add_message("a", range(5), max_tokens=50)], [], [abort])
    run_loop(core, channel)
    notice = next(sent for sent in channel.sent[1:] if sent.step_seconds is None)
    assert (notice.stats.num_running, notice.stats.num_blocks_used) == (0, 0)
    after = channel.sent[channel.sent.index(notice) + 1 :]
    assert [sent.outputs for sent in after] == [()] * overlap
    assert channel.blocked == [0, len(channel.sent)]
    assert not runner.unfinished
