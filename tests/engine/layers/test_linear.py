"""Linear methods against the plain product."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch

from engine.layers.linear import PackedLinear, PlainLinear, can_pack, default_dtype, make_linear

SHAPES = [(1, 1), (7, 5), (48, 64), (300, 64), (96, 200), (576, 1536), (129, 2000)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_product(shape: tuple[int, int], bias: bool, dtype: torch.dtype) -> None:
    weight = random(*shape, dtype=dtype)
    offset = random(shape[0], dtype=dtype) if bias else None
    linear = make_linear(weight.clone(), offset)
    for num_rows in (0, 1, 2, 3, 33):
        x = random(num_rows, shape[1], dtype=dtype)
        expected = x.double() @ weight.double().T + (offset.double() if offset is not None else 0)
        result = linear(x)
        assert result.dtype == dtype
        # Sums of products of size 1 in float32, then one rounding to the dtype.
        sums = torch.finfo(torch.float32).eps * (8 + shape[1])
        precision = torch.finfo(dtype).eps
        torch.testing.assert_close(result.double(), expected, atol=sums, rtol=precision)


def test_float32_is_packed_here() -> None:
    assert can_pack(torch.empty(2, 2)) == torch.backends.mkldnn.is_available()
    kind = PackedLinear if torch.backends.mkldnn.is_available() else PlainLinear
    assert isinstance(make_linear(torch.zeros(4, 4)), kind)
    assert not can_pack(torch.empty(2, 2, device="meta"))
    assert not can_pack(torch.empty(2, 2, dtype=torch.float64))


def test_the_weight_may_be_dropped() -> None:
    weight = random(40, 64)
    expected = weight.clone()
    linear = PackedLinear(weight, None)
    weight.zero_()
    torch.testing.assert_close(linear(torch.eye(64)), expected.T)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available(),
    reason="holds for oneDNN's own kernels on x86 (seen with AVX-512, AVX2 and SSE4.1)",
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_float32_row_does_not_depend_on_the_batch(shape: tuple[int, int], num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    try:
        linear = PackedLinear(random(*shape), random(shape[0]))
        x = random(260, shape[1])
        whole = linear(x)
        for start, stop in ((0, 1), (3, 4), (259, 260), (0, 2), (5, 12), (31, 64), (0, 129)):
            assert torch.equal(linear(x[start:stop].contiguous()), whole[start:stop])
    finally:
        torch.set_num_threads(1)


def test_strided_rows() -> None:
    weight = random(30, 16)
    x = random(4, 40)[:, 8:24]
    torch.testing.assert_close(make_linear(weight)(x), x @ weight.T)


def test_default_dtype_is_one_that_packs() -> None:
    assert default_dtype() in (torch.bfloat16, torch.float32)
    assert can_pack(torch.empty(2, 2, dtype=default_dtype())) or not torch.backends.mkldnn.is_available()


def test_default_dtype_without_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx512_f": True})
    assert default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("stored", "has_bfloat16", "expected"),
    [
        ("bfloat16", True, torch.bfloat16),
        ("float16", True, torch.float16),
        ("float32", True, torch.bfloat16),
        (None, True, torch.bfloat16),
        ("bfloat16", False, torch.float16),
    ],
)
def test_default_dtype_of_a_gpu_is_the_checkpoints(
    stored: str | None, has_bfloat16: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    assert default_dtype(torch.device("cuda"), stored) == expected
