"""Attention over the paged cache in plain torch, for the CPU."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.rotary import Rotation, rotate_
from engine.layers.torch_attention_plan import (
    CacheShape,
    DecodeGroup,
    PrefillChunk,
    ReadPlan,
    WritePlan,
    plan_reads,
    plan_writes,
)

GROUP_BYTES = 3 << 20
"""Keys gathered for one group of decodes: with as many values they stay in the last-level cache (measured best)."""
TILE = 128
"""Query tokens of a prefill chunk that attend together; bounds the scores and skips keys past the tile (measured)."""


def allocate_cache(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVCache:
    """A zeroed cache of one layer for `TorchAttention`, of `num_blocks` blocks, the dummy block counted.

    NOTE: the tensors have the shape of every `KVCache`, with strides that put the slots of one head of a block side by
    side: a gather of whole blocks then yields keys head by head. The memory comes untouched from the system, so the
    pool takes real memory only as it fills (`torch.zeros` would write all of it).
    """
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    num_bytes = math.prod(shape) * dtype.itemsize
    k, v = (torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape) for _ in range(2))
    return KVCache(k.transpose(1, 2), v.transpose(1, 2))


class TorchAttention:
    """The `AttentionBackend` of the CPU, on caches made by `allocate_cache`.

    Decodes attend in few groups of like length, with the query heads of a KV head as the rows of one batched matmul:
    no loop over sequences, and no sequence pays for one much longer. Prefill chunks attend one sequence after the
    other, in tiles of queries. Sums and softmax are float32 inside the kernels; bfloat16 scores are rounded to
    bfloat16, as in transformers' eager attention.

    NOTE: what depends on the step alone is worked out at the first layer and kept for the others; metadata objects
    are told apart by identity, so a step must not reuse one with other contents.

    NOTE: a slot that is not written yet is read, with weight 0, with the rest of its block. So that it is never NaN,
    the rest of a block is zeroed in the step that begins it: no value of the block's last owner remains.
    """

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._writes: dict[CacheShape, WritePlan] = {}
        self._reads: dict[tuple[CacheShape, int | None], ReadPlan] = {}
        self._bias: dict[tuple[int | None, torch.dtype], torch.Tensor] = {}
        self._workspaces: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def allocate_cache(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """As `AttentionBackend.allocate_cache`, on the CPU."""
        assert device.type == "cpu"
        return allocate_cache(num_blocks, block_size, num_kv_heads, head_dim, dtype)

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
        """As `AttentionBackend.forward`."""
        # NOTE: queries and keys are rotated in place, where the projection wrote them: q, k and v stay views of it.
        rotate_(qk, rotation)
        num_heads = qk.shape[1] - v.shape[1]
        return self.attend(qk[:, :num_heads], qk[:, num_heads:], v, cache, metadata, scale, sliding_window)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: KVCache,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Writes rotated k, and v, both (T, num_kv_heads, head_dim), and attends. Returns (T, heads * head_dim)."""
        if metadata is not self._metadata:
            self._metadata = metadata
            self._writes.clear()
            self._reads.clear()
        num_tokens, num_heads, head_dim = q.shape
        shape = CacheShape(cache.k.shape[1], cache.k.shape[2], cache.k.dtype)
        self._write(k, v, cache, metadata, shape)

        plan = self._read_plan(metadata, sliding_window, shape, head_dim)
        queries = q * scale
        out = q.new_empty(num_tokens, num_heads * head_dim)
        if plan.groups:
            self._decode(queries[: metadata.num_decodes], cache, plan, out[: metadata.num_decodes])
        for chunk in plan.chunks:
            span = slice(chunk.query_start, chunk.query_end)
            self._prefill(queries[span], cache, chunk, sliding_window, out[span])
        return out

    def _write(
        self, k: torch.Tensor, v: torch.Tensor, cache: KVCache, metadata: AttentionMetadata, shape: CacheShape
    ) -> None:
        plan = self._writes.get(shape)
        if plan is None:
            plan = self._writes[shape] = plan_writes(metadata, shape)
        for tensor, new in ((cache.k, k), (cache.v, v)):
            memory = tensor.transpose(1, 2)
            if plan.fresh is not None:
                memory.index_fill_(0, plan.fresh, 0.0)
            memory.view(-1, k.shape[2]).index_copy_(0, plan.rows, new.reshape(-1, k.shape[2]))

    def _read_plan(
        self, metadata: AttentionMetadata, sliding_window: int | None, shape: CacheShape, head_dim: int
    ) -> ReadPlan:
        plan = self._reads.get((shape, sliding_window))
        if plan is None:
            bytes_per_block = shape.block_size * shape.num_kv_heads * head_dim * shape.dtype.itemsize
            plan = plan_reads(metadata, sliding_window, shape, max(1, GROUP_BYTES // bytes_per_block))
            self._reads[shape, sliding_window] = plan
        return plan

    def _decode(self, q: torch.Tensor, cache: KVCache, plan: ReadPlan, out: torch.Tensor) -> None:
        """q: (B, num_heads, head_dim), scaled. out: (B, num_heads * head_dim)."""
        if plan.order is None:
            for group in plan.groups:
                self._decode_group(q[group.first : group.last], cache, group, out[group.first : group.last])
            return
        q = q.index_select(0, plan.order)
        ordered = torch.empty_like(out)
        for group in plan.groups:
            self._decode_group(q[group.first : group.last], cache, group, ordered[group.first : group.last])
        out.index_copy_(0, plan.order, ordered)

    def _decode_group(self, q: torch.Tensor, cache: KVCache, group: DecodeGroup, out: torch.Tensor) -> None:
        num_seqs, num_heads, head_dim = q.shape
        batch = num_seqs * cache.k.shape[2]
        keys = self._gather("k", cache.k, group.rows).view(batch, group.num_keys, head_dim)
        scores = torch.bmm(q.view(batch, -1, head_dim), keys.transpose(1, 2))
        if group.bias is not None:
            scores.view(num_seqs, num_heads, group.num_keys)[..., group.bias_start :].add_(group.bias)
        weights = torch.softmax(scores, -1)
        values = self._gather("v", cache.v, group.rows).view(batch, group.num_keys, head_dim)
        torch.bmm(weights, values, out=out.view(batch, -1, head_dim))

    def _prefill(
        self, q: torch.Tensor, cache: KVCache, chunk: PrefillChunk, sliding_window: int | None, out: torch.Tensor
    ) -> None:
        """q: (n, num_heads, head_dim), scaled: the last n tokens of the chunk's keys. out: (n, heads * head_dim)."""
        num_queries, num_heads, head_dim = q.shape
        num_kv_heads = cache.k.shape[2]
        heads_per_kv = num_heads // num_kv_heads
        keys = self._gather("k", cache.k, chunk.rows).view(num_kv_heads, -1, head_dim)
        values = self._gather("v", cache.v, chunk.rows).view(num_kv_heads, -1, head_dim)
        q = q.view(num_queries, num_kv_heads, heads_per_kv, head_dim)
        out = out.view(num_queries, num_kv_heads, heads_per_kv, head_dim)
        start = chunk.num_keys - num_queries
        # NOTE: bfloat16 goes through oneDNN's matmul, 2 to 3 times faster here than torch's fused attention;
        # float32 is no faster that way, and the fused one is more exact.
        attend = self._attend_fused if q.dtype == torch.float32 else self._attend_by_matmul
        for first in range(0, num_queries, TILE):
            last = min(num_queries, first + TILE)
            low = 0 if sliding_window is None else max(0, start + first - sliding_window + 1)
            high = start + last
            attended = attend(q[first:last], keys[:, low:high], values[:, low:high], sliding_window)
            out[first:last] = attended

    def _attend_fused(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sliding_window: int | None
    ) -> torch.Tensor:
        """q: (n, num_kv_heads, g, head_dim); keys, values: (num_kv_heads, L, head_dim). Returns q's shape."""
        shape = (q.shape[1], q.shape[2], keys.shape[1], q.shape[3])
        attended = scaled_dot_product_attention(
            q.permute(1, 2, 0, 3),
            keys.unsqueeze(1).expand(shape),
            values.unsqueeze(1).expand(shape),
            attn_mask=self._causal_bias(q.shape[0], keys.shape[1], sliding_window, q.dtype),
            scale=1.0,
        )
        return attended.permute(2, 0, 1, 3)

    def _attend_by_matmul(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sliding_window: int | None
    ) -> torch.Tensor:
        """As `_attend_fused`, with the (query, head) pairs of a KV head as rows of one matmul."""
        num_queries, num_kv_heads, heads_per_kv, head_dim = q.shape
        num_keys = keys.shape[1]
        rows = q.transpose(0, 1).reshape(num_kv_heads, num_queries * heads_per_kv, head_dim)
        scores = torch.bmm(rows, keys.transpose(1, 2))
        bias = self._causal_bias(num_queries, num_keys, sliding_window, q.dtype).unsqueeze(1)
        # NOTE: without a window only the keys of the tile itself can lie after a query.
        masked = num_queries if sliding_window is None else num_keys
        by_query = scores.view(num_kv_heads, num_queries, heads_per_kv, num_keys)
        by_query[..., num_keys - masked :].add_(bias[..., num_keys - masked :])
        attended = torch.bmm(torch.softmax(scores, -1), values)
        return attended.view(num_kv_heads, num_queries, heads_per_kv, head_dim).transpose(0, 1)

    def _causal_bias(
        self, num_queries: int, num_keys: int, sliding_window: int | None, dtype: torch.dtype
    ) -> torch.Tensor:
        """(num_queries, num_keys), 0 or -inf, for queries that are the last of the keys.

        NOTE: seen from the bottom right corner the pattern is the same for every size, so all are views of one table
        of TILE rows that grows to the most keys seen.
        """
        table = self._bias.get((sliding_window, dtype))
        if table is None or table.shape[1] < num_keys:
            width = 1 << max(10, (num_keys - 1).bit_length())
            behind = torch.arange(width - TILE, width).unsqueeze(1) - torch.arange(width)
            hidden = behind < 0
            if sliding_window is not None:
                hidden |= behind >= sliding_window
            table = torch.zeros(TILE, width, dtype=dtype).masked_fill_(hidden, float("-inf"))
            self._bias[sliding_window, dtype] = table
        return table[TILE - num_queries :, table.shape[1] - num_keys :]

    def _gather(self, name: str, cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Rows of block_size * head_dim values, in a workspace that lives until the next gather of this name.

        NOTE: fresh memory for each gather would cost more than the gather (page faults of large allocations).
        """
        width = cache.shape[1] * cache.shape[3]
        size = rows.numel() * width
        workspace = self._workspaces.get((name, cache.dtype))
        if workspace is None or workspace.numel() < size:
            workspace = self._workspaces[name, cache.dtype] = torch.empty(size, dtype=cache.dtype)
        gathered = workspace[:size].view(-1, width)
        torch.index_select(cache.transpose(1, 2).view(-1, width), 0, rows, out=gathered)
        return gathered
