"""`/v1/completions`: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.outputs import CompletionOutput, SequenceDelta
from predictor.bodies import run_sized
from predictor.collect import collect_all
from predictor.disconnect import STREAM_HEADERS, run_until_disconnect
from predictor.openai.chunks import DONE, CompletionChunks
from predictor.openai.decode import read_request
from predictor.openai.envelope import Envelope
from predictor.openai.events import EVENT_STREAM, UsageReport, stream_response
from predictor.openai.logprobs import completion_logprobs
from predictor.openai.prompts import prompt_text, split_prompts
from predictor.openai.sampling import check_stream_options, completion_params
from predictor.openai.types import CompletionRequest
from predictor.openai.unsupported import refuse_unsupported
from predictor.openai.usage import Usage

if TYPE_CHECKING:
    from predictor.service import GenerationService


async def create_completion(service: GenerationService, http: Request) -> Response:
    """Answers one request. Raises `PagedServeError` for what is refused or fails before the first byte."""
    request = await read_request(http, CompletionRequest, service.max_body_size)
    service.check_available()
    envelope = Envelope.open(service, http.headers, prefix="cmpl", model=request.model)
    refuse_unsupported(request)
    check_stream_options(request)
    params = completion_params(request)
    prompts = await run_sized(len(request.prompt), lambda: split_prompts(request.prompt))
    # NOTE: before any prompt is looked at, and where none is to be queued, too: the answer repeats each n times.
    service.admission.check_size(len(prompts) * params.n)
    echoes = None
    if request.echo:
        echoes = await run_sized(sum(map(len, prompts)), lambda: [prompt_text(service, prompt) for prompt in prompts])
    inputs = await service.encode(prompts, add_special_tokens=request.add_special_tokens is not False)
    n = 1 if request.n is None else request.n

    if request.max_tokens == 0:
        assert echoes is not None
        prepared = [service.engine.prepare(one, params) for one in inputs]
        usage = Usage(sum(len(one.prompt_token_ids) for one in prepared))
        return _echo_only(envelope, request, echoes, usage, n)

    streams = service.submit_many(inputs, params, request_ids=envelope.engine_ids(len(inputs)))
    if request.stream:
        writer = CompletionChunks(envelope, _by_index(echoes, n))
        return await stream_response(http, streams, writer, request.stream_options, envelope.headers)
    results = await run_until_disconnect(http, collect_all(streams))
    outputs = [best(result.outputs, n) for result in results]
    return _answer(envelope, outputs, echoes, Usage.of(streams, results), with_logprobs=request.logprobs is not None)


def best(outputs: Sequence[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The n sequences of the highest log probability a token (OpenAI's definition of best_of), best first.

    All of them, as they are, where n is how many there are.
    """
    if len(outputs) == n:
        return list(outputs)
    return sorted(outputs, key=_mean_logprob, reverse=True)[:n]


def _mean_logprob(output: CompletionOutput) -> float:
    return (output.cumulative_logprob or 0.0) / max(1, len(output.token_ids))


def _echo_only(envelope: Envelope, request: CompletionRequest, echoes: Sequence[str], usage: Usage, n: int) -> Response:
    """The answer where no token is to be generated: each choice is its prompt."""
    if not request.stream:
        outputs = [[CompletionOutput(i, finish_reason="length") for i in range(n)] for _ in echoes]
        return _answer(envelope, outputs, echoes, usage, with_logprobs=False)
    writer = CompletionChunks(envelope, _by_index(echoes, n))
    report = UsageReport(request.stream_options, usage)
    events: list[bytes] = []
    for index in range(len(echoes) * n):
        events += [
            writer.opening(index, report.count(0)),
            writer.chunk(index, SequenceDelta(index, "", (), finish_reason="length"), report.count(0)),
        ]
    events += [writer.last(report.total()) if report.at_end else b"", DONE]
    return Response(b"".join(events), headers={**STREAM_HEADERS, **envelope.headers}, media_type=EVENT_STREAM)


def _by_index(echoes: Sequence[str] | None, n: int) -> dict[int, str]:
    return {p * n + i: echo for p, echo in enumerate(echoes or ()) for i in range(n)}


def _answer(
    envelope: Envelope,
    outputs: Sequence[Sequence[CompletionOutput]],
    echoes: Sequence[str] | None,
    usage: Usage,
    *,
    with_logprobs: bool,
) -> Response:
    choices: list[dict[str, Any]] = []
    for p, of_prompt in enumerate(outputs):
        echo = echoes[p] if echoes else ""
        for output in of_prompt:
            logprobs = completion_logprobs(output.logprobs or ()) if with_logprobs else None
            choices.append(
                {
                    "index": len(choices),
                    "text": echo + output.text,
                    "logprobs": logprobs,
                    "finish_reason": output.finish_reason,
                    "stop_reason": output.stop_reason,
                }
            )
    body = {**envelope.as_dict("text_completion"), "choices": choices, "usage": usage.as_dict()}
    return Response(msgspec.json.encode(body), headers=envelope.headers, media_type="application/json")
