"""What Compare versions asks of two versions at once."""

from __future__ import annotations

from grafana.links import runbook
from grafana.panels import Builder, Note, lines
from grafana.queries import POD, Query, rate

STABLE, CANARY = "stable", "canary"
COLORS = {f"{STABLE}.*": "blue", f"{CANARY}.*": "orange"}

# Forms of queries: PODS stands where the matchers of pods go.
COUNT = "count(pagedserve_engine_up{PODS})"
TOKENS = f"{rate('pagedserve_generation_tokens_total', '', 'PODS')}\n/ {COUNT}"
ENDED = rate("pagedserve_requests_total", "", "PODS")
ERRORS = rate('pagedserve_requests_total{finish_reason="error"}', "", "PODS") + f"\n/\n({ENDED} > 0)"


def pods_of(version: str) -> str:
    """Matchers of the pods of the ReplicaSets chosen as that version.

    NOTE: with $pod as well, so that a pod can be left out of the comparison.
    """
    return f'{POD},pod=~"${{{version}}}-[a-z0-9]{{5}}"'


def both(form: str, legend: str = "") -> list[Query]:
    """The expression for each of the versions; `form` has PODS where the matchers of pods go."""
    return [
        Query(form.replace("PODS", pods_of(version)), f"{version} {legend}".strip()) for version in (STABLE, CANARY)
    ]


def whole(form: str) -> str:
    """The same over the time range of the dashboard: one number for a verdict."""
    return form.replace("$__rate_interval", "$__range")


def pair(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    form: str,
    *,
    objective: float | None = None,
    alert: str | None = None,
    more: str | None = None,
    no_value: str = "No pods of these versions",
) -> Builder:
    """A curve of each version; with `more` the form is a p95 and `more` its p50, dashed."""
    queries = both(form) if more is None else [*both(form, "p95"), *both(more, "p50")]
    return lines(
        panel_id,
        title,
        unit,
        note,
        queries,
        colors=COLORS,
        dashed=(".* p50",),
        steps=((None, "green"), (objective, "red")) if objective is not None else None,
        soft_top=2 * objective if objective is not None and unit == "percentunit" else None,
        links=[runbook(alert)] if alert is not None else [],
        no_value=no_value,
    )
