"""Per-sequence state that outlives a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.ids import BlockId
from engine.core.request import Request
from engine.messages import SequenceId
from engine.sampling.row import SamplingRow


@dataclass(slots=True)
class Row:
    """One running sequence. index: its row in the table's arrays. num_blocks: blocks entered there so far."""

    index: int
    request: Request
    sampling: SamplingRow
    num_blocks: int = 0


class RowTable:
    """Owner of the rows: gives one to a sequence when it first runs, takes it back when it no longer does.

    block_tables: int32 (capacity, blocks a sequence), 0 (the dummy block) past a row's own blocks.
    last_tokens, last_positions: int64 (capacity), the newest token that the runner knows of a row, and its position
        (-1 where it knows none). A decode reads its input here, with no look at the request's list.

    NOTE: a request's block list only grows while it has a row, so only the new blocks are entered. Preemption takes
    the row away, and a later admission makes a new one from the request.
    """

    def __init__(self, max_num_seqs: int, max_num_blocks: int) -> None:
        """max_num_blocks: the most blocks that one sequence can hold."""
        self.block_tables: npt.NDArray[np.int32] = np.zeros((max_num_seqs, max_num_blocks), dtype=np.int32)
        self.last_tokens: npt.NDArray[np.int64] = np.zeros(max_num_seqs, dtype=np.int64)
        self.last_positions: npt.NDArray[np.int64] = np.full(max_num_seqs, -1, dtype=np.int64)
        self._rows: dict[SequenceId, Row] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._rows)

    def remove(self, sequence_ids: Iterable[SequenceId]) -> None:
        """Drops rows; a sequence that never ran has none."""
        for sequence_id in sequence_ids:
            if (row := self._rows.pop(sequence_id, None)) is not None:
                self.block_tables[row.index, : row.num_blocks] = 0
                self._free.append(row.index)

    def refresh(self, request: Request) -> Row:
        """The row of a request that is about to run, with its blocks entered."""
        row = self._rows.get(request.sequence_id)
        if row is None:
            row = self._add(request)
        num_blocks = len(request.block_ids)
        if num_blocks != row.num_blocks:
            assert num_blocks > row.num_blocks, f"{request} lost blocks while it ran"
            self._enter_blocks(row, request.block_ids[row.num_blocks :])
        return row

    def note_tokens(self, rows: Sequence[Row], token_ids: Sequence[int], positions: Sequence[int]) -> None:
        """Notes the tokens just sampled and their positions (before the core has appended them).

        NOTE: a later step may have been launched since, and have given a row to another sequence: that one's is kept.
        """
        kept = [i for i, row in enumerate(rows) if self._rows.get(row.request.sequence_id) is row]
        indices = [rows[i].index for i in kept]
        self.last_tokens[indices] = [token_ids[i] for i in kept]
        self.last_positions[indices] = [positions[i] for i in kept]

    def _enter_blocks(self, row: Row, block_ids: Sequence[BlockId]) -> None:
        """Enters further blocks of a row."""
        num_blocks = row.num_blocks + len(block_ids)
        self.block_tables[row.index, row.num_blocks : num_blocks] = block_ids
        row.num_blocks = num_blocks

    def _add(self, request: Request) -> Row:
        assert self._free, "more sequences run than max_num_seqs"
        row = self._rows[request.sequence_id] = Row(self._free.pop(), request, SamplingRow(request))
        self.last_positions[row.index] = -1
        return row
