"""Health that tells the truth, and the small routes."""

from __future__ import annotations

from tests.fake_engine import FakeEngine


async def test_ready_server(make_app) -> None:
    client = make_app().client
    assert (await client.get("/v2/health/live")).json == {"live": True}
    ready = await client.get("/v2/health/ready")
    assert (ready.status, ready.json) == (200, {"ready": True, "live": True})
    assert (await client.get("/health")).status == 200
    assert (await client.get("/")).json == {"status": "alive"}


async def test_loading_is_live_and_not_ready_and_shows_progress(make_app) -> None:
    client = make_app(FakeEngine(phase="loading")).client
    assert (await client.get("/v2/health/live")).status == 200
    ready = await client.get("/v2/health/ready")
    assert ready.status == 503
    assert ready.json == {
        "ready": False,
        "live": True,
        "progress": {"phase": "loading weights", "done": 3, "total": 30},
    }
    assert (await client.get("/health")).status == 503


async def test_M4_a_dead_engine_is_neither_live_nor_ready(make_app) -> None:
    app = make_app()
    app.engine.die()
    live, ready = await app.client.get("/v2/health/live"), await app.client.get("/v2/health/ready")
    assert (live.status, live.json) == (503, {"live": False})
    assert (ready.status, ready.json) == (503, {"ready": False, "live": False})
    assert (await app.client.get("/")).status == 503


async def test_M5_a_stalled_engine_is_not_live(make_app) -> None:
    app = make_app()
    app.engine.live = False
    assert (await app.client.get("/v2/health/live")).status == 503
    assert (await app.client.get("/v2/health/ready")).status == 503


async def test_draining_is_live_and_not_ready(make_app) -> None:
    app = make_app()
    app.service.start_draining()
    assert (await app.client.get("/v2/health/live")).status == 200
    assert (await app.client.get("/v2/health/ready")).status == 503
    refused = await app.client.complete()
    assert refused.status == 503


async def test_version_and_metrics(make_app) -> None:
    client = make_app().client
    assert set((await client.get("/version")).json) == {"version"}
    text = (await client.get("/metrics")).body.decode()
    assert 'pagedserve_requests_running{model_name="model"} 0.0' in text
    assert "process_resident_memory_bytes" in text
    assert "python_info" in text


async def test_metrics_in_the_format_that_the_scraper_asks_for(make_app) -> None:
    from tests.predictor.openai.asgi_client import Exchange

    app = make_app()
    plain = await app.client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = await Exchange(app.app, "GET", "/metrics", b"", accept).done()
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


async def test_unknown_paths_and_methods_are_answered_in_json(make_app) -> None:
    client = make_app().client
    answer = await client.get("/no/such/path")
    assert (answer.status, answer.json) == (404, {"error": "no route GET /no/such/path"})
    answer = await client.get("/tokenize")
    assert answer.status == 405
    assert set(answer.json) == {"error"}
    assert answer.headers["allow"] == "POST"
