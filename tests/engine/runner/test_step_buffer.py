"""Layouts on the device, as they are and padded."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest

from engine.runner.accelerator import HostAccelerator
from engine.runner.rows import RowTable
from engine.runner.step_buffer import PADDED_SEQ_LEN, StepBuffer
from engine.runner.step_layout import StepLayout, lay_out
from tests.engine.runner.test_step_inputs import Span, make_step

SCRATCH_ROW = 9


def make_layout(spans: list[Span], seed: int = 0) -> StepLayout:
    return lay_out(make_step(spans, 4, seed), RowTable(SCRATCH_ROW, 60), 4)


def make_buffer() -> StepBuffer:
    return StepBuffer(HostAccelerator(), 400, SCRATCH_ROW, SCRATCH_ROW)


@pytest.mark.parametrize("seed", range(10))
def test_every_array_arrives_whatever_lay_there_before(seed: int) -> None:
    rng = random.Random(seed)
    buffer = make_buffer()
    for _ in range(3):
        layout = make_layout([Span(n := rng.randrange(1, 40), 0, n) for _ in range(rng.randrange(1, 9))], seed)
        inputs = buffer.send(layout)
        for name in ("input_ids", "positions", "slots", "row_indices", "query_starts", "seq_lens"):
            assert getattr(inputs, name).tolist() == getattr(layout, name).tolist(), name
        num_samples = len(layout.sample_rows)
        assert inputs.sample_indices[:num_samples].tolist() == layout.sample_indices.tolist()
        assert inputs.sample_row_indices[:num_samples].tolist() == [row.index for row in layout.sample_rows]
        assert inputs.sample_positions[:num_samples].tolist() == list(layout.sample_positions)


def test_padded_decodes_write_the_dummy_block() -> None:
    buffer = make_buffer()
    layout = make_layout([Span(6, 5, 1), Span(9, 8, 1), Span(3, 2, 1)])
    buffer.send_padded(layout, 8)
    inputs = buffer.inputs(8, 8)
    assert inputs.positions.tolist() == [8, 5, 2, 0, 0, 0, 0, 0]
    assert inputs.slots.tolist() == [*layout.slots.tolist(), 0, 0, 0, 0, 0]
    assert inputs.row_indices.tolist() == [*layout.row_indices.tolist(), *[SCRATCH_ROW] * 5]
    assert inputs.input_ids.tolist() == [*layout.input_ids.tolist(), 0, 0, 0, 0, 0]
    assert inputs.query_starts.tolist() == list(range(9))
    assert inputs.seq_lens.tolist() == [9, 6, 3, *[PADDED_SEQ_LEN] * 5]
    assert inputs.sample_indices[:3].tolist() == [0, 1, 2]
    assert inputs.sample_positions[:3].tolist() == [9, 6, 3]


def test_a_full_bucket_needs_no_padding() -> None:
    buffer = make_buffer()
    layout = make_layout([Span(6, 5, 1), Span(9, 8, 1)])
    buffer.send_padded(layout, 2)
    assert buffer.inputs(2, 2).seq_lens.tolist() == [9, 6]


def test_idle_decodes_are_all_padding() -> None:
    buffer = make_buffer()
    buffer.send(make_layout([Span(200, 0, 200)]))
    buffer.send_idle(4)
    inputs = buffer.inputs(4, 4)
    assert inputs.row_indices.tolist() == [SCRATCH_ROW] * 4
    assert inputs.slots.tolist() == inputs.positions.tolist() == inputs.input_ids.tolist() == [0] * 4


def test_a_size_lies_where_it_lay_before() -> None:
    """A graph holds addresses."""
    buffer = make_buffer()
    first, second = buffer.inputs(4, 4), buffer.inputs(4, 4)
    for field in fields(first):
        assert getattr(first, field.name).data_ptr() == getattr(second, field.name).data_ptr()
        assert getattr(first, field.name).data_ptr() % 16 == 0
