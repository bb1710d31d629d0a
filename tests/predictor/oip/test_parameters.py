"""Parameters of OIP requests into `SamplingParams`."""

from __future__ import annotations

import pytest

from engine.errors import InvalidParameterError
from engine.sampling_params import SamplingParams
from predictor.oip.parameters import merge_sampling_parameters, parameters_from_mapping


def test_no_parameters_are_the_defaults() -> None:
    read = parameters_from_mapping({})
    assert read.sampling == SamplingParams()
    assert read.sampling.max_tokens == 16
    assert read.sampling.temperature == 1.0
    assert (read.timeout, read.binary_data_output, read.empty_final_response) == (None, False, False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_tokens", 5, 5),
        ("max_tokens", "5", 5),
        ("max_tokens", None, None),
        ("temperature", 0.5, 0.5),
        ("temperature", "0.5", 0.5),
        ("temperature", "0", 0.0),
        ("temperature", 0, 0.0),
        ("top_p", "9e-1", 0.9),
        ("top_k", "-1", 0),
        ("min_p", ".25", 0.25),
        ("seed", "-7", -7),
        ("stop", "END", ("END",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", '["a", "b"]', ("a", "b")),
        ("stop", "[1]", ("[1]",)),
        ("stop", "[INST]", ("[INST]",)),
        ("stop_token_ids", [3, 4], (3, 4)),
        ("stop_token_ids", "[3, 4]", (3, 4)),
        ("n", "3", 3),
        ("presence_penalty", "-1.5", -1.5),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", "1.1", 1.1),
        ("min_tokens", "2", 2),
        ("ignore_eos", True, True),
        ("ignore_eos", "true", True),
        ("ignore_eos", "False", False),
        ("include_stop_str_in_output", "true", True),
        ("skip_special_tokens", False, False),
        ("logit_bias", {"5": -100}, {5: -100.0}),
        ("logit_bias", '{"5": 1.5}', {5: 1.5}),
        ("logprobs", 0, 0),
        ("logprobs", "2", 2),
        ("priority", 1, 1),
        ("cache_salt", "tenant", "tenant"),
    ],
)
def test_a_value_is_read_natively_or_from_its_string(name: str, value: object, expected: object) -> None:
    read = parameters_from_mapping({name: value})
    assert getattr(read.sampling, name) == expected
    assert read.given == (set() if value is None else {name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("max_tokens", "1.0"),
        ("max_tokens", ""),
        ("max_tokens", True),
        ("max_tokens", "9" * 5000),
        ("temperature", "warm"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "1e999"),
        ("temperature", "0x1"),
        ("temperature", None),
        ("temperature", [1]),
        ("top_p", 0),
        ("top_p", "1.1"),
        ("seed", 2**64),
        ("stop", 3),
        ("stop", [""]),
        ("stop", None),
        ("stop_token_ids", "3,4"),
        ("stop_token_ids", 3),
        ("stop_token_ids", ["3"]),
        ("ignore_eos", 1),
        ("ignore_eos", "yes"),
        ("n", 10_000),
        ("logprobs", 21),
        ("priority", -1),
        ("cache_salt", 5),
        ("cache_salt", ""),
        ("timeout", -1),
        ("timeout", 1.5),
        ("timeout", True),
        ("timeout", "soon"),
        ("timeout", 2**63),
        ("binary_data_output", "maybe"),
        ("triton_enable_empty_final_response", 0),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        parameters_from_mapping({name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400 or name == "n"


def test_an_unknown_name_is_refused_and_the_known_ones_listed() -> None:
    with pytest.raises(InvalidParameterError, match=r"unknown parameter 'temprature'.* temperature"):
        parameters_from_mapping({"temprature": 1})


@pytest.mark.parametrize(("name", "value"), [("sequence_id", 7), ("sequence_id", "a"), ("sequence_start", True)])
def test_sequence_parameters_are_refused_when_set(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{name}' is not supported"):
        parameters_from_mapping({name: value})


def test_sequence_parameters_pass_when_unset() -> None:
    unset = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert parameters_from_mapping(unset).sampling == SamplingParams()


def test_request_options() -> None:
    read = parameters_from_mapping(
        {"timeout": 1_500_000, "binary_data_output": True, "triton_enable_empty_final_response": "true"}
    )
    assert (read.timeout, read.binary_data_output, read.empty_final_response) == (1.5, True, True)
    assert parameters_from_mapping({"timeout": 0}).timeout is None


def test_sampling_parameters_join_the_request_parameters() -> None:
    merged = merge_sampling_parameters({"timeout": 5, "seed": 1}, b'{"temperature": 0.5, "stop": ["x"]}')
    assert merged == {"timeout": 5, "seed": 1, "temperature": 0.5, "stop": ["x"]}
    assert merge_sampling_parameters({"seed": 1}, None) == {"seed": 1}


@pytest.mark.parametrize(
    ("parameters", "sampling_parameters", "message"),
    [
        ({"seed": 1}, b'{"seed": 1}', "'seed' is given both"),
        ({}, b'{"timeout": 1}', "unknown key 'timeout'"),
        ({}, b'{"tempo": 1}', "unknown key 'tempo'"),
        ({}, b"[]", "JSON objects"),
        ({}, b"{", "JSON objects"),
        ({}, b"\xff", "JSON objects"),
        ({}, b"", "JSON objects"),
    ],
)
def test_bad_sampling_parameters_are_refused(parameters: dict, sampling_parameters: bytes, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        merge_sampling_parameters(parameters, sampling_parameters)
