"""The inputs of one step on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.core.plan import ScheduledSequence
from engine.layers.attention import AttentionMetadata
from engine.runner.rows import RowTable
from engine.runner.step_layout import StepLayout, lay_out


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model takes for one step, and the layout that it was made from.

    input_ids, positions: int64 (T), the layout's own memory. metadata: of the same batch.
    sample_indices: int64 (R), the batch's tokens whose logits are sampled, or None where that is every token.
    """

    layout: StepLayout
    input_ids: torch.Tensor
    positions: torch.Tensor
    metadata: AttentionMetadata
    sample_indices: torch.Tensor | None

    def fill_pending(self, table: RowTable) -> None:
        """Enters the tokens that the step before has brought. Call it before the table changes for a later step."""
        if self.layout.pending:
            places = list(self.layout.pending)
            rows = self.layout.row_indices[places]
            assert (table.last_positions[rows] == self.layout.positions[places]).all(), "a pending token never came"
            self.layout.input_ids[places] = table.last_tokens[rows]


def build_step_inputs(scheduled: Sequence[ScheduledSequence], table: RowTable, block_size: int) -> StepInputs:
    """As `lay_out`, with the layout's arrays as tensors."""
    layout = lay_out(scheduled, table, block_size)
    most_blocks = -(-layout.max_seq_len // block_size)
    return StepInputs(
        layout=layout,
        input_ids=torch.from_numpy(layout.input_ids),
        positions=torch.from_numpy(layout.positions),
        metadata=AttentionMetadata(
            query_starts=torch.from_numpy(layout.query_starts),
            seq_lens=torch.from_numpy(layout.seq_lens),
            block_tables=torch.from_numpy(table.block_tables[layout.row_indices, :most_blocks]),
            slot_mapping=torch.from_numpy(layout.slots),
            num_decodes=layout.num_decodes,
            max_query_len=layout.max_query_len,
            max_seq_len=layout.max_seq_len,
            query_lens=tuple(layout.query_lens.tolist()),
            seq_lens_list=tuple(layout.seq_lens.tolist()),
        ),
        sample_indices=None if layout.samples_every_token else torch.from_numpy(layout.sample_indices),
    )
