"""Which cache rows each attention call of a step reads: worked out once a step, used by every layer.

A cache tensor (num_blocks, block_size, num_kv_heads, head_dim) is read as rows of head_dim values: token slot s of KV
head h is row `s * num_kv_heads + h`. A gather by such rows gives keys and values head-major, as the matmuls want them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.layers.attention import AttentionMetadata

IntArray = npt.NDArray[np.int64]

MIN_PADDING = 32
"""Key counts are rounded up to a multiple of this (of an eighth of the count, above 256).

NOTE: oneDNN compiles a bfloat16 matmul for each new shape (0.4 ms each, measured); a decode's key count grows with
every step, so unrounded every step would compile anew.
"""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes of like length that attend in one batched matmul.

    first, last: their range in the plan's order. num_keys: padded keys a sequence.
    rows: int64 (sequences * num_kv_heads * num_keys), cache rows.
    bias: float32 (sequences, 1, num_keys - bias_start), -inf on padding, or None where nothing is padded.
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

    first_key: position of the first key that any of them sees; rows: int64 (num_kv_heads * num_keys), cache rows.
    """

    query_start: int
    query_end: int
    num_keys: int
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The groups and chunks of one step for one sliding window.

    order: int64 (num_decodes), decodes by falling length, or None where the batch has them so already.
    """

    order: torch.Tensor | None
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


def padded_keys(count: int) -> int:
    """`count` rounded up to at most eight sizes an octave; 12.5 % waste at most above 256."""
    step = max(MIN_PADDING, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def split_by_length(lengths: list[int], group_tokens: int) -> list[tuple[int, int]]:
    """Ranges of `lengths` (falling) to attend together.

    A group's padded keys stay within `group_tokens` (so that they stay in the CPU's cache), and its padding within an
    eighth of that (what another group's calls cost), unless it is one sequence.
    """
    ranges: list[tuple[int, int]] = []
    first, padding = 0, 0
    for index, length in enumerate(lengths):
        longest = lengths[first]
        padding += longest - length
        if index > first and (longest * (index - first + 1) > group_tokens or padding > group_tokens // 8):
            ranges.append((first, index))
            first, padding = index, 0
    if lengths:
        ranges.append((first, len(lengths)))
    return ranges


def make_plan(
    metadata: AttentionMetadata, sliding_window: int | None, block_size: int, num_kv_heads: int, group_tokens: int
) -> AttentionPlan:
    """The plan of one step; `group_tokens` bounds the gathered keys of a decode group."""
    tables = metadata.block_tables.numpy()
    seq_lens = np.array(metadata.seq_lens_list, dtype=np.int64)
    num_decodes = metadata.num_decodes

    order: IntArray | None = None
    ends = seq_lens[:num_decodes]
    keys = ends if sliding_window is None else np.minimum(ends, sliding_window)
    if num_decodes > 1 and (keys[1:] > keys[:-1]).any():
        order = np.argsort(-keys, kind="stable")
        ends, keys = ends[order], keys[order]
    decode_tables = tables[:num_decodes] if order is None else tables[order]
    groups = tuple(
        _decode_group(decode_tables, ends, keys, first, last, block_size, num_kv_heads)
        for first, last in split_by_length(keys.tolist(), group_tokens)
    )

    chunks: list[PrefillChunk] = []
    query_start = sum(metadata.query_lens[:num_decodes])
    for index in range(num_decodes, len(metadata.query_lens)):
        query_len, end = metadata.query_lens[index], metadata.seq_lens_list[index]
        first_key = 0 if sliding_window is None else max(0, end - query_len - sliding_window + 1)
        positions = np.arange(first_key, end)
        rows = _cache_rows(tables[index : index + 1], positions[None], block_size, num_kv_heads)
        chunks.append(PrefillChunk(query_start, query_start + query_len, end - first_key, rows))
        query_start += query_len
    return AttentionPlan(None if order is None else torch.from_numpy(order), groups, tuple(chunks))


def _decode_group(
    tables: npt.NDArray[np.int32],
    ends: IntArray,
    keys: IntArray,
    first: int,
    last: int,
    block_size: int,
    num_kv_heads: int,
) -> DecodeGroup:
    num_keys = padded_keys(int(keys[first]))
    ends, keys = ends[first:last, None], keys[first:last, None]
    columns = np.arange(num_keys)
    # NOTE: padding reads the sequence's last token again: a row that is surely written, so no NaN can enter.
    positions = np.minimum(ends - keys + columns, ends - 1)
    rows = _cache_rows(tables[first:last], positions, block_size, num_kv_heads)
    shortest = int(keys[-1, 0])
    bias = None
    if shortest < num_keys:
        masked = columns[shortest:] >= keys
        bias = torch.from_numpy(np.where(masked, np.float32(-np.inf), np.float32(0.0))).unsqueeze(1)
    return DecodeGroup(first, last, num_keys, rows, bias, shortest)


def _cache_rows(tables: npt.NDArray[np.int32], positions: IntArray, block_size: int, num_kv_heads: int) -> torch.Tensor:
    """int64 (B * num_kv_heads * L): rows of `positions` (B, L), head-major in each sequence."""
    blocks = positions // block_size
    slots = np.take_along_axis(tables, blocks, axis=1).astype(np.int64)
    slots *= block_size
    slots += positions - blocks * block_size
    rows = slots[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None]
    return torch.from_numpy(rows.reshape(-1))
