"""A step that has been given to the device."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.plan import StepResult
from engine.messages import RawLogprobs
from engine.runner.accelerator import Event
from engine.sampling.device_sampler import DeviceSamples


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """The `PendingStep` of a device.

    num_sequences: in the plan. sample_places: places in the plan of the sequences that sample, in the order of
    `samples` (None where none does). done: behind all of the step's work.
    """

    num_sequences: int
    sample_places: tuple[int, ...]
    samples: DeviceSamples | None
    done: Event

    def result(self) -> StepResult:
        """Waits for the step, and for nothing that was launched after it."""
        token_ids: list[tuple[int, ...]] = [()] * self.num_sequences
        logprobs: list[tuple[RawLogprobs, ...] | None] = [None] * self.num_sequences
        if self.samples is None:
            # NOTE: the host would run ahead of the device, by any number of steps, if it did not wait here.
            self.done.synchronize()
            return StepResult(tuple(token_ids), tuple(logprobs))
        sampled = self.samples.result()
        for place, token_id, entry in zip(self.sample_places, sampled.token_ids, sampled.logprobs, strict=True):
            token_ids[place] = (token_id,)
            logprobs[place] = None if entry is None else (entry,)
        return StepResult(tuple(token_ids), tuple(logprobs))
