"""Annotations: what happened, as marks on every panel's time axis."""

from __future__ import annotations

from grafana.board import Event
from grafana.queries import DEPLOYMENT, SERVICE, of_service

_REPLICAS = f"kube_deployment_spec_replicas{{{DEPLOYMENT}}}"


def _scaled(sign: str) -> str:
    """The new number of replicas, as a label, in the minute after it changed.

    NOTE: `count_values` makes a label of a value, since the text of an annotation can name labels only.
    """
    changed = f"{_REPLICAS} {sign} {_REPLICAS} offset 1m"
    return (
        f'count_values by (namespace, inferenceservice) ("replicas", {of_service(changed, "deployment", "-predictor")})'
    )


SCALE_UP = Event(
    "Scaled out", _scaled(">"), "blue", "{{inferenceservice}}: {{replicas}} replicas", "Scaled out in {{namespace}}"
)
SCALE_DOWN = Event(
    "Scaled in", _scaled("<"), "purple", "{{inferenceservice}}: {{replicas}} replicas", "Scaled in in {{namespace}}"
)


_INFO = f"pagedserve_info{{{SERVICE}}}"


def _replica_sets(info: str) -> str:
    """Those that serve. NOTE: a new model or another flag is a new ReplicaSet, and no new version of pagedserve."""
    return f'label_replace({info} == 1, "replicaset", "$1", "pod", "(.+)-[a-z0-9]{{5}}")'


ROLL_OUT = Event(
    "Version",
    # NOTE: an hour back, since neither a scrape that failed nor a container that was restarted makes a new one.
    f"count by (namespace, inferenceservice, replicaset, version) ({_replica_sets(_INFO)})\n"
    f"unless on (namespace, inferenceservice, replicaset) {_replica_sets(f'max_over_time({_INFO}[1h] offset 1m)')}",
    "green",
    "{{replicaset}}",
    "A first replica of this ReplicaSet of {{namespace}}/{{inferenceservice}} serves (pagedserve {{version}})",
)
ALERT = Event(
    "Alert",
    'count by (alertname, severity, namespace, inferenceservice) (ALERTS{alertname=~"PagedServe.+",alertstate="firing",'
    'severity!="info",cluster=~"$cluster",namespace=~"$namespace|",inferenceservice=~"$inferenceservice|"})',
    "red",
    "{{alertname}}",
    "{{severity}}: {{namespace}}/{{inferenceservice}}",
)
