"""OIP inference: a decoded request to its response."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from predictor.bodies import run_sized
from predictor.collect import collect_all
from predictor.oip.errors import MalformedRequestError
from predictor.oip.infer_types import InferRequest, InferResponse
from predictor.oip.metadata import MODEL_VERSION
from predictor.oip.plan import InferencePlan, read_plan
from predictor.oip.results import output_tensors

if TYPE_CHECKING:
    from engine.streams import GenerationStream
    from predictor.model import PagedModel
    from predictor.service import GenerationService

MAX_ID_LENGTH = 64
"""Of the request's id, what goes into the names of the engine's requests."""


async def call_model(model: PagedModel, request: InferRequest, headers: Mapping[str, str]) -> InferResponse:
    """Runs the model's preprocess, predict and postprocess on a decoded request.

    Raises what they raise.
    """
    result, _ = await model(request, headers=dict(headers))
    return as_response(result)


def as_response(result: Any) -> InferResponse:
    """What a postprocess returned: a response, or a dict of its REST form."""
    return InferResponse.from_rest(result) if isinstance(result, dict) else result


async def infer(service: GenerationService, request: InferRequest) -> InferResponse:
    """Generates for all prompts of the request and answers with its outputs. Cancelling it aborts the generation.

    Raises `RequestError` for what this model does not take, and the errors of `GenerationService.submit_many` and of
    its streams.
    """
    plan = await plan_of(request)
    if plan.stream:
        raise MalformedRequestError("input 'stream' may be true only with ModelStreamInfer")
    streams = await submit(service, plan, request.id)
    results = await collect_all(streams)
    return InferResponse(
        response_id=request.id,
        model_name=service.model_name,
        infer_outputs=output_tensors(plan, results, service.tokenizer),
        model_version=MODEL_VERSION,
        use_binary_outputs=request.use_binary_outputs,
    )


async def plan_of(request: InferRequest) -> InferencePlan:
    """`read_plan`, off the event loop where the tensors are large. Raises as that does."""
    return await run_sized(sum(math.prod(item.shape) for item in request.inputs), partial(read_plan, request))


async def submit(service: GenerationService, plan: InferencePlan, request_id: str | None) -> list[GenerationStream]:
    """Starts the generation of every prompt, all or none."""
    name = request_id[:MAX_ID_LENGTH] if request_id else None
    deadline = None if plan.timeout is None else time.monotonic() + plan.timeout
    return service.submit_many(
        await service.encode(plan.prompts),
        [parameters.sampling for parameters in plan.parameters],
        request_ids=[name] * len(plan.prompts),
        deadline=deadline,
    )
