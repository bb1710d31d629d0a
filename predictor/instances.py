"""KServe's V1 inference body: {"instances": [...]} in, {"predictions": [...]} out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.brief import brief
from engine.errors import InvalidParameterError, InvalidPromptError, RequestError
from engine.sampling_params import SamplingParams
from predictor.collect import collect_all
from predictor.oip.parameters import SAMPLING_PARAMETERS, parameters_from_mapping

if TYPE_CHECKING:
    from predictor.service import GenerationService

PARAMETER_NAMES = SAMPLING_PARAMETERS | {"timeout"}
MAX_INSTANCES = 1024


@dataclass(frozen=True, slots=True)
class _Instance:
    """timeout: seconds or None."""

    prompt: str | list[int]
    params: SamplingParams
    timeout: float | None = None


async def predict_instances(service: GenerationService, payload: Any) -> dict[str, list[Any]]:
    """Generates for each instance: a prompt string, or {"prompt": text or token ids, "parameters": {...}}.

    The parameters are those of an OIP request, read by the same rules; `timeout` is each instance's own.
    One prediction an instance: its text, or the list of its n texts where `n` is above 1.
    Raises `RequestError` for a malformed body, and the errors of `GenerationService.submit`.
    """
    instances = _parse(payload)
    prompts = await service.encode([one.prompt for one in instances])
    now = time.monotonic()
    streams = service.submit_many(
        prompts,
        [one.params for one in instances],
        deadline=[None if one.timeout is None else now + one.timeout for one in instances],
    )
    texts = [[output.text for output in result.outputs] for result in await collect_all(streams)]
    return {"predictions": [one[0] if len(one) == 1 else one for one in texts]}


def _parse(payload: Any) -> list[_Instance]:
    if not isinstance(payload, Mapping):
        raise RequestError('the body must be a JSON object with a list "instances"')
    if unknown := sorted(set(payload) - {"instances"}):
        raise RequestError(f"unknown key {brief(unknown[0])} in the body; known is: instances", param=unknown[0])
    instances = payload.get("instances")
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list of at least one prompt', param="instances")
    if len(instances) > MAX_INSTANCES:
        raise RequestError(f'"instances" may hold at most {MAX_INSTANCES} prompts', param="instances")
    return [_instance(index, instance) for index, instance in enumerate(instances)]


def _instance(index: int, instance: Any) -> _Instance:
    where = f"instances[{index}]"
    if isinstance(instance, str):
        return _Instance(instance, SamplingParams())
    if not isinstance(instance, Mapping):
        raise InvalidPromptError(f"{where} must be a string or an object with a prompt", param=where)
    if unknown := sorted(set(instance) - {"prompt", "parameters"}):
        raise RequestError(f"unknown key {brief(unknown[0])} in {where}; known are: prompt, parameters", param=where)
    prompt = instance.get("prompt")
    if not isinstance(prompt, str | list):
        raise InvalidPromptError(f"{where}.prompt must be a string or a list of token ids", param=where)
    parameters = instance.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise InvalidParameterError(f"{where}.parameters must be an object", param=where)
    if unknown := sorted(set(parameters) - PARAMETER_NAMES):
        raise InvalidParameterError(
            f"unknown parameter {brief(unknown[0])} in {where}; known are: {', '.join(sorted(PARAMETER_NAMES))}",
            param=unknown[0],
        )
    read = parameters_from_mapping(parameters)
    return _Instance(prompt, read.sampling, read.timeout)
