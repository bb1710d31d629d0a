"""The model's metadata, readiness and repository over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_engine import FakeEngine
from tests.predictor.oip.conftest import Server, text_request


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/model", 200),
        ("/v2/models/model/versions/1", 200),
        ("/v2/models/model/ready", 200),
        ("/v2/models/model/versions/1/ready", 200),
        ("/v2/models/model/versions/2", 404),
        ("/v2/models/model/versions/2/ready", 404),
        ("/v2/models/other", 404),
        ("/v2/models/other/ready", 404),
        ("/v2/models/org/alias", 404),
    ],
)
async def test_O13_version_paths(server: Server, path: str, status: int) -> None:
    response = await server.http.get(path)
    assert response.status_code == status
    if status == 404:
        assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/model/versions/1/infer", 200),
        ("/v2/models/model/versions/2/infer", 404),
        ("/v2/models/other/infer", 404),
    ],
)
async def test_O13_infer_on_version_paths(server: Server, path: str, status: int) -> None:
    assert (await server.infer(text_request("Hi"), path)).status_code == status


async def test_the_properties_of_a_loaded_model_stay_while_the_server_drains(server: Server) -> None:
    server.service.start_draining()
    assert (await server.http.get("/v2/models/model")).json()["properties"]["dtype"] == "float32"


async def test_metadata(server: Server) -> None:
    for path in ("/v2", "/v2/"):
        body = (await server.http.get(path)).json()
        assert body["name"] == "pagedserve"
        assert body["version"]
        assert "binary_tensor_data" in body["extensions"]
    assert (await server.http.get("/v2/models")).json() == {"models": ["model"]}
    body = (await server.http.get("/v2/models/model")).json()
    assert (body["name"], body["versions"], body["platform"]) == ("model", ["1"], "pagedserve_llm")
    assert {"name": "text_input", "datatype": "BYTES", "shape": [-1]} in body["inputs"]
    assert {"name": "output_ids", "datatype": "INT32", "shape": [-1, -1]} in body["outputs"]
    assert body["properties"]["max_model_len"] == "256"


async def test_a_model_that_loads_is_not_ready_and_infers_nothing(serve: Callable[..., Any]) -> None:
    server = await serve(FakeEngine(phase="loading"))
    response = await server.http.get("/v2/models/model/ready")
    assert (response.status_code, response.json()) == (503, {"name": "model", "ready": False})
    assert (await server.http.get("/v2/models/model")).json()["properties"] == {}
    response = await server.infer(text_request("Hi"))
    assert (response.status_code, list(response.json())) == (503, ["error"])
    server.engine.finish_loading()
    assert (await server.http.get("/v2/models/model/ready")).json() == {"name": "model", "ready": True}


@pytest.mark.parametrize("verb", ["load", "unload"])
async def test_O12_repository_verbs_have_a_defined_answer(server: Server, verb: str) -> None:
    response = await server.http.post(f"/v2/repository/models/model/{verb}")
    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert (await server.http.post(f"/v2/repository/models/other/{verb}")).status_code == 404
    assert (await server.infer(text_request("Hi"))).status_code == 200
    (entry,) = (await server.http.post("/v2/repository/index")).json()
    assert entry == {"name": "model", "version": "1", "state": "READY", "reason": ""}


async def test_wrong_methods_and_paths_answer_in_oips_form(server: Server) -> None:
    response = await server.http.get("/v2/models/model/infer")
    assert (response.status_code, list(response.json())) == (405, ["error"])
    response = await server.http.get("/v2/nothing")
    assert (response.status_code, list(response.json())) == (404, ["error"])
