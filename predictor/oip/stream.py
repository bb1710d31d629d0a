"""`ModelStreamInfer`: many requests on one stream, each answered in one response or token by token."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidParameterError
from engine.outputs import SequenceDelta
from predictor.bodies import run_sized
from predictor.edge_grpc import message_of_stream
from predictor.oip.codec_grpc import decode_request, encode_parameters, encode_response
from predictor.oip.codec_json import MAX_ID_CHARACTERS
from predictor.oip.errors import public_message
from predictor.oip.exact_text import ExactText
from predictor.oip.grpc_calls import parse_message
from predictor.oip.infer import as_response, call_model, plan_of, submit
from predictor.oip.infer_types import InferRequest, InferResponse
from predictor.oip.metadata import MODEL_VERSION, check_model
from predictor.oip.parameters import RequestParameters
from predictor.oip.plan import InferencePlan, asks_for_stream
from predictor.oip.results import Row, check_finished, make_output, prompt_bytes
from predictor.oip.schema import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer
    from predictor.model import PagedModel
    from predictor.service import GenerationService

FINAL_RESPONSE = "triton_final_response"
MAX_REQUESTS_IN_FLIGHT = 1024
"""Of one stream; beyond it no further request is read until one is answered."""
MAX_BYTES_IN_FLIGHT = 16 * 1024 * 1024
"""Of the messages of those requests; one message is always let in, however large."""

logger = logging.getLogger(__name__)
Write = Callable[[Any], Awaitable[None]]


class _StreamBrokenError(Exception):
    """A response could not be sent: nobody reads this stream any more."""


async def answer_stream(
    service: GenerationService,
    model: PagedModel,
    requests: AsyncIterator[bytes],
    write: Write,
    headers: Mapping[str, str],
) -> None:
    """Answers every request of a stream, all at once, until the client has no more.

    write: sends one response; never called by two tasks at a time. A failed request is answered with `error_message`
    and the others go on. Cancelling this aborts them all.
    """
    one_writer = asyncio.Lock()
    in_flight = _InFlight()

    async def send(message: Any) -> None:
        # NOTE: a slow reader holds its own requests up here; the engine's streams merge what comes meanwhile.
        async with one_writer:
            try:
                await write(message)
            except Exception as error:
                raise _StreamBrokenError from error

    try:
        async with asyncio.TaskGroup() as group:
            async for data in requests:
                size = len(data)
                await in_flight.enter(size)
                task = group.create_task(_answer(service, model, data, send, headers))
                task.add_done_callback(functools.partial(in_flight.leave, size))
                # NOTE: the next message may be long in coming, and this one is the task's to let go.
                del data, task
    except* _StreamBrokenError:
        logger.debug("a client left its stream", exc_info=True)


class _InFlight:
    """The requests of a stream that are not answered yet, bounded in number and bytes."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0
        self._left = asyncio.Event()

    async def enter(self, size: int) -> None:
        """Waits until there is room for a message of `size` bytes. Never called by two tasks at a time."""
        while self._count >= MAX_REQUESTS_IN_FLIGHT or (self._count and self._bytes + size > MAX_BYTES_IN_FLIGHT):
            self._left.clear()
            await self._left.wait()
        self._count += 1
        self._bytes += size

    def leave(self, size: int, _task: Any = None) -> None:
        self._count -= 1
        self._bytes -= size
        self._left.set()


async def _answer(
    service: GenerationService, model: PagedModel, data: bytes, send: Write, headers: Mapping[str, str]
) -> None:
    with message_of_stream():
        # NOTE: a client that reads nothing holds this up here: what the request came in is let go before that.
        responding = _respond(service, model, data, send, headers)
        del data
        if (last := await responding) is not None:
            await send(last)


async def _respond(
    service: GenerationService, model: PagedModel, data: bytes, send: Write, headers: Mapping[str, str]
) -> Any:
    """The one response of a request, or its error, not yet sent; None where it was answered token by token."""
    request_id = ""
    try:
        message, size = parse_message(ModelInferRequest, data), len(data)
        del data
        request_id = message.id[:MAX_ID_CHARACTERS]
        check_model(service, message.model_name, message.model_version)
        request = await run_sized(size, functools.partial(decode_request, message))
        del message
        if asks_for_stream(request):
            async with contextlib.aclosing(stream_responses(service, model, request, headers)) as responses:
                async for response in responses:
                    await send(ModelStreamInferResponse(infer_response=encode_response(response, request)))
            return None
        response = await call_model(model, request, headers)
        response.parameters = {**(response.parameters or {}), FINAL_RESPONSE: True}
        return ModelStreamInferResponse(infer_response=encode_response(response, request))
    except _StreamBrokenError:
        raise
    except Exception as error:
        failed = ModelInferResponse(id=request_id, model_name=service.model_name)
        encode_parameters({FINAL_RESPONSE: True}, failed.parameters)
        return ModelStreamInferResponse(error_message=public_message(error), infer_response=failed)


async def stream_responses(
    service: GenerationService, model: PagedModel, request: InferRequest, headers: Mapping[str, str]
) -> AsyncGenerator[InferResponse, None]:
    """The responses of one request with `stream`: new text, new ids, counts so far, the finish reason at the end.

    The model's preprocess runs on the request and its postprocess on every response. The last response has the
    parameter `triton_final_response`; with `triton_enable_empty_final_response` that is one more, without outputs.
    Raises as `infer`; `InvalidParameterError` for more than one sequence.
    """
    plan = await plan_of(await _run_hook(model.preprocess, request, headers))
    if len(plan.prompts) != 1 or plan.n != 1:
        raise InvalidParameterError(
            f"a request with 'stream' generates one sequence, got {len(plan.prompts)} prompts with n = {plan.n}",
            param="stream",
        )
    (stream,) = await submit(service, plan, request.id)
    tokenizer = service.tokenizer
    async with stream:
        progress = _Progress(plan, tokenizer, stream.request.prompt, stream.request.prompt_token_ids)
        empty_final = plan.parameters[0].empty_final_response
        async for delta in stream:
            outputs = progress.outputs(delta)
            is_last = delta.finish_reason is not None and not empty_final
            yield await _finish(service, model, request, outputs, headers, is_last=is_last)
        if empty_final:
            yield await _finish(service, model, request, [], headers, is_last=True)


async def _finish(
    service: GenerationService,
    model: PagedModel,
    request: InferRequest,
    outputs: list[Any],
    headers: Mapping[str, str],
    *,
    is_last: bool,
) -> InferResponse:
    response = InferResponse(
        response_id=request.id,
        model_name=service.model_name,
        infer_outputs=outputs,
        model_version=MODEL_VERSION,
        parameters={FINAL_RESPONSE: is_last},
    )
    return as_response(await _run_hook(model.postprocess, response, headers)) if outputs else response


async def _run_hook(hook: Callable[..., Any], value: Any, headers: Mapping[str, str]) -> Any:
    """KServe lets both hooks be plain functions or coroutines."""
    result = hook(value, dict(headers))
    return await result if inspect.isawaitable(result) else result


class _Progress:
    """Turns the deltas of one sequence into output tensors."""

    def __init__(
        self, plan: InferencePlan, tokenizer: Tokenizer, prompt: str | None, prompt_token_ids: tuple[int, ...]
    ) -> None:
        self._plan = plan
        self._parameters: RequestParameters = plan.parameters[0]
        self._num_input_tokens = len(prompt_token_ids)
        self._prefix = b"" if plan.exclude_input else prompt_bytes(prompt, prompt_token_ids, tokenizer)
        self._num_output_tokens = 0
        self._cumulative_logprob = 0.0
        self._text = ExactText(tokenizer, skip_special_tokens=self._parameters.sampling.skip_special_tokens)

    def outputs(self, delta: SequenceDelta) -> list[Any]:
        finish_reason = "" if delta.finish_reason is None else check_finished(delta.finish_reason)
        self._num_output_tokens += len(delta.token_ids)
        self._cumulative_logprob += sum(position.sampled.logprob for position in delta.logprobs or ())
        text = self._prefix + self._text.push(delta.text, delta.token_ids)
        self._prefix = b""
        row = Row(
            parameters=self._parameters,
            text=text,
            token_ids=delta.token_ids,
            logprobs=delta.logprobs or (),
            finish_reason=finish_reason,
            num_input_tokens=self._num_input_tokens,
            num_output_tokens=self._num_output_tokens,
            cumulative_logprob=self._cumulative_logprob,
        )
        return [make_output(name, [row]) for name in self._plan.outputs]
