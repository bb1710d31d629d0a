"""engine/output/processor.py"""

from __future__ import annotations

import pytest

from engine.errors import InvalidParameterError
from engine.messages import SequenceId, SequenceOutput
from engine.output.processor import OutputProcessor
from engine.sampling_params import SamplingParams
from tests.engine.output.driver import request_of
from tests.engine.tokenizer.vocabularies import byte_level


def output(name: str, data: bytes, **kwargs: object) -> SequenceOutput:
    return SequenceOutput(SequenceId(name), tuple(data), **kwargs)  # type: ignore[arg-type]


def test_deltas_carry_their_request_and_index() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=2), request_id="a"))
    processor.add(request_of(SamplingParams(), request_id="b"))
    processed = processor.process([output("a/1", b"x"), output("b/0", b"y"), output("a/0", b"z")])
    assert [(r, d.index, d.text) for r, d in processed.deltas] == [("a", 1, "x"), ("b", 0, "y"), ("a", 0, "z")]
    assert processor.num_requests == 2


def test_S2_each_sequence_finishes_once_and_the_request_is_forgotten_with_the_last() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=2)))
    processed = processor.process([output("r/0", b"x", finish_reason="length"), output("r/1", b"y")])
    assert [d.finish_reason for _, d in processed.deltas] == ["length", None]
    assert processor.num_requests == 1
    processed = processor.process([output("r/1", b"y", finish_reason="length")])
    assert [(d.index, d.finish_reason) for _, d in processed.deltas] == [(1, "length")]
    assert processor.num_requests == 0


def test_a_stop_string_ends_one_sequence_and_asks_for_its_abort() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=2, stop="!")))
    processed = processor.process([output("r/0", b"a!"), output("r/1", b"b")])
    assert [(d.index, d.text, d.finish_reason) for _, d in processed.deltas] == [(0, "a", "stop"), (1, "b", None)]
    assert processed.to_abort == ["r/0"]
    assert processor.abort("r") == ["r/1"]


def test_late_outputs_are_ignored() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=2, stop="!")))
    processor.process([output("r/0", b"!")])
    processed = processor.process([output("r/0", b"late", finish_reason="length"), output("unknown/0", b"x")])
    assert (processed.deltas, processed.to_abort) == ([], [])
    processor.abort("r")
    assert processor.process([output("r/1", b"late")]).deltas == []


def test_abort_names_what_still_runs_and_may_be_repeated() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=3)))
    processor.process([output("r/1", b"x", finish_reason="length")])
    assert processor.abort("r") == ["r/0", "r/2"]
    assert processor.abort("r") == []
    assert processor.num_requests == 0


def test_the_sequences_of_a_request_do_not_share_state() -> None:
    processor = OutputProcessor(byte_level())
    processor.add(request_of(SamplingParams(n=2, stop="ab")))
    processed = processor.process(
        [output("r/0", b"a"), output("r/1", b"b"), output("r/0", b"\xe4"), output("r/1", b"x")]
    )
    assert [(d.index, d.text) for _, d in processed.deltas] == [(1, "b"), (1, "x")]


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    processor = OutputProcessor(None)
    with pytest.raises(InvalidParameterError, match="stop_token_ids"):
        processor.add(request_of(SamplingParams(stop="x")))
    assert processor.num_requests == 0
