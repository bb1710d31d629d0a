"""Gated activations against transformers' table."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

from engine.layers.activation import ACTIVATIONS, gate


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gate_comes_first(name: str) -> None:
    gates, ups = torch.randn(5, 12), torch.randn(5, 12)
    result = gate(torch.cat((gates, ups), dim=1), ACTIVATIONS[name])
    torch.testing.assert_close(result, ACT2FN[name](gates) * ups, atol=1e-6, rtol=1e-6)
