"""`benchmarks.gpu.paged_batch`: batches in which only written slots hold numbers."""

from __future__ import annotations

import torch

from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import Heads, paged_batch


def test_keys_lie_in_the_blocks_of_the_table_and_nowhere_else() -> None:
    heads, seq_lens = Heads(4, 2, 8), (1, 17, 40)
    batch = paged_batch(Device(is_smoke=True), heads, (1, 2, 40), seq_lens, dtype=torch.float32)
    assert batch.query_starts.tolist() == [0, 1, 3, 43]
    assert batch.q.shape == (43, 4, 8)
    assert (batch.max_query_len, batch.max_seq_len) == (40, 40)
    used = batch.block_tables[batch.block_tables > 0].tolist()
    assert sorted(used) == [1, 2, 3, 4, 5, 6]
    for cache in (batch.k_cache, batch.v_cache):
        assert cache[0].isnan().all()
        for row, length in zip(batch.block_tables.tolist(), seq_lens, strict=True):
            slots = cache[row[: -(-length // 16)]].flatten(0, 1)
            assert slots[:length].isfinite().all()
            assert slots[length:].isnan().all()
