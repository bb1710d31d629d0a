"""The real server as a subprocess: the one helper of every end-to-end test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import psutil

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 300.0
"""Generous: a loaded machine with two cores starts a server in a small part of it."""
STEP_SECONDS = 60.0
POLL_SECONDS = 0.02


def until(condition: Callable[[], T], what: str, seconds: float = STEP_SECONDS) -> T:
    """The first true value of `condition()`; fails where it is false once more after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        # NOTE: read before the condition: a test that is not scheduled for long looks once more before it fails.
        is_late = time.monotonic() >= end
        if value := condition():
            return value
        assert not is_late, f"waited {seconds:g} s for {what}"
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process neither runs nor ends meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have been killed
            os.kill(pid, signal.SIGCONT)


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; its parent need not have waited for it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Server:
    """`python -m predictor` on ports that the system chooses.

    flags: as keyword arguments, e.g. Server(model_dir=path, max_num_seqs=4). `start()` returns once the listener is
    open, `wait_ready()` once the model is loaded; as a context manager both. `stop()` sends SIGTERM; leaving the
    context kills what is left.
    environ: further environment variables. client: what httpx needs to be let in (`verify`, `headers`).
    """

    def __init__(
        self, *, environ: Mapping[str, str] | None = None, client: Mapping[str, Any] | None = None, **flags: Any
    ) -> None:
        self._environ = dict(environ or {})
        # NOTE: one client, as to make one takes longer than to ask; a connection each, as the server may end meanwhile.
        self._client = httpx.Client(
            **{"timeout": STEP_SECONDS, "limits": httpx.Limits(max_keepalive_connections=0), **(client or {})}
        )
        self._flags = {"http_port": 0, "grpc_port": 0, **flags}
        self._log = tempfile.NamedTemporaryFile("w+", prefix="pagedserve-", suffix=".log")  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = None
        self.http_url = ""

    # --- life ---

    def launch(self) -> Self:
        """Starts the process and waits for nothing."""
        words = [word for name, value in self._flags.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "predictor", *words],
            cwd=REPOSITORY,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environ},
        )
        return self

    def start(self) -> Self:
        """Returns once REST and gRPC listen; the model may still be loading."""
        return self.launch().wait_open()

    def wait_open(self) -> Self:
        """Returns once the launched process listens."""
        port = self._wait_log(r"Uvicorn running on https?://[^:]+:(\d+)")
        self._wait_log(r"gRPC listens on port (\d+)")
        self.http_url = f"{'https' if 'ssl_certfile' in self._flags else 'http'}://127.0.0.1:{port}"
        return self

    def wait_ready(self) -> Self:
        """Returns once `/v2/health/ready` answers 200."""

        def ready() -> bool:
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}:\n{self.logs}"
            return self.status("/v2/health/ready") == 200

        until(ready, f"the server to be ready:\n{self.logs}", START_SECONDS)
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = STEP_SECONDS) -> int:
        """The exit code, once the process has ended."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server has not ended within {seconds:g} s:\n{self.logs}") from None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        try:
            return self.start().wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the server and its engine if they still run."""
        if self.process is not None and self.process.poll() is None:
            engines = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for engine in engines:
                # NOTE: it ends by itself when the front is gone, perhaps at this very moment.
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.kill()
        self._client.close()
        self._log.close()

    # --- what it says ---

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    @property
    def logs(self) -> str:
        """Standard output and standard error so far: whole lines, as the last one may be half written."""
        has_ended = self.process is not None and self.process.poll() is not None
        text = Path(self._log.name).read_text(errors="replace")
        return text if has_ended else text[: text.rfind("\n") + 1]

    @property
    def grpc_address(self) -> str:
        port = self._wait_log(r"gRPC listens on port (\d+)")
        return f"127.0.0.1:{port}"

    @property
    def engine_pid(self) -> int:
        """Process id of the engine process."""

        def find() -> int | None:
            for child in psutil.Process(self._process.pid).children():
                # NOTE: a process that is just being started or has just ended has no command line.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "engine.process" in " ".join(child.cmdline()):
                        return child.pid
            return None

        return until(find, "the engine process", START_SECONDS)

    def status(self, path: str) -> int:
        """The HTTP status of a GET; 0 where nobody answers."""
        try:
            return self._client.get(self.http_url + path).status_code
        except httpx.TransportError:
            return 0

    def metric(self, name: str, **labels: str) -> float:
        """The value of the series `pagedserve_<name>` with these labels among its own."""
        from prometheus_client.parser import text_string_to_metric_families

        text = self._client.get(self.http_url + "/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"pagedserve_{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no series pagedserve_{name} {labels}")

    def _wait_log(self, pattern: str) -> str:
        def find() -> str | None:
            if (match := re.search(pattern, self.logs)) is not None:
                return match[1]
            assert self._process.poll() is None, f"the server ended with {self._process.returncode}:\n{self.logs}"
            return None

        return until(find, f"{pattern!r} in the log", START_SECONDS)
