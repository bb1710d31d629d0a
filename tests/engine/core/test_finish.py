from __future__ import annotations

import pytest

from engine.core.finish import Finish, FinishRules
from tests.engine.core.support import make_request

EOS, STOP, PLAIN = 7, 8, 9


def check(output: list[int], *, prompt_len: int = 3, max_model_len: int = 100, **params: object) -> Finish | None:
    request = make_request("r", range(20, 20 + prompt_len), **{"max_tokens": 50, **params})
    request.token_ids += output
    return FinishRules([EOS], max_model_len).check(request)


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([PLAIN], {}, None),
        ([EOS], {}, Finish("stop", EOS)),
        ([EOS, PLAIN], {}, None),  # only the last token counts
        ([STOP], {}, None),
        ([STOP], {"stop_token_ids": (1, STOP)}, Finish("stop", STOP)),
        ([EOS], {"ignore_eos": True}, None),  # T7
        ([STOP], {"ignore_eos": True, "stop_token_ids": (STOP,)}, Finish("stop", STOP)),
        ([EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, Finish("stop", EOS)),
        ([EOS], {"min_tokens": 2}, None),
        ([PLAIN, EOS], {"min_tokens": 2}, Finish("stop", EOS)),
        ([STOP], {"min_tokens": 2, "stop_token_ids": (STOP,)}, None),
    ],
)
def test_stop_ids(output: list[int], params: dict[str, object], expected: Finish | None) -> None:
    assert check(output, **params) == expected


def test_S9_max_tokens_is_exact() -> None:
    assert check([PLAIN] * 7, max_tokens=8) is None
    assert check([PLAIN] * 8, max_tokens=8) == Finish("length")


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    assert check([PLAIN, EOS], max_tokens=2) == Finish("stop", EOS)


def test_V6_a_prompt_of_context_minus_one_gets_one_token() -> None:
    assert check([PLAIN], prompt_len=15, max_model_len=16) == Finish("length")


def test_V7_prompt_and_output_together_fill_the_context() -> None:
    assert check([PLAIN] * 5, prompt_len=10, max_model_len=16, max_tokens=10) is None
    assert check([PLAIN] * 6, prompt_len=10, max_model_len=16, max_tokens=10) == Finish("length")


def test_without_max_tokens_the_rest_of_the_context() -> None:
    assert check([PLAIN] * 12, max_model_len=16, max_tokens=None) is None
    assert check([PLAIN] * 13, max_model_len=16, max_tokens=None) == Finish("length")


@pytest.mark.parametrize(
    ("params", "max_model_len", "num_tokens", "expected"),
    [
        ({"max_tokens": 4}, 100, 6, False),
        ({"max_tokens": 4}, 100, 7, True),
        ({"max_tokens": None}, 9, 8, False),
        ({"max_tokens": None}, 9, 9, True),
        ({"max_tokens": 50}, 9, 9, True),
        ({"max_tokens": 4, "min_tokens": 4}, 100, 6, False),
    ],
)
def test_the_end_by_length_is_known_before_the_tokens_are(
    params: dict[str, object], max_model_len: int, num_tokens: int, expected: bool
) -> None:
    request = make_request("r", [1, 2, 3], **params)
    assert FinishRules([EOS], max_model_len).ends_at(request, num_tokens) == expected
