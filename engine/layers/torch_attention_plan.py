"""Which cache rows the attention of a step writes and reads: worked out once a step, used by every layer.

In memory a block of the cache is (num_kv_heads, block_size, head_dim) (see `torch_attention.allocate_cache`). So the
keys that a KV head has in block b are one row of block_size * head_dim values, row `b * num_kv_heads + head`, and a
gather of such rows gives keys head by head, as the matmuls want them, in reads of a few KiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.layers.attention import AttentionMetadata

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

MIN_PADDING = 32
"""Keys of a decode group are rounded up to a multiple of this (of an eighth of their number, above 256).

NOTE: oneDNN compiles a bfloat16 matmul for each new shape (0.4 ms each, measured); unrounded, the growing key counts
of decodes would bring new shapes all the time.
"""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes of like length that attend in one batched matmul.

    first, last: their range in the plan's order. num_keys: padded keys a sequence.
    rows: int64 (sequences * num_kv_heads * num_keys / block_size), cache rows.
    bias: (sequences, 1, num_keys - bias_start) in the cache's dtype, -inf on keys not to be seen; None if there are
    none.
    """

    first: int
    last: int
    num_keys: int
    rows: torch.Tensor
    bias: torch.Tensor | None
    bias_start: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Queries [query_start, query_end) of the flat batch, the last tokens of a sequence's keys so far.

    rows: int64 (num_kv_heads * blocks), cache rows, from the first block with a key that any query sees.
    num_keys: keys in them up to the sequence's last token; the rest of the last block is not to be read.
    """

    query_start: int
    query_end: int
    num_keys: int
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The groups and chunks of one step for one sliding window.

    order: int64 (num_decodes), decodes by falling number of blocks, or None where the batch has them so already.
    """

    order: torch.Tensor | None
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """rows: int64 (T * num_kv_heads), where each token's heads go, in rows of head_dim values.

    fresh: int64, blocks that this step begins and does not fill, or None. Their unwritten slots must be zeroed.
    """

    rows: torch.Tensor
    fresh: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the plans need to know of a cache."""

    block_size: int
    num_kv_heads: int
    dtype: torch.dtype

    def rows(self, block_ids: Int32Array) -> torch.Tensor:
        """int64 (sequences * num_kv_heads * n): cache rows of blocks (sequences, n), head by head."""
        rows = block_ids[:, None, :].astype(np.int64) * self.num_kv_heads + np.arange(self.num_kv_heads)[:, None]
        return torch.from_numpy(rows.reshape(-1))


def padded_blocks(count: int, block_size: int) -> int:
    """`count` rounded up to at most eight sizes an octave; 12.5 % waste at most above 256 keys."""
    keys = count * block_size
    step = max(MIN_PADDING, 1 << max(0, keys.bit_length() - 4))
    step_blocks = max(1, step // block_size)
    return -(-count // step_blocks) * step_blocks


def split_by_length(lengths: list[int], group_size: int) -> list[tuple[int, int]]:
    """Ranges of `lengths` (falling) to attend together.

    A group's padded lengths add up to `group_size` at most (so that it stays in the CPU's cache), and its padding to
    an eighth of that (what another group's calls cost), unless it is one sequence.
    """
    ranges: list[tuple[int, int]] = []
    first, padding = 0, 0
    for index, length in enumerate(lengths):
        longest = lengths[first]
        padding += longest - length
        if index > first and (longest * (index - first + 1) > group_size or padding > group_size // 8):
            ranges.append((first, index))
            first, padding = index, 0
    if lengths:
        ranges.append((first, len(lengths)))
    return ranges


def plan_writes(metadata: AttentionMetadata, shape: CacheShape) -> WritePlan:
    """Where the step's keys and values go."""
    block_size = shape.block_size
    slots = metadata.slot_mapping.numpy()
    blocks = slots // block_size
    offsets = slots - blocks * block_size
    heads = np.arange(shape.num_kv_heads)
    rows = (blocks[:, None] * shape.num_kv_heads + heads) * block_size + offsets[:, None]

    ends = np.array(metadata.seq_lens_list, dtype=np.int64)
    starts = ends - np.array(metadata.query_lens, dtype=np.int64)
    last_blocks = (ends - 1) // block_size
    begun = np.flatnonzero((starts <= last_blocks * block_size) & (ends % block_size != 0))
    fresh = None
    if len(begun):
        fresh = torch.from_numpy(metadata.block_tables.numpy()[begun, last_blocks[begun]].astype(np.int64))
    return WritePlan(torch.from_numpy(rows.reshape(-1)), fresh)


def plan_reads(
    metadata: AttentionMetadata, sliding_window: int | None, shape: CacheShape, group_blocks: int
) -> ReadPlan:
    """What the step's queries read; `group_blocks` bounds the blocks gathered for a decode group."""
    tables = metadata.block_tables.numpy()
    num_decodes = metadata.num_decodes
    ends = np.array(metadata.seq_lens_list, dtype=np.int64)
    first_keys = np.zeros_like(ends)
    if sliding_window is not None:
        first_keys = np.maximum(first_keys, ends - np.array(metadata.query_lens) + 1 - sliding_window)
    first_blocks = first_keys // shape.block_size
    num_blocks = (ends - 1) // shape.block_size + 1 - first_blocks

    order: Int64Array | None = None
    lengths = num_blocks[:num_decodes]
    if (lengths[1:] > lengths[:-1]).any():
        order = np.argsort(-lengths, kind="stable")
    laid_out = slice(0, num_decodes) if order is None else order
    decode_tables, decode_ends, decode_first_keys = tables[laid_out], ends[laid_out], first_keys[laid_out]
    groups = tuple(
        _decode_group(
            first, last, decode_tables[first:last], decode_ends[first:last], decode_first_keys[first:last], shape
        )
        for first, last in split_by_length(lengths[laid_out].tolist(), group_blocks)
    )

    chunks: list[PrefillChunk] = []
    query_start = num_decodes
    for index in range(num_decodes, len(metadata.query_lens)):
        query_end = query_start + metadata.query_lens[index]
        first_block = int(first_blocks[index])
        block_ids = tables[index : index + 1, first_block : first_block + int(num_blocks[index])]
        num_keys = metadata.seq_lens_list[index] - first_block * shape.block_size
        chunks.append(PrefillChunk(query_start, query_end, num_keys, shape.rows(block_ids)))
        query_start = query_end
    return ReadPlan(None if order is None else torch.from_numpy(order), groups, tuple(chunks))


def _decode_group(
    first: int, last: int, tables: Int32Array, ends: Int64Array, first_keys: Int64Array, shape: CacheShape
) -> DecodeGroup:
    block_size = shape.block_size
    ends, first_keys = ends[:, None], first_keys[:, None]
    first_blocks, last_blocks = first_keys // block_size, (ends - 1) // block_size
    num_blocks = padded_blocks(int(last_blocks[0, 0] - first_blocks[0, 0]) + 1, block_size)
    # NOTE: padding reads the sequence's own last block again, never a block of others, so that no value of another
    # sequence, NaN included, can reach this one.
    block_ids = np.take_along_axis(tables, np.minimum(first_blocks + np.arange(num_blocks), last_blocks), axis=1)
    num_keys = num_blocks * block_size
    positions = first_blocks * block_size + np.arange(num_keys)
    hidden = (positions >= ends) | (positions < first_keys)
    bias, bias_start = None, int(hidden.any(axis=0).argmax())
    if hidden.any():
        values = np.where(hidden[:, None, bias_start:], np.float32(-np.inf), np.float32(0.0))
        bias = torch.from_numpy(values).to(shape.dtype)
    return DecodeGroup(first, last, num_keys, shape.rows(block_ids), bias, bias_start)
