"""Rotary position embedding (RoFormer, arXiv:2104.09864), halves rotated as GPT-NeoX does, alone and with the KV write.

cos and sin: (T, 1, head_dim), the first half of sin negated: x·cos + swap_halves(x)·sin is the rotation. The first
product is rounded to x's dtype and the sum once more, as torch's `mul` and `addcmul` do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from kernels.variant import KernelVariant

TILE = 1024
"""Elements of each half of a program's heads."""


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
    token_stride,
    head_stride,
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
    x_heads = x + token * token_stride + heads * head_stride
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
    """Rotates x, (T, heads, head_dim), in place, and returns it; tokens and heads of any stride."""
    num_tokens, num_heads, head_dim = x.shape
    _check_angles(x, cos, sin)
    if num_tokens:
        constants = _constants(num_heads, head_dim)
        _rotary_kernel[(num_tokens, triton.cdiv(num_heads, constants["HEADS"]))](
            x,
            cos,
            sin,
            *x.stride()[:2],
            cos.stride(0),
            sin.stride(0),
            num_heads,
            **constants,
            num_warps=_num_warps(constants),
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
    """
    num_tokens, num_kv_heads, head_dim = v.shape
    num_heads = qk.shape[1] - num_kv_heads
    _check_angles(qk, cos, sin)
    assert num_heads > 0
    assert qk.shape[2] == head_dim
    assert k_cache.shape == v_cache.shape
    assert k_cache.shape[2:] == v.shape[1:]
    assert v.stride(2) == k_cache.stride(3) == v_cache.stride(3) == 1
    assert slot_mapping.dtype == torch.int64
    if not num_tokens:
        return
    constants = _constants(num_heads + num_kv_heads, head_dim)
    _rotary_kv_write_kernel[(num_tokens, triton.cdiv(num_heads + num_kv_heads, constants["HEADS"]))](
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
        num_warps=_num_warps(constants),
    )


def _check_angles(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    assert x.shape[2] % 2 == 0
    assert cos.shape == sin.shape == (x.shape[0], 1, x.shape[2])
    assert x.stride(2) == cos.stride(2) == sin.stride(2) == 1


def _constants(num_heads: int, head_dim: int) -> dict[str, int]:
    lanes = triton.next_power_of_2(head_dim // 2)
    heads = min(triton.next_power_of_2(num_heads), max(1, TILE // lanes))
    return {"HALF": head_dim // 2, "HEADS": heads, "LANES": lanes}


def _num_warps(constants: dict[str, int]) -> int:
    """16 bytes of each half, of a 16-bit type, a thread."""
    return min(4, max(1, constants["HEADS"] * constants["LANES"] // 256))


def variants(full: bool = False) -> Iterator[KernelVariant]:
    """The heads of Llama 3.1 8B and Qwen2.5 0.5B in bfloat16; with `full` more shapes and dtypes."""
    shapes = [(14, 2, 64), (32, 8, 128)]
    if full:
        shapes += [(8, 8, 80), (32, 32, 96), (16, 8, 256)]
    angles = ("cos", "sin")
    angle_strides = ("cos_stride", "sin_stride")
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
                    **dict.fromkeys(("token_stride", "head_stride", *angle_strides, "num_heads"), "i32"),
                    **dict.fromkeys(constants, "constexpr"),
                },
                constants=constants,
                num_warps=_num_warps(constants),
                aligned=frozenset(("x", *angles, "token_stride", "head_stride", *angle_strides)),
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
                    num_warps=_num_warps(constants),
                    aligned=frozenset((*pointers, *strides, *angle_strides)),
                )
