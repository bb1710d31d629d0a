"""Log lines as JSON objects, one a line: the same from the server and from its engine process."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

LOG_FORMAT_VARIABLE = "PAGEDSERVE_LOG_FORMAT"
"""Tells the engine process how to write its lines."""
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What JSON lets stand and a terminal obeys or does not show, or a reader takes for the end of a line."""


class JsonFormatter(logging.Formatter):
    """A record as one JSON object on one line.

    Members: time (RFC 3339, UTC, milliseconds), level, logger, message, those of the record's attribute `fields` (a
    dict), and where there is an exception `exception`, its traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
