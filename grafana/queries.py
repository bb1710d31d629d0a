"""The selectors and PromQL forms that panels share.

NOTE: every selector of ours has the dashboard's namespace and service, so that one dashboard serves a whole cluster and
still shows one service at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NAMESPACE = 'cluster=~"$cluster",namespace=~"$namespace"'
"""What every selector has. NOTE: where series have no label `cluster`, "All" (`.*`) takes them as they are."""
SERVICE = f'{NAMESPACE},inferenceservice=~"$inferenceservice"'
"""Recorded series and sums over all pods."""
POD = f'{SERVICE},pod=~"$pod"'
"""Series of the pods chosen."""
DEPLOYMENT = f'{NAMESPACE},deployment=~"$inferenceservice(-predictor)?"'
"""The Deployment that the autoscaler scales: KServe's NAME-predictor, or NAME without KServe."""
BY_SERVICE = "namespace, inferenceservice"
BY_POD = "namespace, inferenceservice, pod"

SERVICE_LEGEND = "{{namespace}}/{{inferenceservice}}"

Format = Literal["time_series", "table", "heatmap"]


@dataclass(frozen=True)
class Query:
    """One target of a panel. instant: its last value only (stat, table), else the whole range."""

    expr: str
    legend: str = ""
    instant: bool = False
    format: Format = "time_series"


def rate(metric: str, by: str, labels: str = POD) -> str:
    """The counter's increase a second, summed by these labels ("" for all)."""
    return f"sum{_by(by)} (rate({_select(metric, labels)}[$__rate_interval]))"


def total(metric: str, by: str, labels: str = POD) -> str:
    """The gauge, summed by these labels."""
    return f"sum{_by(by)} ({_select(metric, labels)})"


def quantile(q: float, histogram: str, by: str = "", labels: str = POD) -> str:
    """The q-quantile over `$__rate_interval` of a classic histogram, its name without `_bucket`; NaN where nothing was
    observed."""
    grouped = f"le, {by}" if by else "le"
    buckets = f"sum by ({grouped}) (rate({_select(histogram + '_bucket', labels)}[$__rate_interval]))"
    return f"histogram_quantile({q}, {buckets})"


def mean(histogram: str, by: str = "", labels: str = POD) -> str:
    """The mean of what a histogram observed; NaN where nothing was."""
    return f"{rate(histogram + '_sum', by, labels)}\n/\n{rate(histogram + '_count', by, labels)}"


def buckets(histogram: str, labels: str = POD) -> Query:
    """Observations a second by bucket: a heatmap's query."""
    return Query(rate(histogram + "_bucket", "le", labels), "{{le}}", format="heatmap")


def in_range(histogram: str, labels: str = POD) -> Query:
    """Observations of the whole time range by bucket: a bar gauge's query."""
    expr = f"sum by (le) (increase({_select(histogram + '_bucket', labels)}[$__range]))"
    return Query(expr, "{{le}}", instant=True, format="heatmap")


def quantiles(histogram: str, qs: tuple[float, ...] = (0.5, 0.95, 0.99), labels: str = POD) -> list[Query]:
    """One query a quantile, over everything chosen."""
    return [Query(quantile(q, histogram, labels=labels), f"p{q * 100:g}") for q in qs]


def of_service(metric: str, source: str, name: str) -> str:
    """A metric with the label `inferenceservice`, taken from the label `source` without the ending `name`."""
    return f'label_replace({metric}, "inferenceservice", "$1", "{source}", "(.+?)({name})?")'


def wanted_replicas() -> str:
    """Replicas that the chosen services' Deployments want, by Deployment.

    NOTE: a canary's Deployment has a name of its own (NAME-VERSION-predictor), which could be another service's as
    well: the pods tell whose it is. A service without any pod is known by the name of its Deployment.
    """
    of_pods = (  # NOTE: 1 for each of them, also while it loads
        f"label_replace(pagedserve_engine_up{{{SERVICE}}} >= bool 0, "
        '"deployment", "$1", "pod", "(.+)-[a-z0-9]+-[a-z0-9]{5}")'
    )
    by_name = of_service(f"kube_deployment_spec_replicas{{{DEPLOYMENT}}}", "deployment", "-predictor")
    by = "namespace, deployment, inferenceservice"
    return (
        f"max by ({by}) (\n  kube_deployment_spec_replicas{{{NAMESPACE}}}\n"
        "  * on (namespace, deployment) group_left (inferenceservice)\n"
        f"  max by ({by}) ({of_pods})\n  or\n  {by_name}\n)"
    )


def of_hpa(metric: str, by: str = BY_SERVICE) -> str:
    """A metric of the HorizontalPodAutoscalers that scale the chosen services, by service.

    NOTE: KEDA names an HPA after its ScaledObject, others may name it otherwise: the target tells whose it is.
    """
    info = of_service(
        f'kube_horizontalpodautoscaler_info{{{NAMESPACE},scaletargetref_name=~"$inferenceservice(-predictor)?"}}',
        "scaletargetref_name",
        "-predictor",
    )
    return (
        f"max by ({by}) (\n  {metric}\n  * on (namespace, horizontalpodautoscaler) group_left (inferenceservice)\n"
        f"  max by (namespace, horizontalpodautoscaler, inferenceservice) ({info})\n)"
    )


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _select(metric: str, labels: str) -> str:
    if metric.endswith("}"):  # it has matchers of its own: name{a="b"}
        return f"{metric[:-1]},{labels}}}"
    return f"{metric}{{{labels}}}"
