"""What a caller gets: increments of a stream, and finished requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log probability. `token` is its text for display, `bytes` its exact bytes."""

    token_id: int
    logprob: float
    token: str
    bytes: bytes


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The generated token at one position, the most likely ones there, and where its text starts in the output."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """New text and tokens of one sequence of a request. Exactly one delta per index has a finish reason: its last.

    text: new text, valid UTF-8, held back while it may belong to a stop string or an unfinished character.
    stop_reason: the stop string or the stop token id that ended the sequence, None for EOS and length.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence. cumulative_logprob and logprobs are None unless `SamplingParams.logprobs` is set."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def append(self, delta: SequenceDelta) -> None:
        """Adds an increment of this sequence."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs.extend(delta.logprobs)
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(p.sampled.logprob for p in delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """A request's result. prompt is None when it came as token ids. num_cached_tokens: prefix hit of sequence 0."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0

    @property
    def finished(self) -> bool:
        return all(o.finish_reason is not None for o in self.outputs)
