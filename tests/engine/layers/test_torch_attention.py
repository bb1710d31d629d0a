"""The CPU back end against dense attention, over ragged batches, shapes, windows and block sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.torch_attention import TILE, TorchAttention, allocate_cache
from engine.layers.torch_attention_plan import CacheShape, padded_blocks, plan_reads, split_by_length

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2}
"""float32: rounding of a sum of a few hundred products of unit normals. bfloat16: scores and weights of 8 bits."""


@pytest.fixture(autouse=True)
def _one_thread_inference() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


@dataclass
class Batch:
    """Random queries and a cache that holds random history; `keys[i]`, `values[i]`: all of sequence i, dense."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache: KVCache
    metadata: AttentionMetadata
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def make_batch(
    spans: list[tuple[int, int]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> Batch:
    """`spans`: (tokens in the cache, new tokens) of each sequence, those with one new token first."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    lengths = [past + new for past, new in spans]
    needed = [-(-length // block_size) for length in lengths]
    # Blocks hold NaN, also those of the sequences that this step begins: nothing of an earlier owner may be read.
    num_blocks = sum(needed) + 3
    cache = allocate_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype)
    cache.k.fill_(math.nan)
    cache.v.fill_(math.nan)
    free = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    tables = torch.zeros(len(spans), max(needed), dtype=torch.int32)
    slots, new_k, new_v, keys, values = [], [], [], [], []
    for index, (past, _) in enumerate(spans):
        blocks = [free.pop() for _ in range(needed[index])]
        tables[index, : needed[index]] = torch.tensor(blocks)
        position = torch.arange(lengths[index])
        slot = torch.tensor(blocks)[position // block_size] * block_size + position % block_size
        k, v = normal(lengths[index], num_kv_heads, head_dim), normal(lengths[index], num_kv_heads, head_dim)
        for tensor, history in ((cache.k, k), (cache.v, v)):
            tensor[blocks[: -(-past // block_size)]] = 0.0
            tensor[slot[:past] // block_size, slot[:past] % block_size] = history[:past]
        slots.append(slot[past:])
        new_k.append(k[past:])
        new_v.append(v[past:])
        keys.append(k)
        values.append(v)
    query_lens = tuple(new for _, new in spans)
    metadata = AttentionMetadata(
        query_starts=torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.cat(slots),
        num_decodes=next((i for i, new in enumerate(query_lens) if new > 1), len(spans)),
        max_query_len=max(query_lens),
        max_seq_len=max(lengths),
        query_lens=query_lens,
        seq_lens_list=tuple(lengths),
    )
    q = normal(sum(query_lens), num_heads, head_dim)
    return Batch(q, torch.cat(new_k), torch.cat(new_v), cache, metadata, keys, values)


def dense(batch: Batch, scale: float, window: int | None) -> torch.Tensor:
    """Attention by its definition, in float64."""
    outputs, first = [], 0
    for keys, values, new in zip(batch.keys, batch.values, batch.metadata.query_lens, strict=True):
        heads_per_kv = batch.q.shape[1] // keys.shape[1]
        k, v = (t.double().repeat_interleave(heads_per_kv, 1) for t in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", batch.q[first : first + new].double(), k) * scale
        position = torch.arange(len(keys) - new, len(keys))[:, None]
        key = torch.arange(len(keys))[None]
        visible = key <= position
        if window is not None:
            visible &= key > position - window
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v).reshape(new, -1))
        first += new
    return torch.cat(outputs)


def check(batch: Batch, window: int | None, backend: TorchAttention | None = None) -> None:
    scale = batch.q.shape[2] ** -0.5
    backend = backend or TorchAttention()
    out = backend.attend(batch.q, batch.k, batch.v, batch.cache, batch.metadata, scale, window)
    assert out.shape == (batch.q.shape[0], batch.q.shape[1] * batch.q.shape[2])
    assert out.dtype == batch.q.dtype
    difference = (out.double() - dense(batch, scale, window)).abs().max().item()
    assert difference <= TOLERANCE[batch.q.dtype]


DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 3), (9, 3), (9, 1)], ids=str)
def test_mixed_batch(heads: tuple[int, int], block_size: int, dtype: torch.dtype) -> None:
    spans = [(0, 1), (15, 1), (16, 1), (40, 1), (0, 2), (0, 17), (5, 3), (33, 16)]
    check(
        make_batch(
            spans,
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=16,
            block_size=block_size,
            dtype=dtype,
            seed=1,
        ),
        None,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [1, 2, 16, 37, 1000])
def test_sliding_window(window: int, dtype: torch.dtype) -> None:
    spans = [(0, 1), (15, 1), (36, 1), (37, 1), (90, 1), (0, 50), (60, 7), (3, 36)]
    check(
        make_batch(spans, num_heads=4, num_kv_heads=2, head_dim=8, block_size=7, dtype=dtype, seed=2),
        window,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 100])
def test_chunks_longer_than_a_tile(window: int | None, dtype: torch.dtype) -> None:
    spans = [(0, TILE), (0, TILE + 1), (70, 2 * TILE + 5), (1100, TILE - 1)]
    check(
        make_batch(spans, num_heads=3, num_kv_heads=1, head_dim=16, block_size=16, dtype=dtype, seed=3),
        window,
    )


@pytest.mark.parametrize("head_dim", [1, 5, 64, 80, 128])
def test_head_sizes(head_dim: int) -> None:
    spans = [(9, 1), (33, 1), (3, 4)]
    batch = make_batch(
        spans, num_heads=4, num_kv_heads=2, head_dim=head_dim, block_size=16, dtype=torch.float32, seed=4
    )
    check(batch, None)


@pytest.mark.parametrize("seed", range(25))
def test_random_ragged_batches_on_one_backend(seed: int) -> None:
    """Several steps through one back end: its kept plans, biases and workspaces must not leak between steps."""
    rng = random.Random(seed)
    backend = TorchAttention()
    for step in range(3):
        num_kv_heads = rng.choice([1, 2, 3, 5])
        decodes = [(rng.choice([0, 1, 31, rng.randrange(400)]), 1) for _ in range(rng.randrange(12))]
        chunks = [(rng.choice([0, rng.randrange(200)]), rng.randrange(2, 150)) for _ in range(rng.randrange(4))]
        batch = make_batch(
            decodes + chunks or [(3, 1)],
            num_heads=num_kv_heads * rng.randrange(1, 10),
            num_kv_heads=num_kv_heads,
            head_dim=rng.choice([8, 32]),
            block_size=rng.choice([1, 7, 16, 32]),
            dtype=rng.choice(DTYPES),
            seed=seed * 10 + step,
        )
        check(batch, rng.choice([None, None, rng.randrange(1, 300)]), backend)


def test_layers_of_a_step_with_different_windows_share_a_backend() -> None:
    backend = TorchAttention()
    batch = make_batch(
        [(50, 1), (20, 30)], num_heads=2, num_kv_heads=1, head_dim=8, block_size=4, dtype=torch.float32, seed=5
    )
    for window in (None, 8, None, 8):
        check(batch, window, backend)


def test_small_groups_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decode in its own group, out of order: order and grouping must not show."""
    monkeypatch.setattr("engine.layers.torch_attention.GROUP_BYTES", 1)
    spans = [(length, 1) for length in (3, 200, 77, 0, 129, 76)]
    batch = make_batch(spans, num_heads=4, num_kv_heads=2, head_dim=8, block_size=16, dtype=torch.float32, seed=6)
    assert len(plan_reads(batch.metadata, None, CacheShape(16, 2, torch.float32), 1).groups) == len(spans)
    check(batch, None)


def test_strided_inputs() -> None:
    """k and v as views of a fused projection, as the models pass them."""
    batch = make_batch(
        [(4, 1), (0, 5)], num_heads=4, num_kv_heads=2, head_dim=8, block_size=4, dtype=torch.float32, seed=7
    )
    fused = torch.cat([t.flatten(1) for t in (batch.q, batch.k, batch.v)], 1)
    q, k, v = fused.split([32, 16, 16], dim=1)
    batch.q, batch.k, batch.v = q.view(-1, 4, 8), k.view(-1, 2, 8), v.view(-1, 2, 8)
    check(batch, None)


@pytest.mark.parametrize("seed", range(50))
def test_groups_bound_padding_and_size(seed: int) -> None:
    rng = random.Random(seed)
    lengths = sorted((rng.randrange(1, 5000) for _ in range(rng.randrange(1, 200))), reverse=True)
    group_tokens = rng.choice([1, 100, 4096])
    ranges = split_by_length(lengths, group_tokens)
    assert [i for first, last in ranges for i in range(first, last)] == list(range(len(lengths)))
    for first, last in ranges:
        group = lengths[first:last]
        assert last - first == 1 or max(group) * len(group) <= group_tokens
        assert sum(max(group) - length for length in group) <= group_tokens // 8


def test_one_long_sequence_is_not_paid_for_by_the_short_ones() -> None:
    ranges = split_by_length([8000, *([20] * 63)], 4096)
    assert ranges == [(0, 1), (1, 64)]


@pytest.mark.parametrize("block_size", [1, 7, 16, 256])
def test_padded_sizes_are_few(block_size: int) -> None:
    counts = range(1, 8192 // block_size + 1)
    assert len({padded_blocks(n, block_size) for n in counts}) <= 60
    for n in counts:
        keys, padded = n * block_size, padded_blocks(n, block_size) * block_size
        assert keys <= padded < keys + max(32, block_size, keys / 8)


def test_a_cache_takes_no_memory_before_it_is_used() -> None:
    import psutil

    process = psutil.Process()
    before = process.memory_info().rss
    cache = allocate_cache(20_000, 16, 8, 64, torch.bfloat16)
    assert cache.k.shape == cache.v.shape == (20_000, 16, 8, 64)
    assert cache.k.numel() * 2 > 300 << 20
    assert process.memory_info().rss - before < 50 << 20
    assert not cache.v[19_999].any()
