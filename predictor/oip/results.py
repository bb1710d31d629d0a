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


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of the answer. prefix: what `text_output` shows before the generated text."""

    output: CompletionOutput
    parameters: RequestParameters
    num_input_tokens: int
    prefix: bytes = b""


def output_tensors(plan: InferencePlan, results: Sequence[RequestOutput], tokenizer: Tokenizer) -> list[InferOutput]:
    """The outputs that the plan asks for, N·n rows, prompt-major."""
    rows = [
        Row(output, parameters, len(result.prompt_token_ids), _prefix(plan, result, tokenizer))
        for result, parameters in zip(results, plan.parameters, strict=True)
        for output in result.outputs
    ]
    if any(row.output.finish_reason == "error" for row in rows):
        raise PagedServeError("the engine could not finish the request")
    return [make_output(name, rows, tokenizer) for name in plan.outputs]


def make_output(name: str, rows: Sequence[Row], tokenizer: Tokenizer) -> InferOutput:
    """One output tensor over the rows. Its data is flat, row-major; elements of BYTES are `bytes`."""
    datatype = OUTPUTS[name].datatypes[0]
    if name == "output_ids":
        width = max((len(row.output.token_ids) for row in rows), default=0)
        ids = [i for row in rows for i in [*row.output.token_ids, *[PADDING_ID] * (width - len(row.output.token_ids))]]
        return InferOutput(name, [len(rows), width], datatype, ids)
    return InferOutput(name, [len(rows)], datatype, [_CELLS[name](row, tokenizer) for row in rows])


def _prefix(plan: InferencePlan, result: RequestOutput, tokenizer: Tokenizer) -> bytes:
    if plan.exclude_input:
        return b""
    text = result.prompt if result.prompt is not None else tokenizer.decode(result.prompt_token_ids)
    return text.encode()


def _text(row: Row, tokenizer: Tokenizer) -> bytes:
    output = row.output
    skip = row.parameters.sampling.skip_special_tokens
    return row.prefix + exact_bytes(output.text, output.token_ids, tokenizer, skip_special_tokens=skip)


def _logprobs(row: Row, _: Tokenizer) -> bytes:
    # NOTE: log probabilities may have been asked of the engine for the sum alone; the row then lists none.
    positions = (row.output.logprobs or []) if "logprobs" in row.parameters.given else []
    return orjson.dumps([_position(position) for position in positions])


def _position(position: PositionLogprobs) -> dict[str, Any]:
    return {**_token(position.sampled), "top": [_token(token) for token in position.top]}


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "id": token.token_id, "logprob": token.logprob}


_CELLS: dict[str, Callable[[Row, Tokenizer], Any]] = {
    "text_output": _text,
    "finish_reason": lambda row, _: (row.output.finish_reason or "abort").encode(),
    "num_input_tokens": lambda row, _: row.num_input_tokens,
    "num_output_tokens": lambda row, _: len(row.output.token_ids),
    "cumulative_logprob": lambda row, _: max(row.output.cumulative_logprob or 0.0, _FLOAT32_MIN),
    "logprobs": _logprobs,
}
