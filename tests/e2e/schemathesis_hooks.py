"""What schemathesis is told beside the document: which server errors are promised, and what makes tensors valid."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode


@schemathesis.check
def only_promised_server_errors(ctx: Any, response: Any, case: Any) -> None:
    """No 5xx but the 501 of a verb that is documented as missing, and the 504 of a request with its own timeout."""
    status = response.status_code
    if status == 501:
        assert case.operation.path.endswith(":explain")
    elif status == 504:
        assert b'"timeout"' in (response.request.body or b"")
    else:
        assert status < 500, response.text


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """JSON Schema cannot say that a shape counts its data, and that names stand once: valid tensors are made so."""
    is_valid = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if not is_valid or not case.operation.path.endswith("/infer") or not isinstance(case.body, dict):
        return
    case.headers.pop("Inference-Header-Content-Length", None)
    inputs = case.body.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(one, dict) and one.get("data") for one in inputs):
        return
    by_name = {one["name"]: one for one in inputs}
    for one in by_name.values():
        data = one["data"]
        if isinstance(data[0], list):
            width = max(1, min(map(len, data)))
            one["data"] = data = [[*row, 0][:width] for row in data]
            one["shape"] = [len(data), width]
        else:
            one["shape"] = [len(data)]
        if one["name"] == "input_ids":
            one["data"] = [[i % 300 for i in row] if isinstance(row, list) else row % 300 for row in data]
    prompts = "text_input" if "text_input" in by_name else "input_ids"
    by_name.setdefault(prompts, {"name": prompts, "shape": [1], "datatype": "INT64", "data": [5]})
    for name in {"text_input", "input_ids", "input_lengths", "sampling_parameters"} - {prompts}:
        by_name.pop(name, None)
    case.body["inputs"] = list(by_name.values())
    if isinstance(outputs := case.body.get("outputs"), list):
        case.body["outputs"] = list({one["name"]: one for one in outputs if one["name"] != "logprobs"}.values())
