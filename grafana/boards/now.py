"""The service overview's first row."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import RUNBOOKS, doc, panel, runbook
from grafana.panels import TOKENS_A_SECOND, Builder, Column, Note, number, rows
from grafana.queries import SERVICE, Query, wanted_replicas

# NOTE: alerts on a pod or on Prometheus itself have no service or namespace; `|` keeps them.
_ALERTS = (
    'alertname=~"PagedServe.+",alertstate="firing",cluster=~"$cluster",'
    'namespace=~"$namespace|",inferenceservice=~"$inferenceservice|"'
)
_PENDING_OR_FIRING = _ALERTS.replace('alertstate="firing",', "")


def _of_now(expr: str, legend: str) -> Query:
    """NaN where there is no sample, so that a value of before does not stand there as the one of now."""
    return Query(f"{expr}\nor\nvector(NaN)", legend)


def _firing() -> Builder:
    return number(
        1,
        "Firing alerts",
        "none",
        Note(
            "Alerts of pagedserve that fire now, of the services chosen and of those that name none.",
            "0.",
            "the table below has them with their runbooks. It reads Prometheus' own ALERTS, so it needs no "
            "Alertmanager.",
        ),
        # NOTE: without any alert there is no series at all, and that is a 0 and not missing data.
        [Query(f'count(ALERTS{{{_ALERTS},severity!="info"}}) or vector(0)', "firing")],
        steps=((None, "green"), (1, "red")),
        filled=True,
        decimals=0,
    )


def _replicas_now() -> Builder:
    return number(
        2,
        "Replicas that take requests",
        "none",
        Note(
            "Engines that take requests, over the services chosen, and how many the Deployments want.",
            "both are equal. Fewer for a while means that pods load; at 0 every request is refused.",
            "the panel Replicas below, then the dashboard Autoscaling for why that many are wanted.",
        ),
        [
            # NOTE: replicas that are wanted and of which no pod runs are no missing data, but none that is ready.
            Query(
                f"sum(inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}})\nor\n0 * sum({wanted_replicas()})",
                "ready",
                instant=True,
            ),
            Query(f"sum({wanted_replicas()})", "wanted", instant=True),
        ],
        steps=((None, "red"), (1, "green")),
        decimals=0,
        spark=False,
        links=[runbook("PagedServeEngineDown"), runbook("PagedServeNoReplicas")],
    )


def _headline() -> list[Builder]:
    return [
        _firing(),
        _replicas_now(),
        number(
            3,
            "Requests",
            "reqps",
            Note(
                "Requests that ended, a second, over five minutes.",
                "what is usual at this hour.",
                "a sudden drop with waiting requests is a stuck or overloaded engine; without, the traffic stays away.",
            ),
            [_of_now(f"sum(inferenceservice:pagedserve_requests:rate5m{{{SERVICE}}})", "requests")],
        ),
        number(
            4,
            "Generated tokens",
            TOKENS_A_SECOND,
            Note(
                "Tokens generated a second, over five minutes: the work that the service delivers.",
                "follows the requests.",
                "the dashboard Engine splits it by pod.",
            ),
            [_of_now(f"sum(inferenceservice:pagedserve_generation_tokens:rate5m{{{SERVICE}}})", "tokens/s")],
            links=[panel("Engine", 10, "Engine: tokens a second")],
        ),
        number(
            5,
            "Waiting",
            "none",
            Note(
                "Sequences that wait for a place in a batch, over all replicas.",
                "0 most of the time; short bursts are normal where prompts are long.",
                "Saturation below: with a full KV cache scale out, with an empty one prompts are the bottleneck.",
            ),
            [_of_now(f"sum(inferenceservice:pagedserve_requests_waiting:sum{{{SERVICE}}})", "waiting")],
            steps=((None, "green"), (1, "yellow"), (50, "red")),
            decimals=0,
            links=[runbook("PagedServeSaturated")],
        ),
        number(
            6,
            "KV cache, fullest service",
            "percentunit",
            Note(
                "KV blocks held by sequences, averaged over the replicas of a service; the fullest service chosen.",
                "below 80 %. Above 90 % with a growing queue PagedServeSaturated fires.",
                "Saturation below, and KV cache on the dashboard Engine.",
            ),
            [_of_now(f"max(inferenceservice:pagedserve_kv_cache_usage_ratio:avg{{{SERVICE}}})", "used")],
            steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
            decimals=0,
            links=[runbook("PagedServeSaturated"), panel("Engine", 40, "Engine: KV blocks by state")],
        ),
        number(
            7,
            "Refused, worst service",
            "percentunit",
            Note(
                "Requests refused for want of room or of an engine, of all that came, over five minutes; the "
                "worst service.",
                "0. Above 1 % PagedServeRejects fires.",
                "Refused requests by reason, below.",
            ),
            [_of_now(f"max(inferenceservice:pagedserve_requests_rejected:ratio_rate5m{{{SERVICE}}})", "refused")],
            steps=((None, "green"), (0.001, "yellow"), (0.01, "red")),
            decimals=1,
            links=[runbook("PagedServeRejects")],
        ),
    ]


def _alert_table() -> Builder:
    return rows(
        8,
        "Alerts",
        Note(
            "What fires now, and for how long. The name leads to its runbook.",
            "empty.",
            "the runbook; then the row of this dashboard that the alert is about.",
        ),
        [
            Query(
                "max by (alertname, severity, namespace, inferenceservice, pod) (\n"
                f"  time() - ALERTS_FOR_STATE{{{_PENDING_OR_FIRING}}}\n"
                f"  and ignoring (alertstate) ALERTS{{{_ALERTS}}}\n)",
                instant=True,
                format="table",
            )
        ],
        [
            Column(
                "alertname",
                "Alert",
                link={"title": "Runbook", "url": f"{RUNBOOKS}${{__value.raw}}.md", "targetBlank": True},
            ),
            Column("severity", "Severity", width=90),
            Column("namespace", "Namespace", width=110),
            Column("inferenceservice", "Service", width=110),
            Column("pod", "Pod"),
            Column("Value", "Since", unit="s", width=90, decimals=0),
        ],
        sort="Severity",
        no_value="No alert fires",
        links=[doc("monitoring.md", "All alerts")],
    )


def now(row_id: int) -> Section:
    """The first row: a number each for what matters most, and what fires."""
    return Section(row_id, "Now", [Line(4, _headline(), widths=(3, 4, 3, 3, 3, 4, 4)), Line(5, [_alert_table()])])
