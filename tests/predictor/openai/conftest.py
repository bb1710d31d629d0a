"""The OpenAI routes over the scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI

from predictor.admission import Admission
from predictor.openai.routes import build_router
from predictor.service import GenerationService
from tests.fake_engine import FakeEngine
from tests.predictor.openai.asgi_client import Client


@dataclass
class Server:
    engine: Any
    service: GenerationService
    client: Client


@pytest.fixture
def serve() -> Callable[..., Server]:
    """serve(engine=..., max_waiting_requests=...) builds an app; call it with the loop running."""

    def build(engine: Any = None, *, max_waiting_requests: int = 512, **options: Any) -> Server:
        engine = engine or FakeEngine()
        admission = Admission(engine, max_waiting_requests=max_waiting_requests, max_waiting_tokens=None)
        service = GenerationService(engine, admission, model_name="model", aliases=("org/alias",), **options)
        app = FastAPI()
        app.include_router(build_router(service))
        return Server(engine, service, Client(app))

    return build
