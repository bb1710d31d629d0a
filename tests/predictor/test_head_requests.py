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
    error = answer.json["error"]
    text = error["message"] if path.startswith("/v1/") else error
    assert text == f"{path} answers {answer.headers['allow']}, not {method}"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/openai/v1/models/a\nb", "/openai/v1/nothing"])
async def test_an_unknown_path_of_openai_s_is_404_in_its_shape(make_app, path: str) -> None:
    answer = await make_app().client.get(path)
    assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/v1/models/a\nb", "/nothing", "/v2/models/model/", "/v2/models/model/infer/"]
)
async def test_an_unknown_path_elsewhere_is_404_in_oip_s_shape(make_app, path: str) -> None:
    app = make_app()
    app.app.router.redirect_slashes = False  # as `mount` has it
    answer = await app.client.get(path)
    assert answer.status == 404
    assert isinstance(answer.json["error"], str)
