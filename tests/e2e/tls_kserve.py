"""KServe's clients over TLS with a key: `python -m tests.e2e.tls_kserve TARGETS` prints JSON.

TARGETS: as for tls_tritonclient.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from typing import Any

_TARGETS = json.loads(sys.argv[1])
sys.argv = sys.argv[:1]  # importing kserve parses it

import grpc  # noqa: E402
import httpx  # noqa: E402
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig  # noqa: E402


def request() -> InferRequest:
    text = InferInput("text_input", [1], "BYTES", data=["Hi"])
    return InferRequest("tiny", [text], parameters={"max_tokens": 3, "temperature": "0", "ignore_eos": True})


def tokens(answer: Any) -> int:
    return int(next(o for o in answer.outputs if o.name == "num_output_tokens").as_numpy()[0])


async def rest(target: Any, ca: str, cert: str | None, api_key: str) -> int | str:
    context = ssl.create_default_context(cafile=ca)
    if cert:
        context.load_cert_chain(cert, target["key"])
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, verify=context))
    headers = {"authorization": f"Bearer {api_key}"}
    try:
        assert await client.is_server_live(f"https://{target['http']}")
        return tokens(await client.infer(f"https://{target['http']}", request(), model_name="tiny", headers=headers))
    except httpx.HTTPStatusError as error:
        return str(error.response.status_code)
    except httpx.ConnectError as error:
        return "unknown authority" if "CERTIFICATE_VERIFY_FAILED" in str(error) else "cut off"
    except (httpx.NetworkError, httpx.RemoteProtocolError):
        # NOTE: with TLS 1.3 a server refuses a client's certificate after the handshake: in an alert, or by closing.
        return "cut off"


async def over_grpc(target: Any, ca: str, cert: str | None, api_key: str) -> int | str:
    async with InferenceGRPCClient(
        target["grpc"],
        retries=0,
        use_ssl=True,
        root_certificates=ca,
        certificate_chain=cert,
        private_key=target["key"] if cert else None,
        channel_args=[("grpc.use_local_subchannel_pool", 1)],
    ) as client:
        try:
            assert await client.is_server_live()
            return tokens(await client.infer(request(), headers=(("authorization", f"Bearer {api_key}"),)))
        except grpc.RpcError as error:
            return str(error.code())


async def ask(target: Any) -> Any:
    found = {}
    for name, call in (("rest", rest), ("grpc", over_grpc)):
        found[name] = {
            "tokens": await call(target, target["ca"], target["cert"], target["api_key"]),
            "wrong_key": await call(target, target["ca"], target["cert"], "wrong"),
            "wrong_ca": await call(target, target["wrong_ca"], target["cert"], target["api_key"]),
        }
        if target["cert"]:
            found[name]["no_certificate"] = await call(target, target["ca"], None, target["api_key"])
    return found


async def main() -> None:
    print(json.dumps([await ask(target) for target in _TARGETS]))


if __name__ == "__main__":
    asyncio.run(main())
