"""Rotary positions: the rotation itself, and the frequencies of each kind of scaling."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.layers.rope_parameters import RopeParameters, yarn_temperature
from engine.layers.rotary import RotaryEmbedding, inverse_frequencies, rotate_

HEAD_DIM = 32


def rotated(x: torch.Tensor, positions: torch.Tensor, frequencies: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """By complex numbers in float64: element i and i + head_dim / 2 are one number."""
    wide = x.double()
    half = x.shape[-1] // 2
    numbers = torch.complex(wide[..., :half], wide[..., half:])
    angles = (positions.double()[:, None] * frequencies.double())[:, None]
    turned = numbers * torch.polar(torch.full_like(angles, scale), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_rotation(dtype: torch.dtype, tolerance: float) -> None:
    parameters = RopeParameters(theta=10000.0)
    rotary = RotaryEmbedding(parameters, HEAD_DIM, 128, dtype)
    positions = torch.tensor([0, 1, 127, 5, 5])
    x = torch.randn(5, 3, HEAD_DIM).to(dtype)
    expected = rotated(x, positions, inverse_frequencies(parameters, HEAD_DIM))
    result = rotate_(x.clone(), rotary.lookup(positions))
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=0)


def test_in_place_on_a_strided_view() -> None:
    rotary = RotaryEmbedding(RopeParameters(), HEAD_DIM, 16, torch.float32)
    whole = torch.randn(4, 6, HEAD_DIM)
    before = whole.clone()
    positions = torch.arange(4)
    view = whole[:, 1:4]
    assert rotate_(view, rotary.lookup(positions)).data_ptr() == view.data_ptr()
    frequencies = inverse_frequencies(RopeParameters(), HEAD_DIM)
    torch.testing.assert_close(view.double(), rotated(before[:, 1:4], positions, frequencies), atol=1e-5, rtol=0)
    assert torch.equal(whole[:, :1], before[:, :1])
    assert torch.equal(whole[:, 4:], before[:, 4:])


def test_scores_depend_on_the_distance_only() -> None:
    rotary = RotaryEmbedding(RopeParameters(), HEAD_DIM, 100, torch.float32)
    q, k = torch.randn(1, 1, HEAD_DIM), torch.randn(1, 1, HEAD_DIM)

    def score(q_position: int, k_position: int) -> float:
        turned_q = rotate_(q.clone(), rotary.lookup(torch.tensor([q_position])))
        turned_k = rotate_(k.clone(), rotary.lookup(torch.tensor([k_position])))
        return float((turned_q * turned_k).sum())

    assert score(20, 13) == pytest.approx(score(97, 90), abs=1e-4)
    assert score(20, 13) != pytest.approx(score(20, 14), abs=1e-2)


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        (RopeParameters(kind="linear", factor=3.0), {"rope_type": "linear", "factor": 3.0}),
        (
            RopeParameters(
                kind="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=256,
            ),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ),
        (
            RopeParameters(
                kind="yarn",
                factor=4.0,
                original_max_position_embeddings=512,
                attention_factor=yarn_temperature(4.0),
            ),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        ),
        (
            RopeParameters(
                kind="yarn",
                factor=16.0,
                original_max_position_embeddings=64,
                beta_fast=8.0,
                beta_slow=2.0,
                truncate=False,
                attention_factor=1.5,
            ),
            {
                "rope_type": "yarn",
                "factor": 16.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "truncate": False,
                "attention_factor": 1.5,
            },
        ),
    ],
)
def test_scaled_frequencies_equal_transformers(parameters: RopeParameters, scaling: dict[str, object]) -> None:
    config = LlamaConfig(
        head_dim=HEAD_DIM, max_position_embeddings=2048, rope_parameters={"rope_theta": 10000.0, **scaling}
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[parameters.kind](config)
    torch.testing.assert_close(inverse_frequencies(parameters, HEAD_DIM), expected, atol=0, rtol=1e-6)
    assert parameters.attention_factor == pytest.approx(attention_factor)
    table = RotaryEmbedding(parameters, HEAD_DIM, 4, torch.float32).lookup(torch.tensor([0]))
    assert float(table.cos[0, 0, 0]) == pytest.approx(attention_factor)


def test_llama3_ends_by_hand() -> None:
    parameters = RopeParameters(
        kind="llama3",
        theta=500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    plain = inverse_frequencies(RopeParameters(theta=500000.0), 128)
    scaled = inverse_frequencies(parameters, 128)
    assert scaled[0] == plain[0]
    assert float(scaled[-1]) == pytest.approx(float(plain[-1]) / 8.0)


def test_divisors_divide() -> None:
    divisors = tuple(float(n) for n in range(1, 17))
    scaled = inverse_frequencies(RopeParameters(frequency_divisors=divisors), HEAD_DIM)
    torch.testing.assert_close(scaled * torch.tensor(divisors), inverse_frequencies(RopeParameters(), HEAD_DIM))


def test_yarn_temperature() -> None:
    assert yarn_temperature(1.0) == 1.0
    assert yarn_temperature(math.e) == pytest.approx(1.1)
    assert yarn_temperature(math.e, 2.0) == pytest.approx(1.2)
