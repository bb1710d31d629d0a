"""The flat batch of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.core.plan import ScheduledSequence
from engine.layers.attention import AttentionMetadata
from engine.runner.rows import Row, RowTable


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler take for one step, decodes first.

    input_ids, positions: int64 (T). metadata: of the same batch.
    sample_indices: int64 (R), the batch's tokens whose logits are sampled, or None where that is every token.
    sample_rows: their rows. sample_places: for each, its place in the plan's order. sample_positions: of the token
        that each is to bring.
    pending: decodes (their places in input_ids) whose token an unfinished step is still to bring. `fill_pending`
        enters it.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    sample_indices: torch.Tensor | None
    sample_rows: tuple[Row, ...]
    sample_places: tuple[int, ...]
    sample_positions: tuple[int, ...]
    pending: tuple[int, ...]
    row_indices: npt.NDArray[np.int64]

    def fill_pending(self, table: RowTable) -> None:
        """Enters the tokens that the step before has brought. Call it before the table changes for a later step."""
        if self.pending:
            places = list(self.pending)
            rows = self.row_indices[places]
            assert (table.last_positions[rows] == self.positions.numpy()[places]).all(), "a pending token never came"
            self.input_ids.numpy()[places] = table.last_tokens[rows]


def build_step_inputs(scheduled: Sequence[ScheduledSequence], table: RowTable, block_size: int) -> StepInputs:
    """Lays out a step of at least one sequence, and enters its rows into `table`.

    NOTE: sequences with one token (decodes) stand first, longest first, so that attention finds those of like length
    together. Numpy works on all of them at once; only prefill chunks cost Python work by the sequence.
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
        input_ids[first : first + item.num_new_tokens] = item.request.token_ids[item.start : end]

    if num_decodes == len(items):
        positions, token_rows = starts, row_indices
    else:
        positions = np.arange(num_tokens) + np.repeat(starts - query_starts[:-1], query_lens)
        token_rows = np.repeat(row_indices, query_lens)
    blocks = positions // block_size
    slots = table.block_tables[token_rows, blocks].astype(np.int64) * block_size + (positions - blocks * block_size)
    most_blocks = -(-int(seq_lens.max()) // block_size)

    sampling = [i for i, item in enumerate(items) if item.samples]
    is_every_token = len(sampling) == num_tokens
    last_tokens = None if is_every_token else torch.from_numpy(query_starts[1:][sampling].astype(np.int64) - 1)
    return StepInputs(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(positions),
        metadata=AttentionMetadata(
            query_starts=torch.from_numpy(query_starts),
            seq_lens=torch.from_numpy(seq_lens.astype(np.int32)),
            block_tables=torch.from_numpy(table.block_tables[row_indices, :most_blocks]),
            slot_mapping=torch.from_numpy(slots),
            num_decodes=num_decodes,
            max_query_len=int(query_lens.max()),
            max_seq_len=int(seq_lens.max()),
            query_lens=tuple(query_lens.tolist()),
            seq_lens_list=tuple(seq_lens.tolist()),
        ),
        sample_indices=last_tokens,
        sample_rows=tuple(rows[i] for i in sampling),
        sample_places=tuple(order[i] for i in sampling),
        sample_positions=tuple(seq_lens[sampling].tolist()),
        pending=pending,
        row_indices=row_indices,
    )


def _layout_key(item: ScheduledSequence) -> int:
    """Decodes by falling length, then everything else as the plan has it."""
    return -item.start - 1 if item.num_new_tokens == 1 else 0


def _fill_decode_tokens(
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]],
    items: list[ScheduledSequence],
    row_indices: np.ndarray[tuple[int], np.dtype[np.int64]],
    starts: np.ndarray[tuple[int], np.dtype[np.int64]],
    table: RowTable,
) -> tuple[int, ...]:
    """Input tokens of the first `len(tokens)` sequences, from the table where it knows them. Returns the places of
    those that nobody knows yet."""
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
            tokens[i] = -1
            pending.append(i)
    return tuple(pending)
