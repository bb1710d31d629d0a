"""Per-sequence state on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.core.ids import BlockId
from engine.core.request import Request
from engine.runner.accelerator import Accelerator
from engine.runner.rows import Row, RowTable
from engine.runner.staging import StagedMemory, as_int64, pack, packed_bytes
from engine.runner.step_layout import ON_DEVICE

TABLE_ALIGNMENT = 16
"""Entries. NOTE: Triton compiles a kernel anew for a stride that is not divisible by 16."""
BLOCKS_A_COPY = 4096
"""New blocks of all rows that one copy brings; a step that has more takes several."""


class DeviceRows(RowTable):
    """The rows, with a twin of each on the device that outlives the step.

    tables: int32 (capacity + 1, blocks a sequence, rounded up). tokens: int64 (capacity + 1), the newest sampled token
    of each row. The last row is `scratch_row`, which padded decodes use: all of its blocks are the dummy block.

    NOTE: block tables live here and only grow, by one small copy in the steps that have new blocks: a copy of all
    tables a step would be 8 MiB for 256 sequences of 128k tokens. What a row's last owner left behind its blocks is
    never read, as attention stops at a sequence's length. Tokens live here so that a step can be launched before the
    host knows what the one before has sampled.
    """

    def __init__(self, accelerator: Accelerator, max_num_seqs: int, max_num_blocks: int) -> None:
        super().__init__(max_num_seqs, max_num_blocks)
        self.scratch_row = max_num_seqs
        self._width = -(-max_num_blocks // TABLE_ALIGNMENT) * TABLE_ALIGNMENT
        shape = (max_num_seqs + 1, self._width)
        self.tables = torch.zeros(shape, dtype=torch.int32, device=accelerator.device)
        self.tokens = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=accelerator.device)
        self._staged = StagedMemory(accelerator, packed_bytes(_spec(BLOCKS_A_COPY)))
        self._places: list[int] = []
        self._blocks: list[BlockId] = []
        self._added: list[Row] = []

    # --- on the host -------------------------------------------------------------------------------------------------

    def take_added(self) -> list[Row]:
        """The rows given away since the last call."""
        added, self._added = self._added, []
        return added

    def _add(self, request: Request) -> Row:
        row = super()._add(request)
        self._added.append(row)
        return row

    def _enter_blocks(self, row: Row, block_ids: Sequence[BlockId]) -> None:
        first = row.index * self._width + row.num_blocks
        self._places += range(first, first + len(block_ids))
        self._blocks += block_ids
        super()._enter_blocks(row, block_ids)

    # --- on the device -----------------------------------------------------------------------------------------------

    def send_blocks(self) -> None:
        """Brings the blocks entered since the last call to the device."""
        for start in range(0, len(self._places), BLOCKS_A_COPY):
            places = as_int64(self._places[start : start + BLOCKS_A_COPY])
            blocks = np.asarray(self._blocks[start : start + BLOCKS_A_COPY], dtype=np.int32)
            fields = pack(_spec(len(places)))
            self._staged.send(fields, (places, blocks))
            on_device = [self._staged.view(field) for field in fields]
            self.tables.view(-1).index_copy_(0, *on_device)
        self._places.clear()
        self._blocks.clear()

    def fill_tokens_(self, input_ids: torch.Tensor, row_indices: torch.Tensor) -> None:
        """Puts the rows' tokens where `input_ids`, int64 (decodes), say `ON_DEVICE`. row_indices: int64 (decodes)."""
        known = self.tokens.index_select(0, row_indices)
        input_ids.copy_(torch.where(input_ids == ON_DEVICE, known, input_ids))

    def select_tables(self, row_indices: torch.Tensor) -> torch.Tensor:
        """The block tables of some rows, int32 (B, width). row_indices: int64 (B)."""
        return self.tables.index_select(0, row_indices)

    def note_sampled(
        self, rows: Sequence[Row], positions: Sequence[int], row_indices: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        """Keeps tokens that a step samples. row_indices, token_ids: int64 (R) on the device, of `rows`.

        positions: of the tokens. The host notes them at once, so that the next step can be laid out.
        """
        self.tokens.index_copy_(0, row_indices, token_ids)
        self.note_tokens(rows, [ON_DEVICE] * len(rows), positions)


def _spec(num_blocks: int) -> list[tuple[torch.dtype, int]]:
    return [(torch.int64, num_blocks), (torch.int32, num_blocks)]
