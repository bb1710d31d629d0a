"""The variables in a dashboard's head."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable, TextBoxVariable
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from grafana.dcgm import MODELS
from grafana.queries import NAMESPACE, SERVICE

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_SERVICES = f"label_values(pagedserve_engine_up{{{NAMESPACE}}}, inferenceservice)"
_PODS = f"label_values(pagedserve_engine_up{{{SERVICE}}}, pod)"
ALL = VariableOption(selected=True, text="All", value="$__all")


def datasource() -> DatasourceVariable:
    """Grafana's default one, where that is a Prometheus, else the first."""
    default = VariableOption(selected=True, text="default", value="default")
    return DatasourceVariable("datasource").label("Data source").type("prometheus").current(default)


def cluster() -> QueryVariable:
    """NOTE: the label is one that Thanos, Mimir and federation see, and a Prometheus of its own has none: "All" takes
    series without it too."""
    return _query("cluster", "Cluster", "label_values(pagedserve_engine_up, cluster)").all_value(".*")


def namespace() -> QueryVariable:
    query = 'label_values(pagedserve_engine_up{cluster=~"$cluster"}, namespace)'
    return _query("namespace", "Namespace", query).all_value(".+")


def inferenceservice() -> QueryVariable:
    """NOTE: its "All" is the list of its values: names of services also select Deployments, and `.+` would take any."""
    return _query("inferenceservice", "InferenceService", _SERVICES)


def one_inferenceservice() -> QueryVariable:
    """For a dashboard that compares within a service: the first one, until another is chosen."""
    made = QueryVariable("inferenceservice").label("InferenceService").datasource(SOURCE).query(_SERVICES)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def pod() -> QueryVariable:
    return _query("pod", "Pod", _PODS).all_value(".+")


def revision(name: str, label: str, description: str, sort: VariableSort) -> QueryVariable:
    """ReplicaSets (a pod's name without its last part): two versions of one Deployment differ in it, and so do the
    Deployments of a canary and its stable version."""
    made = QueryVariable(name).label(label).description(description).datasource(SOURCE)
    made = made.query(_PODS).regex("/^(.+)-[a-z0-9]{5}$/")
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(sort).multi(True)


def gpu_model() -> QueryVariable:
    """Models of the GPUs of the pods chosen. It has no value without DCGM's exporter; nobody sees it."""
    made = _query("gpu_model", "GPU model", f"query_result({MODELS})").regex('/modelName="([^"]+)"/')
    return made.hide(VariableHide.HIDE_VARIABLE)


def threshold(name: str, label: str, description: str, default: str) -> TextBoxVariable:
    """A number that panels compare with and that the reader may change."""
    value = VariableOption(selected=True, text=default, value=default)
    return TextBoxVariable(name).label(label).description(description).default_value(default).current(value)


def _query(name: str, label: str, query: str) -> QueryVariable:
    made = QueryVariable(name).label(label).datasource(SOURCE).query(query).multi(True).include_all(True).current(ALL)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
