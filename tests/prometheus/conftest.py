"""One run through the states for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.prometheus.server import tool
from tests.prometheus.world import World, live_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A Prometheus that has seen two predictors start, run and go. Skips where prometheus is not installed."""
    import torch

    from tests.tiny_models import make_checkpoint

    tool("prometheus")
    torch.set_num_threads(1)
    model = make_checkpoint("llama", tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=1024)
    with live_world(model, tmp_path_factory.mktemp("prometheus")) as made:
        yield made
