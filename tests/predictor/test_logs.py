"""One format for every line, written beside the event loop."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.log_format import JsonFormatter
from predictor.logs import Descriptor, LogWriter, TextFormatter, on_engine_line
from predictor.request_context import RequestContext, RequestEdge

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is flushed is written, however long the thread is not scheduled."""
    monkeypatch.setattr("predictor.logs.CLOSE_SECONDS", 60.0)


WriterTo = Callable[..., LogWriter]


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger of this test alone."""
    logger = logging.getLogger("tests.logs")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.propagate = True


@pytest.fixture
def writer_to(log: logging.Logger) -> Iterator[WriterTo]:
    """writer_to(stream, formatter, capacity=...): a writer that `log` writes to."""
    made: list[LogWriter] = []

    def make(stream: Any, formatter: logging.Formatter | None = None, **options: Any) -> LogWriter:
        made.append(LogWriter(stream, formatter or JsonFormatter(), **options))
        log.addHandler(made[-1])
        return made[-1]

    yield make
    for one in made:
        one.close()


class BlockedStream(io.StringIO):
    """Takes nothing until `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.is_writing = threading.Event()

    def write(self, text: str) -> int:
        self.is_writing.set()
        assert self.open.wait(60)
        return super().write(text)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_line(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    log.warning("one\ntwo %s", "\u2028ü\r\n")
    writer.flush()
    (line,) = stream.getvalue().split("\n")[:-1]
    read = json.loads(line)
    assert read.pop("time").endswith("Z")
    assert read == {"level": "warning", "logger": "tests.logs", "message": "one\ntwo \u2028ü\r\n"}


def test_what_a_terminal_obeys_or_ends_a_line_is_escaped_in_json() -> None:
    record = logging.LogRecord(
        "tests.logs",
        logging.INFO,
        "f.py",
        1,
        "ü \x1b[31m \x7f \x85 \x9b31m \u2028 \u2029 \u202e\u2066\ufeff",
        None,
        None,
    )
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert all(character.isprintable() for character in line)
    assert "ü" in line
    assert json.loads(line)["message"] == record.getMessage()


def test_an_exception_is_a_member_of_its_line(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    try:
        raise ValueError("on purpose")
    except ValueError:
        log.exception("it failed")
    writer.flush()
    (line,) = lines_of(stream)
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: on purpose")


def test_fields_of_text_lines_cannot_be_forged(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream, TextFormatter())
    log.info("a line", extra={"fields": {"model": "a b\nstatus=200", "seconds": 0.25, "quoted": 'x"y', "plain": "m/1"}})
    writer.flush()
    assert stream.getvalue().endswith(
        ' tests.logs INFO: a line model="a b\\nstatus=200" seconds=0.25 quoted="x\\"y" plain=m/1\n'
    )


def test_a_line_within_a_request_has_its_ids(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    edge = RequestEdge()
    request = RequestContext("r1", "http", "GET", edge, trace_id="ab" * 16)
    with edge.handling(request):
        log.error("within")
    log.error("without")
    writer.flush()
    within, without = lines_of(stream)
    assert (within["request_id"], within["trace_id"]) == ("r1", "ab" * 16)
    assert "request_id" not in without


def test_a_stuck_stream_holds_nobody_up_and_the_lines_left_out_are_counted(
    log: logging.Logger, writer_to: WriterTo
) -> None:
    stream = BlockedStream()
    writer = writer_to(stream, capacity=10)
    log.info("first")
    assert stream.is_writing.wait(60)
    for number in range(25):
        log.info("line %d", number)
    stream.open.set()
    writer.flush()
    messages = [line["message"] for line in lines_of(stream)]
    assert messages[:11] == ["first", *(f"line {n}" for n in range(10))]
    assert messages[11] == "15 log lines were left out: standard error did not take them, or too slowly"


def test_arguments_are_read_at_once(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = BlockedStream()
    writer = writer_to(stream)
    names = ["a"]
    log.info("names %s", names)
    names.append("b")
    stream.open.set()
    writer.flush()
    assert lines_of(stream)[0]["message"] == "names ['a']"


def test_a_record_that_cannot_be_formatted_ends_no_other(writer_to: WriterTo) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    stream = io.StringIO()
    writer = writer_to(stream)
    for message, arguments in ((Odd(), None), ("%d tokens", ("no number",)), ("%s", (Odd(),)), ("next", None)):
        writer.handle(logging.LogRecord("tests.logs", logging.INFO, "", 0, message, arguments, None))
    writer.flush()
    *failed, last = lines_of(stream)
    assert [line["level"] for line in failed] == ["error"] * 3
    assert last["message"] == "next"


def test_a_closed_stream_is_no_error(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    stream.close()
    log.info("nobody reads this")
    writer.flush()


ENGINE_LINE = json.dumps(
    {
        "time": "2026-11-29T12:34:56.678Z",
        "level": "error",
        "logger": "engine.process",
        "message": "The engine failed",
        "exception": "Traceback",
    }
)


def test_lines_of_the_engine_pass_and_others_are_wrapped(caplog: pytest.LogCaptureFixture) -> None:
    odd = '{"time": 1, "level": "no", "logger": null, "message": {}}'
    stream = io.StringIO()
    writer = LogWriter(stream, JsonFormatter())
    caplog.set_level(logging.INFO, "engine.stderr")
    for line in (ENGINE_LINE, "OMP: a warning", "[1, 2]", "", "{broken", '{"message": "a"}', odd):
        on_engine_line(writer, line)
    writer.close()
    assert stream.getvalue() == ENGINE_LINE + "\n"
    assert [record.getMessage() for record in caplog.records] == [
        *("OMP: a warning", "[1, 2]", "{broken", '{"message": "a"}', odd)
    ]


def test_lines_of_the_engine_have_the_same_text_as_ours() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream, TextFormatter())
    on_engine_line(writer, ENGINE_LINE)
    writer.close()
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"[-\d]{10} [:\d]{8}\.678 engine\.process ERROR: The engine failed", first)
    assert second == "Traceback"


def test_after_half_a_line_the_next_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while, and a descriptor that somebody made not to wait."""
    taken: list[bytes] = []
    answers: list[int | OSError] = [2, OSError(errno.ENOSPC, "full"), BlockingIOError(), 100]

    def write(number: int, data: bytes) -> int:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        taken.append(data[:answer])
        return len(taken[-1])

    read_end, write_end = os.pipe()
    descriptor = Descriptor(write_end)
    with monkeypatch.context() as patch:
        patch.setattr("predictor.logs.os.write", write)
        with pytest.raises(OSError, match="full"):
            descriptor.write("first\n")
        descriptor.write("second\n")
    os.close(read_end)
    os.close(write_end)
    assert b"".join(taken) == b"fi\nsecond\n"


def test_lines_that_were_not_taken_are_counted(log: logging.Logger, writer_to: WriterTo) -> None:
    class Full(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "full")
            return super().write(text)

    stream = Full()
    writer = writer_to(stream)
    for _ in range(2):
        log.info("lost")
        writer.flush()
    stream.is_full = False
    log.info("kept")
    writer.flush()
    kept, left_out = lines_of(stream)
    assert kept["message"] == "kept"
    assert left_out["message"].startswith("2 log lines were left out")


SCRIPT = """
import logging, threading, warnings
import predictor.kserve_adapter
from predictor.logs import configure_logging
from predictor.kserve_adapter import KServeHost
configure_logging("json")
configure_logging("json")
KServeHost(http_port=0, grace_period=1)
for name in ("predictor.x", "engine.x", "kserve", "kserve.trace", "uvicorn.error"):
    logging.getLogger(name).info("info of %s", name)
logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "c", "GET", "/", "1.1", 200)
logging.getLogger("other").info("hidden")
logging.getLogger("other").warning("shown")
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
class Odd:
    def __del__(self):
        raise OSError("while it is collected")
Odd()
raise KeyError("at the end")
"""


STUCK = """
import logging
from predictor.logs import configure_logging
configure_logging("json")
for number in range(3000):
    logging.getLogger("predictor").info("%d %s", number, "x" * 100)
"""


def test_a_process_whose_standard_error_nobody_reads_ends_well() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], cwd=REPOSITORY, stderr=subprocess.PIPE)
    assert process.wait(300) == 0
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.readline().startswith(b'{"time": ')


def test_every_logger_warning_and_uncaught_exception_is_json() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.stdout == ""
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    told = [(line["logger"], line["message"].partition("\n")[0]) for line in lines]
    assert told[:6] == [
        *((name, f"info of {name}") for name in ("predictor.x", "engine.x", "kserve", "kserve.trace", "uvicorn.error")),
        ("other", "shown"),
    ]
    assert [line["logger"] for line in lines[6:]] == ["py.warnings", "predictor", "predictor", "predictor"]
    assert "ZeroDivisionError" in lines[7]["exception"]
    assert "while it is collected" in lines[8]["exception"]
    assert "KeyError" in lines[9]["exception"]
