from __future__ import annotations

import numpy as np
import pytest

from engine.core.ids import BlockId
from engine.core.request import Request
from engine.messages import AddSequence, SequenceId
from engine.runner.rows import RowTable
from engine.sampling_params import SamplingParams


def make_request(name: str, num_tokens: int = 4, blocks: list[int] | None = None) -> Request:
    message = AddSequence(SequenceId(name), tuple(range(num_tokens)), SamplingParams(), 0, 0, 0.0)
    request = Request(message, 0)
    request.block_ids = [BlockId(b) for b in blocks or []]
    return request


def test_a_row_is_kept_and_grows_with_the_blocks() -> None:
    table = RowTable(max_num_seqs=2, max_num_blocks=4)
    request = make_request("a", blocks=[3])
    row = table.refresh(request)
    assert table.block_tables[row.index].tolist() == [3, 0, 0, 0]
    request.block_ids += [BlockId(9), BlockId(5)]
    assert table.refresh(request) is row
    assert table.block_tables[row.index].tolist() == [3, 9, 5, 0]
    assert len(table) == 1


def test_a_removed_row_is_free_and_clean_again() -> None:
    table = RowTable(max_num_seqs=1, max_num_blocks=3)
    first = table.refresh(make_request("a", blocks=[1, 2, 3]))
    table.note_tokens([first], [42], [4])
    table.remove([SequenceId("a"), SequenceId("never ran")])
    second = table.refresh(make_request("b", blocks=[7]))
    assert second.index == first.index
    assert table.block_tables[second.index].tolist() == [7, 0, 0]
    assert table.last_positions[second.index] == -1


def test_preemption_rebuilds_the_row_from_the_request() -> None:
    table = RowTable(max_num_seqs=2, max_num_blocks=3)
    request = make_request("a", blocks=[1, 2])
    before = table.refresh(request)
    table.remove([request.sequence_id])
    request.block_ids = [BlockId(8)]
    after = table.refresh(request)
    assert after is not before
    assert table.block_tables[after.index].tolist() == [8, 0, 0]


def test_noted_tokens_stand_at_their_positions() -> None:
    table = RowTable(max_num_seqs=3, max_num_blocks=1)
    rows = [table.refresh(make_request(name, num_tokens)) for name, num_tokens in (("a", 4), ("b", 9))]
    table.note_tokens(rows, [100, 200], [4, 9])
    indices = [row.index for row in rows]
    assert table.last_tokens[indices].tolist() == [100, 200]
    assert table.last_positions[indices].tolist() == [4, 9]


def test_a_token_that_comes_late_does_not_reach_the_rows_next_owner() -> None:
    table = RowTable(max_num_seqs=1, max_num_blocks=1)
    gone = table.refresh(make_request("a"))
    table.remove([gone.request.sequence_id])
    owner = table.refresh(make_request("b"))
    table.note_tokens([gone], [42], [1])
    assert table.last_positions[owner.index] == -1


def test_more_rows_than_max_num_seqs_is_a_broken_invariant() -> None:
    table = RowTable(max_num_seqs=1, max_num_blocks=1)
    table.refresh(make_request("a"))
    with pytest.raises(AssertionError, match="max_num_seqs"):
        table.refresh(make_request("b"))


def test_a_running_request_that_loses_blocks_is_a_broken_invariant() -> None:
    table = RowTable(max_num_seqs=1, max_num_blocks=3)
    request = make_request("a", blocks=[1, 2])
    table.refresh(request)
    request.block_ids.pop()
    with pytest.raises(AssertionError, match="lost blocks"):
        table.refresh(request)


def test_block_tables_are_int32() -> None:
    assert RowTable(1, 1).block_tables.dtype == np.int32
