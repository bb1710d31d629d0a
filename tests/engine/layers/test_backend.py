"""The choice of a back end, and that nothing brings triton in before it is made."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine.errors import ConfigError
from engine.layers.activation import ACTIVATIONS, gate
from engine.layers.backend import make_backend
from engine.layers.torch_attention import TorchAttention


def test_torch_makes_its_own_layers() -> None:
    backend = make_backend("torch")
    assert isinstance(backend.attention, TorchAttention)
    gate_up = torch.randn(3, 8)
    for name, activation in ACTIVATIONS.items():
        assert torch.equal(backend.gate(name)(gate_up), gate(gate_up, activation))


def test_triton_is_imported_only_where_it_is_chosen() -> None:
    script = (
        "import sys, engine.build, engine.llm\n"
        "from engine.layers.backend import make_backend\n"
        "make_backend('torch')\n"
        "assert 'triton' not in sys.modules and not any(m.startswith('kernels') for m in sys.modules)\n"
        "make_backend('triton')\n"
        "assert 'triton' in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.startswith(("engine.layers.triton_", "kernels."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match=r"needs the Python package triton.*pip install triton"):
        make_backend("triton")
