"""What the server and its model say of themselves: names, version, extensions, tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.brief import brief
from engine.errors import UnavailableError
from engine.metrics import package_version
from predictor.oip.errors import ModelNotFoundError
from predictor.request_context import note_model

if TYPE_CHECKING:
    from predictor.service import GenerationService

SERVER_NAME = "pagedserve"
PLATFORM = "pagedserve_llm"
MODEL_VERSION = "1"
"""The one version served. A server serves one model for its whole life."""
EXTENSIONS = ("binary_tensor_data", "parameters", "schedule_policy", "generate")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor the model takes or gives. shape: −1 is a dimension of any size. datatypes: the first is advertised."""

    name: str
    datatypes: tuple[str, ...]
    shape: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatypes[0], "shape": list(self.shape)}


INPUTS = {
    spec.name: spec
    for spec in (
        TensorSpec("text_input", ("BYTES",), (-1,)),
        TensorSpec("input_ids", ("INT64", "INT32"), (-1, -1)),
        TensorSpec("input_lengths", ("INT32",), (-1,)),
        TensorSpec("sampling_parameters", ("BYTES",), (-1,)),
        TensorSpec("stream", ("BOOL",), (1,)),
        TensorSpec("exclude_input_in_output", ("BOOL",), (1,)),
    )
}
OUTPUTS = {
    spec.name: spec
    for spec in (
        TensorSpec("text_output", ("BYTES",), (-1,)),
        TensorSpec("finish_reason", ("BYTES",), (-1,)),
        TensorSpec("num_input_tokens", ("INT32",), (-1,)),
        TensorSpec("num_output_tokens", ("INT32",), (-1,)),
        TensorSpec("output_ids", ("INT32",), (-1, -1)),
        TensorSpec("cumulative_logprob", ("FP32",), (-1,)),
        TensorSpec("logprobs", ("BYTES",), (-1,)),
    )
}


def server_metadata() -> dict[str, Any]:
    """inference_rest.md, "Server Metadata Response JSON Object"."""
    return {"name": SERVER_NAME, "version": package_version(), "extensions": list(EXTENSIONS)}


def model_metadata(service: GenerationService) -> dict[str, Any]:
    """inference_rest.md, "Model Metadata Response JSON Object"; `properties` is empty until the model is loaded."""
    return {
        "name": service.model_name,
        "versions": [MODEL_VERSION],
        "platform": PLATFORM,
        "inputs": [spec.as_dict() for spec in INPUTS.values()],
        "outputs": [spec.as_dict() for spec in OUTPUTS.values()],
        "properties": _properties(service),
    }


def check_model(service: GenerationService, name: str, model_version: str | None) -> None:
    """Raises `ModelNotFoundError` unless the model, and the version where one is named, is the one served."""
    note_model(name)
    if name != service.model_name:
        raise ModelNotFoundError(f"no model named {brief(name)}; this server serves {service.model_name!r}")
    if model_version and model_version != MODEL_VERSION:
        raise ModelNotFoundError(
            f"model {name!r} has no version {brief(model_version)}; the version served is {MODEL_VERSION!r}"
        )


def no_repository(verb: str) -> str:
    """Why the repository extension's load and unload do nothing here."""
    return f"this server cannot {verb} models while it runs: it serves one model from its start to its end"


def _properties(service: GenerationService) -> dict[str, str]:
    try:
        info = service.info
    except UnavailableError:
        return {}
    return {
        "architecture": info.architecture,
        "dtype": info.dtype,
        "device": info.device,
        "max_model_len": str(info.max_model_len),
        "num_parameters": str(info.num_parameters),
        "vocab_size": str(info.vocab_size),
    }
