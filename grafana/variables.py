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

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_SERVICES = 'label_values(pagedserve_engine_up{namespace=~"$namespace"}, inferenceservice)'
ALL = VariableOption(selected=True, text="All", value="$__all")


def datasource() -> DatasourceVariable:
    return DatasourceVariable("datasource").label("Data source").type("prometheus")


def namespace() -> QueryVariable:
    return _query("namespace", "Namespace", "label_values(pagedserve_engine_up, namespace)").all_value(".+")


def inferenceservice() -> QueryVariable:
    """NOTE: its "All" is the list of its values: names of services also select Deployments, and `.+` would take any."""
    return _query("inferenceservice", "InferenceService", _SERVICES)


def one_inferenceservice() -> QueryVariable:
    """For a dashboard that compares within a service: the first one, until another is chosen."""
    made = QueryVariable("inferenceservice").label("InferenceService").datasource(SOURCE).query(_SERVICES)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def pod() -> QueryVariable:
    selector = 'pagedserve_engine_up{namespace=~"$namespace",inferenceservice=~"$inferenceservice"}'
    return _query("pod", "Pod", f"label_values({selector}, pod)").all_value(".+")


def revision(name: str, label: str, description: str, sort: VariableSort) -> QueryVariable:
    """ReplicaSets (a pod's name without its last part): two versions of one Deployment differ in it, and so do the
    Deployments of a canary and its stable version."""
    selector = 'pagedserve_engine_up{namespace=~"$namespace",inferenceservice=~"$inferenceservice"}'
    made = QueryVariable(name).label(label).description(description).datasource(SOURCE)
    made = made.query(f"label_values({selector}, pod)").regex("/^(.+)-[a-z0-9]{5}$/")
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(sort).multi(True)


def gpu_model() -> QueryVariable:
    """Models of the GPUs of the pods chosen. It has no value without DCGM's exporter; nobody sees it."""
    made = _query("gpu_model", "GPU model", f"query_result({GPU_MODELS})").regex('/modelName="([^"]+)"/')
    return made.hide(VariableHide.HIDE_VARIABLE)


def threshold(name: str, label: str, description: str, default: str) -> TextBoxVariable:
    """A number that panels compare with and that the reader may change."""
    value = VariableOption(selected=True, text=default, value=default)
    return TextBoxVariable(name).label(label).description(description).default_value(default).current(value)


def _query(name: str, label: str, query: str) -> QueryVariable:
    made = QueryVariable(name).label(label).datasource(SOURCE).query(query).multi(True).include_all(True).current(ALL)
    return made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def of_gpu(metric: str) -> str:
    """A metric of DCGM's exporter for the GPUs of the pods chosen, with namespace and pod of the workload.

    NOTE: scraped with honorLabels: false (as its chart is) the workload's labels are exported_*, else they are plain.
    """
    plain = (
        f'label_replace(label_replace({metric}, "namespace", "$1", "exported_namespace", "(.+)"), '
        '"pod", "$1", "exported_pod", "(.+)")'
    )
    ours = (
        'max by (namespace, pod) (pagedserve_engine_up{namespace=~"$namespace",'
        'inferenceservice=~"$inferenceservice",pod=~"$pod"})'
    )
    return f"{plain}\nand on (namespace, pod) {ours}"


GPU_MODELS = f"count by (modelName) ({of_gpu('DCGM_FI_DEV_FB_USED')})".replace("\n", " ")
