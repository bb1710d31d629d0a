"""Autoscaling: what KEDA sees next to what it does."""

from __future__ import annotations

from grafana.board import Board, Line, Section
from grafana.boards.replicas import ENGINE_UP
from grafana.boards.signals import AVERAGE, REPLICAS, hpa, keda, signals
from grafana.events import ALERT, SCALE_DOWN, SCALE_UP
from grafana.links import doc, runbook
from grafana.panels import Builder, Note, lines, number, states
from grafana.queries import (
    BY_POD,
    BY_SERVICE,
    POD,
    SERVICE,
    SERVICE_LEGEND,
    Query,
    of_hpa,
    wanted_replicas,
)


def _now() -> list[Builder]:
    def replicas(panel_id: int, title: str, expr: str, note: Note, no_value: str) -> Builder:
        return number(
            panel_id,
            title,
            "none",
            note,
            [Query(expr, SERVICE_LEGEND, instant=True)],
            decimals=0,
            spark=False,
            no_value=no_value,
            steps=((None, "blue"),),
        )

    # NOTE: at 0 replicas an HPA is inactive by design, and 2 rather than 1.
    inactive = hpa("status_condition", ',condition="ScalingActive",status="false"')
    blind = of_hpa(
        f"{inactive}\n"
        "  * on (namespace, horizontalpodautoscaler) group_left ()\n"
        f"  max by (namespace, horizontalpodautoscaler) (1 + ({hpa('status_current_replicas')} == bool 0))"
    )
    return [
        replicas(
            1,
            "Desired by the autoscaler",
            of_hpa(hpa("status_desired_replicas")),
            Note(
                "Replicas that the HorizontalPodAutoscaler (which KEDA makes) wants.",
                "between minimum and maximum, steady for a steady load.",
                "Replicas that each signal asks for, below.",
            ),
            "No HPA",
        ),
        replicas(
            2,
            "Ready",
            f"inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}}",
            Note(
                "Engines that take requests.",
                "equal to desired, or below it for the time of a load.",
                "Pods, below.",
            ),
            "No replica",
        ),
        number(
            3,
            "Room to the maximum",
            "percentunit",
            Note(
                "How much of the maximum is still unused.",
                "above 0: at 0 further load will queue and then be refused.",
                "raise maxReplicaCount if the cluster has nodes for it.",
            ),
            [
                Query(
                    f"1 - {of_hpa(hpa('status_desired_replicas'))}\n/\n{of_hpa(hpa('spec_max_replicas'))}",
                    SERVICE_LEGEND,
                    instant=True,
                )
            ],
            steps=((None, "red"), (0.01, "yellow"), (0.25, "green")),
            decimals=0,
            spark=False,
            links=[runbook("PagedServeScaledToMaximum")],
            no_value="No HPA",
        ),
        states(
            4,
            "Autoscaler reads its metrics",
            Note(
                "Whether the HPA can compute (its condition ScalingActive).",
                "sees, or rests at 0 replicas. Blind, it holds the replicas where they are, whatever the load.",
                "kubectl describe hpa and scaledobject name the query that fails.",
            ),
            [Query(blind, SERVICE_LEGEND)],
            {0: ("sees", "green"), 1: ("blind", "red"), 2: ("rests", "blue")},
            links=[runbook("PagedServeAutoscalerBlind")],
            no_value="No HPA",
        ),
    ]


def _decision() -> Section:
    asked = of_hpa(
        f"{hpa('status_target_metric', AVERAGE)}\n  / {hpa('spec_target_metric', AVERAGE)}\n"
        "  * on (namespace, horizontalpodautoscaler) group_left ()\n"
        f"  max by (namespace, horizontalpodautoscaler) ({hpa('status_current_replicas')})",
        f"{BY_SERVICE}, metric_name",
    )
    return Section(
        101,
        "Decision",
        [
            Line(
                10,
                [
                    lines(
                        10,
                        "Replicas: desired, existing, ready",
                        "none",
                        Note(
                            "What the HPA wants, what the Deployment has, and how many of them take requests, "
                            "between "
                            "minimum and maximum.",
                            "existing follows desired at once, ready within the time of a load.",
                            "desired above ready for long: Pods below. Desired at the maximum: it cannot do more.",
                        ),
                        [
                            Query(of_hpa(hpa("status_desired_replicas")), f"{SERVICE_LEGEND} desired"),
                            Query(of_hpa(hpa("status_current_replicas")), f"{SERVICE_LEGEND} existing"),
                            Query(
                                f"inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} ready",
                            ),
                            Query(of_hpa(hpa("spec_min_replicas")), f"{SERVICE_LEGEND} minimum"),
                            Query(of_hpa(hpa("spec_max_replicas")), f"{SERVICE_LEGEND} maximum"),
                        ],
                        dashed=(".* minimum", ".* maximum"),
                        colors={".* minimum": "text", ".* maximum": "red"},
                        decimals=0,
                        links=[runbook("PagedServeScaledToMaximum"), doc("autoscaling.md", "How it scales")],
                    ),
                    lines(
                        11,
                        "Replicas that each signal asks for",
                        "none",
                        Note(
                            "Each metric of the HPA over its target, times the replicas that there are. The HPA "
                            "takes the "
                            "largest, rounded up, within 10 % it does nothing.",
                            "one signal leads, as the load is: s0 is the first trigger (requests), s1 the second "
                            "(KV cache).",
                            "the signal that leads, below. A small service has one that never leads: that is fine.",
                        ),
                        [
                            Query(asked, f"{SERVICE_LEGEND} {{{{metric_name}}}}"),
                            Query(of_hpa(hpa("status_desired_replicas")), f"{SERVICE_LEGEND} desired"),
                        ],
                        dashed=(".* desired",),
                        colors={".* desired": "text"},
                        links=[doc("autoscaling.md", "The formula")],
                    ),
                ],
            )
        ],
    )


def _pods() -> Section:
    wanted = f"sum by ({BY_SERVICE}) ({wanted_replicas()})"
    # NOTE: service by service, that one with a pod too many hides no other's; and all are missing where none runs.
    missing = f"sum(clamp_min(\n{wanted}\n- (sum by ({BY_SERVICE}) ({REPLICAS}) or 0 * {wanted}),\n0))"
    return Section(
        103,
        "Pods: what it costs to scale",
        [
            Line(
                8,
                [
                    lines(
                        30,
                        "Pods ready, loading and missing",
                        "none",
                        Note(
                            "Ready: its model is loaded, also while it drains. Loading: its server answers, and "
                            "its model is not loaded yet. "
                            "Missing: wanted, and no container of it runs yet.",
                            "loading and missing only after desired rose, for the time of a load.",
                            "missing for long: no node, or an image that cannot be pulled. Loading for long: "
                            "slow weights.",
                        ),
                        [
                            Query(f"sum(inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}})", "ready"),
                            Query(
                                f"sum({REPLICAS} - inferenceservice:pagedserve_engines_up:sum{{{SERVICE}}})",
                                "loading",
                            ),
                            Query(missing, "missing"),
                        ],
                        stacked=True,
                        colors={"ready": "green", "loading": "yellow", "missing": "red"},
                        decimals=0,
                        links=[runbook("PagedServeNoReplicas"), runbook("PagedServeReplicaNotReady")],
                    ),
                    states(
                        31,
                        "State of each pod",
                        Note(
                            "Whether a pod's engine has its model loaded; the orange part at the start is the time "
                            "of a load.",
                            "a load is shorter than the period of the scale-up policy (180 s unless set).",
                            "longer loads: the autoscaler starts more pods than are needed. Set its "
                            "periodSeconds to a load.",
                        ),
                        [Query(f"max by ({BY_POD}) (pagedserve_engine_up{{{POD}}})", "{{pod}}")],
                        ENGINE_UP,
                        links=[
                            doc("autoscaling.md", "How to measure a load"),
                            runbook("PagedServeReplicaNotReady"),
                        ],
                    ),
                ],
            )
        ],
    )


def _trouble() -> Section:
    errors = (
        f"sum by (namespace, inferenceservice, scaledObject) ({keda('keda_scaled_object_errors_total', increase=True)})"
    )
    return Section(
        104,
        "Trouble",
        [
            Line(
                8,
                [
                    lines(
                        40,
                        "KEDA's errors",
                        "none",
                        Note(
                            "Times that KEDA could not evaluate a ScaledObject, in the interval of a point.",
                            "0. After more than failureThreshold in a row its fallback stands in for the load.",
                            "kubectl describe scaledobject names the query. The HPA does not show it: it has the "
                            "fallback's number.",
                        ),
                        [Query(errors, "{{namespace}}/{{scaledObject}}")],
                        steps=((None, "green"), (1, "red")),
                        soft_top=2,
                        no_value="KEDA's operator is not scraped",
                        links=[runbook("PagedServeScalerErrors")],
                    ),
                    lines(
                        41,
                        "How long KEDA waits for an answer",
                        "s",
                        Note(
                            "Latency of each trigger's query, as KEDA measures it.",
                            "below a second; at 5 s, the triggers' timeout (line), it counts as an error.",
                            "a busy Prometheus: its own dashboards.",
                        ),
                        [
                            Query(
                                "max by (namespace, inferenceservice, scaledObject, metric) "
                                f"({keda('keda_scaler_metrics_latency_seconds')})",
                                "{{namespace}}/{{scaledObject}} {{metric}}",
                            )
                        ],
                        steps=((None, "green"), (5, "red")),
                        soft_top=1,
                        no_value="KEDA's operator is not scraped",
                        links=[runbook("PagedServeScalerErrors")],
                    ),
                    states(
                        42,
                        "Held back by a bound, or paused",
                        Note(
                            "The HPA's condition ScalingLimited: it wants more than its maximum, or less than "
                            "its minimum, or "
                            "its policies slow it down. And whether KEDA's ScaledObject is paused, by an annotation.",
                            "free, or at the minimum in quiet hours.",
                            "at the maximum: PagedServeScaledToMaximum. Paused: somebody set the replicas by hand; "
                            "take the annotation autoscaling.keda.sh/paused-replicas or paused away when it is over.",
                        ),
                        [
                            Query(
                                of_hpa(hpa("status_condition", ',condition="ScalingLimited",status="true"')),
                                f"{SERVICE_LEGEND} HPA",
                            ),
                            Query(
                                "2 * max by (namespace, inferenceservice, scaledObject) "
                                f"({keda('keda_scaled_object_paused')})",
                                "{{namespace}}/{{scaledObject}} KEDA",
                            ),
                        ],
                        {0: ("free", "green"), 1: ("limited", "orange"), 2: ("paused", "purple")},
                        no_value="No HPA",
                        links=[runbook("PagedServeScaledToMaximum")],
                    ),
                ],
            )
        ],
    )


def autoscaling() -> Board:
    return Board(
        title="Autoscaling",
        description="What the autoscaler sees next to what it does. Thresholds, minimum and maximum are those of the "
        "HorizontalPodAutoscaler, from kube-state-metrics; vertical marks are changes of the number of replicas.",
        since="6h",
        sections=[Section(100, "Now", [Line(4, _now())]), _decision(), signals(102), _pods(), _trouble()],
        events=(SCALE_UP, SCALE_DOWN, ALERT),
    )
