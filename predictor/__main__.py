"""`python -m predictor`, also installed as `pagedserve`: serves. With `warmup` before the flags it only makes ready."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from engine.errors import StartupError
from predictor.args import ENV_PREFIX, parse_config, usage

USAGE_ERROR = 2
WARM_UP = "warmup"


def main(argv: Sequence[str] | None = None) -> int:
    """Serves, or warms up, as the command line says; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    warms_up = words[:1] == [WARM_UP]
    try:
        config = parse_config(words[1:] if warms_up else words, os.environ)
    except StartupError as error:
        print(f"pagedserve: {error}\n{usage()}", file=sys.stderr)
        return USAGE_ERROR
    # NOTE: the engine process, and whatever else is started from here, inherits the environment but needs no key.
    os.environ.pop(f"{ENV_PREFIX}API_KEY", None)
    if warms_up:
        from predictor.warm_up import run

        return run(config.engine)
    # NOTE: read when gRPC is imported. By default its core tells of every failed handshake, in lines of its own format.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # NOTE: importing kserve takes seconds and parses the command line: only after ours is known to be right.
    from predictor.server import serve

    try:
        return serve(config)
    except StartupError as error:
        if config.log_format == "json":
            logging.getLogger("predictor").error("the server cannot start: %s", error)  # noqa: TRY400  a message for the user
        else:
            print(f"pagedserve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
