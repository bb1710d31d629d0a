"""One server a configuration and session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, until


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama checkpoint in float32 that generates a token in about a millisecond."""
    import torch

    from tests.tiny_models import make_checkpoint

    torch.set_num_threads(1)
    return make_checkpoint("llama", tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path) -> Iterator[Server]:
    """The tiny model under the names tiny and org/tiny. For tests that leave the server as they found it."""
    with Server(
        model_dir=tiny_model, dtype="float32", num_threads=1, num_kv_blocks=2048, served_model_aliases="org/tiny"
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """No request of a test on `tiny_server` runs into the next one, which may count."""
    server: Server | None = request.getfixturevalue("tiny_server") if "tiny_server" in request.fixturenames else None
    yield
    if server is not None:
        until(lambda: server.metric("requests_running") + server.metric("requests_waiting") == 0, "no request")


@pytest.fixture(scope="session")
def chat_server() -> Iterator[Server]:
    """The demonstration model, as `make serve` serves it."""
    with Server(kv_cache_memory="512MiB") as server:
        yield server
