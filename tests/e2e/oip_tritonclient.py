"""What Triton's clients see: `python -m tests.e2e.oip_tritonclient HTTP_ADDRESS GRPC_ADDRESS` prints it as JSON.

In a process of its own: tritonclient's generated messages and KServe's collide in one.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

PROMPT = b"The capital of France is"
GREEDY = {"max_tokens": 1, "temperature": 0.0}


def text_input(kind: Any, text: bytes, **options: Any) -> Any:
    tensor = kind.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text], dtype=np.object_), **options)
    return tensor


def text_of(result: Any, name: str = "text_output") -> str:
    value = result.as_numpy(name)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def refusal(client: Any, *args: Any, **kwargs: Any) -> list[str]:
    try:
        client.infer(*args, **kwargs)
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["accepted", ""]


def both(kind: Any, address: str) -> dict[str, Any]:
    """What the two clients have in common."""
    client = kind.InferenceServerClient(address)
    prompt = text_input(kind, PROMPT)
    ids = kind.InferInput("input_ids", [1, 2], "INT64")
    ids.set_data_from_numpy(np.array([[1, 2]], dtype=np.int64))
    sampling = kind.InferInput("sampling_parameters", [1], "BYTES")
    sampling.set_data_from_numpy(np.array([json.dumps(GREEDY).encode()], dtype=np.object_))
    metadata = client.get_model_metadata("model")
    tensors = metadata["inputs"] if isinstance(metadata, dict) else [{"name": i.name} for i in metadata.inputs]
    result = client.infer("model", [prompt], request_id="7", parameters=GREEDY, priority=1, timeout=600_000_000)
    response = result.get_response()
    seeded = [
        text_of(client.infer("model", [prompt], parameters={"temperature": 0.9, "seed": 3, "max_tokens": 8}))
        for _ in range(2)
    ]
    return {
        "health": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("model")],
        "version_ready": [client.is_model_ready("model", "1"), safe_ready(client, "9")],
        "inputs": [tensor["name"] for tensor in tensors],
        "text": text_of(result),
        "id": response["id"] if isinstance(response, dict) else response.id,
        "reason": text_of(result, "finish_reason"),
        "output_ids_dtype": str(result.as_numpy("output_ids").dtype),
        "logprob_is_negative": bool(result.as_numpy("cumulative_logprob")[0] < 0),
        "sampling_tensor": text_of(client.infer("model", [prompt, sampling])),
        "seeded_alike": seeded[0] == seeded[1],
        "ids": result_count(client.infer("model", [ids], parameters={"max_tokens": 2, "ignore_eos": True})),
        "sequence": refusal(client, "model", [prompt], sequence_id=5, sequence_start=True),
        "unknown_model": refusal(client, "other", [prompt]),
    }


def safe_ready(client: Any, version: str) -> bool:
    try:
        return bool(client.is_model_ready("model", version))
    except InferenceServerException:
        return False


def result_count(result: Any) -> int:
    return int(result.as_numpy("num_output_tokens")[0])


def http_forms(address: str) -> list[str]:
    """JSON and binary, in and out."""
    client = tritonclient.http.InferenceServerClient(address)
    return [
        text_of(
            client.infer(
                "model",
                [text_input(tritonclient.http, PROMPT, binary_data=binary_in)],
                outputs=[tritonclient.http.InferRequestedOutput("text_output", binary_data=binary_out)],
                parameters=GREEDY,
            )
        )
        for binary_in in (True, False)
        for binary_out in (True, False)
    ]


def stream(address: str) -> dict[str, Any]:
    """Three requests on one stream: token by token, whole, and one that is refused."""
    client = tritonclient.grpc.InferenceServerClient(address)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    flag = tritonclient.grpc.InferInput("stream", [1], "BOOL")
    flag.set_data_from_numpy(np.array([True]))
    prompt = text_input(tritonclient.grpc, PROMPT)
    client.async_stream_infer(
        "model", [prompt, flag], request_id="tokens", parameters={"temperature": 0.0, "max_tokens": 5}
    )
    client.async_stream_infer("model", [prompt], request_id="whole", parameters={"temperature": 0.0, "max_tokens": 5})
    client.async_stream_infer("model", [text_input(tritonclient.grpc, b"")], request_id="refused")
    texts: dict[str, list[str]] = {"tokens": [], "whole": []}
    error_message = ""
    open_requests = {"tokens", "whole", "refused"}
    while open_requests:
        result, error = answers.get(timeout=60)
        if error is not None:
            error_message = str(error.message())
            open_requests.discard("refused")
            continue
        response = result.get_response()
        texts[response.id].append(text_of(result))
        if response.parameters["triton_final_response"].bool_param:
            open_requests.discard(response.id)
    client.stop_stream()
    return {"tokens": texts["tokens"], "whole": texts["whole"], "error": error_message}


if __name__ == "__main__":
    http_address, grpc_address = sys.argv[1:]
    found = {
        "http": both(tritonclient.http, http_address),
        "grpc": both(tritonclient.grpc, grpc_address),
        "http_forms": http_forms(http_address),
        "stream": stream(grpc_address),
    }
    print(json.dumps(found))
