"""What only the layout knows; the arrays themselves: test_step_inputs.py."""

from __future__ import annotations

import pytest

from engine.core.ids import BlockId
from engine.core.plan import ScheduledSequence
from engine.runner.rows import RowTable
from engine.runner.step_layout import lay_out
from tests.engine.runner.test_step_inputs import Span, make_step


def test_sizes() -> None:
    layout = lay_out(make_step([Span(9, 0, 9), Span(30, 29, 1), Span(20, 4, 6)], 4), RowTable(3, 20), 4)
    assert (layout.num_seqs, layout.num_tokens, layout.num_decodes) == (3, 16, 1)
    assert (layout.max_query_len, layout.max_seq_len) == (9, 30)
    assert layout.sample_positions == (30, 9)
    assert not layout.samples_every_token


def test_decodes_that_all_sample_need_no_selection() -> None:
    layout = lay_out(make_step([Span(9, 8, 1), Span(30, 29, 1)], 4), RowTable(2, 20), 4)
    assert layout.samples_every_token
    assert layout.sample_indices.tolist() == [0, 1]


def test_a_token_still_to_come_can_only_be_a_decodes() -> None:
    """Of a longer chunk nobody could say where it goes; the core plans none."""
    scheduled = make_step([Span(6, 0, 6)], 4)
    request = scheduled[0].request
    request.block_ids.append(BlockId(3999))
    with pytest.raises(AssertionError, match="only a decode"):
        lay_out([ScheduledSequence(request, 4, 3, samples=True)], RowTable(1, 8), 4)
    assert lay_out([ScheduledSequence(request, 6, 1, samples=True)], RowTable(1, 8), 4).pending == (0,)
