"""The keys that clients may present, kept as digests; a file of them is read anew when it changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.errors import ConfigError
from predictor.file_stamp import file_stamp

logger = logging.getLogger("predictor")

_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)
"""RFC 9110, section 11.4: the scheme in any case, blanks, the token."""
_KEY = re.compile(r"[!-~]+")
"""Visible ASCII: what a header carries unchanged."""


class ApiKeys:
    """The keys given at the start, and those of a file.

    keys: the keys themselves. file: one key a line; empty lines and lines that begin with # are skipped. The file is
    looked at whenever a key is checked; one that cannot be used leaves the keys as they were, and the log says so.
    Raises `ConfigError` for a key that no header could carry, and for a file that cannot be read or holds no key.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        check_keys(keys)
        self._given = _digests(keys)
        self._file = file
        self._stamp = None if file is None else file_stamp(file)
        self._of_file = () if file is None else _digests(read_key_file(file))

    def __bool__(self) -> bool:
        """Whether there is any key: without one, everybody is let in."""
        return self._file is not None or bool(self._given)

    def accept(self, authorization: str | None) -> bool:
        """Whether the value of an `authorization` header is `Bearer` and one of the keys."""
        match = _BEARER.fullmatch(authorization or "")
        presented = _digest(match[1] if match else "")
        found = False
        # NOTE: digests have one length and every one is compared: the time tells nothing of which key was close.
        for known in (*self._given, *self._current_of_file()):
            found |= hmac.compare_digest(presented, known)
        return found

    def _current_of_file(self) -> tuple[bytes, ...]:
        if self._file is not None and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp
            try:
                self._of_file = _digests(read_key_file(self._file))
                logger.info("api_key_file has changed: %d keys", len(self._of_file))
            except ConfigError as error:
                logger.warning("The keys stay as they were: %s", error)
        return self._of_file


def check_keys(keys: Iterable[str], where: str = "api_key") -> None:
    """Raises `ConfigError`, which never shows a key."""
    for number, key in enumerate(keys, 1):
        if not key:
            raise ConfigError(f"{where} must not be empty (key {number}); leave it out to let everybody in")
        if _KEY.fullmatch(key) is None:
            raise ConfigError(f"{where} (key {number}) holds a blank or a character that is not visible ASCII")


def read_key_file(path: Path) -> list[str]:
    """The keys in the file. Raises `ConfigError`."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"api_key_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"api_key_file {path} is not a text file") from None
    keys = [key for line in text.splitlines() if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key; write one a line")
    check_keys(keys, f"api_key_file {path}")
    return keys


def _digests(keys: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(_digest(key) for key in keys)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
