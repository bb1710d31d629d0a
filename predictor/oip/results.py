"""Finished sequences as OIP output tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from engine.errors import PagedServeError
from engine.outputs import CompletionOutput, PositionLogprobs, RequestOutput, TokenLogprob
from predictor.oip.exact_text import exact_bytes
from predictor.oip.infer_types import InferOutput
from predictor.oip.metadata import OUTPUTS
from predictor.oip.parameters import RequestParameters

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer
    from predictor.oip.plan import InferencePlan

PADDING_ID = -1
_FLOAT32_MIN = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence of the answer, or of one response of a stream.

    text: bytes of `text_output`. token_ids, logprobs: those of the same stretch. The counts and the sum are so far.
    """

    parameters: RequestParameters
    text: bytes
    token_ids: Sequence[int]
    logprobs: Sequence[PositionLogprobs]
    finish_reason: str
    num_input_tokens: int
    num_output_tokens: int
    cumulative_logprob: float


def output_tensors(plan: InferencePlan, results: Sequence[RequestOutput], tokenizer: Tokenizer) -> list[InferOutput]:
    """The outputs that the plan asks for, N·n rows, prompt-major."""
    rows = [
        _row(plan, result, output, parameters, tokenizer)
        for result, parameters in zip(results, plan.parameters, strict=True)
        for output in result.outputs
    ]
    return [make_output(name, rows) for name in plan.outputs]


def make_output(name: str, rows: Sequence[Row]) -> InferOutput:
    """One output tensor over the rows. Its data is flat, row-major; elements of BYTES are `bytes`."""
    datatype = OUTPUTS[name].datatypes[0]
    if name == "output_ids":
        width = max((len(row.token_ids) for row in rows), default=0)
        ids = [i for row in rows for i in [*row.token_ids, *[PADDING_ID] * (width - len(row.token_ids))]]
        return InferOutput(name, [len(rows), width], datatype, ids)
    return InferOutput(name, [len(rows)], datatype, [_CELLS[name](row) for row in rows])


def check_finished(finish_reason: str | None) -> str:
    """The finish reason for the client. Raises `PagedServeError` where the engine failed on the request."""
    if finish_reason == "error":
        raise PagedServeError("the engine could not finish the request")
    return finish_reason or "abort"


def prompt_bytes(prompt: str | None, prompt_token_ids: Sequence[int], tokenizer: Tokenizer) -> bytes:
    """The prompt as `text_output` shows it before the generated text."""
    return (tokenizer.decode(prompt_token_ids) if prompt is None else prompt).encode()


def _row(
    plan: InferencePlan,
    result: RequestOutput,
    output: CompletionOutput,
    parameters: RequestParameters,
    tokenizer: Tokenizer,
) -> Row:
    skip = parameters.sampling.skip_special_tokens
    text = exact_bytes(output.text, output.token_ids, tokenizer, skip_special_tokens=skip)
    if not plan.exclude_input:
        text = prompt_bytes(result.prompt, result.prompt_token_ids, tokenizer) + text
    return Row(
        parameters=parameters,
        text=text,
        token_ids=output.token_ids,
        logprobs=output.logprobs or (),
        finish_reason=check_finished(output.finish_reason),
        num_input_tokens=len(result.prompt_token_ids),
        num_output_tokens=len(output.token_ids),
        cumulative_logprob=output.cumulative_logprob or 0.0,
    )


def _logprobs(row: Row) -> bytes:
    # NOTE: log probabilities may have been asked of the engine for the sum alone; the row then lists none.
    positions = row.logprobs if "logprobs" in row.parameters.given else ()
    return orjson.dumps([_position(position) for position in positions])


def _position(position: PositionLogprobs) -> dict[str, Any]:
    return {**_token(position.sampled), "top": [_token(token) for token in position.top]}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "id": token.token_id, "logprob": token.logprob}


_CELLS: dict[str, Callable[[Row], Any]] = {
    "text_output": lambda row: row.text,
    "finish_reason": lambda row: row.finish_reason.encode(),
    "num_input_tokens": lambda row: row.num_input_tokens,
    "num_output_tokens": lambda row: row.num_output_tokens,
    "cumulative_logprob": lambda row: max(row.cumulative_logprob, _FLOAT32_MIN),
    "logprobs": _logprobs,
}
