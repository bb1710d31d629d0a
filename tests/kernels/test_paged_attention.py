"""Paged attention under Triton's interpreter against its twin in torch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kernels import paged_attention as module
from kernels.attention_splits import MAX_SPLITS
from kernels.paged_attention import paged_attention
from kernels.tiles import DECODE_ROWS, Device, Tile, attention_tile, family_of
from tests.kernels.attention_batch import TOLERANCE, Batch, check, make_batch

SMALL = Tile(16, 16, 4, 1, 1)
WIDE = Tile(64, 32, 4, 1, 1)


DECODES = [(1, 1), (1, 16), (1, 17), (1, 70)]
MIXED = [(1, 40), (1, 1), (5, 5), (33, 33), (3, 66), (20, 47)]


class TestShapes:
    @pytest.mark.parametrize("dtype", TOLERANCE)
    @pytest.mark.parametrize("lens", [DECODES, MIXED], ids=["decodes", "mixed"])
    def test_dtypes(self, lens: list[tuple[int, int]], dtype: torch.dtype) -> None:
        check(make_batch(lens, dtype=dtype))

    @pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
    def test_head_dims(self, head_dim: int) -> None:
        check(make_batch([(1, 20), (6, 35)], heads=2, kv_heads=1, head_dim=head_dim), tile=SMALL)

    @pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 14, 16, 24])
    def test_query_heads_of_a_kv_head(self, group: int) -> None:
        check(make_batch([(1, 20), (1, 3)], heads=2 * group), tile=SMALL)
        check(make_batch([(1, 20), (7, 35), (2, 2)], heads=group, kv_heads=1), tile=SMALL)

    @pytest.mark.parametrize("block_size", [8, 16, 32, 64, 256])
    @pytest.mark.parametrize("keys", [16, 32, 64])
    def test_tiles_within_and_over_blocks(self, block_size: int, keys: int) -> None:
        lens = [(1, 1), (1, block_size), (2, block_size + 1), (9, 3 * block_size - 1)]
        check(make_batch(lens, block_size=block_size, kv_heads=1), tile=Tile(16, keys, 4, 1, 1))

    def test_a_cache_with_its_heads_side_by_side(self) -> None:
        batch = make_batch(MIXED)
        batch.k_cache, batch.v_cache = batch.k_cache.contiguous(), batch.v_cache.contiguous()
        check(batch)

    def test_an_output_is_made_where_none_is_given(self) -> None:
        batch = make_batch(DECODES)
        out = paged_attention(**vars(batch), scale=batch.scale)
        assert out.is_contiguous()
        torch.testing.assert_close(out, batch.expected(), rtol=0, atol=TOLERANCE[torch.float32])

    def test_a_strided_output(self) -> None:
        batch = make_batch(MIXED)
        wide = torch.full((batch.q.shape[0], 3, *batch.q.shape[1:]), torch.nan)
        paged_attention(**vars(batch), scale=batch.scale, out=wide[:, 1])
        torch.testing.assert_close(wide[:, 1], batch.expected(), rtol=0, atol=TOLERANCE[torch.float32])
        assert wide[:, ::2].isnan().all()

    def test_no_token(self) -> None:
        batch = make_batch([(1, 1)])
        batch.q = batch.q[:0]
        assert batch.run().shape == (0, 4, 64)


class TestMasks:
    @pytest.mark.parametrize("window", [1, 5, 16, 33, 1000])
    @pytest.mark.parametrize("tile", [SMALL, WIDE], ids=["small", "wide"])
    def test_sliding_window(self, window: int, tile: Tile) -> None:
        check(make_batch([(1, 70), (1, 3), (40, 90), (20, 20)]), tile=tile, expect={"sliding_window": window})

    def test_sliding_window_of_decodes_in_segments(self) -> None:
        check(make_batch([(1, 270), (1, 3)]), num_splits=3, expect={"sliding_window": 200})

    def test_keys_left_of_the_window_are_not_read(self) -> None:
        batch = make_batch([(1, 70)])
        batch.block_tables[0, :3] = 0
        check(batch, expect={"sliding_window": 70 - 48})

    @pytest.mark.parametrize("soft_cap", [0.5, 30.0])
    def test_soft_cap(self, soft_cap: float) -> None:
        batch = make_batch([(1, 40), (9, 30)])
        batch.q = batch.q * 4
        check(batch, expect={"soft_cap": soft_cap})

    @pytest.mark.parametrize("num_splits", [1, 3])
    def test_a_row_without_keys_is_zero(self, num_splits: int) -> None:
        batch = make_batch([(1, 40), (1, 0), (1, 0)])
        check(batch, num_splits=num_splits)
        assert (batch.run(num_splits=num_splits)[1:] == 0).all()

    @pytest.mark.parametrize("num_splits", [1, 2])
    def test_more_queries_than_keys(self, num_splits: int) -> None:
        batch = make_batch([(9, 9), (1, 12)])
        batch.seq_lens[0] = 4
        check(batch, num_splits=num_splits, tile=SMALL)

    def test_rows_of_no_sequence_are_left(self) -> None:
        check(make_batch(DECODES, padding=3))
        check(make_batch(MIXED, padding=5))
        check(make_batch(DECODES, padding=3), num_splits=2)

    def test_padded_sequences_of_a_bucket(self) -> None:
        batch = make_batch([(1, 40), (1, 1), (1, 1)])
        batch.block_tables[1:] = 0
        batch.k_cache[0] = 0.5
        batch.v_cache[0] = 0.25
        check(batch)
        assert (batch.run()[1:] == 0.25).all()

    def test_a_sequence_without_queries(self) -> None:
        check(make_batch([(1, 40), (0, 20), (1, 7)]))
        check(make_batch([(7, 40), (0, 20), (9, 17)]), tile=SMALL)


class TestSplits:
    @pytest.mark.parametrize("num_splits", [2, 7])
    def test_E9_split_equals_unsplit(self, num_splits: int) -> None:
        batch = make_batch([(1, 1), (1, 15), (1, 16), (1, 17), (1, 4097)], heads=2, kv_heads=1)
        whole = batch.run(num_splits=1)
        split = batch.run(num_splits=num_splits)
        assert not split.isnan().any()
        torch.testing.assert_close(split, whole, rtol=0, atol=2e-6)
        check(batch, num_splits=num_splits)

    def test_E9_in_bfloat16(self) -> None:
        lens = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 4097)]
        check(make_batch(lens, heads=2, kv_heads=1, dtype=torch.bfloat16), num_splits=5)

    def test_more_segments_than_keys(self) -> None:
        check(make_batch(DECODES[-2:], heads=1, kv_heads=1), num_splits=MAX_SPLITS)

    def test_prefill_in_segments(self) -> None:
        check(make_batch([(20, 300), (1, 30), (5, 5)], heads=6), num_splits=2, tile=WIDE)

    @pytest.mark.parametrize("num_splits", [0, MAX_SPLITS + 1])
    def test_a_number_out_of_range_is_refused(self, num_splits: int) -> None:
        with pytest.raises(ValueError, match="num_splits must be from 1"):
            make_batch(DECODES).run(num_splits=num_splits)

    def test_a_choice_is_made_where_none_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        monkeypatch.setattr(module, "choose_splits", lambda *arguments: seen.append(arguments) or 3)
        check(make_batch(DECODES))
        check(make_batch(DECODES), expect={"sliding_window": 20})
        assert [arguments[2:] for arguments in seen] == [(8, 70), (8, 21)]


class Launches:
    """Stands where a kernel stands, and keeps what it is launched with."""

    def __init__(self) -> None:
        self.grid = 0
        self.options: dict[str, Any] = {}

    def __getitem__(self, grid: tuple[int]) -> Any:
        (self.grid,) = grid
        return lambda *_, **options: self.options.update(options)


class TestLaunch:
    """On a GPU that is not there: tensors without memory show that nothing depends on what they hold."""

    @pytest.fixture
    def launches(self, monkeypatch: pytest.MonkeyPatch) -> Launches:
        launches = Launches()
        monkeypatch.setattr(module, "device_of", lambda device: Device("hopper", 132))
        monkeypatch.setattr(module, "paged_attention_kernel", launches)
        monkeypatch.setattr(module, "reduce_splits", lambda *_: None)
        return launches

    @staticmethod
    def run(batch_size: int, num_tokens: int, max_query_len: int, max_seq_len: int) -> None:
        cache = torch.empty(1000, 16, 8, 128, dtype=torch.bfloat16, device="meta")
        ints = {"dtype": torch.int32, "device": "meta"}
        paged_attention(
            torch.empty(num_tokens, 32, 128, dtype=torch.bfloat16, device="meta"),
            cache,
            cache,
            query_starts=torch.empty(batch_size + 1, **ints),
            seq_lens=torch.empty(batch_size, **ints),
            block_tables=torch.empty(batch_size, 512, **ints),
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            scale=0.1,
        )

    @pytest.mark.parametrize(
        ("batch_size", "max_seq_len", "grid", "split"),
        [(32, 4096, 256, False), (1, 4096, 8 * 32, True), (256, 8192, 2048, False)],
    )
    def test_decodes(self, launches: Launches, batch_size: int, max_seq_len: int, grid: int, split: bool) -> None:
        self.run(batch_size, batch_size, 1, max_seq_len)
        assert launches.grid == grid
        tile = attention_tile("hopper", 128, 2, True)
        expected = {"BLOCK_M": 16, "BLOCK_N": tile.keys, "num_stages": tile.num_stages, "ONE_BLOCK": True}
        assert expected | {"SPLIT": split} == {name: launches.options[name] for name in (*expected, "SPLIT")}

    def test_a_few_tokens_a_sequence_are_decodes(self, launches: Launches) -> None:
        self.run(32, 128, 4, 4096)
        assert launches.options["ONE_BLOCK"]
        assert launches.grid == 32 * 8

    def test_prefill(self, launches: Launches) -> None:
        self.run(4, 8192, 8000, 8192)
        tile = attention_tile("hopper", 128, 2, False)
        expected = {"BLOCK_M": tile.rows, "BLOCK_N": tile.keys, "num_warps": tile.num_warps, "ONE_BLOCK": False}
        assert expected == {name: launches.options[name] for name in expected}
        # Blocks of 32 tokens, and one more for each sequence that begins within one.
        assert launches.grid == (8192 // 32 + 4) * 8

    def test_what_is_compiled_is_what_is_launched(self, launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
        """The constants and the options of each variant are those of a call of its shapes."""
        for variant in module.variants(True):
            (capability,) = variant.capabilities
            device = Device(family_of(*divmod(capability, 10)), 132)
            monkeypatch.setattr(module, "device_of", lambda _, device=device: device)
            constants = variant.constants
            dtype = {"*bf16": torch.bfloat16, "*fp16": torch.float16, "*fp32": torch.float32}[variant.signature["q"]]
            kv_heads, head_dim = constants["NUM_KV_HEADS"], constants["HEAD_DIM"]
            cache = torch.empty(1000, constants["BLOCK_SIZE"], kv_heads, head_dim, dtype=dtype, device="meta")
            ints = {"dtype": torch.int32, "device": "meta"}
            paged_attention(
                torch.empty(9, kv_heads * constants["GROUP"], head_dim, dtype=dtype, device="meta"),
                cache,
                cache,
                query_starts=torch.empty(2, **ints),
                seq_lens=torch.empty(1, **ints),
                block_tables=torch.empty(1, 64, **ints),
                max_query_len=1 if constants["ONE_BLOCK"] else 9 * DECODE_ROWS,
                max_seq_len=1000,
                scale=0.1,
                sliding_window=100 if constants["HAS_WINDOW"] else None,
                soft_cap=30.0 if constants["HAS_SOFT_CAP"] else None,
                num_splits=2 if constants["SPLIT"] else 1,
            )
            launched = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
            assert launches.options == constants | launched, variant.name


class TestRefusals:
    def test_caches_of_unequal_strides(self) -> None:
        batch = make_batch(DECODES)
        batch.k_cache = batch.k_cache.contiguous()
        with pytest.raises(ValueError, match="equal strides"):
            batch.run()

    def test_blocks_that_no_tile_fits(self) -> None:
        with pytest.raises(ValueError, match="block_size 24"):
            make_batch([(1, 5)], block_size=24).run()

    def test_query_heads_that_are_no_multiple(self) -> None:
        batch = make_batch(DECODES, heads=4, kv_heads=2)
        batch.q = batch.q[:, :3]
        with pytest.raises(ValueError, match="3 query heads for 2 KV heads"):
            batch.run()

    def test_positions_of_another_dtype(self) -> None:
        batch = make_batch(DECODES)
        batch.seq_lens = batch.seq_lens.long()
        with pytest.raises(ValueError, match=r"seq_lens is torch\.int64: pass it as torch\.int32"):
            batch.run()

    def test_scale(self) -> None:
        batch = make_batch(DECODES)
        with pytest.raises(ValueError, match="scale must be positive"):
            paged_attention(**vars(batch), scale=0.0)


def random_case(seed: int) -> tuple[Batch, dict[str, Any], dict[str, Any]]:
    """A batch, what it expects, and how the kernel works it out."""
    rng = random.Random(seed)
    longest = rng.choice([4, 40, 150])
    lens = []
    for _ in range(rng.randint(1, 6)):
        seq_len = rng.randint(1, longest)
        lens.append((rng.choice([1, 1, rng.randint(1, seq_len)]), seq_len))
    if rng.random() < 0.3:
        lens = [(1, seq_len) for _, seq_len in lens]
    kv_heads = rng.choice([1, 2, 3])
    batch = make_batch(
        lens,
        heads=kv_heads * rng.choice([1, 2, 3, 4, 6, 7, 8]),
        kv_heads=kv_heads,
        head_dim=rng.choice([64, 80, 128]),
        block_size=rng.choice([16, 32, 64]),
        dtype=rng.choice([torch.float32, torch.bfloat16]),
        padding=rng.choice([0, 0, 3]),
        seed=seed,
    )
    expect: dict[str, Any] = {}
    if rng.random() < 0.4:
        expect["sliding_window"] = rng.randint(1, longest + 5)
    if rng.random() < 0.3:
        expect["soft_cap"] = rng.choice([1.0, 20.0])
    options = {
        "num_splits": rng.choice([None, 1, 2, 5]),
        "tile": Tile(rng.choice([16, 32, 64]), rng.choice([16, 32, 64]), 4, 1, 1),
    }
    return batch, expect, options


@pytest.mark.parametrize("seed", range(25))
def test_random_batches(seed: int) -> None:
    batch, expect, options = random_case(seed)
    check(batch, expect=expect, **options)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(25, 400))
def test_many_random_batches(seed: int) -> None:
    batch, expect, options = random_case(seed)
    check(batch, expect=expect, **options)
