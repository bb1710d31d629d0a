"""Command line and environment into one frozen `ServerConfig`. Imports neither kserve nor the engine's model code.

Flags are KServe's style: `--max_model_len 4096`, `--max-model-len=4096`. Each may come from the environment variable
`PAGEDSERVE_<FLAG>` instead; the command line wins. What is unknown in either is an error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NoReturn

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.metrics import package_version
from predictor.config import ServerConfig
from predictor.flags import FLAGS, UNSET_DEFAULTS, Flag

ENV_PREFIX = "PAGEDSERVE_"
KSERVE_MODEL_MOUNT = Path("/mnt/models")
"""Where KServe mounts the model; its name says nothing of the model."""

_NAMED_TWICE = [(flag.name, flag.alias) for flag in FLAGS if flag.alias is not None]

# NOTE: Kubernetes sets such variables in every pod of a namespace that has a Service named pagedserve or pagedserve-*.
_SERVICE_LINK = re.compile(r".*_SERVICE_(HOST|PORT(_.+)?)|(.*_)?PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://.*")


class _Parser(argparse.ArgumentParser):
    """Raises `ConfigError` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> ServerConfig:
    """The configuration of this server. Raises `ConfigError`; `--help` and `--version` print and raise `SystemExit`."""
    given = _from_environment(environ)
    given.update(_from_command_line([_underscored(word) for word in argv]))
    given["served_model_aliases"] = _aliases(given.get("served_model_aliases", ()))
    given["api_key"] = tuple(key.strip() for word in given.get("api_key", ()) for key in word.split(","))
    if "model_dir" not in given:
        from engine.demo import demo_model_path

        given["model_dir"] = demo_model_path()
    elif "model_name" not in given:
        given["model_name"] = _name_of(Path(given["model_dir"]))
    of_engine = {f.name for f in fields(EngineConfig)}
    engine = EngineConfig.from_kwargs(**{k: v for k, v in given.items() if k in of_engine})
    return ServerConfig(engine=engine, **{k: v for k, v in given.items() if k not in of_engine})


def usage() -> str:
    """The line that a refusal ends with."""
    return "run `python -m predictor --help` for the flags"


def _from_command_line(words: Sequence[str]) -> dict[str, Any]:
    used = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
    for names in _NAMED_TWICE:
        _refuse_both([f"--{name}" for name in names if name in used])
    given, unknown = _parser().parse_known_args(words)
    if unknown:
        # NOTE: the value of a misspelt flag may be a key, which must not reach a log.
        hidden = any("api_key" in word for word in words)
        flags = [word.partition("=")[0] for word in unknown if word.startswith("--" if hidden else "-")]
        raise ConfigError(f"unrecognized: {' '.join(flags or ([] if hidden else unknown)) or 'a word after the flags'}")
    return vars(given)


def _parser() -> _Parser:
    parser = _Parser(
        prog="pagedserve",
        description="Serves a large language model over the Open Inference Protocol (REST and gRPC) and OpenAI's API.",
        epilog=f"Each flag may also be given as an environment variable, such as {ENV_PREFIX}HTTP_PORT=8080; "
        "the command line wins. Flags may be written with - or _. `pagedserve warmup` and the same flags compile what "
        "the server would compile at its start, and end.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"pagedserve {package_version()}")
    groups: dict[str, Any] = {}
    for flag in FLAGS:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        # NOTE: `%` starts a format in argparse's help.
        text = f"{flag.text} (default: {_default_text(flag.name)})".replace("%", "%%")
        options: dict[str, Any] = {"type": _argparse_type(flag), "help": text, "metavar": flag.metavar}
        if flag.is_list:
            options |= {"nargs": "+", "action": "extend"}
        names = [f"--{name}" for name in (flag.name, flag.alias) if name is not None]
        groups[flag.group].add_argument(*names, **options)
    return parser


def _argparse_type(flag: Flag) -> Any:
    def parse(text: str) -> Any:
        try:
            return flag.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}, got {text!r}") from None

    return parse


def _underscored(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _default_text(name: str) -> str:
    if name in UNSET_DEFAULTS:
        return UNSET_DEFAULTS[name]
    default = next(f.default for c in (EngineConfig, ServerConfig) for f in fields(c) if f.name == name)
    assert default is not MISSING
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {ENV_PREFIX + name.upper(): flag for flag in FLAGS for name in (flag.name, flag.alias) if name}
    for names in _NAMED_TWICE:
        _refuse_both([variable for name in names if (variable := ENV_PREFIX + name.upper()) in environ])
    given: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or _is_service_link(variable, text):
            continue
        flag = by_variable.get(variable)
        if flag is None:
            raise ConfigError(f"unknown environment variable {variable}; known are {', '.join(sorted(by_variable))}")
        try:
            given[flag.name] = [text] if flag.is_list else flag.parse(text)
        except ValueError as error:
            raise ConfigError(f"{variable} {error}, got {text!r}") from None
    return given


def _refuse_both(used: Sequence[str]) -> None:
    """used: which of a flag's two names were used in one place."""
    if len(used) > 1:
        raise ConfigError(f"{used[1]} is another name of {used[0]}: give one of them")


def _is_service_link(variable: str, text: str) -> bool:
    if _SERVICE_LINK.fullmatch(variable) is None:
        return False
    own = variable.removeprefix(ENV_PREFIX).lower() in {flag.name for flag in FLAGS}
    return not own or _SERVICE_LINK_VALUE.fullmatch(text) is not None


def _aliases(words: Sequence[str]) -> tuple[str, ...]:
    """Names given apart or with commas, each once."""
    return tuple(dict.fromkeys(name for word in words for name in re.split(r"[,\s]+", word) if name))


def _name_of(model_dir: Path) -> str:
    if model_dir == KSERVE_MODEL_MOUNT:
        return "model"
    path = model_dir.resolve()
    return (path.stem if path.suffix.lower() == ".gguf" else path.name) or "model"
