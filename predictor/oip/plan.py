"""What an inference request asks of this model: prompts, parameters and outputs, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.brief import brief, brief_text
from engine.errors import InvalidParameterError, InvalidPromptError
from predictor.oip.errors import MalformedRequestError
from predictor.oip.infer_types import InferRequest, decode_text, plain_parameters, tensor_from
from predictor.oip.metadata import INPUTS, OUTPUTS
from predictor.oip.parameters import RequestParameters, merge_sampling_parameters, parameters_from_mapping
from predictor.oip.tensors import Tensor

MAX_PROMPTS = 1024


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """A request of N prompts, each with n sequences.

    prompts: N texts or lists of token ids. parameters: one a prompt; all have the same n and request options.
    outputs: names in the order asked for. stream: whether tokens are to come as they are made (ModelStreamInfer).
    exclude_input: whether `text_output` leaves the prompt out.
    """

    prompts: Sequence[str | list[int]]
    parameters: Sequence[RequestParameters]
    outputs: tuple[str, ...]
    stream: bool
    exclude_input: bool

    @property
    def timeout(self) -> float | None:
        """Seconds, or None."""
        return self.parameters[0].timeout

    @property
    def n(self) -> int:
        return self.parameters[0].sampling.n


def read_plan(request: InferRequest) -> InferencePlan:
    """Checks a decoded request against the tensors and parameters of this model.

    Raises `MalformedRequestError`, `InvalidPromptError` or `InvalidParameterError`, naming the tensor or parameter.
    """
    tensors = _read_tensors(request)
    prompts = _read_prompts(tensors)
    parameters = _read_parameters(tensors, request, len(prompts))
    outputs, parameters = _read_outputs(request, parameters)
    return InferencePlan(
        prompts=prompts,
        parameters=parameters,
        outputs=outputs,
        stream=_read_flag(tensors, "stream", default=False),
        exclude_input=_read_flag(tensors, "exclude_input_in_output", default=True),
    )


def asks_for_stream(request: InferRequest) -> bool:
    """Whether a decoded request, as the client sent it, has `stream` set. Its other faults are found later."""
    tensor = request.get_input_by_name("stream")
    return tensor is not None and tensor.datatype == "BOOL" and list(tensor.data) == [True]


def _read_tensors(request: InferRequest) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for item in request.inputs:
        spec = INPUTS.get(item.name)
        if spec is None:
            raise MalformedRequestError(
                f"unknown input '{brief_text(item.name)}'; this model takes {', '.join(INPUTS)}"
            )
        if item.name == "text_input" and len(item.shape) == 1:
            _check_count(item.shape[0])  # before the elements are looked at, which takes long where they are many
        tensor = tensor_from(item)
        if tensor.datatype not in spec.datatypes:
            raise MalformedRequestError(
                f"input '{item.name}' must be of datatype {' or '.join(spec.datatypes)}, got {tensor.datatype}"
            )
        if unknown := set(plain_parameters(item.parameters)) - {"binary_data_size"}:
            raise InvalidParameterError(
                f"unknown parameter {brief(min(unknown))} of input '{item.name}'; known is binary_data_size",
                param=min(unknown),
            )
        tensors[item.name] = tensor
    return tensors


def _read_prompts(tensors: dict[str, Tensor]) -> list[str | list[int]]:
    text, ids = tensors.get("text_input"), tensors.get("input_ids")
    if (text is None) == (ids is None):
        raise InvalidPromptError("give the prompts in 'text_input' or in 'input_ids', one of the two", param="inputs")
    prompts: list[str | list[int]]
    if text is not None:
        _check_rank(text, 1, "[N]")
        _check_count(len(text.values))
        prompts = [decode_text(text.name, index, element) for index, element in enumerate(text.values)]
        if "input_lengths" in tensors:
            raise InvalidPromptError(
                "'input_lengths' belongs to 'input_ids', not to 'text_input'", param="input_lengths"
            )
    else:
        assert ids is not None
        prompts = list(_read_rows(ids, tensors.get("input_lengths")))
    _check_count(len(prompts))
    return prompts


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_PROMPTS:
        raise InvalidPromptError(f"a request holds between 1 and {MAX_PROMPTS} prompts, got {count}", param="inputs")


def _read_rows(ids: Tensor, lengths: Tensor | None) -> list[list[int]]:
    if len(ids.shape) > 2:
        raise MalformedRequestError(f"input 'input_ids' must have shape [N, L] or [L], got {list(ids.shape)}")
    width = ids.shape[-1]
    rows = [ids.values[start : start + width] for start in range(0, len(ids.values), max(1, width))]
    if lengths is None:
        return rows
    _check_rank(lengths, 1, "[N]")
    if len(lengths.values) != len(rows):
        raise InvalidPromptError(
            f"'input_lengths' has {len(lengths.values)} entries for {len(rows)} prompts", param="input_lengths"
        )
    for length in lengths.values:
        if not 1 <= length <= width:
            raise InvalidPromptError(
                f"'input_lengths' holds {length}, but a prompt has between 1 and {width} ids here",
                param="input_lengths",
            )
    return [row[:length] for row, length in zip(rows, lengths.values, strict=True)]


def _read_parameters(tensors: dict[str, Tensor], request: InferRequest, count: int) -> list[RequestParameters]:
    common = plain_parameters(request.parameters)
    tensor = tensors.get("sampling_parameters")
    if tensor is None:
        return [parameters_from_mapping(common)] * count
    _check_rank(tensor, 1, "[1] or [N]")
    if len(tensor.values) not in (1, count):
        raise InvalidParameterError(
            f"'sampling_parameters' has {len(tensor.values)} entries for {count} prompts; give one, or one a prompt",
            param="sampling_parameters",
        )
    every = [parameters_from_mapping(merge_sampling_parameters(common, element)) for element in tensor.values]
    if len({parameters.sampling.n for parameters in every}) > 1:
        raise InvalidParameterError("'n' must be the same for all prompts of a request", param="n")
    return every if len(every) == count else every * count


def _read_outputs(
    request: InferRequest, parameters: list[RequestParameters]
) -> tuple[tuple[str, ...], list[RequestParameters]]:
    asked = [output.name for output in request.request_outputs or ()]
    for output in request.request_outputs or ():
        if output.name not in OUTPUTS:
            raise MalformedRequestError(
                f"unknown output '{brief_text(output.name)}'; this model gives {', '.join(OUTPUTS)}"
            )
        if unknown := set(plain_parameters(output.parameters)) - {"binary_data"}:
            raise InvalidParameterError(
                f"unknown parameter {brief(min(unknown))} of output '{output.name}'; known is binary_data",
                param=min(unknown),
            )
    has_logprobs = any(one.sampling.logprobs is not None for one in parameters)
    if "logprobs" in asked and not has_logprobs:
        raise InvalidParameterError("output 'logprobs' needs the parameter 'logprobs'", param="logprobs")
    outputs = tuple(asked) or tuple(name for name in OUTPUTS if has_logprobs or name != "logprobs")
    if "cumulative_logprob" in outputs:
        # NOTE: the sum needs the log probability of each token, so the engine must be asked for them.
        parameters = [
            one if one.sampling.logprobs is not None else replace(one, sampling=replace(one.sampling, logprobs=0))
            for one in parameters
        ]
    return outputs, parameters


def _read_flag(tensors: dict[str, Tensor], name: str, *, default: bool) -> bool:
    tensor = tensors.get(name)
    if tensor is None:
        return default
    if tensor.shape != (1,):
        raise MalformedRequestError(f"input '{name}' must have shape [1], got {list(tensor.shape)}")
    value: Any = tensor.values[0]
    return bool(value)


def _check_rank(tensor: Tensor, rank: int, expected: str) -> None:
    if len(tensor.shape) != rank:
        raise MalformedRequestError(f"input '{tensor.name}' must have shape {expected}, got {list(tensor.shape)}")
