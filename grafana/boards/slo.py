"""The row of service level objectives: how much is met, and how fast the budgets burn."""

from __future__ import annotations

from dataclasses import dataclass

from grafana.board import Line, Section
from grafana.links import doc, panel, runbook
from grafana.panels import Builder, Note, lines, number
from grafana.queries import SERVICE, SERVICE_LEGEND, Query


@dataclass(frozen=True)
class Objective:
    """budget: the share of bad events that 30 days may have. record: the recorded share, without its window."""

    name: str
    promise: str
    budget: float
    record: str
    alert: str
    first_id: int
    engine_panel: tuple[int, str]


# NOTE: budgets as in manifests/monitoring/base/alerts.yaml; a test compares them.
OBJECTIVES = (
    Objective(
        "First token",
        "95 % of requests get their first token within 2.5 s",
        0.05,
        "inferenceservice:pagedserve_first_token_slow:ratio_rate",
        "PagedServeFirstTokenSLOBurn",
        20,
        (60, "Engine: heatmap of the first token"),
    ),
    Objective(
        "Inter token",
        "99 % of gaps between tokens are at most 0.25 s",
        0.01,
        "inferenceservice:pagedserve_inter_token_slow:ratio_rate",
        "PagedServeInterTokenSLOBurn",
        22,
        (61, "Engine: heatmap of gaps between tokens"),
    ),
    Objective(
        "Errors",
        "99.5 % of requests do not end by an error of ours",
        0.005,
        "inferenceservice:pagedserve_errors:ratio_rate",
        "PagedServeErrorSLOBurn",
        24,
        (10, "Engine: tokens a second"),
    ),
)


def _met(slo: Objective) -> Builder:
    goal = 1 - slo.budget
    return number(
        slo.first_id,
        f"{slo.name}: met over 3 days",
        "percentunit",
        Note(
            f"The share of good events over the last 3 days. The objective, over 30 days: {slo.promise}.",
            f"at least {goal:.1%}; below it the 30-day budget is spent faster than it comes.",
            "the burn rates below say whether it is still going on.",
        ),
        [Query(f"1 - {slo.record}3d{{{SERVICE}}}", SERVICE_LEGEND, instant=True)],
        steps=((None, "red"), (goal - slo.budget, "orange"), (goal, "green")),
        decimals=2,
        spark=False,
        links=[runbook(slo.alert), doc("monitoring.md", "Objectives and how to choose others")],
    )


def _burn(slo: Objective) -> Builder:
    panel_id, title = slo.engine_panel
    return lines(
        slo.first_id + 1,
        f"{slo.name}: burn rate of the budget",
        "none",
        Note(
            "How many times faster than allowed bad events come: at 1 the 30-day budget is just spent after 30 "
            "days, at 14.4 "
            "a fiftieth of it goes in an hour.",
            "below 1. An alert fires when a long window and a short one are both above 14.4 or 6 (critical), 3 "
            "or 1 (warning).",
            "the heatmap on Engine shows whether all requests got slower or a few; the runbook says what to do.",
        ),
        [
            Query(f"{slo.record}{window}{{{SERVICE}}} / {slo.budget:g}", f"{SERVICE_LEGEND} {window}")
            for window in ("5m", "1h", "6h", "3d")
        ],
        steps=((None, "green"), (1, "yellow"), (6, "orange"), (14.4, "red")),
        soft_top=2,
        links=[runbook(slo.alert), panel("Engine", panel_id, title)],
    )


def objectives(row_id: int) -> Section:
    return Section(
        row_id,
        "Service level objectives",
        [
            Line(4, [_met(slo) for slo in OBJECTIVES]),
            Line(8, [_burn(slo) for slo in OBJECTIVES]),
        ],
    )
