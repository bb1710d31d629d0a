"""Drives an OutputProcessor with one request, as the engine would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.inputs import GenerationRequest
from engine.messages import FinishReason, RawLogprobs, SequenceId, SequenceOutput
from engine.output.processor import OutputProcessor
from engine.outputs import CompletionOutput, SequenceDelta
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer


def request_of(params: SamplingParams, prompt_ids: Sequence[int] = (1,), request_id: str = "r") -> GenerationRequest:
    return GenerationRequest(request_id, None, tuple(prompt_ids), params, 0, 0.0)


def raw_logprobs(token_id: int, top_ids: Sequence[int] = ()) -> RawLogprobs:
    """−id/100 as every log probability."""
    return RawLogprobs(token_id, -token_id / 100, tuple(top_ids), tuple(-i / 100 for i in top_ids))


@dataclass
class Run:
    """What came of feeding a sequence."""

    deltas: list[SequenceDelta] = field(default_factory=list)
    to_abort: list[SequenceId] = field(default_factory=list)
    num_fed: int = 0

    @property
    def result(self) -> CompletionOutput:
        output = CompletionOutput(index=0)
        for delta in self.deltas:
            output.append(delta)
        return output

    @property
    def texts(self) -> list[str]:
        return [delta.text for delta in self.deltas]


def feed(
    tokenizer: Tokenizer | None,
    ids: Sequence[int],
    finish_reason: FinishReason | None = "length",
    *,
    stop_token_id: int | None = None,
    prompt_ids: Sequence[int] = (97,),
    chunks: Sequence[int] = (),
    **params: object,
) -> Run:
    """Feeds `ids` one a step, or in steps of `chunks` tokens; stops when the sequence has finished."""
    params.setdefault("max_tokens", max(1, len(ids)))
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    processor = OutputProcessor(tokenizer)
    processor.add(request_of(sampling, prompt_ids))
    run = Run()
    position = 0
    sizes = iter(chunks)
    while True:
        step = tuple(ids[position : position + next(sizes, 1)])
        position += len(step)
        is_last = position >= len(ids)
        output = SequenceOutput(
            SequenceId("r/0"),
            step,
            None if sampling.logprobs is None else tuple(raw_logprobs(i, ids[: sampling.logprobs]) for i in step),
            finish_reason if is_last else None,
            stop_token_id if is_last else None,
        )
        processed = processor.process([output])
        run.deltas += [delta for _, delta in processed.deltas]
        run.to_abort += processed.to_abort
        run.num_fed = position
        if is_last or (run.deltas and run.deltas[-1].finish_reason is not None):
            return run
