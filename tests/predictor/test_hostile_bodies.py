"""Every surface that reads JSON, fed what breaks parsers: always an error of the caller's, never of the server's.

NOTE: one app a test and many bodies, as making an app takes longer than answering.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

DEEP = "[" * 100_000 + "]" * 100_000
DEEPER_THAN_THE_BOUND = "[" * 129 + "]" * 129

TEXT = '{"name":"text_input","shape":[1],"datatype":"BYTES","data":["Hi"]}'
SURFACES: dict[str, tuple[str, str, str]] = {
    # path, a body in which @ stands for further members, the name of its sampling members' object ("" is the body)
    "completions": ("/v1/completions", '{"prompt":"Hi"@}', ""),
    "chat": ("/v1/chat/completions", '{"messages":[{"role":"user","content":"Hi"}]@}', ""),
    "kserve prefix": ("/openai/v1/completions", '{"prompt":"Hi"@}', ""),
    "infer": ("/v2/models/model/infer", '{"inputs":[' + TEXT + "]@}", "parameters"),
    "generate": ("/v2/models/model/generate", '{"text_input":"Hi"@}', "parameters"),
    "generate_stream": ("/v2/models/model/generate_stream", '{"text_input":"Hi"@}', "parameters"),
    "predict": ("/v1/models/model:predict", '{"instances":[{"prompt":"Hi"@}]}', "parameters"),
    "tokenize": ("/tokenize", '{"prompt":"Hi"@}', ""),
    "detokenize": ("/detokenize", '{"tokens":[72]@}', ""),
}
GENERATING = [name for name in SURFACES if name not in ("tokenize", "detokenize")]


def refusal(answer: Any) -> str:
    """The message of a caller's error, in the shape of either protocol."""
    assert answer.status in (400, 422), answer
    error = answer.json["error"]
    return error["message"] if isinstance(error, dict) else error


def with_member(surface: str, member: str) -> tuple[str, bytes]:
    path, template, _ = SURFACES[surface]
    return path, template.replace("@", member).encode("utf-8", "surrogatepass")


def with_sampling(surface: str, member: str) -> tuple[str, bytes]:
    within = SURFACES[surface][2]
    return with_member(surface, f',"{within}":{{{member}}}' if within else f",{member}")


async def check_refused(app: Any, path: str, body: bytes) -> str:
    message = refusal(await app.client.post(path, body))
    assert message
    assert len(message) < 2000
    assert app.engine.num_requests == 0
    return message


NO_JSON = (
    ',"user":1e400',
    ',"user":-1e400',
    ',"user":NaN',
    ',"user":Infinity',
    ',"user":' + "9" * 5000,
    ',"user":"\\ud800"',
    ',"user":"\\udc00 \\ud800"',
    ',"user":"\ud800"',
    ',"user":01',
    ',"user":"\n"',
    ',"user":"a","user":"a"',
    ",,",
    "]",
)
NO_OBJECT = (b"", b"\xff", b"\xef\xbb\xbf{}", b"null", b"[]", b'"x"', b"1e400", "{}".encode("utf-16"))


@pytest.mark.parametrize("surface", SURFACES)
async def test_text_that_is_no_json_or_doubtful(make_app: Any, surface: str) -> None:
    app = make_app()
    for nest in (DEEP, DEEPER_THAN_THE_BOUND):
        assert "nested more deeply" in await check_refused(app, *with_member(surface, f',"x":{nest}'))
    for member in NO_JSON:
        await check_refused(app, *with_member(surface, member))
    for body in NO_OBJECT:
        await check_refused(app, SURFACES[surface][0], body)
    path, body = with_member(surface, ',"user":"@"')
    await check_refused(app, path, body.replace(b'"@"', b'"\xc3\x28"'))


@pytest.mark.parametrize("surface", GENERATING)
async def test_extreme_numbers_are_refused_or_served(make_app: Any, surface: str) -> None:
    app = make_app()
    for name in ("n", "max_tokens", "min_tokens", "top_k", "seed", "priority", "top_p", "temperature"):
        for number in ("-9" + "9" * 18, "-9" + "9" * 30, str(2**64), "1e308", "-1e308", "-1e-3", "1" + "0" * 300):
            path, body = with_sampling(surface, f'"{name}":{number}')
            answer = await app.client.post(path, body)
            # NOTE: what the door lets through must fit the wire to the engine, whose integers have 64 bits: the bounds
            # of tokens are clamped to the context.
            is_fine = answer.status == 200 and name in ("max_tokens", "min_tokens", "seed")
            assert is_fine or name in refusal(answer), (name, number, answer)


@pytest.mark.parametrize("where", ["role", "content", "name", "part", "tool_call_id"])
async def test_lone_surrogates_anywhere_in_a_message(make_app: Any, where: str) -> None:
    app = make_app()
    message: dict[str, Any] = {"role": "user", "content": "Hi", "name": "me"}
    if where == "part":
        message["content"] = [{"type": "text", "text": "@"}]
    else:
        message[where] = "@"
    for text in (r"\ud800", r"x\udfff", r"\ud800\ud800"):
        body = json.dumps({"messages": [message]}).replace('"@"', f'"{text}"').encode()
        await check_refused(app, "/v1/chat/completions", body)


async def test_lone_surrogates_in_a_prompt(make_app: Any) -> None:
    app = make_app()
    for surface in ("completions", "predict", "generate", "infer", "tokenize"):
        path, body = with_member(surface, "")
        await check_refused(app, path, body.replace(b'"Hi"', rb'"\ud800"'))


SAMPLING = '{"name":"sampling_parameters","shape":[1],"datatype":"BYTES","data":[@]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"stop":' + DEEP + "}", "sampling_parameters is nested"),
        ('{"n":1,"n":1}', "sampling_parameters holds the key 'n' twice"),
        ('{"temperature":1e400}', "sampling_parameters must hold JSON"),
        ('{"top_k":NaN}', "sampling_parameters must hold JSON"),
        ('{"stop_token_ids":"' + "[" * 5000 + '"}', "stop_token_ids"),
        ('{"logit_bias":"{\\"1\\":1,\\"1\\":2}"}', "logit_bias"),
        ('{"temperature":"1e999"}', "temperature"),
        ('{"max_tokens":"' + "9" * 400 + '"}', "max_tokens"),
    ],
)
async def test_json_within_sampling_parameters(make_app: Any, text: str, message: str) -> None:
    app = make_app()
    body = '{"inputs":[' + TEXT + "," + SAMPLING.replace("@", json.dumps(text)) + "]}"
    assert message in await check_refused(app, "/v2/models/model/infer", body.encode())


async def test_json_within_the_arguments_of_a_tool_call(make_app: Any) -> None:
    app = make_app()
    for arguments in (DEEP, '{"a":' + DEEP + "}", '{"a":1,"a":2}', "[]", "1e400", "\ud800"):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
        body = json.dumps({"messages": messages}).encode()
        await check_refused(app, "/v1/chat/completions", body)


LONG = "k" * 100_000


@pytest.mark.parametrize("surface", SURFACES)
async def test_long_names_and_values_are_not_repeated_whole(make_app: Any, surface: str) -> None:
    app = make_app()
    requests = [with_member(surface, f',"{LONG}":1'), with_member(surface, f',"model":"{LONG}"')]
    if surface in GENERATING:
        requests += [with_sampling(surface, f'"{LONG}":1'), with_sampling(surface, f'"n":[{LONG.replace("k", "1,")}1]')]
    for path, body in requests:
        answer = await app.client.post(path, body)
        assert answer.status in (400, 404, 422), answer
        assert len(json.dumps(answer.json)) < 2000


async def test_long_names_of_tensors_are_not_repeated_whole(make_app: Any) -> None:
    app = make_app()
    tensors = [
        TEXT.replace("text_input", LONG),
        TEXT.replace("text_input", LONG).replace("BYTES", LONG),
        TEXT.replace("text_input", LONG).replace("[1]", "[2]"),
        TEXT.replace("}", f',"parameters":{{"{LONG}":1}}}}'),
        SAMPLING.replace("@", f'"{{\\"{LONG}\\":1}}"') + "," + TEXT,
    ]
    bodies = [f'{{"inputs":[{tensor}]}}' for tensor in tensors]
    bodies.append(f'{{"inputs":[{TEXT}],"outputs":[{{"name":"{LONG}"}}]}}')
    bodies.append(f'{{"inputs":[{TEXT}],"model_name":"{LONG}"}}')
    for body in bodies:
        assert "kkk" in await check_refused(app, "/v2/models/model/infer", body.encode())
    for path in (f"/v2/models/{LONG}/infer", f"/v1/models/{LONG}:predict", f"/{LONG}"):
        answer = await app.client.post(path, b"{}")
        assert answer.status == 404
        assert len(answer.json["error"]) < 500


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_content_encoding_given_twice_is_400(make_app: Any, surface: str) -> None:
    path, body = with_member(surface, "")
    headers = [("content-encoding", "identity"), ("content-encoding", "gzip")]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app().app), base_url="http://server") as client:
        answer = await client.post(path, content=body, headers=headers)
    assert answer.status_code == (422 if "generate" in surface else 400)
    assert "content-encoding" in answer.text


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_bound_is_413_and_not_read_on(make_app: Any, surface: str, declared: bool) -> None:
    app = make_app(max_body_size=1000)
    path, body = with_member(surface, "")
    body += b" " * 1000
    exchange = app.client.open(path, body, {"content-length": str(len(body))} if declared else {})
    answer = await exchange.done()
    assert answer.status == 413, answer
    assert "max_body_size" in str(answer.json["error"])
    assert answer.headers["connection"] == "close"
    assert len(exchange._messages) == (2 if declared else 0)
    assert (await app.client.post(path, body[: -1000 + 500])).status in (200, 400, 422)


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_compressed_body_is_415(make_app: Any, surface: str) -> None:
    path, body = with_member(surface, "")
    answer = await make_app().client.post(path, body, {"content-encoding": "gzip"})
    assert answer.status == 415
    assert "gzip" in str(answer.json["error"])
