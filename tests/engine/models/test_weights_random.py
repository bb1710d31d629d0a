"""Models without their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.torch_backend import TorchBackend
from engine.models.registry import load_model
from engine.models.weights import WeightLoader
from engine.models.weights_random import RandomSource
from tests.tiny_models import make_checkpoint, make_config


def test_only_the_configuration_is_needed(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path, tokenizer=False)
    (path / "model.safetensors").unlink()
    loaded = [
        load_model(path, torch.float32, TorchBackend(), lambda *_: None, random_weights=True).model for _ in range(2)
    ]
    hidden = torch.randn(2, make_config("qwen3")["hidden_size"], generator=torch.Generator().manual_seed(0))
    first, second = (model.logits(hidden) for model in loaded)
    assert torch.equal(first, second)
    assert first.std() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_those_of_a_fresh_model(dtype: torch.dtype) -> None:
    source = RandomSource("x", {"a.weight": (300, 200), "a.bias": (200,), "b_norm.weight": (200,)})
    weight, bias, norm = torch.empty(300, 200, dtype=dtype), torch.ones(200, dtype=dtype), torch.empty(200, dtype=dtype)
    for name, out in (("a.weight", weight), ("a.bias", bias), ("b_norm.weight", norm)):
        source.read_into(name, out)
    assert weight.float().std() == pytest.approx(0.02, rel=0.05)
    assert (bias == 0).all()
    assert (norm == 1).all()


def test_tensors_are_made_where_they_stay() -> None:
    """No tensor passes through a copy in the host's memory: the source writes to the device's."""
    seen: list[torch.device] = []

    class Source:
        origin = "test"

        def shapes(self) -> dict[str, tuple[int, ...]]:
            return {"a": (2, 3), "b": (1, 3)}

        def read_into(self, name: str, out: torch.Tensor) -> None:
            seen.append(out.device)

    device = torch.device("meta")
    loader = WeightLoader(Source(), torch.bfloat16, device, lambda *_: None)
    loader.expect({"a": (2, 3), "b": (1, 3)}, lambda _name: False)
    fused = loader.fused(["a", "b"])
    assert (fused.shape, fused.device, seen) == ((3, 3), device, [device, device])
