"""Where panels lead: other dashboards, runbooks and the documentation.

NOTE: the two hosts stand for wherever docs/runbooks and docs are served; docs/dashboards.md has the command that sets
them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DashboardLink
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

RUNBOOKS = "https://runbooks.example.com/"
DOCS = "https://docs.example.com/"

UIDS = {
    "Service overview": "pagedserve-service",
    "Engine": "pagedserve-engine",
    "Autoscaling": "pagedserve-autoscaling",
    "Compare versions": "pagedserve-versions",
}
"""The dashboards by title. NOTE: uids and panel ids are part of links and bookmarks: they never change."""

_VARIABLES = ("datasource", "cluster", "namespace", "inferenceservice", "pod")
_KEPT = "&".join(f"${{{name}:queryparam}}" for name in _VARIABLES) + "&${__url_time_range}"


def runbook(alert: str) -> DashboardLink:
    """A panel's link to what to do when that alert fires."""
    return DashboardLink(f"Runbook: {alert}").url(f"{RUNBOOKS}{alert}.md").target_blank(True)


def doc(page: str, title: str) -> DashboardLink:
    """A panel's link to a page of docs/, such as `autoscaling.md`."""
    return DashboardLink(title).url(f"{DOCS}{page}").target_blank(True)


def panel(dashboard: str, panel_id: int, title: str) -> DashboardLink:
    """A panel's link to one panel of another dashboard, with the same time and variables."""
    return DashboardLink(title).url(f"/d/{UIDS[dashboard]}?viewPanel={panel_id}&{_KEPT}")


def dashboard(title: str) -> DashboardLink:
    """A link in a dashboard's head to another one, with the same time and variables."""
    made = DashboardLink(title).type(DashboardLinkType.LINK).icon("dashboard").url(f"/d/{UIDS[title]}")
    return made.keep_time(True).include_vars(True)


def drill_down(dashboard_title: str, title: str, **labels: str) -> dict[str, object]:
    """A data link of a table's column: to another dashboard, with variables taken from the row's fields."""
    chosen = "&".join(f"var-{name}=${{__data.fields.{field}}}" for name, field in labels.items())
    url = (
        f"/d/{UIDS[dashboard_title]}?{chosen}&${{datasource:queryparam}}&${{cluster:queryparam}}&${{__url_time_range}}"
    )
    return {"title": title, "url": url}
