"""One format for every line, written beside the event loop."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.log_format import JsonFormatter
from predictor.logs import LogWriter, TextFormatter, on_engine_line
from predictor.request_context import RequestContext, RequestEdge

REPOSITORY = Path(__file__).parents[2]
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
    assert messages[11] == "15 log lines were left out: standard error took them too slowly"


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
    for message, arguments in ((Odd(), None), ("%d tokens", ("no number",)), ("next", None)):
        writer.handle(logging.LogRecord("tests.logs", logging.INFO, "", 0, message, arguments, None))
    writer.flush()
    first, second, third = lines_of(stream)
    assert (first["level"], second["level"], third["message"]) == ("error", "error", "next")


def test_a_closed_stream_is_no_error(log: logging.Logger, writer_to: WriterTo) -> None:
    stream = io.StringIO()
    writer = writer_to(stream)
    stream.close()
    log.info("nobody reads this")
    writer.flush()


def test_lines_of_the_engine_pass_and_others_are_wrapped(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream, JsonFormatter())
    caplog.set_level(logging.INFO, "engine.stderr")
    for line in ('{"message": "a"}', "OMP: a warning", "[1, 2]", "", "{broken"):
        on_engine_line(writer, line)
    writer.close()
    assert stream.getvalue() == '{"message": "a"}\n'
    assert [record.getMessage() for record in caplog.records] == ["OMP: a warning", "[1, 2]", "{broken"]


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
    assert process.wait(120) == 0
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.readline().startswith(b'{"time": ')


def test_every_logger_warning_and_uncaught_exception_is_json() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == ""
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    told = [(line["logger"], line["message"].partition("\n")[0]) for line in lines]
    assert told[:6] == [
        *((name, f"info of {name}") for name in ("predictor.x", "engine.x", "kserve", "kserve.trace", "uvicorn.error")),
        ("other", "shown"),
    ]
    assert [line["logger"] for line in lines[6:]] == ["py.warnings", "predictor", "predictor"]
    assert "ZeroDivisionError" in lines[7]["exception"]
    assert "KeyError" in lines[8]["exception"]
