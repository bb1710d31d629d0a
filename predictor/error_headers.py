"""The headers that an HTTP answer to an error carries, the same on every surface."""

from __future__ import annotations

import math

from engine.errors import OverloadedError, RequestAbortedError, UnavailableError
from predictor.bodies import BodyTooLargeError


def retry_after(error: Exception) -> int | None:
    """Whole seconds after which the same may be asked again, of this server or of another one, else None."""
    if isinstance(error, OverloadedError):
        return max(1, math.ceil(error.retry_after))
    return 1 if isinstance(error, UnavailableError | RequestAbortedError) else None


def error_headers(error: Exception) -> dict[str, str]:
    """Retry-After where it helps; the end of a connection whose body was not read to its end."""
    if isinstance(error, BodyTooLargeError):
        return {"connection": "close"}
    seconds = retry_after(error)
    return {} if seconds is None else {"retry-after": str(seconds)}
