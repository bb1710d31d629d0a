"""Triton's clients over TLS with a key: `python -m tests.e2e.tls_tritonclient TARGETS` prints JSON.

TARGETS: a JSON list of {"http", "grpc", "ca", "wrong_ca", "cert", "key", "api_key"}; cert and key may be null.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

import gevent.ssl
import numpy as np
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

PARAMETERS = {"max_tokens": 3, "temperature": 0.0, "ignore_eos": True}


def http_client(target: Any, ca: str) -> Any:
    def context() -> Any:
        made = gevent.ssl.create_default_context(cafile=ca)
        if target["cert"]:
            made.load_cert_chain(target["cert"], target["key"])
        return made

    return tritonclient.http.InferenceServerClient(target["http"], ssl=True, ssl_context_factory=context)


def grpc_client(target: Any, ca: str) -> Any:
    return tritonclient.grpc.InferenceServerClient(
        target["grpc"],
        ssl=True,
        root_certificates=ca,
        private_key=target["key"],
        certificate_chain=target["cert"],
        keepalive_options=tritonclient.grpc.KeepAliveOptions(
            keepalive_time_ms=10_000, keepalive_permit_without_calls=True
        ),
    )


def prompt(kind: Any) -> Any:
    tensor = kind.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"Hi"], dtype=np.object_))
    return tensor


def infer(kind: Any, client: Any, api_key: str | None) -> int | str:
    """The number of tokens, or how it was refused."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else None
    try:
        result = client.infer("tiny", [prompt(kind)], parameters=PARAMETERS, headers=headers)
    except InferenceServerException as error:
        return str(error.status())
    except gevent.ssl.SSLCertVerificationError:
        return "unknown authority"
    except (gevent.ssl.SSLError, ConnectionError, HTTPConnectionClosed):
        # NOTE: with TLS 1.3 a server refuses a client's certificate after the handshake: in an alert, or by closing.
        return "cut off"
    return int(result.as_numpy("num_output_tokens")[0])


def stream(target: Any) -> int:
    client = grpc_client(target, target["ca"])
    answers: queue.Queue[Any] = queue.Queue()
    headers = {"authorization": f"Bearer {target['api_key']}"}
    client.start_stream(lambda result, error: answers.put(error or result), headers=headers)
    client.async_stream_infer("tiny", [prompt(tritonclient.grpc)], parameters=PARAMETERS)
    result = answers.get(timeout=60)
    client.stop_stream()
    return int(result.as_numpy("num_output_tokens")[0])


def ask(target: Any) -> Any:
    found: dict[str, Any] = {"stream": stream(target)}
    for name, kind, make in (
        ("http", tritonclient.http, http_client),
        ("grpc", tritonclient.grpc, grpc_client),
    ):
        client = make(target, target["ca"])
        found[name] = {
            "live": client.is_server_live(),
            "tokens": infer(kind, client, target["api_key"]),
            "no_key": infer(kind, client, None),
            "wrong_key": infer(kind, client, "wrong"),
            "wrong_ca": infer(kind, make(target, target["wrong_ca"]), target["api_key"]),
        }
        if target["cert"]:
            bare = {**target, "cert": None, "key": None}
            found[name]["no_certificate"] = infer(kind, make(bare, target["ca"]), target["api_key"])
    return found


if __name__ == "__main__":
    print(json.dumps([ask(target) for target in json.loads(sys.argv[1])]))
