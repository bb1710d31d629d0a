"""Autoscaling's row of signals: what KEDA sees."""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.links import doc, panel, runbook
from grafana.panels import Note, lines, states
from grafana.queries import BY_SERVICE, NAMESPACE, SERVICE, SERVICE_LEGEND, Query, of_hpa, of_service

# NOTE: the queries of manifests/keda/base, for each of the services chosen (a test compares them). KEDA's own window of
# a minute, and not $__rate_interval, so that a panel shows the very number that KEDA gets.
REQUESTS = (
    f"sum by ({BY_SERVICE}) (avg_over_time(pagedserve_requests_running{{{SERVICE}}}[1m])\n"
    f"+ avg_over_time(pagedserve_requests_waiting{{{SERVICE}}}[1m]))"
)
KV_USAGE = f"100 * sum by ({BY_SERVICE}) (avg_over_time(pagedserve_kv_cache_usage_ratio{{{SERVICE}}}[1m]))"
REPLICAS = f"inferenceservice:pagedserve_replicas:count{{{SERVICE}}}"
AVERAGE = ',metric_target_type="average"'


def hpa(metric: str, matchers: str = "") -> str:
    """A metric of kube-state-metrics on HorizontalPodAutoscalers, for `of_hpa`."""
    return f"kube_horizontalpodautoscaler_{metric}{{{NAMESPACE}{matchers}}}"


def keda(metric: str, *, increase: bool = False) -> str:
    """A metric of KEDA's operator, with the service's name. Scraped without honorLabels its namespace is exported_*.

    NOTE: so its own `namespace` may be the operator's, and the services chosen are found by a join.
    """
    selected = f'{metric}{{cluster=~"$cluster"}}'
    if increase:
        selected = f"increase({selected}[$__rate_interval])"
    named = f'label_replace({selected}, "namespace", "$1", "exported_namespace", "(.+)")'
    return (
        f"{of_service(named, 'scaledObject', '-predictor')}\n"
        f"and on (namespace, inferenceservice) last_over_time({REPLICAS}[3d])"
    )


def _target(index: int, adapter: str) -> Query:
    """The threshold of a trigger, by KEDA's name for it; adapter: the name where the HPA asks prometheus-adapter."""
    matchers = f',metric_name=~"s{index}-.+|{adapter}"{AVERAGE}'
    return Query(of_hpa(hpa("spec_target_metric", matchers)), f"{SERVICE_LEGEND} threshold")


def _per_replica(query: str) -> Query:
    return Query(f"{query}\n/ on (namespace, inferenceservice)\navg_over_time({REPLICAS}[1m])", SERVICE_LEGEND)


def signals(row_id: int) -> Section:
    """The triggers' values, per replica beside their thresholds, and as KEDA has read them."""
    return Section(
        row_id,
        "Signals: what KEDA sees",
        [
            Line(
                8,
                [
                    lines(
                        20,
                        "Requests per replica",
                        "none",
                        Note(
                            "KEDA's query of the trigger `requests` (running and waiting, mean over a minute), "
                            "divided by the "
                            "pods that Prometheus sees, and the trigger's threshold.",
                            "around the threshold or below.",
                            "above it: desired must rise, in steps that are a load time apart.",
                        ),
                        [
                            _per_replica(REQUESTS),
                            _target(0, "pagedserve_requests"),
                        ],
                        dashed=(".* threshold",),
                        colors={".* threshold": "red"},
                        links=[panel("Engine", 20, "Engine: the batch"), doc("autoscaling.md", "How to set it")],
                    ),
                    lines(
                        21,
                        "KV cache per replica",
                        "percent",
                        Note(
                            "KEDA's query of the trigger `kv_usage` (the sum over the pods in percent, mean over "
                            "a minute), "
                            "divided by the pods that Prometheus sees, and the trigger's threshold.",
                            "below the threshold: the rest takes what running sequences still generate.",
                            "above it for long at the maximum of replicas: preemptions come.",
                        ),
                        [
                            _per_replica(KV_USAGE),
                            _target(1, "pagedserve_kv_cache_usage_percent"),
                        ],
                        dashed=(".* threshold",),
                        colors={".* threshold": "red"},
                        soft_top=100,
                        links=[panel("Engine", 40, "Engine: KV blocks"), runbook("PagedServePreemptionStorm")],
                    ),
                    lines(
                        22,
                        "Running and waiting, whole service",
                        "none",
                        Note(
                            "The parts of the first signal, as they are at each scrape.",
                            "waiting near 0.",
                            "waiting grows with ready replicas at the maximum: the service is too small.",
                        ),
                        [
                            Query(
                                f"inferenceservice:pagedserve_requests_running:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} running",
                            ),
                            Query(
                                f"inferenceservice:pagedserve_requests_waiting:sum{{{SERVICE}}}",
                                f"{SERVICE_LEGEND} waiting",
                            ),
                        ],
                        stacked=True,
                        links=[runbook("PagedServeSaturated")],
                    ),
                ],
            ),
            Line(
                8,
                [
                    lines(
                        23,
                        "Values that KEDA has read",
                        "none",
                        Note(
                            "What KEDA's operator got from each trigger: the total demand, before it is divided "
                            "by replicas.",
                            "equal to the panels above times the replicas.",
                            "it stands still while the panels above move: KEDA asks another Prometheus, or fails "
                            "(errors below).",
                        ),
                        [
                            Query(
                                "max by (namespace, inferenceservice, scaledObject, metric) "
                                f"({keda('keda_scaler_metrics_value')})",
                                "{{namespace}}/{{scaledObject}} {{metric}}",
                            )
                        ],
                        no_value="KEDA's operator is not scraped",
                        links=[runbook("PagedServeScalerErrors")],
                    ),
                    states(
                        24,
                        "Triggers active",
                        Note(
                            "Whether a trigger is above its activation threshold. It decides about the step from "
                            "and to 0 only.",
                            "active while there is load. With a minimum above 0 nothing depends on it.",
                            "all inactive and pods still there: cooldownPeriod runs.",
                        ),
                        [
                            Query(
                                "max by (namespace, inferenceservice, scaledObject, metric) "
                                f"({keda('keda_scaler_active')})",
                                "{{namespace}}/{{scaledObject}} {{metric}}",
                            )
                        ],
                        {0: ("inactive", "blue"), 1: ("active", "green")},
                        no_value="KEDA's operator is not scraped",
                        links=[doc("autoscaling.md", "Scale to zero")],
                    ),
                    lines(
                        25,
                        "Waiting in the gateway",
                        "none",
                        Note(
                            "Requests that the endpoint picker holds while no pod is ready (flow control), by pool.",
                            "0, but for the load of a first pod after a sleep.",
                            "it grows with pods ready: the picker does not see them.",
                        ),
                        [
                            Query(
                                "sum by (namespace, inference_pool) (inference_extension_flow_control_queue_size"
                                f'{{{NAMESPACE},inference_pool=~"$inferenceservice"}})',
                                "{{namespace}}/{{inference_pool}}",
                            )
                        ],
                        no_value="No endpoint picker with flow control",
                        links=[runbook("PagedServeEndpointPickerDown")],
                    ),
                ],
            ),
        ],
    )
