"""A reference attention back end: dense causal attention over the flat batch, no paging, a loop over sequences."""

from __future__ import annotations

import torch

from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.rotary import Rotation, rotate_
from engine.layers.torch_backend import TorchBackend


class DenseBackend(TorchBackend):
    """Torch's layers over `DenseAttention`."""

    def __init__(self) -> None:
        super().__init__(DenseAttention())


class DenseAttention:
    """Every step must hold its sequences from position 0 on: nothing is read from a cache."""

    def allocate_cache(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        raise NotImplementedError("nothing is cached")

    def forward(
        self,
        qk: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        num_heads = qk.shape[1] - v.shape[1]
        rotate_(qk, rotation)
        q, k = qk[:, :num_heads], qk[:, num_heads:]
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        outputs = []
        for q_one, k_one, v_one in zip(
            q.split(metadata.query_lens), k.split(metadata.query_lens), v.split(metadata.query_lens), strict=True
        ):
            length = q_one.shape[0]
            distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            seen = distance >= 0
            if sliding_window is not None:
                seen &= distance < sliding_window
            scores = torch.einsum("qhd,khd->hqk", q_one, k_one) * scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, v_one).flatten(1))
        return torch.cat(outputs)


def flat_batch(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, AttentionMetadata]:
    """Input ids, positions and metadata of whole prompts, one after the other."""
    lens = tuple(len(p) for p in prompts)
    starts = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32)
    ids = torch.tensor([token for p in prompts for token in p])
    positions = torch.cat([torch.arange(n) for n in lens])
    empty = torch.zeros(len(lens), 1, dtype=torch.int32)
    metadata = AttentionMetadata(
        query_starts=starts,
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_tables=empty,
        slot_mapping=torch.zeros(len(ids), dtype=torch.int64),
        num_decodes=0,
        max_query_len=max(lens),
        max_seq_len=max(lens),
        query_lens=lens,
        seq_lens_list=lens,
    )
    return ids, positions, metadata


def no_caches(num_layers: int) -> list[KVCache]:
    """Placeholders, one a layer, for a back end that reads none."""
    nothing = torch.empty(0)
    return [KVCache(nothing, nothing)] * num_layers
