import dataclasses
import math

import pytest

from engine.errors import InvalidParameterError
from engine.sampling_params import DEFAULT_PRIORITY_LEVEL, SamplingParams


def test_defaults_are_those_of_the_documentation() -> None:
    params = SamplingParams()
    assert (params.n, params.max_tokens, params.temperature, params.top_p, params.top_k) == (1, 16, 1.0, 1.0, 0)
    assert not params.is_greedy
    assert SamplingParams(temperature=0).is_greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", 1.5),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stop", ["x"] * 65),
        ("stop", [chr(97 + i) * 1000 for i in range(5)]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "12"),
        ("ignore_eos", "yes"),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {1: 101}),
        ("logit_bias", [1]),
        ("logprobs", 21),
        ("priority", -1),
        ("cache_salt", ""),
    ],
)
def test_V3_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name
    assert name in str(caught.value)


def test_min_tokens_over_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_values_are_normalised() -> None:
    params = SamplingParams(top_k=-1, temperature=1, stop="END", logit_bias={"7": 5}, stop_token_ids=[1, 2])  # type: ignore[arg-type,dict-item]
    assert params.top_k == 0
    assert SamplingParams(top_k=2**31 - 1).top_k == 2**31 - 1
    assert isinstance(params.temperature, float)
    assert params.stop == ("END",)
    assert params.logit_bias == {7: 5.0}
    assert params.stop_token_ids == (1, 2)


def test_priority_zero_stands_for_the_default_level() -> None:
    assert SamplingParams().priority_level == DEFAULT_PRIORITY_LEVEL
    assert SamplingParams(priority=1).priority_level < SamplingParams().priority_level


def test_a_copy_is_checked_again() -> None:
    with pytest.raises(InvalidParameterError):
        dataclasses.replace(SamplingParams(), top_p=2.0)
