"""A step that has been given to the device."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.plan import StepResult
from engine.runner.accelerator import Event
from engine.runner.step_result import step_result
from engine.sampling.device_sampler import DeviceSamples
from engine.sampling.sampler import SampledTokens


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
        if self.samples is None:
            # NOTE: the host would run ahead of the device, by any number of steps, if it did not wait here.
            self.done.synchronize()
            return step_result(self.num_sequences, (), SampledTokens([], []))
        return step_result(self.num_sequences, self.sample_places, self.samples.result())
