"""Our own metrics as Prometheus text or OpenMetrics 1.0, at a third of the cost of prometheus_client's encoders.

The server's event loop writes the page between tokens, so what does not change from page to page, the labels' text, is
kept. And the colon of vLLM's names stays, in whose place prometheus_client's OpenMetrics writes an underscore.
For metrics as ours are: names of letters, digits, `_` and `:`, no units, exemplars, times or native histograms.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import isfinite, isnan

from prometheus_client.metrics_core import Metric


def render(metrics: Iterable[Metric], *, openmetrics: bool) -> str:
    """The families of `metrics`, in either format; of an OpenMetrics page without the closing `# EOF`.

    Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
    https://prometheus.io/docs/specs/om/open_metrics_spec/.
    """
    lines = []
    for metric in metrics:
        # NOTE: a counter's family has its samples' name in Prometheus' text, and the one without _total in OpenMetrics.
        name = metric.name + ("_total" if metric.type == "counter" and not openmetrics else "")
        text = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
        if openmetrics:
            text = text.replace('"', r"\"")
        lines.append(f"# HELP {name} {text}\n# TYPE {name} {metric.type}\n")
        lines += [f"{s.name}{_labels(tuple(s.labels.items()))} {_number(s.value)}\n" for s in metric.samples]
    return "".join(lines)


@lru_cache(maxsize=8192)
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if isfinite(value):
        return repr(float(value))
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
