"""Weights of a GGUF file, dequantised a few rows at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig
from engine.models.families import FAMILIES
from engine.models.gguf_file import GgufFile, GgufTensor

_CHUNK_VALUES = 1 << 22
"""Values that are dequantised at once: 16 MiB of float32."""

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_PATTERN = re.compile(r"(\w+)\.(weight|bias)")
_READ_WITH_CONFIG = "rope_freqs.weight"


class GgufSource:
    """A `WeightSource` over a GGUF file. Raises `ModelLoadError` where the gguf package is needed but missing."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.origin = str(file.path)
        self._file = file
        self._tensors = {
            huggingface_name(name): tensor for name, tensor in file.tensors.items() if name != _READ_WITH_CONFIG
        }
        family = next(f for f in FAMILIES if f.name == config.family)
        self._heads: dict[str, int] = {}
        if family.gguf_interleaved_rope:
            self._heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
        needs_package = any(t.type.block_size > 1 for t in self._tensors.values())
        self._quants = _quants(self.origin) if needs_package else None

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read_into(self, name: str, out: torch.Tensor) -> None:
        tensor = self._tensors[name]
        num_rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        raw = np.frombuffer(self._file.data(tensor), dtype=np.uint8).reshape(num_rows, tensor.row_bytes)
        heads = self._heads.get(name.split(".")[-2])
        order = None if heads is None else half_order(tensor.shape[0], heads).to(out.device)
        rows = out if out.dim() > 1 else out.unsqueeze(0)
        step = max(1, _CHUNK_VALUES // tensor.shape[-1])
        for start in range(0, num_rows, step):
            values = torch.from_numpy(self._decode(raw[start : start + step], tensor))
            if order is None:
                rows[start : start + step] = values
            elif out.dim() > 1:
                rows[order[start : start + step]] = values.to(out)
            else:
                out[order] = values[0].to(out)

    def _decode(self, raw: npt.NDArray[np.uint8], tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """raw: bytes (rows, row_bytes). Returns new float32 values, (rows, columns)."""
        kind = tensor.type.name
        if kind == "F32":
            return raw.view("<f4").astype(np.float32)
        if kind == "F16":
            return raw.view("<f2").astype(np.float32)
        if kind == "BF16":
            return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        assert self._quants is not None
        values: npt.NDArray[np.float32] = self._quants.dequantize(raw, self._quants.GGMLQuantizationType[kind])
        return values


def huggingface_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; a name that maps to none stays as it is."""
    if match := _LAYER_PATTERN.fullmatch(name):
        layer, part, kind = match.groups()
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    elif (match := _TOP_PATTERN.fullmatch(name)) and match[1] in _TOP_NAMES:
        return f"{_TOP_NAMES[match[1]]}.{match[2]}"
    return name


def half_order(num_rows: int, heads: int) -> torch.Tensor:
    """Where each row of a q or k projection goes when interleaved pairs become two halves: int64 (num_rows).

    llama.cpp's converter turns rows (head, half, pair) into (head, pair, half), because ggml rotates neighbours.
    """
    return torch.arange(num_rows).view(heads, 2, num_rows // heads // 2).transpose(1, 2).reshape(-1)


def _quants(origin: str) -> Any:
    try:
        from gguf import quants
    except ImportError as error:
        raise ModelLoadError(
            f"{origin} holds quantised tensors, which need the Python package gguf: install it with `pip install gguf`"
        ) from error
    return quants
