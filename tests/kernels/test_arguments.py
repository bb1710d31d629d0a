"""Wrong tensors are refused with the name and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.kv_write import kv_write
from kernels.penalties import apply_penalties_, count_tokens_
from kernels.rms_norm import add_rms_norm_, head_rms_norm, rms_norm
from kernels.rotary import rotary_, rotary_kv_write
from kernels.row_parameters import Column
from kernels.sampling import SamplingWorkspace, sample_tokens
from kernels.silu_mul import silu_mul

T, HEADS, SIZE, VOCAB = 3, 2, 16, 32
ROWS = torch.zeros(T, SIZE)
WEIGHT = torch.ones(SIZE)
HEADS_OF = torch.zeros(T, HEADS, SIZE)
ANGLES = torch.zeros(T, 1, SIZE)
CACHE = torch.zeros(4, 8, HEADS, SIZE)
SLOTS = torch.arange(T)
LOGITS = torch.zeros(T, VOCAB)
COUNTS = torch.zeros(T, VOCAB, dtype=torch.int32)
PARAMETERS = torch.zeros(T, len(Column), dtype=torch.float64)


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, with elements two apart."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


CASES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (rms_norm, (ROWS, WEIGHT[:8], 1e-5), "weight has the shape (8,): pass one of (16,)"),
    (rms_norm, (apart(ROWS), WEIGHT, 1e-5), "rows has elements 2 apart: make its last dimension dense"),
    (add_rms_norm_, (ROWS, ROWS[:2], WEIGHT, 1e-5), "update has the shape (2, 16): pass one of (3, 16)"),
    (head_rms_norm, (HEADS_OF, apart(HEADS_OF[0]), 1e-5), "weight is not dense: pass weight.contiguous()"),
    (silu_mul, (torch.zeros(T, 15),), "gate_up has 15 columns"),
    (rotary_, (HEADS_OF[..., :15], ANGLES, ANGLES), "heads of 15 elements have no halves"),
    (rotary_, (HEADS_OF, ANGLES, ANGLES[:, 0]), "sin has the shape (3, 16): pass one of (3, 1, 16)"),
    (kv_write, (HEADS_OF, HEADS_OF, CACHE, CACHE[:3], SLOTS), "v_cache has the shape (3, 8, 2, 16)"),
    (kv_write, (HEADS_OF, HEADS_OF, CACHE, CACHE, SLOTS.int()), "slot_mapping is torch.int32: pass it as torch.int64"),
    (kv_write, (HEADS_OF, HEADS_OF, CACHE, CACHE, SLOTS[:2]), "slot_mapping has the shape (2,): pass one of (3,)"),
    (rotary_kv_write, (HEADS_OF, HEADS_OF, ANGLES, ANGLES, CACHE, CACHE, SLOTS), "qk has 2 heads, 2 of them keys"),
    (apply_penalties_, (LOGITS, COUNTS[:, :9], PARAMETERS, SLOTS), "counts has the shape (3, 9): pass one of (3, 32)"),
    (apply_penalties_, (LOGITS, COUNTS, PARAMETERS.float(), SLOTS), "parameters is torch.float32"),
    (count_tokens_, (COUNTS, PARAMETERS, SLOTS, SLOTS[:2]), "token_ids has the shape (2,)"),
    (sample_tokens, (LOGITS.half(), PARAMETERS, SLOTS, SLOTS), "logits is torch.float16: pass it as torch.float32"),
    (sample_tokens, (LOGITS, PARAMETERS, SLOTS, apart(SLOTS)), "positions is not dense"),
]


@pytest.mark.parametrize(("wrapper", "arguments", "message"), CASES)
def test_wrong_tensors(wrapper: Callable[..., Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        wrapper(*arguments)


def test_a_workspace_of_another_size() -> None:
    workspace = SamplingWorkspace(T - 1, VOCAB, torch.device("cpu"))
    with pytest.raises(ValueError, match="not made for 3 rows of 32 logits: make one of that size"):
        sample_tokens(LOGITS, PARAMETERS, SLOTS, SLOTS, workspace=workspace)
