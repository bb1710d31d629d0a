"""The server's log lines."""

from __future__ import annotations

import logging

QUIET_PATHS = frozenset({"/", "/health", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Asked every few seconds by probes and scrapers."""
FORMAT = "%(asctime)s.%(msecs)03d %(name)s %(levelname)s: %(message)s"


class QuietProbes(logging.Filter):
    """Drops the access-log lines of `QUIET_PATHS`."""

    def filter(self, record: logging.LogRecord) -> bool:
        # NOTE: uvicorn's access records carry (client, method, path with query, HTTP version, status).
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        return str(arguments[2]).partition("?")[0] not in QUIET_PATHS


def configure_logging() -> None:
    """Gives our own loggers a handler, as KServe gives one to its and uvicorn's only. Idempotent."""
    for name in ("predictor", "engine"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S"))
            logger.addHandler(handler)
    access = logging.getLogger("uvicorn.access")
    if not any(isinstance(one, QuietProbes) for one in access.filters):
        access.addFilter(QuietProbes())
