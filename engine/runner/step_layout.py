"""One step laid out flat, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.plan import ScheduledSequence
from engine.runner.rows import Row, RowTable

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

ON_DEVICE = -1
"""Stands where a token's id should, on the host and in a step's input, for a token that only the device knows."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The flat batch of one step: B sequences, T tokens, decodes (sequences with one token) first.

    row_indices: int64 (B). input_ids, positions, slots: int64 (T). query_starts: int32 (B + 1). seq_lens: int32 (B).
    pending: decodes whose token nobody knows yet, for an unfinished step is to bring it; their input id is `ON_DEVICE`.
    sample_indices: int64 (R), the tokens whose logits are sampled. sample_rows: their rows. sample_places: for each,
        its place in the plan's order. sample_positions: of the token that each is to bring.
    """

    row_indices: Int64Array
    input_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    query_starts: Int32Array
    seq_lens: Int32Array
    query_lens: Int64Array
    num_decodes: int
    pending: tuple[int, ...]
    sample_indices: Int64Array
    sample_rows: tuple[Row, ...]
    sample_places: tuple[int, ...]
    sample_positions: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.row_indices)

    @property
    def max_query_len(self) -> int:
        return int(self.query_lens.max())

    @property
    def max_seq_len(self) -> int:
        return int(self.seq_lens.max())

    @property
    def samples_every_token(self) -> bool:
        return len(self.sample_rows) == self.num_tokens


def lay_out(scheduled: Sequence[ScheduledSequence], table: RowTable, block_size: int) -> StepLayout:
    """Lays out a step of at least one sequence, and enters its rows into `table`.

    NOTE: decodes stand longest first, so that attention finds those of like length together. Numpy works on all of
    them at once; only prefill chunks cost Python work by the sequence.
    """
    order = sorted(range(len(scheduled)), key=lambda i: _layout_key(scheduled[i]))
    items = [scheduled[i] for i in order]
    rows = [table.refresh(item.request) for item in items]
    row_indices = np.array([row.index for row in rows], dtype=np.int64)
    starts = np.array([item.start for item in items], dtype=np.int64)
    query_lens = np.array([item.num_new_tokens for item in items], dtype=np.int64)
    num_decodes = int(np.count_nonzero(query_lens == 1))
    seq_lens = starts + query_lens

    query_starts = np.zeros(len(items) + 1, dtype=np.int32)
    np.cumsum(query_lens, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    input_ids = np.empty(num_tokens, dtype=np.int64)
    pending = _fill_decode_tokens(input_ids[:num_decodes], items, row_indices, starts, table)
    for item, first in zip(items[num_decodes:], query_starts[num_decodes:-1].tolist(), strict=True):
        end = item.start + item.num_new_tokens
        assert end <= item.request.num_tokens, "only a decode can go on with a token that is still to come"
        input_ids[first : first + item.num_new_tokens] = item.request.token_ids[item.start : end]

    if num_decodes == len(items):
        positions, token_rows = starts, row_indices
    else:
        positions = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], query_lens)
        token_rows = np.repeat(row_indices, query_lens)
    blocks = positions // block_size
    slots = table.block_tables[token_rows, blocks].astype(np.int64) * block_size + (positions - blocks * block_size)

    sampling = [i for i, item in enumerate(items) if item.samples]
    return StepLayout(
        row_indices=row_indices,
        input_ids=input_ids,
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        seq_lens=seq_lens.astype(np.int32),
        query_lens=query_lens,
        num_decodes=num_decodes,
        pending=pending,
        sample_indices=query_starts[1:][sampling].astype(np.int64) - 1,
        sample_rows=tuple(rows[i] for i in sampling),
        sample_places=tuple(order[i] for i in sampling),
        sample_positions=tuple(seq_lens[sampling].tolist()),
    )


def _layout_key(item: ScheduledSequence) -> int:
    """Decodes by falling length, then everything else as the plan has it."""
    return -item.start - 1 if item.num_new_tokens == 1 else 0


def _fill_decode_tokens(
    tokens: Int64Array, items: list[ScheduledSequence], row_indices: Int64Array, starts: Int64Array, table: RowTable
) -> tuple[int, ...]:
    """Input tokens of the first `len(tokens)` sequences, from the table where it knows them.

    Returns the places of those that nobody knows yet.
    """
    indices = row_indices[: len(tokens)]
    np.take(table.last_tokens, indices, out=tokens)
    # NOTE: a chunk of one token (the end of a prompt, or all but one token found cached) is not what was sampled last.
    unknown = np.flatnonzero(table.last_positions[indices] != starts[: len(tokens)])
    pending: list[int] = []
    for i in unknown.tolist():
        request, start = items[i].request, items[i].start
        if start < request.num_tokens:
            tokens[i] = request.token_ids[start]
        else:
            tokens[i] = ON_DEVICE
            pending.append(i)
    return tuple(pending)
