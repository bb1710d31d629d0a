"""Request parameters of the Open Inference Protocol, read into `SamplingParams` and request options.

The same keys come as request-level `parameters`, in the `sampling_parameters` tensor, and in `:predict`'s
`parameters`. OIP allows a string, number or boolean as a parameter's value, and some clients cannot send numbers with a
fraction: a number or a boolean is also read from its decimal or true/false string, a list from a JSON list in a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine.brief import brief
from engine.errors import InvalidParameterError
from engine.sampling_params import SamplingParams
from predictor.json_text import load_json

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_NULLABLE = frozenset({"max_tokens", "seed", "logprobs", "cache_salt"})
_SEQUENCE_KEYS = ("sequence_id", "sequence_start", "sequence_end")
MAX_TIMEOUT_MICROSECONDS = 7 * 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """What the parameters of one prompt ask for.

    sampling: validated. given: names the caller set, to whatever but null.
    timeout: seconds from the request's arrival after which it is aborted, or None.
    binary_data_output: whether output tensors go as binary data unless the output says otherwise (REST).
    empty_final_response: whether a stream ends with an extra response that holds no output (ModelStreamInfer).
    """

    sampling: SamplingParams
    given: frozenset[str]
    timeout: float | None = None
    binary_data_output: bool = False
    empty_final_response: bool = False


def parameters_from_mapping(mapping: Mapping[str, Any]) -> RequestParameters:
    """Reads sampling keys and request options from one mapping.

    Values: string, number, boolean; for `stop`, `stop_token_ids` and `logit_bias` also a list or an object; null only
    where it has a meaning (`max_tokens`: the rest of the context).
    Raises `InvalidParameterError`, whose message and `.param` name the key: an unknown key, a wrong type, a value out
    of range, or a set `sequence_*` key (this model keeps no state between requests).
    """
    sampling: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in mapping.items():
        if name in _SEQUENCE_KEYS:
            _refuse_sequence(name, value)
        elif name in _SAMPLING:
            if value is None and name not in _NULLABLE:
                raise InvalidParameterError(f"parameter '{name}' must not be null; leave it out instead", param=name)
            sampling[name] = None if value is None else _SAMPLING[name](name, value)
        elif name in _OPTIONS:
            field, read = _OPTIONS[name]
            options[field] = read(name, value)
        else:
            raise InvalidParameterError(
                f"unknown parameter {brief(name)}; known are {', '.join(sorted({*_SAMPLING, *_OPTIONS}))}",
                param=str(name),
            )
    given = frozenset(name for name, value in mapping.items() if value is not None)
    return RequestParameters(sampling=SamplingParams(**sampling), given=given, **options)


def merge_sampling_parameters(parameters: Mapping[str, Any], sampling_parameters: bytes | None) -> dict[str, Any]:
    """Joins request-level parameters with one element of the `sampling_parameters` tensor (a JSON object).

    Raises `InvalidParameterError` for JSON that is not an object, a key that is no sampling parameter, and a key that
    stands in both places.
    """
    if sampling_parameters is None:
        return dict(parameters)
    name = "sampling_parameters"
    try:
        values = load_json(sampling_parameters, name, param=name)
    except orjson.JSONDecodeError as error:
        raise InvalidParameterError(f"{name} must hold JSON objects: {error}", param=name) from None
    if not isinstance(values, dict):
        raise InvalidParameterError(f"{name} must hold JSON objects, got {brief(sampling_parameters)}", param=name)
    for key in values:
        if key not in _SAMPLING:
            raise InvalidParameterError(
                f"unknown key {brief(key)} in {name}; known are {', '.join(sorted(_SAMPLING))}", param=key
            )
        if key in parameters:
            raise InvalidParameterError(
                f"'{key}' is given both in {name} and in the request's parameters; give it once", param=key
            )
    return {**parameters, **values}


def _refuse_sequence(name: str, value: Any) -> None:
    is_unset = value is None or value is False or value in (0, "", "0", "false")
    if not is_unset:
        raise InvalidParameterError(
            f"parameter '{name}' is not supported: this model keeps no state between requests", param=name
        )


def _integer(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _INTEGER.fullmatch(value):
        raise InvalidParameterError(f"parameter '{name}' must be an integer, got {brief(value)}", param=name)
    return int(value)


def read_number(name: str, value: Any) -> Any:
    """The number that a decimal string holds; other values as they are. Raises `InvalidParameterError`."""
    if not isinstance(value, str):
        return value
    if not _NUMBER.fullmatch(value):
        raise InvalidParameterError(f"parameter '{name}' must be a decimal number, got {brief(value)}", param=name)
    return float(value)


def parameter_boolean(value: Any) -> bool | None:
    """A boolean, or its true/false string, else None."""
    read = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    return read if isinstance(read, bool) else None


def _boolean(name: str, value: Any) -> bool:
    read = parameter_boolean(value)
    if read is None:
        raise InvalidParameterError(f"parameter '{name}' must be true or false, got {brief(value)}", param=name)
    return read


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidParameterError(f"parameter '{name}' must be a string, got {brief(value)}", param=name)
    return value


def _stop(_name: str, value: Any) -> Any:
    # NOTE: any text may be a stop string, "[1]" and "[INST]" too: only a JSON list of strings is read as a list.
    if isinstance(value, str) and value.startswith("["):
        try:
            items = orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
        return items if all(isinstance(item, str) for item in items) else value
    return value


def _json_value(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return load_json(value, f"parameter '{name}'", param=name)
    except orjson.JSONDecodeError as error:
        raise InvalidParameterError(
            f"parameter '{name}' must be JSON when given as a string: {error}", param=name
        ) from (None)


def _timeout(name: str, value: Any) -> float | None:
    """Microseconds to seconds; 0 is no deadline, as in Triton's protocol."""
    microseconds = _integer(name, value)
    if isinstance(microseconds, bool) or not isinstance(microseconds, int) or microseconds < 0:
        raise InvalidParameterError(
            f"parameter '{name}' must be a whole number of microseconds, got {brief(value)}", param=name
        )
    if microseconds > MAX_TIMEOUT_MICROSECONDS:
        raise InvalidParameterError(
            f"parameter '{name}' must be at most {MAX_TIMEOUT_MICROSECONDS} microseconds", param=name
        )
    return microseconds / 1_000_000 if microseconds else None


_SAMPLING: dict[str, Callable[[str, Any], Any]] = {
    "max_tokens": _integer,
    "min_tokens": _integer,
    "temperature": read_number,
    "top_p": read_number,
    "top_k": _integer,
    "min_p": read_number,
    "seed": _integer,
    "stop": _stop,
    "stop_token_ids": _json_value,
    "n": _integer,
    "presence_penalty": read_number,
    "frequency_penalty": read_number,
    "repetition_penalty": read_number,
    "ignore_eos": _boolean,
    "include_stop_str_in_output": _boolean,
    "skip_special_tokens": _boolean,
    "logit_bias": _json_value,
    "logprobs": _integer,
    "priority": _integer,
    "cache_salt": _text,
}

_OPTIONS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "timeout": ("timeout", _timeout),
    "binary_data_output": ("binary_data_output", _boolean),
    "triton_enable_empty_final_response": ("empty_final_response", _boolean),
}

SAMPLING_PARAMETERS = frozenset(_SAMPLING)
