"""TLS files: refusals at the start, rotation while both listeners serve."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from starlette.responses import PlainTextResponse
from uvicorn import Config, Server

from engine.errors import ConfigError
from predictor.oip.grpc_server import GrpcServer
from predictor.oip.schema import SERVICE, message_class
from predictor.tls import TlsFiles
from tests.certificates import Authority, Pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(tmp_path: Path, authority: Authority) -> Pair:
    """A server's files, which may be replaced."""
    pair = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    pair.replace_with(authority.issue("server"))
    return pair


def test_files_that_fit(pair: Pair, authority: Authority) -> None:
    identity = TlsFiles(pair.cert, pair.key, authority.ca).current()
    assert identity.certificate == pair.cert.read_bytes()
    assert identity.context.verify_mode is ssl.CERT_REQUIRED
    assert TlsFiles(pair.cert, pair.key).current().context.verify_mode is ssl.CERT_NONE


def test_files_that_do_not_are_refused_by_name(pair: Pair, authority: Authority, tmp_path: Path) -> None:
    other, empty, absent = authority.issue("other"), tmp_path / "empty", tmp_path / "absent"
    empty.write_bytes(b"")
    locked = authority.issue("locked", password=b"secret")
    ed25519 = tmp_path / "ed25519.key"
    ed25519.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for arguments, words in (
        ((pair.cert, ed25519), r"ed25519.key is an Ed25519 key, which gRPC cannot use; take ECDSA or RSA"),
        ((pair.cert, other.key), r"ssl_keyfile .* is not the key of ssl_certfile"),
        ((absent, pair.key), r"ssl_certfile .*absent cannot be read: No such file"),
        ((pair.cert, absent), r"ssl_keyfile .*absent cannot be read: No such file"),
        ((pair.cert, tmp_path), r"ssl_keyfile .* cannot be read: Is a directory"),
        ((empty, pair.key), r"must hold a PEM certificate"),
        ((pair.key, pair.cert), r"must hold a PEM certificate"),
        ((locked.cert, locked.key), r"is encrypted; give it without a password"),
        ((pair.cert, pair.key, absent), r"ssl_client_ca .*absent cannot be read"),
        ((pair.cert, pair.key, empty), r"ssl_client_ca .*empty must hold PEM certificates"),
    ):
        with pytest.raises(ConfigError, match=words):
            TlsFiles(*arguments)


def test_a_change_that_cannot_be_used_leaves_the_old(
    pair: Pair, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("predictor"), "propagate", True)
    files, new = TlsFiles(pair.cert, pair.key), authority.issue("new")
    old, certificate = files.current(), new.cert.read_bytes()
    # NOTE: moved into place: written, it could have the size and, on an older kernel, the time of what it replaces.
    os.replace(new.cert, pair.cert)
    assert files.current() is old
    assert files.current() is old
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    os.replace(new.key, pair.key)
    assert files.current().certificate == certificate
    pair.key.unlink()
    assert files.current().certificate == certificate


Ask = Callable[[Authority, Pair | None], Awaitable[str]]
"""Calls with this authority trusted and this client certificate; the common name of the server, or "refused"."""


@pytest.fixture
async def rest() -> Any:
    """rest(files): a listener as uvicorn makes it, and how to ask it."""
    servers = []

    async def start(files: TlsFiles) -> Ask:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("hello")(scope, receive, send)

        config = Config(
            app, host="127.0.0.1", port=0, log_config=None, lifespan="off", loop="none",
            ssl_context_factory=lambda _config, _default: files.http_context(),
        )  # fmt: skip
        config.load()
        server = Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        servers.append(server)
        port = server.servers[0].sockets[0].getsockname()[1]

        async def ask(authority: Authority, client: Pair | None) -> str:
            try:
                async with httpx.AsyncClient(verify=authority.context(client), timeout=60) as http:
                    response = await http.get(f"https://127.0.0.1:{port}/")
                    ssl_object = response.extensions["network_stream"].get_extra_info("ssl_object")
                    return common_name(ssl_object.getpeercert(True))
            except (httpx.NetworkError, httpx.ProtocolError, ssl.SSLError):
                return "refused"

        return ask

    yield start
    for server in servers:
        await server.shutdown()


@pytest.fixture
async def over_grpc(make_app: Any) -> Any:
    """The same for gRPC."""
    servers = []

    async def start(files: TlsFiles) -> Ask:
        parts = make_app()
        server = GrpcServer(
            parts.service, parts.model, 0, host="127.0.0.1", credentials=files.grpc_credentials()
        )  # fmt: skip
        await server.start()
        servers.append(server)

        async def ask(authority: Authority, client: Pair | None) -> str:
            credentials = grpc.ssl_channel_credentials(
                authority.ca.read_bytes(),
                client.key.read_bytes() if client else None,
                client.cert.read_bytes() if client else None,
            )
            address = f"127.0.0.1:{server.port}"
            async with grpc.aio.secure_channel(
                address, credentials, [("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                answer = message_class("ServerLiveResponse")
                method = channel.unary_unary(f"/{SERVICE}/ServerLive", response_deserializer=answer.FromString)
                try:
                    assert (await method(b"", timeout=60)).live
                except grpc.aio.AioRpcError as error:
                    return "refused" if error.code() is grpc.StatusCode.UNAVAILABLE else str(error.code())
            certificate = ssl.get_server_certificate(("127.0.0.1", server.port)) if client is None else ""
            return common_name(ssl.PEM_cert_to_DER_cert(certificate)) if certificate else "server"

        return ask

    yield start
    for server in servers:
        await server.stop(0)


def common_name(der: bytes) -> str:
    (attribute,) = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(attribute.value)


@pytest.fixture(params=["rest", "over_grpc"])
def listen(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


async def test_a_listener_follows_the_files(listen: Any, pair: Pair, authority: Authority, tmp_path: Path) -> None:
    ask, stranger = await listen(TlsFiles(pair.cert, pair.key)), Authority(tmp_path / "stranger")
    assert await ask(authority, None) == "server"
    assert await ask(stranger, None) == "refused"
    for name in ("second", "third"):
        pair.replace_with(authority.issue(name))
        assert await ask(authority, None) == name
    pair.replace_with(stranger.issue("elsewhere"))
    assert await ask(authority, None) == "refused"
    assert await ask(stranger, None) == "elsewhere"


async def test_a_client_must_show_a_certificate_of_the_client_ca(
    listen: Any, pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    clients, new_clients = Authority(tmp_path / "clients"), Authority(tmp_path / "new")
    client_ca = tmp_path / "client_ca.pem"
    client_ca.write_bytes(clients.ca.read_bytes())
    ask = await listen(TlsFiles(pair.cert, pair.key, client_ca))
    assert await ask(authority, None) == "refused"
    assert await ask(authority, clients.issue("ann")) == "server"
    assert await ask(authority, authority.issue("bob")) == "refused"
    os.replace(new_clients.ca, client_ca)
    assert await ask(authority, clients.issue("ann")) == "refused"
    assert await ask(authority, new_clients.issue("cid")) == "server"
