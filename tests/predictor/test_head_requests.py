"""HEAD and OPTIONS."""

from __future__ import annotations

import pytest

from predictor.openapi.document import build_document
from tests.predictor.openai.asgi_client import Exchange
from tests.predictor.test_server import flat

GET_PATHS = [path for path, item in build_document("model")["paths"].items() if "get" in item]


async def test_every_get_route_answers_head(make_app) -> None:
    routes = list(flat(make_app().app.router.routes))
    assert [r.path for r in routes if ("GET" in r.methods) is not ("HEAD" in r.methods)] == []
    assert sum("HEAD" in r.methods for r in routes) == len(GET_PATHS)


@pytest.mark.parametrize("path", GET_PATHS)
async def test_head_has_the_status_of_get(make_app, path: str) -> None:
    app = make_app()
    path = path.replace("{model_version}", "1").replace("{name}", "model").replace("{model}", "model")
    path = path.replace("{model_name}", "model")
    answer = await Exchange(app.app, "HEAD", path, b"", {}).done()
    assert answer.status == (await app.client.get(path)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("OPTIONS", "/v2/models/model/infer", {"POST"}),
        ("PUT", "/v2/models/model", {"GET", "HEAD"}),
        ("GET", "/v1/completions", {"POST"}),
        ("DELETE", "/v2/repository/models/model/unload", {"POST"}),
    ],
)
async def test_another_method_is_405_and_names_the_allowed_ones(make_app, method: str, path: str, allow: set) -> None:
    answer = await Exchange(make_app().app, method, path, b"", {}).done()
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allow
    assert answer.json == {"error": f"{path} answers {answer.headers['allow']}, not {method}"}
