"""`/tokenize` and `/detokenize`, with the bodies that vLLM's users know."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.brief import brief
from engine.errors import InvalidPromptError, RequestError
from predictor.bodies import read_body
from predictor.http_errors import NotServedError
from predictor.openai.chat import check_template_variables
from predictor.openai.messages import MAX_MESSAGES
from predictor.service import GenerationService

MAX_CHARACTERS = 2 * 1024 * 1024
"""Of a text, or of a chat as its template renders it: seconds of tokenising."""
MAX_TOKENS = 4 * 1024 * 1024


class TokenizeBody(BaseModel):
    """A text, or the messages of a chat. `add_special_tokens` is by default true for a text, false for a chat."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    prompt: StrictStr | None = Field(None, max_length=MAX_CHARACTERS)
    messages: list[dict[str, Any]] | None = Field(None, max_length=MAX_MESSAGES)
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: StrictBool | None = None
    add_generation_prompt: StrictBool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_strs: StrictBool = False


class DetokenizeBody(BaseModel):
    """Token ids."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr | None = None
    tokens: list[StrictInt] = Field(max_length=MAX_TOKENS)


def build_router(service: GenerationService) -> APIRouter:
    """Routes that use the tokenizer only; they answer 503 until the model is loaded."""
    router = APIRouter(default_response_class=JSONResponse)

    # NOTE: whatever looks at each token of a long text takes long enough to be kept off the event loop.
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody, service.max_body_size)
        _check_model(service, body.model)
        content = await asyncio.to_thread(_tokenize_answer, service, body)
        return Response(content, media_type="application/json")

    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody, service.max_body_size)
        _check_model(service, body.model)
        content = await asyncio.to_thread(_detokenize_answer, service, body.tokens)
        return Response(content, media_type="application/json")

    router.add_api_route("/tokenize", tokenize, methods=["POST"])
    router.add_api_route("/detokenize", detokenize, methods=["POST"])
    return router


def _tokenize_answer(service: GenerationService, body: TokenizeBody) -> bytes:
    tokens = _tokenize(service, body)
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": service.info.max_model_len, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [service.tokenizer.token_text(token) for token in tokens]
    return orjson.dumps(answer)


def _detokenize_answer(service: GenerationService, tokens: list[int]) -> bytes:
    vocab_size = service.info.vocab_size
    if (wrong := next((token for token in tokens if not 0 <= token < vocab_size), None)) is not None:
        raise InvalidPromptError(f"token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})")
    return orjson.dumps({"prompt": service.tokenizer.decode(tokens, skip_special_tokens=False)})


def _tokenize(service: GenerationService, body: TokenizeBody) -> list[int]:
    tokenizer = service.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        return tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    assert body.messages is not None
    check_template_variables(body.chat_template_kwargs)
    text = tokenizer.apply_chat_template(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        tools=body.tools,
        **body.chat_template_kwargs,
    )
    if len(text) > MAX_CHARACTERS:
        raise InvalidPromptError(
            f"the chat has {len(text)} characters once rendered, and may have {MAX_CHARACTERS}", param="messages"
        )
    return tokenizer.encode(text, add_special_tokens=body.add_special_tokens is True)


def _check_model(service: GenerationService, name: str | None) -> None:
    if name is not None and not service.serves(name):
        raise NotServedError(f"this server serves {service.model_name!r}, not {brief(name)}", param="model")
