"""`/v1/chat/completions`: a conversation in, the assistant's turn out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import InvalidParameterError, InvalidPromptError, RequestError
from engine.outputs import RequestOutput
from predictor.collect import collect_all
from predictor.disconnect import run_until_disconnect
from predictor.openai.chunks import ChatChunks
from predictor.openai.decode import read_request
from predictor.openai.envelope import Envelope
from predictor.openai.events import stream_response
from predictor.openai.logprobs import chat_logprobs
from predictor.openai.messages import template_messages
from predictor.openai.sampling import chat_params, check_stream_options
from predictor.openai.types import ChatRequest
from predictor.openai.unsupported import refuse_unsupported
from predictor.openai.usage import Usage

if TYPE_CHECKING:
    from predictor.service import GenerationService

OWN_FIELDS = frozenset({"add_generation_prompt", "messages", "self", "tools"})
"""Names that chat_template_kwargs may not hold, as the template call has them already; the tokenizer knows more."""


async def create_chat_completion(service: GenerationService, http: Request) -> Response:
    """Answers one request. Raises `PagedServeError` for what is refused or fails before the first byte."""
    request = await read_request(http, ChatRequest, service.max_body_size)
    service.check_available()
    envelope = Envelope.open(service, http.headers, prefix="chatcmpl", model=request.model)
    refuse_unsupported(request)
    check_stream_options(request)
    params = chat_params(request)
    with _errors_name("messages"):
        text = prompt_text(service, request)
        (prompt,) = await service.encode([text], add_special_tokens=bool(request.add_special_tokens))
        stream = service.submit(prompt, params, request_id=envelope.engine_ids(1)[0])
    if request.stream:
        writer = ChatChunks(envelope)
        return await stream_response(http, [stream], writer, request.stream_options, envelope.headers)
    (result,) = await run_until_disconnect(http, collect_all([stream]))
    return _answer(envelope, result, Usage.of([stream], [result]), with_logprobs=bool(request.logprobs))


def prompt_text(service: GenerationService, request: ChatRequest) -> str:
    """The conversation as text, by the model's own chat template.

    The template writes the special tokens; the tokenizer is to add none unless `add_special_tokens` asks for them.
    Raises `InvalidPromptError` with the template's message where the template refuses the conversation.
    """
    messages = template_messages(request.messages)
    extra = request.chat_template_kwargs or {}
    check_template_variables(extra)
    return service.tokenizer.apply_chat_template(
        messages, add_generation_prompt=request.add_generation_prompt is not False, **extra
    )


def check_template_variables(variables: Mapping[str, Any]) -> None:
    """Raises `InvalidParameterError` for a name that the template call has already."""
    if taken := sorted(OWN_FIELDS & variables.keys()):
        raise InvalidParameterError(
            f"chat_template_kwargs must not hold {', '.join(taken)}", param="chat_template_kwargs"
        )


@contextmanager
def _errors_name(param: str) -> Iterator[None]:
    """Errors about the prompt name the field that the caller knows it by."""
    try:
        yield
    except RequestError as error:
        if error.param == "prompt" or (error.param is None and isinstance(error, InvalidPromptError)):
            error.param = param
        raise


def _answer(envelope: Envelope, result: RequestOutput, usage: Usage, *, with_logprobs: bool) -> Response:
    choices: list[dict[str, Any]] = [
        {
            "index": output.index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": chat_logprobs(output.logprobs or ()) if with_logprobs else None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        for output in result.outputs
    ]
    body = {**envelope.as_dict("chat.completion"), "choices": choices, "usage": usage.as_dict()}
    return Response(msgspec.json.encode(body), headers=envelope.headers, media_type="application/json")
