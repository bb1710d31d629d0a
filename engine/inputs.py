"""A validated request, ready for the engine."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import AddSequence, SequenceId
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A text and the token ids that it was turned into beforehand (made by `engine.input_processor`)."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and its parameters after every check at the door (made by `engine.input_processor`).

    params.max_tokens is set and fits the context. seed is set. arrival_time: `time.monotonic()` at the door.
    deadline: `time.monotonic()` after which the request is aborted, or None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    arrival_time: float
    deadline: float | None = None

    def sequences(self) -> tuple[AddSequence, ...]:
        """The n sequences of this request, in index order."""
        return tuple(
            AddSequence(
                SequenceId(f"{self.request_id}/{index}"),
                self.prompt_token_ids,
                self.params,
                self.seed,
                index,
                self.arrival_time,
            )
            for index in range(self.params.n)
        )
