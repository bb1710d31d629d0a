"""What KServe's clients see: `python -m tests.e2e.oip_kserve HTTP_URL GRPC_ADDRESS` prints it as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

_ADDRESSES = sys.argv[1:]
sys.argv = sys.argv[:1]  # importing kserve parses it

from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig  # noqa: E402

PROMPT = "The capital of France is"


def request(*, binary: bool, sampling: str | None = None, **parameters: Any) -> InferRequest:
    text = InferInput("text_input", [1], "BYTES", data=[PROMPT])
    if binary:
        text = InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
    inputs = [text]
    if sampling is not None:
        inputs.append(InferInput("sampling_parameters", [1], "BYTES", data=[sampling]))
    return InferRequest("model", inputs, request_id="7", parameters=parameters)


def text_of(response: Any) -> str:
    value = response.outputs[0].as_numpy()[0]
    return value.decode() if isinstance(value, bytes) else str(value)


async def rest(url: str) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    asked = [
        request(binary=False, temperature=0.0, max_tokens=1),
        request(binary=True, temperature=0.0, max_tokens=1),
        request(binary=False, temperature="0", max_tokens="1", binary_data_output=True),
        request(binary=True, temperature="0", max_tokens="1", binary_data_output=True),
        request(binary=False, sampling='{"temperature": 0, "max_tokens": 1}'),
    ]
    answers = [await client.infer(url, one, model_name="model") for one in asked]
    v1 = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
    instance = {"prompt": PROMPT, "parameters": {"temperature": 0, "max_tokens": 1}}
    predictions = await v1.infer(url, {"instances": [instance]}, model_name="model")
    return {
        "health": [
            await client.is_server_live(url),
            await client.is_server_ready(url),
            await client.is_model_ready(url, "model"),
        ],
        "texts": [text_of(answer) for answer in answers],
        "ids": [answer.id for answer in answers],
        "predictions": predictions["predictions"],
    }


async def over_grpc(address: str) -> dict[str, Any]:
    async with InferenceGRPCClient(address, retries=0) as client:
        asked = [
            request(binary=False, temperature="0.0", max_tokens=1),
            request(binary=True, temperature="0.0", max_tokens=1),
            request(binary=False, sampling='{"temperature": 0.0, "max_tokens": 1}'),
        ]
        answers = [await client.infer(one) for one in asked]
        return {
            "health": [
                await client.is_server_live(),
                await client.is_server_ready(),
                await client.is_model_ready("model"),
            ],
            "texts": [text_of(answer) for answer in answers],
            "ids": [answer.id for answer in answers],
        }


async def main() -> None:
    url, address = _ADDRESSES
    print(json.dumps({"rest": await rest(url), "grpc": await over_grpc(address)}))


if __name__ == "__main__":
    asyncio.run(main())
