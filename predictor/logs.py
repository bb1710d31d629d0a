"""The server's log lines: one format for every logger, written by a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import select
import sys
import threading
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, TextIO

from engine.log_format import JsonFormatter
from predictor.request_context import current_request

QUIET_PATHS = frozenset({"/", "/health", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Asked every few seconds by probes and scrapers."""
FORMAT = "%(asctime)s.%(msecs)03d %(name)s %(levelname)s: %(message)s"
OWN_LOGGERS = ("predictor", "engine", "kserve", "kserve.trace", "uvicorn", "uvicorn.error")
"""Loggers whose lines are shown from the level INFO on; others from WARNING on."""
MAX_QUEUED_LINES = 10_000
"""Lines that may wait for standard error to take them; further ones are left out and counted."""
MAX_LINES_A_WRITE = 256
CLOSE_SECONDS = 2.0
"""What is left of the queue gets so long to be written at the end."""

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")


class TextFormatter(logging.Formatter):
    """`FORMAT`, then the record's `fields` as name=value; a value that holds more than plain ASCII is quoted."""

    def __init__(self) -> None:
        super().__init__(FORMAT, "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's own name
        fields: dict[str, Any] = getattr(record, "fields", {})
        return " ".join([super().formatMessage(record), *(f"{name}={_plain(value)}" for name, value in fields.items())])


class Stream(Protocol):
    """What lines are written to."""

    def write(self, text: str, /) -> Any: ...

    def flush(self) -> Any: ...


class Descriptor:
    """A file descriptor as a stream without a buffer.

    NOTE: Python's own standard error has a lock. A thread that is stuck in a write would hold it, and the process could
    not end then but by a fatal error.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._is_within_line = False

    def write(self, text: str) -> None:
        """Writes whole lines, and waits for room. Raises `OSError`; what follows half a line then begins a new one."""
        data = text.encode(errors="backslashreplace")
        if self._is_within_line:
            data = b"\n" + data
        while data:
            try:
                count = os.write(self._number, data)
            except BlockingIOError:
                # NOTE: who shares the descriptor (a terminal, a supervisor) may have set it so.
                select.select((), (self._number,), ())
                continue
            if count:
                self._is_within_line = data[count - 1 : count] != b"\n"
            data = data[count:]

    def flush(self) -> None:
        """Nothing is held back."""


class LogWriter(logging.Handler):
    """Takes records without waiting; formats and writes them on its own thread.

    A request that logs is never held up by a slow reader of `stream`. With `capacity` lines waiting, further ones are
    left out, and a line says how many. Each record that is made while a request is handled gets its ids.
    """

    def __init__(self, stream: Stream, formatter: logging.Formatter, capacity: int = MAX_QUEUED_LINES) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        self._capacity = capacity
        self._num_left_out = 0
        self._queue: queue.SimpleQueue[logging.LogRecord | str | threading.Event] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if record.args:
            # NOTE: what the arguments hold may have changed by the time the thread formats them. Where they do not fit
            # the message or have no text, whatever they raise, the thread says so: who logs must not fail by it.
            with contextlib.suppress(Exception):
                record.msg, record.args = record.getMessage(), None
        if not hasattr(record, "fields") and (request := current_request()) is not None:
            fields = {"request_id": request.request_id}
            if request.trace_id is not None:
                fields["trace_id"] = request.trace_id
            record.__dict__["fields"] = fields
        self._put(record)

    def write_line(self, line: str) -> None:
        """Writes a line that has its format already."""
        self._put(line)

    def _put(self, item: logging.LogRecord | str) -> None:
        if self._queue.qsize() >= self._capacity:
            self._num_left_out += 1
        else:
            self._queue.put(item)

    def flush(self) -> None:
        """Waits until what was logged before is written, for `CLOSE_SECONDS` at most."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            written = threading.Event()
            self._queue.put(written)
            written.wait(CLOSE_SECONDS)

    def close(self) -> None:
        self.flush()
        super().close()

    def _run(self) -> None:
        while True:
            lines: list[str] = []
            waiting: list[threading.Event] = []
            item = self._queue.get()
            while True:
                if isinstance(item, threading.Event):
                    waiting.append(item)
                else:
                    lines.append(item if isinstance(item, str) else self._line(item))
                if len(lines) >= MAX_LINES_A_WRITE:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            num_lines = len(lines)
            if (count := self._num_left_out) > 0:
                text = f"{count} log lines were left out: standard error did not take them, or too slowly"
                lines.append(self._line(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)))
            if self._write("".join(f"{line}\n" for line in lines)):
                self._num_left_out -= count
            else:
                self._num_left_out += num_lines
            for event in waiting:
                event.set()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:
            # NOTE: one record that cannot be formatted must not end the lines of all others.
            text = f"a log record of {record.name} cannot be formatted: {type(error).__name__}"
            return self.format(logging.LogRecord(__name__, logging.ERROR, "", 0, text, None, None))

    def _write(self, text: str) -> bool:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # NOTE: a full disk, or nobody reads standard error any more, or it is closed: there is no other place to
            # say so. What fails is counted, as it may go on.
            return False
        return True


def configure_logging(log_format: str = "text") -> LogWriter:
    """One handler, of the format "text" or "json", for every logger of this process. Idempotent.

    In JSON, warnings and exceptions that nobody catches are lines of the log, too. uvicorn's access lines are off: the
    request log (`predictor.request_log`) has all that they have.
    """
    writer = writer_to(sys.stderr, JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, LogWriter)]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(writer)
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.INFO)
        logger.propagate = True
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    # NOTE: KServe configures logging, its own and uvicorn's, where its logger has no handler of its own.
    kserve = logging.getLogger("kserve")
    kserve.addHandler(logging.NullHandler())
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda caught: _log_uncaught(
            caught.exc_type, caught.exc_value or caught.exc_type(), caught.exc_traceback
        )
        sys.unraisablehook = _log_unraisable
    return writer


def writer_to(output: TextIO, formatter: logging.Formatter | None = None) -> LogWriter:
    """A writer to standard output or standard error. Without a formatter it is for lines that have their format."""
    try:
        return LogWriter(Descriptor(output.fileno()), formatter or TextFormatter())
    except (OSError, ValueError):
        # NOTE: those of a notebook and of a test have no descriptor.
        return LogWriter(output, formatter or TextFormatter())


def on_engine_line(writer: LogWriter, line: str) -> None:
    """A line that the engine process wrote to standard error: one of its log, in JSON, or of a library's own."""
    try:
        record = _engine_record(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError):
        if line.strip():
            logging.getLogger("engine.stderr").info("%s", line)
        return
    if isinstance(writer.formatter, JsonFormatter):
        writer.write_line(line)
    else:
        writer.handle(record)


def _engine_record(members: Any) -> logging.LogRecord:
    """What `JsonFormatter` made a line of. Raises where it did not make it."""
    level = logging.getLevelNamesMapping()[members["level"].upper()]
    record = logging.LogRecord(members["logger"], level, "", 0, members["message"], None, None)
    moment = datetime.fromisoformat(members["time"])
    record.created, record.msecs = moment.timestamp(), moment.microsecond // 1000
    record.exc_text = members.get("exception")
    return record


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("predictor").critical("an exception ended a thread", exc_info=(kind, error, traceback))


def _log_unraisable(caught: sys.UnraisableHookArgs) -> None:
    # NOTE: of the object only the class, as its text may hold anything.
    error = caught.exc_value or caught.exc_type()
    logging.getLogger("predictor").error(
        "an exception was ignored in %s",
        type(caught.object).__name__,
        exc_info=(caught.exc_type, error, caught.exc_traceback),
    )


def _plain(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
