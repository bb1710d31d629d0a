"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import threading

import pytest

from predictor.openai.messages import MAX_MESSAGES
from tests.fake_engine import FakeEngine, FakeTokenizer


async def test_a_text_there_and_back(make_app) -> None:
    client = make_app().client
    body = (await client.post("/tokenize", {"prompt": "Aď"})).json
    assert body == {"count": 3, "max_model_len": 256, "tokens": [65, 0xC4, 0x8F]}
    assert (await client.post("/detokenize", {"tokens": body["tokens"]})).json == {"prompt": "Aď"}


async def test_special_tokens_are_shown(make_app) -> None:
    assert (await make_app().client.post("/detokenize", {"tokens": [65, 256]})).json == {"prompt": "A<eos>"}


async def test_token_texts(make_app) -> None:
    body = (await make_app().client.post("/tokenize", {"prompt": "Hi", "return_token_strs": True})).json
    assert body["token_strs"] == ["H", "i"]


async def test_what_looks_at_each_token_is_off_the_event_loop(make_app, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, int] = {}

    def note(name: str) -> None:
        original = getattr(FakeTokenizer, name)

        def noted(*args: object, **options: object) -> object:
            threads[name] = threading.get_ident()
            return original(*args, **options)

        monkeypatch.setattr(FakeTokenizer, name, noted)

    for name in ("encode", "token_text", "decode"):
        note(name)
    client = make_app().client
    await client.post("/tokenize", {"prompt": "Hi", "return_token_strs": True})
    await client.post("/detokenize", {"tokens": [65]})
    assert threads.keys() == {"encode", "token_text", "decode"}
    assert threading.get_ident() not in threads.values()


async def test_messages(make_app) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = (await make_app().client.post("/tokenize", {"messages": messages, "model": "org/alias"})).json
    assert bytes(body["tokens"]) == b"<user>Hi\n<assistant>"
    body = (await make_app().client.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json
    assert bytes(body["tokens"]) == b"<user>Hi\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tokenize", {}, 400, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "either prompt or messages"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "extra": 1}, 400, "extra"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "other"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}] * 2}, 400, "must alternate"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"self": 1}},
            400,
            "self",
        ),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * (2 * 2**20)}]}, 400, "once rendered"),
        ("/tokenize", {"messages": [{}] * (MAX_MESSAGES + 1)}, 400, "messages"),
        ("/tokenize", b'"\\ud800"', 400, "JSON"),
        ("/detokenize", {"tokens": [5, 999999]}, 400, "999999"),
        ("/detokenize", {"tokens": [-1]}, 400, "-1"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens.0"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", b"nonsense", 400, "JSON"),
    ],
)
async def test_refusals(make_app, path: str, body: object, status: int, message: str) -> None:
    answer = await make_app().client.post(path, body)
    assert answer.status == status
    assert message in answer.json["error"]


async def test_not_before_the_model_is_loaded(make_app) -> None:
    client = make_app(FakeEngine(phase="loading")).client
    assert (await client.post("/tokenize", {"prompt": "a"})).status == 503
    assert (await client.post("/detokenize", {"tokens": [1]})).status == 503
