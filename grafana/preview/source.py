"""Prometheus' HTTP API as a dashboard's data source."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """Labels, and its samples as (Unix seconds, value); an instant answer has one."""

    labels: dict[str, str]
    samples: list[tuple[float, float]]

    @property
    def last(self) -> float:
        """The last value that is a number, else NaN."""
        return next((value for _, value in reversed(self.samples) if not math.isnan(value)), math.nan)


@dataclass
class Source:
    """Answers queries for one time range.

    url: of Prometheus. start, end: Unix seconds. step: seconds between points. speed, rewrite: for a Prometheus in
    which time passes faster than in production: how much, and what is done to an expression before it is asked.
    Raises `RuntimeError` with Prometheus' message where it refuses an expression.
    """

    url: str
    start: float
    end: float
    step: float
    speed: int = 1
    rewrite: Callable[[str], str] = lambda expression: expression

    def range(self, expression: str) -> list[Series]:
        params = {"query": self.rewrite(expression), "start": self.start, "end": self.end, "step": self.step}
        found = self._get("query_range", params)["result"]
        return [Series(one["metric"], [(t, float(v)) for t, v in one["values"]]) for one in found]

    def instant(self, expression: str) -> list[Series]:
        data = self._get("query", {"query": self.rewrite(expression), "time": self.end})
        if data["resultType"] == "scalar":
            time, value = data["result"]
            return [Series({}, [(time, float(value))])]
        return [Series(one["metric"], [(one["value"][0], float(one["value"][1]))]) for one in data["result"]]

    def label_sets(self, selector: str) -> list[dict[str, str]]:
        """Of the series that the selector finds within the time range."""
        found = self._get("series", {"match[]": selector, "start": self.start, "end": self.end})
        return [dict(one) for one in found]

    def _get(self, path: str, params: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", urllib.parse.urlencode(params).encode())  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60.0) as response:  # noqa: S310 (the caller's own Prometheus)
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                answer = {"status": "error", "error": error.read().decode(errors="replace")}
        if answer["status"] != "success":
            raise RuntimeError(f"Prometheus refuses {params}: {answer.get('error')}")
        return answer["data"]
