"""The layers in plain torch, and that nothing brings triton in before it is chosen."""

from __future__ import annotations

import subprocess
import sys

import torch

from engine.layers.activation import ACTIVATIONS, gate
from engine.layers.torch_attention import TorchAttention
from engine.layers.torch_backend import TorchBackend


def test_torch_makes_its_own_layers() -> None:
    backend = TorchBackend()
    assert isinstance(backend.attention, TorchAttention)
    gate_up = torch.randn(3, 8)
    for name, activation in ACTIVATIONS.items():
        assert torch.equal(backend.gate(name)(gate_up), gate(gate_up, activation))


def test_triton_is_imported_only_where_it_is_chosen() -> None:
    script = (
        "import sys, engine.build, engine.llm, engine.runner.model_runner\n"
        "assert 'triton' not in sys.modules and not any(m.startswith('kernels') for m in sys.modules)\n"
        "import engine.runner.device_runner\n"
        "assert 'triton' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
