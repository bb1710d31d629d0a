"""`/openai/v1/models`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fake_engine import FakeEngine

Serve = Callable[..., Any]


async def test_the_list_holds_every_name(serve: Serve) -> None:
    body = (await serve().client.get("/openai/v1/models")).json
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["model", "org/alias"]
    assert all(card["object"] == "model" and isinstance(card["created"], int) for card in body["data"])
    assert {card["max_model_len"] for card in body["data"]} == {256}


async def test_one_card_by_a_name_with_a_slash(serve: Serve) -> None:
    body = (await serve().client.get("/openai/v1/models/org/alias")).json
    assert (body["id"], body["root"]) == ("org/alias", "model")


async def test_an_unknown_name_is_404(serve: Serve) -> None:
    answer = await serve().client.get("/openai/v1/models/other")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "model_not_found"


async def test_the_list_is_there_while_the_model_loads(serve: Serve) -> None:
    answer = await serve(FakeEngine(phase="loading")).client.get("/openai/v1/models")
    assert answer.status == 200
    assert answer.json["data"][0]["max_model_len"] is None
