"""Long bodies are decoded off the event loop, short ones on it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from predictor import bodies, json_text
from predictor.openai import decode as openai_decode

SURFACES = {
    "/v1/completions": b'{"prompt":"Hi"}',
    "/v2/models/model/infer": b'{"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["Hi"]}]}',
    "/v2/models/model/generate": b'{"text_input":"Hi"}',
    "/v1/models/model:predict": b'{"instances":["Hi"]}',
    "/tokenize": b'{"prompt":"Hi"}',
    "/detokenize": b'{"tokens":[72]}',
}


@pytest.mark.parametrize("path", SURFACES)
async def test_only_a_long_body_goes_to_a_thread(make_app: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    threads: list[str] = []
    check_depth = json_text.check_depth

    def recorded(*args: Any, **kwargs: Any) -> None:
        threads.append(threading.current_thread().name)
        check_depth(*args, **kwargs)

    monkeypatch.setattr(json_text, "check_depth", recorded)
    monkeypatch.setattr(openai_decode, "check_depth", recorded)
    app, body = make_app(), SURFACES[path]
    await app.client.post(path, body + b"x")
    assert threads.pop(0) == threading.current_thread().name
    threads.clear()
    await app.client.post(path, body + b"x" * bodies.MAX_INLINE_BODY)
    assert threads[0].startswith("json")
