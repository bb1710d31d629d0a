"""`/v1/models…`: one answer for OpenAI's clients and for KServe's V1, and `:predict`."""

from __future__ import annotations

import pytest

from predictor.kserve_adapter import InvalidInput
from predictor.model import PagedModel
from tests.fake_engine import FakeEngine
from tests.predictor.openai.asgi_client import until


async def test_the_list_satisfies_both(make_app) -> None:
    body = (await make_app().client.get("/v1/models")).json
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["model", "org/alias"]
    assert body["models"] == ["model", "org/alias"]


@pytest.mark.parametrize("name", ["model", "org/alias"])
async def test_one_model_satisfies_both(make_app, name: str) -> None:
    answer = await make_app().client.get(f"/v1/models/{name}")
    assert answer.status == 200
    assert answer.json["id"] == answer.json["name"] == name
    assert answer.json["object"] == "model"
    assert answer.json["ready"] is True


async def test_a_model_that_is_not_ready(make_app) -> None:
    answer = await make_app(FakeEngine(phase="loading")).client.get("/v1/models/model")
    assert (answer.status, answer.json["ready"]) == (503, False)


async def test_an_unknown_model(make_app) -> None:
    client = make_app().client
    for answer in (
        await client.get("/v1/models/other"),
        await client.post("/v1/models/other:predict", {"instances": ["Hi"]}),
        await client.post("/v1/models/other:explain", {"instances": ["Hi"]}),
    ):
        assert answer.status == 404
        assert "'other' is not served" in answer.json["error"]


async def test_predict(make_app) -> None:
    body = {
        "instances": [
            "Hi",
            {"prompt": "Hi", "parameters": {"max_tokens": 5}},
            {"prompt": [72, 105], "parameters": {"max_tokens": 3, "n": 2}},
        ]
    }
    answer = await make_app().client.post("/v1/models/model:predict", body)
    assert (answer.status, answer.json) == (200, {"predictions": ["Hello, world!", "Hello", ["Hel", "Hel"]]})


async def test_predict_by_an_alias_with_a_slash(make_app) -> None:
    answer = await make_app().client.post("/v1/models/org/alias:predict", {"instances": ["Hi"]})
    assert answer.json == {"predictions": ["Hello, world!"]}


async def test_explain_is_refused(make_app) -> None:
    answer = await make_app().client.post("/v1/models/model:explain", {"instances": ["Hi"]})
    assert (answer.status, answer.json) == (501, {"error": "this model has no explainer"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        ([], "JSON object"),
        ({}, "instances"),
        ({"instances": []}, "at least one"),
        ({"instances": "Hi"}, "must be a list"),
        ({"instances": [3]}, r"instances[0] must be a string or an object"),
        ({"instances": ["Hi"], "extra": 1}, "unknown key 'extra'"),
        ({"instances": [{"prompt": "Hi", "x": 1}]}, "unknown key 'x'"),
        ({"instances": [{"parameters": {}}]}, "instances[0].prompt"),
        ({"instances": [{"prompt": "Hi", "parameters": []}]}, "parameters must be an object"),
        ({"instances": [{"prompt": "Hi", "parameters": {"topk": 1}}]}, "unknown parameter 'topk'"),
        ({"instances": [{"prompt": "Hi", "parameters": {"top_p": 7}}]}, "top_p"),
        ({"instances": [{"prompt": [5, 999999]}]}, "999999"),
        ({"instances": [""]}, "empty"),
    ],
)
async def test_a_malformed_predict_is_refused_by_name(make_app, body: object, message: str) -> None:
    app = make_app()
    answer = await app.client.post("/v1/models/model:predict", body)
    assert answer.status == 400
    assert message in answer.json["error"]
    assert app.engine.num_requests == 0


async def test_predict_while_loading_draining_and_overloaded(make_app) -> None:
    body = {"instances": ["Hi"]}
    assert (await make_app(FakeEngine(phase="loading")).client.post("/v1/models/model:predict", body)).status == 503
    app = make_app(FakeEngine(admitting=False), max_waiting_requests=1)
    waiting = app.client.open("/v1/models/model:predict", body)
    await until(lambda: app.engine.num_waiting == 1)
    answer = await app.client.post("/v1/models/model:predict", body)
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 1
    waiting.disconnect()
    await waiting.done()


async def test_predict_ends_when_the_client_goes(make_app) -> None:
    app = make_app(FakeEngine(pause_after=2))
    exchange = app.client.open("/v1/models/model:predict", {"instances": ["Hi", "Ho"]})
    await until(lambda: app.engine.num_requests == 2 and app.engine.num_waiting == 0)
    exchange.disconnect()
    await exchange.done()
    assert app.engine.num_requests == 0
    assert len(app.engine.aborted) == 2


async def test_predict_when_the_engine_dies(make_app) -> None:
    app = make_app(FakeEngine(fail_after=2))
    answer = await app.client.post("/v1/models/model:predict", {"instances": ["Hi"]})
    assert answer.status == 503
    assert "failed on purpose" in answer.json["error"]


class Shouting(PagedModel):
    """Overrides both handlers, as a user's subclass would."""

    async def preprocess(self, payload, headers=None):
        if isinstance(payload, dict):
            return {"instances": [{"prompt": p, "parameters": {"max_tokens": 5}} for p in payload["instances"]]}
        payload.parameters = {**(payload.parameters or {}), "max_tokens": 5}
        return payload

    async def postprocess(self, result, headers=None, response_headers=None):
        if isinstance(result, dict):
            return {"predictions": [text.upper() for text in result["predictions"]]}
        for output in result.outputs:
            if output.name == "text_output":
                output.data = [text.upper() for text in output.data]
        return result


class Picky(PagedModel):
    """Refuses in KServe's way."""

    async def preprocess(self, payload, headers=None):
        raise InvalidInput("no thanks")


async def test_kserves_own_error_for_a_clients_mistake_is_400(make_app) -> None:
    answer = await make_app(model_class=Picky).client.post("/v1/models/model:predict", {"instances": ["Hi"]})
    assert answer.status == 400
    assert "no thanks" in answer.json["error"]


async def test_overridden_handlers_work_on_predict(make_app) -> None:
    app = make_app(model_class=Shouting)
    answer = await app.client.post("/v1/models/model:predict", {"instances": ["Hi"]})
    assert answer.json == {"predictions": ["HELLO"]}


async def test_overridden_handlers_work_on_oip(make_app) -> None:
    app = make_app(model_class=Shouting)
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["Hi"]}]}
    answer = await app.client.post("/v2/models/model/infer", body)
    assert answer.status == 200, answer.json
    outputs = {output["name"]: output["data"] for output in answer.json["outputs"]}
    assert outputs["text_output"] == ["HELLO"]


async def test_predict_reads_parameters_as_oip_does(make_app) -> None:
    parameters = {"max_tokens": "5", "temperature": "0.5", "ignore_eos": "true", "stop": ["zz"], "timeout": 60_000_000}
    body = {"instances": [{"prompt": "Hi", "parameters": parameters}]}
    answer = await make_app().client.post("/v1/models/model:predict", body)
    assert (answer.status, answer.json) == (200, {"predictions": ["Hello"]})
    body["instances"][0]["parameters"] = {"max_tokens": "five"}
    answer = await make_app().client.post("/v1/models/model:predict", body)
    assert answer.status == 400
    assert "max_tokens" in answer.json["error"]


async def test_predict_ends_at_an_instances_timeout(make_app) -> None:
    app = make_app(FakeEngine(pause_after=1))
    body = {"instances": [{"prompt": "Hi"}, {"prompt": "Hi", "parameters": {"timeout": 1}}]}
    assert (await app.client.post("/v1/models/model:predict", body)).status == 504
    assert app.engine.num_requests == 0
