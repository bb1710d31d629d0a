"""The server's routes over the scripted engine, in process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from engine.metrics import EngineMetrics
from predictor.admission import Admission
from predictor.http_errors import add_exception_handlers
from predictor.model import PagedModel
from predictor.server import build_routers
from predictor.service import REJECTION_REASONS, GenerationService
from predictor.tracing import RequestTracer
from tests.fake_engine import FakeEngine
from tests.otlp_collector import Collector, collecting
from tests.predictor.openai.asgi_client import Client


@dataclass
class App:
    engine: FakeEngine
    service: GenerationService
    model: PagedModel
    registry: CollectorRegistry
    metrics: EngineMetrics
    app: FastAPI
    client: Client

    def value(self, name: str, **labels: str) -> float | None:
        """The value of a series `pagedserve_<name>`."""
        return self.registry.get_sample_value(f"pagedserve_{name}", {"model_name": "model", **labels})


@pytest.fixture
def make_app() -> Callable[..., App]:
    """make_app(engine, model_class=..., max_waiting_requests=...); call it with the loop running."""

    def build(
        engine: FakeEngine | None = None,
        *,
        model_class: type[PagedModel] = PagedModel,
        max_waiting_requests: int = 512,
        max_waiting_tokens: int | None = None,
        **options: Any,
    ) -> App:
        fake: Any = engine or FakeEngine()
        registry = CollectorRegistry()
        metrics = EngineMetrics("model", registry, rejection_reasons=REJECTION_REASONS)
        admission = Admission(fake, max_waiting_requests=max_waiting_requests, max_waiting_tokens=max_waiting_tokens)
        service = GenerationService(
            fake, admission, model_name="model", aliases=("org/alias",), on_rejected=metrics.on_rejected, **options
        )
        model = model_class(service)
        model.start()
        app = FastAPI(openapi_url=None)
        for router in build_routers(service, model, registry):
            app.include_router(router)
        add_exception_handlers(app)
        return App(fake, service, model, registry, metrics, app, Client(app))

    return build


@pytest.fixture(scope="module")
def running() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def collector(running: Collector) -> Collector:
    """The module's, with nothing in it."""
    running.spans.clear()
    running.headers.clear()
    running.raw.clear()
    running.is_failing = False
    return running


@pytest.fixture
def tracer(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequestTracer]:
    """Closing it exports all, however long that takes."""
    monkeypatch.setattr("predictor.tracing.CLOSE_SECONDS", 60.0)
    made = RequestTracer.start(collector.grpc_url)
    yield made
    made.close()
