"""Layers by Triton kernels, under the interpreter, against torch's; each kernel has its own tests in tests/kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.layers import triton_attention
from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.rotary import Rotation
from engine.layers.torch_backend import TorchBackend
from engine.layers.triton_backend import TritonBackend
from kernels.paged_attention import paged_attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 4, 2, 16, 8
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    torch.manual_seed(3)
    with torch.inference_mode():
        yield


def test_norms() -> None:
    x, update, weight = torch.randn(3, 24), torch.randn(3, 24), torch.rand(24)
    ours, theirs = (backend.norm(weight, 1e-5) for backend in (TritonBackend(), TorchBackend()))
    torch.testing.assert_close(ours(x), theirs(x))
    residuals = x.clone(), x.clone()
    torch.testing.assert_close(ours.add(residuals[0], update), theirs.add(residuals[1], update))
    torch.testing.assert_close(*residuals)


def test_head_norm() -> None:
    heads, weight = torch.randn(3, 8, 16)[:, :5], torch.rand(5, 16)
    ours, theirs = (backend.head_norm(weight, 1e-5) for backend in (TritonBackend(), TorchBackend()))
    torch.testing.assert_close(ours(heads), theirs(heads))


@pytest.mark.parametrize("activation", ["silu", "swish", "gelu_new", "relu"])
def test_gate(activation: str) -> None:
    gate_up = torch.randn(3, 40)
    torch.testing.assert_close(TritonBackend().gate(activation)(gate_up), TorchBackend().gate(activation)(gate_up))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("query_lens", [(1, 1), (1, 6)], ids=["decodes", "mixed"])
def test_attention(query_lens: tuple[int, ...], window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rotate, write the same cache and attend alike, decodes by the fused kernel and mixed batches without it.

    Decodes beside a chunk have a launch of their own.
    """
    seq_lens = (7, 6 + query_lens[1])
    num_tokens = sum(query_lens)
    starts = [length - new for length, new in zip(seq_lens, query_lens, strict=True)]
    positions = torch.cat([torch.arange(start, end) for start, end in zip(starts, seq_lens, strict=True)])
    tables = torch.tensor([[3, 0], [1, 4]], dtype=torch.int32)
    rows = torch.repeat_interleave(torch.arange(2), torch.tensor(query_lens))
    slots = tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    metadata = AttentionMetadata(
        query_starts=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=slots,
        num_decodes=sum(n == 1 for n in query_lens),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        query_lens=query_lens,
        seq_lens_list=seq_lens,
        prefill_starts=torch.tensor([0, query_lens[1]], dtype=torch.int32) if max(query_lens) > 1 else None,
    )
    launches: list[tuple[int, int]] = []

    def attend(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        launches.append((len(q), kwargs["max_query_len"]))
        return paged_attention(q, *args, **kwargs)

    monkeypatch.setattr(triton_attention, "paged_attention", attend)
    heads = torch.randn(num_tokens, HEADS + 2 * KV_HEADS, HEAD_DIM)
    angles = torch.randn(num_tokens, 1, HEAD_DIM // 2)
    rotation = Rotation(torch.cat((angles.cos(),) * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1))
    history = torch.randn(2, 5, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    results: list[tuple[torch.Tensor, KVCache]] = []
    for backend in (TritonBackend(), TorchBackend()):
        cache = backend.attention.allocate_cache(5, BLOCK_SIZE, KV_HEADS, HEAD_DIM, torch.float32, CPU)
        cache.k.copy_(history[0])
        cache.v.copy_(history[1])
        own = heads.clone()
        qk, v = own[:, : HEADS + KV_HEADS], own[:, HEADS + KV_HEADS :]
        out = backend.attention.forward(qk, v, rotation, cache, metadata, HEAD_DIM**-0.5, window)
        results.append((out, cache))
    (ours, our_cache), (theirs, their_cache) = results
    assert launches == ([(2, 1)] if max(query_lens) == 1 else [(1, 1), (6, 6)])
    assert ours.shape == (num_tokens, HEADS * HEAD_DIM)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    torch.testing.assert_close(our_cache.k[blocks, offsets], their_cache.k[blocks, offsets])
    assert torch.equal(our_cache.v[blocks, offsets], their_cache.v[blocks, offsets])
