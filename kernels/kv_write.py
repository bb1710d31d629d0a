"""Writes new keys and values to their slots of the paged cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_dense_rows, check_dtype, check_shape
from kernels.head_tile import head_tile, num_warps
from kernels.sizes import cdiv
from kernels.variant import KernelVariant


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])
def _kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slot_mapping,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    k_cache_block_stride,
    k_cache_slot_stride,
    k_cache_head_stride,
    v_cache_block_stride,
    v_cache_slot_stride,
    v_cache_head_stride,
    num_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """HEADS heads of one token a program."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
        lanes = tl.arange(0, LANES)[None, :]
        mask = (heads < num_heads) & (lanes < HEAD_DIM)
        block = slot // BLOCK_SIZE
        place = slot % BLOCK_SIZE
        keys = tl.load(k + token * k_token_stride + heads * k_head_stride + lanes, mask)
        values = tl.load(v + token * v_token_stride + heads * v_head_stride + lanes, mask)
        k_slot = k_cache + block * k_cache_block_stride + place * k_cache_slot_stride
        v_slot = v_cache + block * v_cache_block_stride + place * v_cache_slot_stride
        tl.store(k_slot + heads * k_cache_head_stride + lanes, keys, mask)
        tl.store(v_slot + heads * v_cache_head_stride + lanes, values, mask)


def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Token t goes to slot slot_mapping[t], block_id · block_size + offset; a negative one is skipped.

    k, v: (T, num_kv_heads, head_dim); caches: (num_blocks, block_size, num_kv_heads, head_dim); all of any strides with
    a dense last dimension. slot_mapping: int64 (T), dense; no slot twice. Raises ValueError for other arguments.
    """
    num_tokens, num_heads, head_dim = k.shape
    check_shape(k.shape, v=v)
    check_dense_rows(k=k, v=v)
    check_destination(k_cache, v_cache, slot_mapping, k)
    if not num_tokens:
        return
    constants = _constants(k_cache.shape[1], num_heads, head_dim)
    _kv_write_kernel[(num_tokens, cdiv(num_heads, constants["HEADS"]))](
        k,
        v,
        k_cache,
        v_cache,
        slot_mapping,
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        num_heads,
        **constants,
        num_warps=num_warps(constants),
    )


def check_destination(
    k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor, written: torch.Tensor
) -> None:
    """Raises ValueError for a cache or slots that keys or values of `written`'s shape cannot be written to."""
    check_shape((*k_cache.shape[:2], *written.shape[1:]), k_cache=k_cache, v_cache=v_cache)
    check_dense_rows(k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping)
    check_shape(written.shape[:1], slot_mapping=slot_mapping)
    check_dtype(torch.int64, slot_mapping=slot_mapping)


def _constants(block_size: int, num_heads: int, head_dim: int) -> dict[str, int]:
    return {"BLOCK_SIZE": block_size, "HEAD_DIM": head_dim, **head_tile(num_heads, head_dim)}


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """The KV heads of Llama 3.1 8B and Qwen2.5 0.5B in bfloat16; with `full` more shapes and dtypes."""
    pointers = ("k", "v", "k_cache", "v_cache")
    parts = ("block", "slot", "head")
    strides = [f"{x}_{part}_stride" for x in ("k", "v") for part in ("token", "head")]
    strides += [f"{x}_cache_{part}_stride" for x in ("k", "v") for part in parts]
    shapes = ((1, 64), (2, 64), (8, 80), (32, 96), (8, 128), (8, 256)) if full else ((2, 64), (8, 128))
    for dtype in ("bf16", "fp16", "fp32") if full else ("bf16",):
        for block_size in (16, 64) if full else (16,):
            for num_heads, head_dim in shapes:
                constants = _constants(block_size, num_heads, head_dim)
                yield KernelVariant(
                    name=f"kv_write[{dtype},{num_heads}x{head_dim},block_size={block_size}]",
                    kernel=_kv_write_kernel,
                    signature={
                        **dict.fromkeys(pointers, f"*{dtype}"),
                        "slot_mapping": "*i64",
                        **dict.fromkeys(strides, "i32"),
                        "num_heads": "i32",
                        **dict.fromkeys(constants, "constexpr"),
                    },
                    constants=constants,
                    num_warps=num_warps(constants),
                    aligned=frozenset((*pointers, *strides)),
                )
