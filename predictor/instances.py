"""KServe's V1 inference body: {"instances": [...]} in, {"predictions": [...]} out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidParameterError, InvalidPromptError, RequestError
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from predictor.service import GenerationService

PARAMETER_NAMES = frozenset(field.name for field in fields(SamplingParams))
MAX_INSTANCES = 1024


async def predict_instances(service: GenerationService, payload: Any) -> dict[str, list[Any]]:
    """Generates for each instance: a prompt string, or {"prompt": text or token ids, "parameters": {...}}.

    One prediction an instance: its text, or the list of its n texts where `n` is above 1.
    Raises `RequestError` for a malformed body, and the errors of `GenerationService.submit`.
    """
    prompts, params = _parse(payload)
    streams = service.submit_many(prompts, params)
    try:
        results = await asyncio.gather(*(stream.collect() for stream in streams))
    finally:
        for stream in streams:
            stream.abort()
    texts = [[output.text for output in result.outputs] for result in results]
    return {"predictions": [one[0] if len(one) == 1 else one for one in texts]}


def _parse(payload: Any) -> tuple[list[str | list[int]], list[SamplingParams]]:
    if not isinstance(payload, Mapping):
        raise RequestError('the body must be a JSON object with a list "instances"')
    if unknown := sorted(set(payload) - {"instances"}):
        raise RequestError(f"unknown key {unknown[0]!r} in the body; known is: instances", param=unknown[0])
    instances = payload.get("instances")
    if not isinstance(instances, list) or not instances:
        raise RequestError('"instances" must be a list of at least one prompt', param="instances")
    if len(instances) > MAX_INSTANCES:
        raise RequestError(f'"instances" may hold at most {MAX_INSTANCES} prompts', param="instances")
    pairs = [_instance(index, instance) for index, instance in enumerate(instances)]
    return [prompt for prompt, _ in pairs], [params for _, params in pairs]


def _instance(index: int, instance: Any) -> tuple[str | list[int], SamplingParams]:
    where = f"instances[{index}]"
    if isinstance(instance, str):
        return instance, SamplingParams()
    if not isinstance(instance, Mapping):
        raise InvalidPromptError(f"{where} must be a string or an object with a prompt", param=where)
    if unknown := sorted(set(instance) - {"prompt", "parameters"}):
        raise RequestError(f"unknown key {unknown[0]!r} in {where}; known are: prompt, parameters", param=where)
    prompt = instance.get("prompt")
    if not isinstance(prompt, str | list):
        raise InvalidPromptError(f"{where}.prompt must be a string or a list of token ids", param=where)
    parameters = instance.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise InvalidParameterError(f"{where}.parameters must be an object", param=where)
    if unknown := sorted(set(parameters) - PARAMETER_NAMES):
        raise InvalidParameterError(
            f"unknown parameter {unknown[0]!r} in {where}; known are: {', '.join(sorted(PARAMETER_NAMES))}",
            param=unknown[0],
        )
    return prompt, SamplingParams(**parameters)
