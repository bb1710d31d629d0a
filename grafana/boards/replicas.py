"""The service overview's row of replicas and pods."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import drill_down, panel, runbook
from grafana.panels import Builder, Column, Note, lines, rows, states
from grafana.queries import (
    BY_POD,
    BY_SERVICE,
    NAMESPACE,
    POD,
    SERVICE,
    SERVICE_LEGEND,
    Query,
    of_hpa,
    rate,
    wanted_replicas,
)

ENGINE_UP = {0: ("loading or down", "orange"), 1: ("loaded", "green")}


def replicas(row_id: int) -> Section:
    """How many there are, in which state, and each pod."""
    return Section(
        row_id,
        "Replicas",
        [
            Line(
                8,
                [
                    lines(
                        50,
                        "Replicas",
                        "none",
                        Note(
                            "Engines that take requests, what the Deployment wants, and the autoscaler's maximum.",
                            "ready follows wanted within the time of a load, and both stay below the maximum.",
                            "at the maximum: PagedServeScaledToMaximum. Wanted moves for no reason: dashboard "
                            "Autoscaling.",
                        ),
                        [
                            Query(
                                f"inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} ready",
                            ),
                            Query(f"sum by ({BY_SERVICE}) ({wanted_replicas()})", f"{SERVICE_LEGEND} wanted"),
                            Query(
                                of_hpa(f"kube_horizontalpodautoscaler_spec_max_replicas{{{NAMESPACE}}}"),
                                f"{SERVICE_LEGEND} maximum",
                            ),
                        ],
                        dashed=(".* maximum",),
                        colors={".* maximum": "red"},
                        decimals=0,
                        links=[
                            runbook("PagedServeScaledToMaximum"),
                            runbook("PagedServeNoReplicas"),
                            panel("Autoscaling", 10, "Autoscaling: replicas"),
                        ],
                    ),
                    states(
                        51,
                        "State of each pod",
                        Note(
                            "Whether a pod's engine has its model loaded. A pod that ended has no colour from then on.",
                            "green, to the end of a drain; orange after the start is a load, later a dead engine.",
                            "the pod's log and events; PagedServeReplicaNotReady after half an hour.",
                        ),
                        [Query(f"max by ({BY_POD}) (pagedserve_engine_up{{{POD}}})", "{{pod}}")],
                        ENGINE_UP,
                        links=[runbook("PagedServeReplicaNotReady"), runbook("PagedServeCrashLoop")],
                    ),
                ],
            ),
            Line(
                8,
                [
                    _pods(),
                ],
            ),
        ],
    )


def _pods() -> Builder:
    instant = {"instant": True, "format": "table"}

    def query(expr: str) -> Query:
        return Query(expr, **instant)  # type: ignore[arg-type]

    return rows(
        52,
        "Pods",
        Note(
            "Each pod as it is now. Its name leads to the dashboard Engine, for this pod alone.",
            "all alike, no restarts: a pod that differs from its peers is where to begin.",
            "the pod's Engine dashboard, then kubectl logs and kubectl describe pod.",
        ),
        [
            query(f"max by ({BY_POD}) (pagedserve_engine_up{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_requests_running{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_requests_waiting{{{POD}}})"),
            query(f"max by ({BY_POD}) (pagedserve_kv_cache_usage_ratio{{{POD}}})"),
            query(rate("pagedserve_generation_tokens_total", BY_POD)),
            query(
                f"sum by ({BY_POD}) (\n"
                "  sum by (namespace, pod) (max by (namespace, pod, container) "
                f'(kube_pod_container_status_restarts_total{{{NAMESPACE},pod=~"$pod"}}))\n'
                f"  * on (namespace, pod) group_left (inferenceservice)\n"
                f"  max by ({BY_POD}) (pagedserve_engine_up{{{POD}}} >= bool 0)\n)"
            ),
        ],
        [
            Column("namespace", "Namespace", width=140),
            Column("inferenceservice", "Service", width=160),
            Column(
                "pod",
                "Pod",
                link=drill_down(
                    "Engine", "Engine of this pod", namespace="Namespace", inferenceservice="Service", pod="Pod"
                ),
            ),
            Column("Value #A", "State", states=ENGINE_UP, width=140),
            Column("Value #B", "Running", decimals=0, width=100),
            Column("Value #C", "Waiting", decimals=0, width=100),
            Column(
                "Value #D",
                "KV cache",
                unit="percentunit",
                decimals=0,
                steps=((None, "green"), (0.8, "yellow"), (0.9, "red")),
                width=100,
            ),
            Column("Value #E", "Tokens/s", decimals=1, width=110),
            Column("Value #F", "Restarts", decimals=0, steps=((None, "text"), (1, "orange"), (3, "red")), width=100),
        ],
        sort="Pod",
        links=[runbook("PagedServeCrashLoop"), runbook("PagedServeScrapeFailed"), runbook("PagedServeMetricsAbsent")],
    )
