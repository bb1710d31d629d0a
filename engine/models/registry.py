"""From a model path to a model that is ready to run. Importing this module brings no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.models.config import ModelConfig
from engine.models.config_hf import config_from_folder
from engine.models.model_files import ModelFiles, find_model_files

if TYPE_CHECKING:
    import torch

    from engine.layers.backend import LayerBackend
    from engine.models.decoder import DecoderModel
    from engine.models.weights import Progress, WeightSource


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """num_parameters: of the checkpoint, tied weights counted once."""

    model: DecoderModel
    config: ModelConfig
    dtype: torch.dtype
    num_parameters: int


def read_config(model_dir: Path) -> ModelConfig:
    """The configuration of the model at `model_dir`, a Hugging Face folder, a .gguf file, or a folder with one.

    Raises `ModelLoadError` for a path that holds no model, a damaged file, or an unsupported family.
    """
    return _read_config(find_model_files(model_dir))


def load_model(
    model_dir: Path,
    dtype: torch.dtype | None,
    backend: LayerBackend,
    progress: Progress,
    *,
    max_model_len: int | None = None,
    device: torch.device | None = None,
    random_weights: bool = False,
) -> LoadedModel:
    """Reads the model at `model_dir` into the memory of `device` (None is the CPU).

    dtype: None takes bfloat16 where the CPU computes with it, else float32; on a GPU the checkpoint's own 16-bit type,
    or else bfloat16 (float16 on a GPU that has none). backend: makes the layers.
    progress: called with (phase, done, total). max_model_len: positions to prepare for, at most the model's own
    context; None takes all of it. random_weights: reads the configuration only.
    Raises `ModelLoadError` for a path that holds no model, a damaged or incomplete file, or an unsupported family.
    """
    import torch

    from engine.layers.linear import default_dtype
    from engine.models.decoder_loader import build_decoder, expected_tensors
    from engine.models.weights_random import RandomSource

    files = find_model_files(model_dir)
    config = _read_config(files)
    device = device or torch.device("cpu")
    dtype = dtype or default_dtype(device, config.stored_dtype)
    max_positions = min(max_model_len or config.max_position_embeddings, config.max_position_embeddings)
    shapes = expected_tensors(config)
    source = RandomSource(str(files.path), shapes) if random_weights else _open_weights(files, config)
    model = build_decoder(config, source, dtype, backend, progress, max_positions, device)
    return LoadedModel(model, config, dtype, sum(_count(shape) for shape in shapes.values()))


def _read_config(files: ModelFiles) -> ModelConfig:
    if files.kind == "gguf":
        from engine.models.config_gguf import config_from_gguf
        from engine.models.gguf_file import GgufFile

        return config_from_gguf(GgufFile(files.path))
    return config_from_folder(files.path)


def _open_weights(files: ModelFiles, config: ModelConfig) -> WeightSource:
    if files.kind == "gguf":
        from engine.models.gguf_file import GgufFile
        from engine.models.weights_gguf import GgufSource

        return GgufSource(GgufFile(files.path), config)
    from engine.models.weights_safetensors import SafetensorsSource

    return SafetensorsSource(files.path)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
