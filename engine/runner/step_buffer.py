"""The inputs of one step on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from engine.runner.accelerator import Accelerator
from engine.runner.staging import Array, Field, StagedMemory, as_int64, pack, packed_bytes
from engine.runner.step_layout import StepLayout

PADDED_SEQ_LEN = 1
"""Keys of a padded sequence: the one that it writes itself, into the dummy block."""

_DTYPES = (
    ("input_ids", torch.int64, "tokens"),
    ("positions", torch.int64, "tokens"),
    ("slots", torch.int64, "tokens"),
    ("row_indices", torch.int64, "seqs"),
    ("sample_indices", torch.int64, "seqs"),
    ("sample_row_indices", torch.int64, "seqs"),
    ("sample_positions", torch.int64, "seqs"),
    ("query_starts", torch.int32, "starts"),
    ("seq_lens", torch.int32, "seqs"),
)


def _spec(num_tokens: int, num_seqs: int) -> list[tuple[torch.dtype, int]]:
    counts = {"tokens": num_tokens, "seqs": num_seqs, "starts": num_seqs + 1}
    return [(dtype, counts[kind]) for _, dtype, kind in _DTYPES]


@lru_cache(maxsize=1024)
def _fields(num_tokens: int, num_seqs: int) -> tuple[Field, ...]:
    """NOTE: kept, since steps of decodes come in the same few sizes again and again."""
    return pack(_spec(num_tokens, num_seqs))


@dataclass(frozen=True, slots=True)
class DeviceInputs:
    """A step on the device, the names as in `StepLayout`: views of one memory, the same for the same sizes.

    input_ids: `ON_DEVICE` where a decode's token stands in the row table on the device.
    sample_indices, sample_row_indices, sample_positions: int64 (B), of which the first R count.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    row_indices: torch.Tensor
    sample_indices: torch.Tensor
    sample_row_indices: torch.Tensor
    sample_positions: torch.Tensor
    query_starts: torch.Tensor
    seq_lens: torch.Tensor


class StepBuffer:
    """Brings layouts to the device, each in one copy."""

    def __init__(self, accelerator: Accelerator, max_num_tokens: int, max_num_seqs: int, scratch_row: int) -> None:
        """scratch_row: the row of padded sequences, which no sequence has."""
        self._staged = StagedMemory(accelerator, packed_bytes(_spec(max_num_tokens, max_num_seqs)))
        self._scratch_row = scratch_row

    def inputs(self, num_tokens: int, num_seqs: int) -> DeviceInputs:
        """Where a step of that size lies once it is sent."""
        return DeviceInputs(*(self._staged.view(field) for field in _fields(num_tokens, num_seqs)))

    def send(self, layout: StepLayout) -> DeviceInputs:
        """Starts the copy of a step, and returns where it comes to lie."""
        num_tokens, num_seqs = layout.num_tokens, layout.num_seqs
        self._staged.send(_fields(num_tokens, num_seqs), self._arrays(layout))
        return self.inputs(num_tokens, num_seqs)

    def send_padded(self, layout: StepLayout, num_seqs: int) -> None:
        """Starts the copy of a step of decodes as one of `num_seqs` decodes; it comes to lie at `inputs(n, n)`.

        NOTE: a padded decode has the scratch row, whose block table is 0: it reads and writes the dummy block only.
        """
        assert layout.num_tokens == layout.num_seqs <= num_seqs
        fields = _fields(num_seqs, num_seqs)
        arrays = self._arrays(layout)
        if layout.num_seqs < num_seqs:
            arrays = [_extended(array, pad) for array, pad in zip(arrays, self._padding(num_seqs), strict=True)]
        self._staged.send(fields, arrays)

    def send_idle(self, num_seqs: int) -> None:
        """As `send_padded`, of a step with no sequence at all."""
        self._staged.send(_fields(num_seqs, num_seqs), self._padding(num_seqs))

    def _padding(self, num_seqs: int) -> list[Array]:
        """The arrays of `num_seqs` padded decodes."""
        zeros = np.zeros(num_seqs, dtype=np.int64)
        starts = np.arange(num_seqs + 1, dtype=np.int32)
        seq_lens = np.full(num_seqs, PADDED_SEQ_LEN, dtype=np.int32)
        return [zeros, zeros, zeros, np.full_like(zeros, self._scratch_row), zeros, zeros, zeros, starts, seq_lens]

    def _arrays(self, layout: StepLayout) -> list[Array]:
        sample_rows = as_int64([row.index for row in layout.sample_rows])
        return [
            layout.input_ids,
            layout.positions,
            layout.slots,
            layout.row_indices,
            layout.sample_indices,
            sample_rows,
            as_int64(layout.sample_positions),
            layout.query_starts,
            layout.seq_lens,
        ]


def _extended(array: Array, padding: Array) -> Array:
    """The array, then what `padding` holds behind it."""
    extended = padding.copy()
    extended[: len(array)] = array
    return extended
