"""What a caller sent, short enough for the message of an error."""

from __future__ import annotations

from typing import Any

MAX_SHOWN = 100
"""Characters; a message that repeats all of a name or value could be as long as the request."""


def brief(value: Any) -> str:
    """`repr(value)`, cut."""
    return brief_text(repr(value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else value))


def brief_text(text: str) -> str:
    """The text as it is, cut."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
