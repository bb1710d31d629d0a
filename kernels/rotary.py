"""Rotary position embedding (RoFormer, arXiv:2104.09864), halves rotated as GPT-NeoX does, alone and with the KV write.

cos and sin: (T, 1, head_dim), the first half of sin negated: x·cos + swap_halves(x)·sin is the rotation. The first
product is rounded to x's dtype and the sum once more, as torch's `mul` and `addcmul` do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.arguments import check_dense_rows, check_shape
from kernels.head_tile import head_tile, num_warps
from kernels.kv_write import check_destination
from kernels.sizes import cdiv
from kernels.variant import KernelVariant


@triton.jit
def _turned(straight, crossed, angles_cos, angles_sin):
    """One half of some heads, (HEADS, LANES), turned; `crossed` is their other half."""
    kept = (straight.to(tl.float32) * angles_cos.to(tl.float32)).to(straight.dtype)
    return (kept.to(tl.float32) + crossed.to(tl.float32) * angles_sin.to(tl.float32)).to(straight.dtype)


@triton.jit
def _load_turned(x_heads, cos_row, sin_row, lanes, mask, HALF: tl.constexpr):
    """Both halves of some heads, turned. x_heads: pointers to them, (HEADS, 1)."""
    in_half = lanes < HALF
    first = tl.load(x_heads + lanes, mask, other=0.0)
    second = tl.load(x_heads + HALF + lanes, mask, other=0.0)
    first_cos = tl.load(cos_row + lanes, in_half, other=0.0)
    first_sin = tl.load(sin_row + lanes, in_half, other=0.0)
    second_cos = tl.load(cos_row + HALF + lanes, in_half, other=0.0)
    second_sin = tl.load(sin_row + HALF + lanes, in_half, other=0.0)
    return _turned(first, second, first_cos, first_sin), _turned(second, first, second_cos, second_sin)


@triton.jit
def _rotary_kernel(
    x,
    cos,
    sin,
    x_token_stride,
    x_head_stride,
    cos_stride,
    sin_stride,
    num_heads,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """HEADS heads of one token a program."""
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
    lanes = tl.arange(0, LANES)[None, :]
    mask = (heads < num_heads) & (lanes < HALF)
    x_heads = x + token * x_token_stride + heads * x_head_stride
    first, second = _load_turned(x_heads, cos + token * cos_stride, sin + token * sin_stride, lanes, mask, HALF)
    tl.store(x_heads + lanes, first, mask)
    tl.store(x_heads + HALF + lanes, second, mask)


@triton.jit(do_not_specialize_on_alignment=["slot_mapping"])
def _rotary_kv_write_kernel(
    qk,
    v,
    cos,
    sin,
    k_cache,
    v_cache,
    slot_mapping,
    qk_token_stride,
    qk_head_stride,
    v_token_stride,
    v_head_stride,
    cos_stride,
    sin_stride,
    k_cache_block_stride,
    k_cache_slot_stride,
    k_cache_head_stride,
    v_cache_block_stride,
    v_cache_slot_stride,
    v_cache_head_stride,
    num_heads,
    num_kv_heads,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
):
    """HEADS heads of one token a program: query heads stay in place, key heads go to the cache with their values."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
    kv_heads = heads - num_heads
    lanes = tl.arange(0, LANES)[None, :]
    in_half = lanes < HALF
    is_query = (heads < num_heads) & in_half
    num_written = tl.where(slot >= 0, num_kv_heads, 0)
    is_key = (kv_heads >= 0) & (kv_heads < num_written) & in_half

    x_heads = qk + token * qk_token_stride + heads * qk_head_stride
    cos_row, sin_row = cos + token * cos_stride, sin + token * sin_stride
    first, second = _load_turned(x_heads, cos_row, sin_row, lanes, is_query | is_key, HALF)
    tl.store(x_heads + lanes, first, is_query)
    tl.store(x_heads + HALF + lanes, second, is_query)

    block = slot // BLOCK_SIZE
    place = slot % BLOCK_SIZE
    k_heads = k_cache + block * k_cache_block_stride + place * k_cache_slot_stride + kv_heads * k_cache_head_stride
    tl.store(k_heads + lanes, first, is_key)
    tl.store(k_heads + HALF + lanes, second, is_key)
    values = v + token * v_token_stride + kv_heads * v_head_stride
    v_heads = v_cache + block * v_cache_block_stride + place * v_cache_slot_stride + kv_heads * v_cache_head_stride
    tl.store(v_heads + lanes, tl.load(values + lanes, is_key), is_key)
    tl.store(v_heads + HALF + lanes, tl.load(values + HALF + lanes, is_key), is_key)


def rotary_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates x, (T, heads, head_dim), in place, and returns it; tokens and heads of any stride.

    Raises ValueError for other shapes and strides.
    """
    num_tokens, num_heads, head_dim = x.shape
    _check_angles(x, cos, sin)
    if num_tokens:
        constants = _constants(num_heads, head_dim)
        _rotary_kernel[(num_tokens, cdiv(num_heads, constants["HEADS"]))](
            x,
            cos,
            sin,
            *x.stride()[:2],
            cos.stride(0),
            sin.stride(0),
            num_heads,
            **constants,
            num_warps=num_warps(constants),
        )
    return x


def rotary_kv_write(
    qk: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Rotates the query heads of qk in place, and writes the rotated keys, and the values, to their slots.

    qk: (T, num_heads + num_kv_heads, head_dim), queries first; its key heads are left as they are. v: (T, num_kv_heads,
    head_dim). caches: (num_blocks, block_size, num_kv_heads, head_dim). All of any strides with a dense last dimension.
    slot_mapping: int64 (T), dense, block_id · block_size + offset, no slot twice; a negative one is not written.
    Raises ValueError for other arguments.
    """
    num_tokens, num_kv_heads, head_dim = v.shape
    num_heads = qk.shape[1] - num_kv_heads
    _check_angles(qk, cos, sin)
    if num_heads <= 0:
        raise ValueError(
            f"qk has {qk.shape[1]} heads, {num_kv_heads} of them keys: pass those of the queries before them"
        )
    check_shape((num_tokens, qk.shape[1], head_dim), qk=qk)
    check_dense_rows(v=v)
    check_destination(k_cache, v_cache, slot_mapping, v)
    if not num_tokens:
        return
    constants = _constants(num_heads + num_kv_heads, head_dim)
    _rotary_kv_write_kernel[(num_tokens, cdiv(num_heads + num_kv_heads, constants["HEADS"]))](
        qk,
        v,
        cos,
        sin,
        k_cache,
        v_cache,
        slot_mapping,
        *qk.stride()[:2],
        *v.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        num_heads,
        num_kv_heads,
        BLOCK_SIZE=k_cache.shape[1],
        **constants,
        num_warps=num_warps(constants),
    )


def _check_angles(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    num_tokens, _, head_dim = x.shape
    if head_dim % 2:
        raise ValueError(f"heads of {head_dim} elements have no halves: pass heads of an even size")
    check_shape((num_tokens, 1, head_dim), cos=cos, sin=sin)
    check_dense_rows(heads=x, cos=cos, sin=sin)


def _constants(num_heads: int, head_dim: int) -> dict[str, int]:
    return {"HALF": head_dim // 2, **head_tile(num_heads, head_dim // 2)}


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """The heads of Llama 3.1 8B and Qwen2.5 0.5B in bfloat16; with `full` more shapes and dtypes."""
    shapes = [(14, 2, 64), (32, 8, 128)]
    if full:
        shapes += [(8, 8, 80), (32, 32, 96), (16, 8, 256)]
    angles = ("cos", "sin")
    angle_strides = ("cos_stride", "sin_stride")
    x_strides = ("x_token_stride", "x_head_stride")
    strides = [f"{x}_{part}_stride" for x in ("qk", "v") for part in ("token", "head")]
    strides += [f"{x}_cache_{part}_stride" for x in ("k", "v") for part in ("block", "slot", "head")]
    for dtype in ("bf16", "fp16", "fp32") if full else ("bf16",):
        for num_heads, num_kv_heads, head_dim in shapes:
            constants = _constants(num_heads + num_kv_heads, head_dim)
            yield KernelVariant(
                name=f"rotary_[{dtype},{num_heads + num_kv_heads}x{head_dim}]",
                kernel=_rotary_kernel,
                signature={
                    **dict.fromkeys(("x", *angles), f"*{dtype}"),
                    **dict.fromkeys((*x_strides, *angle_strides, "num_heads"), "i32"),
                    **dict.fromkeys(constants, "constexpr"),
                },
                constants=constants,
                num_warps=num_warps(constants),
                aligned=frozenset(("x", *angles, *x_strides, *angle_strides)),
            )
            for block_size in (16, 64) if full else (16,):
                pointers = ("qk", "v", *angles, "k_cache", "v_cache")
                yield KernelVariant(
                    name=f"rotary_kv_write[{dtype},{num_heads}+{num_kv_heads}x{head_dim},block_size={block_size}]",
                    kernel=_rotary_kv_write_kernel,
                    signature={
                        **dict.fromkeys(pointers, f"*{dtype}"),
                        "slot_mapping": "*i64",
                        **dict.fromkeys((*strides, *angle_strides, "num_heads", "num_kv_heads"), "i32"),
                        **dict.fromkeys(("BLOCK_SIZE", *constants), "constexpr"),
                    },
                    constants={"BLOCK_SIZE": block_size, **constants},
                    num_warps=num_warps(constants),
                    aligned=frozenset((*pointers, *strides, *angle_strides)),
                )
