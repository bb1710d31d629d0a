"""Debian's Prometheus as a subprocess on loopback, and promtool."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.e2e.server import until
from tests.missing import missing
from tests.sockets import reserved_port


@dataclass(frozen=True)
class Sample:
    """One series of an instant query's answer. A scalar has no labels."""

    labels: dict[str, str]
    value: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)


def tool(name: str) -> str:
    """The path of `prometheus` or `promtool`; without it the test skips, saying so."""
    if (found := shutil.which(name)) is None:
        missing(f"{name} is missing: `make setup` as root installs it (or: apt-get install prometheus)")
    return found


def promtool(*words: str, cwd: Path | None = None) -> str:
    """The output of promtool; fails with it where promtool does."""
    done = subprocess.run([tool("promtool"), *words], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"promtool {' '.join(words)}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Prometheus:
    """`prometheus` with a configuration in `folder`. As a context manager it starts, and is ended at the end."""

    def __init__(self, folder: Path, config: dict[str, Any], *, lookback: str) -> None:
        self.folder = folder
        self._lookback = lookback
        self._config = folder / "prometheus.yml"
        self._config.write_text(yaml.safe_dump(config, sort_keys=False))
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(timeout=60.0)

    def __enter__(self) -> Self:
        promtool("check", "config", str(self._config))
        with reserved_port() as port:
            self._client.base_url = f"http://127.0.0.1:{port}"
            self._launch(port)
            try:
                until(self._is_ready, "Prometheus to be ready")
            except BaseException:
                self.__exit__()
                raise
        return self

    def _launch(self, port: int) -> None:
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    tool("prometheus"),
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    f"--query.lookback-delta={self._lookback}",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                # NOTE: two cores are shared with the predictors that it scrapes.
                env={**os.environ, "GOMAXPROCS": "1"},
            )

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._client.close()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"prometheus ended:\n{(self.folder / 'log').read_text()}"
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def url(self) -> str:
        """Where its API is."""
        return str(self._client.base_url).rstrip("/")

    def get(self, path: str, **params: Any) -> Any:
        """The `data` of an API answer; fails with Prometheus' own message."""
        answer = self._client.get(f"/api/v1/{path}", params=params).json()
        assert answer["status"] == "success", f"{params}: {answer.get('error')}"
        return answer["data"]

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """An instant query, now or at a time in Unix seconds."""
        data = self.get("query", query=expression, **({} if at is None else {"time": f"{at:.3f}"}))
        if data["resultType"] == "scalar":
            return [Sample({}, float(data["result"][1]))]
        assert data["resultType"] == "vector", f"{expression} gives a {data['resultType']}"
        return [Sample(series["metric"], float(series["value"][1])) for series in data["result"]]

    def times(self, selector: str, seconds: int = 600) -> list[float]:
        """Timestamps of all samples of a selector in the last `seconds`, in order."""
        data = self.get("query", query=f"{selector}[{seconds}s]")
        return sorted(float(time) for series in data["result"] for time, _ in series["values"])

    def targets(self) -> dict[str, Any]:
        """`activeTargets` and `droppedTargets`."""
        return self.get("targets")
