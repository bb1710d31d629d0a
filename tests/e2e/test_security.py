"""TLS, mutual TLS and API keys of the real server, through every kind of client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import psutil
import pytest

from predictor.oip.schema import SERVICE, message_class
from tests.certificates import Authority, Pair
from tests.e2e.server import REPOSITORY, Server, until
from tests.e2e.test_oip_clients import run_client

KEY, FILE_KEY = "sk-given-0123", "sk-of-the-file-4567"
MODES = ["tls", "mtls"]


@dataclass
class Guarded:
    server: Server
    authority: Authority
    stranger: Authority
    client: Pair | None
    key_file: Path

    @property
    def target(self) -> dict[str, Any]:
        """For the scripts that drive official clients."""
        return {
            "http": self.server.http_url.removeprefix("https://"),
            "grpc": self.server.grpc_address,
            "ca": str(self.authority.ca),
            "wrong_ca": str(self.stranger.ca),
            "cert": str(self.client.cert) if self.client else None,
            "key": str(self.client.key) if self.client else None,
            "api_key": KEY,
        }

    def http(self, key: str | None = KEY) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(
            base_url=self.server.http_url, verify=self.authority.context(self.client), headers=headers, timeout=60
        )


@pytest.fixture(scope="module")
def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Guarded]]:
    """A server with TLS, one with mutual TLS; both with a key in a variable and a file of keys."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, clients, stranger = (Authority(folder / name) for name in ("servers", "clients", "stranger"))
    pair, made = authority.issue("server"), {}
    with ExitStack() as stack:
        for mode in MODES:
            key_file = folder / f"{mode}-keys"
            key_file.write_text(f"# team a\n{FILE_KEY}\n")
            client = clients.issue("ann") if mode == "mtls" else None
            server = Server(
                environ={"PAGEDSERVE_API_KEY": KEY},
                client={"verify": authority.context(client)},
                model_dir=tiny_model,
                dtype="float32",
                num_threads=1,
                num_kv_blocks=256,
                api_key_file=key_file,
                ssl_certfile=pair.cert,
                ssl_keyfile=pair.key,
                **({"ssl_client_ca": clients.ca} if client else {}),
            )
            stack.callback(server.close)
            made[mode] = Guarded(server.launch(), authority, stranger, client, key_file)
        for one in made.values():
            one.server.wait_open().wait_ready()
        yield made


@pytest.fixture(scope="module")
def triton(guarded: dict[str, Guarded]) -> dict[str, Any]:
    found = run_client("tls_tritonclient", json.dumps([guarded[mode].target for mode in MODES]))
    return dict(zip(MODES, found, strict=True))


@pytest.fixture(scope="module")
def kserve(guarded: dict[str, Guarded]) -> dict[str, Any]:
    found = run_client("tls_kserve", json.dumps([guarded[mode].target for mode in MODES]))
    return dict(zip(MODES, found, strict=True))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_tritonclient(triton: dict[str, Any], mode: str) -> None:
    found = triton[mode]
    assert found["stream"] == 3
    wanted = {"live": True, "tokens": 3}
    http = {**wanted, "no_key": "401", "wrong_key": "401", "wrong_ca": "unknown authority"}
    unauthenticated, unavailable = "StatusCode.UNAUTHENTICATED", "StatusCode.UNAVAILABLE"
    over_grpc = {**wanted, "no_key": unauthenticated, "wrong_key": unauthenticated, "wrong_ca": unavailable}
    if mode == "mtls":
        assert found["http"].pop("no_certificate") == "cut off"
        assert found["grpc"].pop("no_certificate") == unavailable
    assert (found["http"], found["grpc"]) == (http, over_grpc)


def test_kserves_clients(kserve: dict[str, Any], mode: str) -> None:
    rest, over_grpc = kserve[mode]["rest"], kserve[mode]["grpc"]
    if mode == "mtls":
        assert rest.pop("no_certificate") == "cut off"
        assert over_grpc.pop("no_certificate") == "StatusCode.UNAVAILABLE"
    assert rest == {"tokens": 3, "wrong_key": "401", "wrong_ca": "unknown authority"}
    assert over_grpc == {
        "tokens": 3,
        "wrong_key": "StatusCode.UNAUTHENTICATED",
        "wrong_ca": "StatusCode.UNAVAILABLE",
    }


def test_openais_client(guarded: dict[str, Guarded], mode: str) -> None:
    one = guarded[mode]
    url = f"{one.server.http_url}/v1"
    with httpx.Client(verify=one.authority.context(one.client), timeout=60) as http:
        client = openai.OpenAI(base_url=url, api_key=FILE_KEY, http_client=http, max_retries=0)
        body: Any = {"model": "tiny", "prompt": "Hi", "max_tokens": 3, "extra_body": {"ignore_eos": True}}
        assert client.completions.create(**body).usage.completion_tokens == 3
        stream = client.completions.create(**body, stream=True)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert client.models.list().data[0].id == "tiny"
        wrong = openai.OpenAI(base_url=url, api_key="wrong", http_client=http, max_retries=0)
        with pytest.raises(openai.AuthenticationError) as caught:
            wrong.completions.create(model="tiny", prompt="Hi", max_tokens=3)
        assert caught.value.code == "invalid_api_key"
    with httpx.Client(verify=one.stranger.context(one.client), timeout=60) as http:
        client = openai.OpenAI(base_url=url, api_key=KEY, http_client=http, max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_the_command_that_the_server_prints(guarded: dict[str, Guarded], mode: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    one = guarded[mode]
    # NOTE: it is printed once the server is ready, which a client may see a moment earlier.
    (line,) = until(lambda: re.findall(r"^curl .*$", one.server.logs, re.MULTILINE), "the line with curl")
    assert "(both TLS)" in one.server.logs
    line = line.replace("CA.pem", str(one.authority.ca)).replace("curl ", "curl -sS --fail-with-body ")
    if one.client is not None:
        line = line.replace("CLIENT.pem", str(one.client.cert)).replace("CLIENT.key", str(one.client.key))
    done = subprocess.run(["sh", "-c", line], env={"API_KEY": KEY}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] > 0
    refused = subprocess.run(["sh", "-c", line], env={"API_KEY": "x"}, capture_output=True, text=True, check=False)
    assert json.loads(refused.stdout)["error"]["code"] == "invalid_api_key"


async def test_grpc_aio(guarded: dict[str, Guarded], mode: str) -> None:
    one = guarded[mode]
    certificate = (one.client.key.read_bytes(), one.client.cert.read_bytes()) if one.client else (None, None)
    credentials = grpc.ssl_channel_credentials(one.authority.ca.read_bytes(), *certificate)
    async with grpc.aio.secure_channel(one.server.grpc_address, credentials) as channel:
        answer = message_class("ServerMetadataResponse")
        method = channel.unary_unary(f"/{SERVICE}/ServerMetadata", response_deserializer=answer.FromString)
        assert (await method(b"", metadata=(("authorization", f"Bearer {FILE_KEY}"),), timeout=60)).name == "pagedserve"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=60) == b"\x08\x01"  # status SERVING


def test_probes_and_scrapers_need_no_key(guarded: dict[str, Guarded], mode: str) -> None:
    with guarded[mode].http(None) as http:
        for path in ("/", "/health", "/v2/health/live", "/v2/health/ready", "/metrics"):
            assert http.get(path).status_code == 200, path
        for path in ("/v2", "/version", "/v1/models", "/none"):
            assert http.get(path).status_code == 401, path


def test_the_documented_probe_of_a_container(guarded: dict[str, Guarded], mode: str) -> None:
    one = guarded[mode]
    text = (REPOSITORY / "docs" / "security.md").read_text()
    (code,) = re.findall(r"- \|\n((?: {8}.*\n)+)", text)
    code = textwrap.dedent(code).replace("https://localhost:8080", one.server.http_url)
    client = one.client or one.authority.issue("probe")
    for name, path in (("ca.crt", one.authority.ca), ("client.crt", client.cert), ("client.key", client.key)):
        code = code.replace(f"/etc/tls/{name}", str(path))
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    missing = code.replace("/health/ready", "/none")
    assert subprocess.run([sys.executable, "-c", missing], check=False, capture_output=True).returncode != 0


def test_a_key_is_taken_back_and_given_while_the_server_runs(guarded: dict[str, Guarded]) -> None:
    one = guarded["tls"]
    with one.http(FILE_KEY) as old, one.http("sk-new") as new:
        assert (old.get("/v2").status_code, new.get("/v2").status_code) == (200, 401)
        before = one.key_file.read_text()
        one.key_file.write_text("sk-new\n")
        assert (old.get("/v2").status_code, new.get("/v2").status_code) == (401, 200)
        one.key_file.write_text(before)
        assert (old.get("/v2").status_code, new.get("/v2").status_code) == (200, 401)


def test_no_key_is_logged_or_handed_to_the_engine(guarded: dict[str, Guarded], triton: Any, kserve: Any) -> None:
    """After the calls of all those clients."""
    for one in guarded.values():
        engine = psutil.Process(one.server.engine_pid)
        assert "PATH" in engine.environ()
        for text in (one.server.logs, " ".join(engine.cmdline()), " ".join(engine.environ().values())):
            assert KEY not in text
            assert FILE_KEY not in text
