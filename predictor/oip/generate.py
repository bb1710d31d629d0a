"""OIP's text generation extension: `generate` and `generate_stream` (generate_rest.yaml).

Beside the members of that document, `parameters` takes every sampling parameter of `infer`, and `timeout`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from engine.brief import brief
from engine.errors import (
    EngineDeadError,
    InvalidParameterError,
    PagedServeError,
    RequestAbortedError,
    RequestError,
)
from engine.outputs import PositionLogprobs, SequenceDelta, TokenLogprob
from engine.sampling_params import SamplingParams
from predictor.oip.codec_json import load_object
from predictor.oip.errors import MalformedRequestError, http_status, public_message
from predictor.oip.metadata import MODEL_VERSION
from predictor.oip.parameters import SAMPLING_PARAMETERS, parameters_from_mapping, read_number

if TYPE_CHECKING:
    from engine.streams import GenerationStream
    from engine.tokenizer import Tokenizer
    from predictor.service import GenerationService

DEFAULT_MAX_TOKENS = 20
LEAST_TOP_P = 1e-9
"""What 0 stands for, which generate_rest.yaml allows: the most likely token alone."""
_BODY_KEYS = ("text_input", "parameters")


class GenerationFailedError(PagedServeError):
    """The request was taken and failed while it ran (HTTP 424, "Generation Error")."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A validated body. details: whether finish reason and log probabilities are told. timeout: seconds or None."""

    text_input: str
    sampling: SamplingParams
    details: bool
    timeout: float | None


def decode_generate(body: bytes) -> GenerateRequest:
    """Reads a GenerateRequest. Raises `RequestError`, naming the member."""
    document = load_object(body)
    for key in document:
        if key not in _BODY_KEYS:
            raise MalformedRequestError(f"unknown key {brief(key)} in the request; known are {', '.join(_BODY_KEYS)}")
    text_input = document.get("text_input")
    if not isinstance(text_input, str):
        raise MalformedRequestError("'text_input' must be a string")
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise MalformedRequestError("'parameters' must be an object")
    options = {"max_tokens": DEFAULT_MAX_TOKENS, **parameters}
    details = options.pop("details", False)
    if not isinstance(details, bool):
        raise InvalidParameterError("parameter 'details' must be true or false", param="details")
    known = SAMPLING_PARAMETERS | {"timeout"}
    for name in options:
        if name not in known:
            raise InvalidParameterError(
                f"unknown parameter {brief(name)}; known are {', '.join(sorted({*known, 'details'}))}", param=name
            )
    top_p = read_number("top_p", options.get("top_p"))
    if isinstance(top_p, int | float) and not isinstance(top_p, bool) and top_p == 0:
        options["top_p"] = LEAST_TOP_P
    if details and options.get("logprobs") is None:
        # NOTE: the details list each token's log probability, so the engine must be asked for them.
        options["logprobs"] = 0
    read = parameters_from_mapping(options)
    if read.sampling.n != 1:
        raise InvalidParameterError("'n' must be 1: this answers with one text; use infer for more", param="n")
    return GenerateRequest(text_input, read.sampling, details, read.timeout)


async def start(service: GenerationService, request: GenerateRequest) -> GenerationStream:
    """Submits the request. Raises as `GenerationService.submit`."""
    deadline = None if request.timeout is None else time.monotonic() + request.timeout
    (prompt,) = await service.encode([request.text_input])
    return service.submit(prompt, request.sampling, deadline=deadline)


async def generate(service: GenerationService, request: GenerateRequest, stream: GenerationStream) -> dict[str, Any]:
    """The GenerateResponse of a submitted request. Raises `GenerationFailedError` or `DeadlineExceededError`."""
    try:
        result = await stream.collect()
    except (EngineDeadError, RequestAbortedError) as error:
        raise GenerationFailedError(str(error)) from error
    (output,) = result.outputs
    reason = _finish_reason(output.finish_reason, output.stop_reason)
    answer = _answer(service, output.text)
    if request.details:
        tokens = [_token(position, service.tokenizer) for position in output.logprobs or ()]
        answer["details"] = {"finish_reason": reason, "logprobs": tokens}
    return answer


async def first_delta(stream: GenerationStream) -> SequenceDelta:
    """What comes first. Raises `GenerationFailedError` or `DeadlineExceededError`."""
    try:
        return await anext(stream)
    except (EngineDeadError, RequestAbortedError, StopAsyncIteration) as error:
        raise GenerationFailedError(str(error) or "the request was aborted") from error


async def generate_events(
    service: GenerationService, request: GenerateRequest, stream: GenerationStream, first: SequenceDelta
) -> AsyncGenerator[bytes, None]:
    """The server-sent events of a submitted request whose first delta has been read; the first item is empty.

    Each event is a GenerateStreamResponse with new text. With `details` there is one per token, and `finish_reason` is
    null on all but the last. An error after the start is an event {"error": message}, the last one.
    """
    async with stream:
        yield b""
        try:
            for event in _events(service, request, first):
                yield event
            async for delta in stream:
                for event in _events(service, request, delta):
                    yield event
        except Exception as error:
            yield _event({"error": public_message(error)})


def generate_status(error: Exception) -> int:
    """The HTTP status of an error on these two paths, where it differs from the other OIP paths: 422 and 424."""
    if isinstance(error, GenerationFailedError):
        return 424
    status = http_status(error)
    return 422 if status == 400 and isinstance(error, RequestError) else status


def _events(service: GenerationService, request: GenerateRequest, delta: SequenceDelta) -> list[bytes]:
    reason = None if delta.finish_reason is None else _finish_reason(delta.finish_reason, delta.stop_reason)
    if not request.details:
        is_empty = not delta.text and reason is None
        return [] if is_empty else [_event(_answer(service, delta.text))]
    positions: Sequence[PositionLogprobs | None] = delta.logprobs or ((None,) if delta.text or reason else ())
    events = []
    for number, position in enumerate(positions, start=1):
        is_last = number == len(positions)
        # NOTE: a delta of several tokens has one text for all of them; it goes with the last.
        answer = _answer(service, delta.text if is_last else "")
        token = None if position is None else _token(position, service.tokenizer)
        answer["details"] = {"finish_reason": reason if is_last else None, "token": token}
        events.append(_event(answer))
    return events


def _answer(service: GenerationService, text: str) -> dict[str, Any]:
    return {"text_output": text, "model_name": service.model_name, "model_version": MODEL_VERSION}


def _finish_reason(finish_reason: str | None, stop_reason: int | str | None) -> str:
    if finish_reason == "length":
        return "length"
    if finish_reason == "stop":
        return "eos_token" if stop_reason is None else "stop_sequence"
    raise GenerationFailedError("the engine could not finish the request")


def _token(position: PositionLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    """A Token; with the parameter `logprobs` above 0 it has `top`, the most likely tokens there."""
    token = _one_token(position.sampled, tokenizer)
    if position.top:
        token["top"] = [_one_token(one, tokenizer) for one in position.top]
    return token


def _one_token(token: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "text": token.token,
        "logprob": token.logprob,
        "special": token.token_id in tokenizer.special_token_ids,
    }


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"
