"""Schemas of the sampling parameters: bounds and defaults are those of `SamplingParams`."""

from __future__ import annotations

from dataclasses import MISSING, fields

from engine.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_PRIORITY_LEVEL,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_K,
    SamplingParams,
)
from predictor.oip.parameters import MAX_TIMEOUT_MICROSECONDS
from predictor.openapi.build import BOOLEAN, INTEGER, NUMBER, STRING, Schema, any_of, array, nullable

TOKEN_ID: Schema = {**INTEGER, "minimum": 0}
_STOP_STRING: Schema = {**STRING, "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_PENALTY: Schema = {**NUMBER, "minimum": -2, "maximum": 2}

_PLAIN: dict[str, tuple[Schema, str]] = {
    "n": ({**INTEGER, "minimum": 1, "maximum": MAX_N}, "Sequences generated from each prompt."),
    "max_tokens": ({**INTEGER, "minimum": 1}, "Bound of new tokens. Null is the rest of the context."),
    "min_tokens": ({**INTEGER, "minimum": 0}, "No end of sequence and no stop token before this many tokens."),
    "temperature": ({**NUMBER, "minimum": 0, "maximum": 100}, "0 is greedy."),
    "top_p": ({**NUMBER, "exclusiveMinimum": 0, "maximum": 1}, "Nucleus sampling."),
    "top_k": (
        {**INTEGER, "minimum": -1, "maximum": MAX_TOP_K},
        "Sampling among the k most likely tokens; 0 and -1 are off.",
    ),
    "min_p": ({**NUMBER, "minimum": 0, "maximum": 1}, "Least probability, as a share of the most likely token's."),
    "seed": ({**INTEGER, "minimum": -MAX_SEED - 1, "maximum": MAX_SEED}, "Null draws one."),
    "stop": (
        any_of(_STOP_STRING, array(_STOP_STRING, maxItems=MAX_STOP_STRINGS)),
        "Strings that end a sequence. They are not part of the text.",
    ),
    "stop_token_ids": (array(TOKEN_ID, maxItems=MAX_STOP_TOKEN_IDS), "Token ids that end a sequence."),
    "include_stop_str_in_output": (BOOLEAN, "Whether the text ends with the stop string that ended it."),
    "ignore_eos": (BOOLEAN, "Whether to go on past the model's end of sequence."),
    "presence_penalty": (_PENALTY, "Over generated tokens, as OpenAI defines it."),
    "frequency_penalty": (_PENALTY, "Over generated tokens, as OpenAI defines it."),
    "repetition_penalty": (
        {**NUMBER, "exclusiveMinimum": 0, "maximum": 100},
        "Over the tokens of prompt and output; 1 is none.",
    ),
    "logit_bias": (
        {
            "type": "object",
            "additionalProperties": {**NUMBER, "minimum": -100, "maximum": 100},
            "propertyNames": {"pattern": "^[0-9]{1,11}$"},
            "maxProperties": MAX_LOGIT_BIAS,
        },
        "Token id to a bias of its logit.",
    ),
    "logprobs": (
        {**INTEGER, "minimum": 0, "maximum": MAX_LOGPROBS},
        "Log probability of each token, and of that many of the most likely ones.",
    ),
    "skip_special_tokens": (BOOLEAN, "Whether special tokens are left out of the text."),
    "priority": (
        {**INTEGER, "minimum": 0, "maximum": MAX_PRIORITY_LEVEL},
        "0 is the default level, 1 is served first, larger numbers later.",
    ),
    "cache_salt": ({**STRING, "minLength": 1}, "Prefix-cache blocks are shared only with requests of the same salt."),
}
NULLABLE = ("max_tokens", "seed", "logprobs", "cache_salt")
"""Parameters to which null says something: no bound, none."""

_INTEGER_TEXT: Schema = {**STRING, "pattern": "^[+-]?[0-9]{1,20}$"}
_NUMBER_TEXT: Schema = {
    **STRING,
    "pattern": "^[+-]?([0-9]{1,40}([.][0-9]{0,40})?|[.][0-9]{1,40})([eE][+-]?[0-9]{1,3})?$",
}
_BOOLEAN_TEXT: Schema = {**STRING, "pattern": "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$"}
_TEXTS = {"integer": _INTEGER_TEXT, "number": _NUMBER_TEXT, "boolean": _BOOLEAN_TEXT}

TIMEOUT: Schema = any_of({**INTEGER, "minimum": 0, "maximum": MAX_TIMEOUT_MICROSECONDS}, _INTEGER_TEXT)


def described(name: str) -> Schema:
    """The schema of a sampling parameter, with its description and default. It allows no null."""
    schema, description = _PLAIN[name]
    extra: Schema = {"description": description}
    default = _DEFAULTS[name]
    if default is not None and default not in ((), {}):
        extra["default"] = default
    return {**schema, **extra}


def text_or_plain_parameters() -> dict[str, Schema]:
    """Every sampling parameter in its JSON type, null where it has a meaning, or as text.

    A number or boolean may be its text, a list or object its JSON text.
    """
    return {name: _with_null(name, _or_text(name)) for name in _PLAIN}


def scalar_parameters() -> dict[str, Schema]:
    """The same in the form of OIP's request parameters: strings, numbers and booleans only."""
    return {name: {**_scalar(name), "description": _PLAIN[name][1]} for name in _PLAIN}


def option_parameters() -> dict[str, Schema]:
    """What stands beside the sampling parameters in an OIP request."""
    unset = {"enum": [0, "", "0", "false", False]}
    sequence = {**unset, "description": "Refused when set: this model keeps no state between requests."}
    return {
        "timeout": {**TIMEOUT, "description": "Microseconds after which the request is aborted; 0 is never."},
        "binary_data_output": {
            **any_of(BOOLEAN, _BOOLEAN_TEXT),
            "description": "Whether outputs come as binary data unless they say otherwise.",
        },
        "triton_enable_empty_final_response": {
            **any_of(BOOLEAN, _BOOLEAN_TEXT),
            "description": "Of ModelStreamInfer: whether a stream ends with a response without outputs.",
        },
        "sequence_id": sequence,
        "sequence_start": sequence,
        "sequence_end": sequence,
    }


def _with_null(name: str, schema: Schema) -> Schema:
    return nullable(schema) if name in NULLABLE else schema


def _or_text(name: str) -> Schema:
    if name in ("stop_token_ids", "logit_bias"):
        return any_of(described(name), {**STRING, "description": "The same as JSON text."})
    text = _TEXTS.get(_PLAIN[name][0].get("type", ""))
    return described(name) if text is None else any_of(described(name), text)


def _scalar(name: str) -> Schema:
    if name in ("stop_token_ids", "logit_bias"):
        return {**STRING, "description": "JSON text."}
    if name == "stop":
        return {**STRING, "minLength": 1}
    return _or_text(name)


_DEFAULTS = {
    one.name: one.default_factory() if one.default_factory is not MISSING else one.default
    for one in fields(SamplingParams)
}
