"""From the engine's token ids to what callers get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.errors import InvalidParameterError
from engine.inputs import GenerationRequest
from engine.messages import SequenceId, SequenceOutput
from engine.output.sequence import SequenceText
from engine.output.stop_strings import stop_automaton
from engine.outputs import SequenceDelta
from engine.tokenizer import Tokenizer


@dataclass(slots=True)
class ProcessedOutputs:
    """deltas: request id and increment, in the engine's order. to_abort: sequences that a stop string ended and that
    the engine still runs."""

    deltas: list[tuple[str, SequenceDelta]] = field(default_factory=list)
    to_abort: list[SequenceId] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    request_id: str
    text: SequenceText


class OutputProcessor:
    """Detokenises, applies stop strings and shapes log probabilities for every sequence in flight.

    A sequence is known from `add` until its last increment or `abort`; outputs that come later are ignored.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """tokenizer: None gives token ids with text ""."""
        self._tokenizer = tokenizer
        self._sequences: dict[SequenceId, _Entry] = {}
        self._running: dict[str, dict[SequenceId, None]] = {}

    @property
    def num_requests(self) -> int:
        return len(self._running)

    def add(self, request: GenerationRequest) -> None:
        """Takes up a request's n sequences, before the engine is told. Raises `InvalidParameterError` for stop strings
        without a tokenizer."""
        assert request.request_id not in self._running, f"request id {request.request_id} is in flight"
        stops = None
        if request.params.stop:
            if self._tokenizer is None:
                raise InvalidParameterError("stop strings need a tokenizer; use stop_token_ids", param="stop")
            stops = stop_automaton(request.params.stop)
        running: dict[SequenceId, None] = {}
        for sequence in request.sequences():
            text = SequenceText(sequence.index, request.params, request.prompt_token_ids, self._tokenizer, stops)
            self._sequences[sequence.sequence_id] = _Entry(request.request_id, text)
            running[sequence.sequence_id] = None
        self._running[request.request_id] = running

    def process(self, outputs: Iterable[SequenceOutput]) -> ProcessedOutputs:
        """The increments that new tokens bring."""
        processed = ProcessedOutputs()
        for output in outputs:
            entry = self._sequences.get(output.sequence_id)
            if entry is None:
                continue
            delta = entry.text.take(output)
            if delta is None:
                continue
            processed.deltas.append((entry.request_id, delta))
            if delta.finish_reason is not None:
                self._forget(output.sequence_id, entry.request_id)
                if output.finish_reason is None:
                    processed.to_abort.append(output.sequence_id)
        return processed

    def abort(self, request_id: str) -> list[SequenceId]:
        """Forgets a request; returns its sequences that the engine still runs. Idempotent."""
        running = list(self._running.pop(request_id, ()))
        for sequence_id in running:
            del self._sequences[sequence_id]
        return running

    def _forget(self, sequence_id: SequenceId, request_id: str) -> None:
        del self._sequences[sequence_id]
        running = self._running[request_id]
        del running[sequence_id]
        if not running:
            del self._running[request_id]
