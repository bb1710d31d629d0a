"""What panels show in states that the live world does not go through: loads from zero, no pod, two exporters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from grafana.catalogue import FOLDER
from grafana.preview.template import Chosen, Template
from tests.grafana.linter import panels, targets
from tests.prometheus.exporters import GPU_MODEL, GPU_VALUES
from tests.prometheus.server import promtool

DASHBOARDS = {file.stem: json.loads(file.read_text()) for file in FOLDER.glob("*.json")}
CHOICE = Template(
    {name: Chosen(["All"], ".+") for name in ("namespace", "pod", "gpu_model")}
    | {"cluster": Chosen(["All"], ".*"), "inferenceservice": Chosen(["a", "b"], "(a|b)")}
)
AT = "10m"
OF_A, OF_B = 'namespace="n",inferenceservice="a"', 'namespace="n",inferenceservice="b"'
POD_A, CANARY_A = "a-predictor-5d4f9c-x7k2p", "a-v2-predictor-7f8d9b-q2w4e"
Given = dict[str, str]
"""Series, and their values a minute apart."""


def wants(deployment: str, number: int, exporter: str = "one") -> Given:
    labels = f'namespace="n",deployment="{deployment}",instance="{exporter}"'
    return {f"kube_deployment_spec_replicas{{{labels}}}": f"{number}x20"}


def runs(labels: str, pods: int, up: int) -> Given:
    """What our rules record of a service, and its pods' own series."""
    name = labels.rpartition("=")[2].strip('"')
    each = {
        f'pagedserve_engine_up{{{labels},pod="{name}-predictor-5d4f9c-x7k2{index}"}}': f"{int(index < up)}x20"
        for index in range(pods)
    }
    return each | {
        f"inferenceservice:pagedserve_replicas:count{{{labels}}}": f"{pods}x20",
        f"inferenceservice:pagedserve_engines_up:sum{{{labels}}}": f"{up}x20",
    }


def expression(uid: str, panel: int, ref: str, chosen: Template = CHOICE) -> str:
    (found,) = [one for one in panels(DASHBOARDS[uid]) if one["id"] == panel]
    return chosen.expression(next(target["expr"] for target in found["targets"] if target["refId"] == ref))


def check(folder: Path, given: Given, expressions: dict[str, dict[str, float]]) -> None:
    """Each expression has these samples, by their labels, ten minutes after the series began."""
    tests = [
        {"expr": text, "eval_time": AT, "exp_samples": [{"labels": k, "value": v} for k, v in samples.items()]}
        for text, samples in expressions.items()
    ]
    series = [{"series": name, "values": values} for name, values in given.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    (folder / "test.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", "test.yml", cwd=folder)


READY, WANTED = ("pagedserve-service", 2, "A"), ("pagedserve-service", 2, "B")
WANTED_OF = ("pagedserve-service", 50, "B")
LOADING, MISSING = ("pagedserve-autoscaling", 30, "B"), ("pagedserve-autoscaling", 30, "C")
A = "{" + OF_A.replace(",", ", ") + "}"
STATES: dict[str, tuple[Given, dict[tuple[str, int, str], dict[str, float]]]] = {
    "every replica loads": (
        wants("a-predictor", 2) | runs(OF_A, pods=2, up=0),
        {READY: {"{}": 0}, WANTED: {"{}": 2}, WANTED_OF: {A: 2}, LOADING: {"{}": 2}, MISSING: {"{}": 0}},
    ),
    "replicas are wanted and no pod runs": (
        wants("a-predictor", 2),
        {READY: {"{}": 0}, WANTED: {"{}": 2}, WANTED_OF: {A: 2}, LOADING: {}, MISSING: {"{}": 2}},
    ),
    "one service has a pod too many, one a pod too few": (
        wants("a-predictor", 1) | wants("b", 2) | runs(OF_A, pods=2, up=2) | runs(OF_B, pods=1, up=1),
        {READY: {"{}": 3}, WANTED: {"{}": 3}, MISSING: {"{}": 1}},
    ),
    "a canary's Deployment, seen by two exporters": (
        wants("a-predictor", 1)
        | wants("a-v2-predictor", 1)
        | wants("a-v2-predictor", 1, "two")
        | runs(OF_A, pods=1, up=1)
        | {f'pagedserve_engine_up{{{OF_A},pod="{CANARY_A}"}}': "1x20"},
        {WANTED: {"{}": 2}, WANTED_OF: {A: 2}},
    ),
    "neither Deployments nor pods are known": ({"up": "1x20"}, {READY: {}, WANTED: {}, LOADING: {}, MISSING: {}}),
}


@pytest.mark.parametrize("state", STATES)
def test_replicas(state: str, tmp_path: Path) -> None:
    given, expected = STATES[state]
    check(tmp_path, given, {expression(*where): samples for where, samples in expected.items()})


@pytest.mark.parametrize("panel", [3, 4, 5, 6, 7])
def test_a_number_of_before_is_not_the_one_of_now(panel: int, tmp_path: Path) -> None:
    names = ("requests:rate5m", "generation_tokens:rate5m", "requests_waiting:sum", "kv_cache_usage_ratio:avg")
    names += ("requests_rejected:ratio_rate5m",)
    given = {f"inferenceservice:pagedserve_{name}{{{OF_A}}}": "7x3 stale" for name in names}
    text = expression("pagedserve-service", panel, "A")
    check(tmp_path, given, {f"count(({text}) != ({text}))": {"{}": 1}})  # NOTE: NaN alone is not equal to itself


def test_restarts_are_counted_once_by_two_exporters(tmp_path: Path) -> None:
    restarts = {
        f'kube_pod_container_status_restarts_total{{namespace="n",pod="{POD_A}",container="{container}",'
        f'uid="u",instance="{exporter}"}}': f"{number}x20"
        for exporter in ("one", "two")
        for container, number in (("kserve-container", 3), ("queue-proxy", 1))
    }
    up = {f'pagedserve_engine_up{{{OF_A},pod="{POD_A}"}}': "0x20"}
    sample = {f'{{{OF_A.replace(",", ", ")}, pod="{POD_A}"}}': 4.0}
    check(tmp_path, restarts | up, {expression("pagedserve-service", 52, "F"): sample})


@pytest.mark.parametrize(("canary", "shown"), [("a-v2-predictor-7f8d9b", {"{}": 2.0}), ("a-predictor-5d4f9c", {})])
def test_a_version_is_not_compared_with_itself(canary: str, shown: dict[str, float], tmp_path: Path) -> None:
    chosen = Template({**CHOICE.values, "stable": Chosen([""], "a-predictor-5d4f9c"), "canary": Chosen([""], canary)})
    given = {f'pagedserve_engine_up{{{OF_A},pod="{pod}"}}': "1x20" for pod in (POD_A, CANARY_A)} | {
        f'pagedserve_generation_tokens_total{{{OF_A},pod="{pod}"}}': f"0+{tokens}x20"
        for pod, tokens in ((POD_A, 60), (CANARY_A, 120))
    }
    check(tmp_path, given, {expression("pagedserve-versions", 3, "A", chosen): shown})


def test_versions_of_two_services_are_not_compared(tmp_path: Path) -> None:
    """As "All" would have it: the same service in two namespaces, one replica set each."""
    chosen = Template(
        {**CHOICE.values, "stable": Chosen([""], "a-predictor-5d4f9c"), "canary": Chosen([""], "a-v2-predictor-7f8d9b")}
    )
    labels = {POD_A: OF_A, CANARY_A: OF_A.replace('"n"', '"other"')}
    given = {f'pagedserve_engine_up{{{of},pod="{pod}"}}': "1x20" for pod, of in labels.items()} | {
        f'pagedserve_generation_tokens_total{{{of},pod="{pod}"}}': "0+60x20" for pod, of in labels.items()
    }
    check(tmp_path, given, {expression("pagedserve-versions", 3, "A", chosen): {}})


@pytest.mark.parametrize(("chosen", "shown"), [("east", 2), ("(east|west)", 5), (".*", 9)])
def test_a_cluster_can_be_chosen_where_series_have_the_label(chosen: str, shown: float, tmp_path: Path) -> None:
    """The same service in two clusters, and in one that gives its series no such label."""
    given: Given = {}
    for cluster, pods in (('cluster="east",', 2), ('cluster="west",', 3), ("", 4)):
        for name, values in runs(OF_A, pods=pods, up=pods).items():
            given[name.replace("{", "{" + cluster)] = values
    template = Template({**CHOICE.values, "cluster": Chosen([chosen], chosen)})
    check(tmp_path, given, {expression("pagedserve-service", 2, "A", template): {"{}": shown}})


@pytest.mark.parametrize("panel", range(90, 96))
def test_gpus_are_shown_by_an_old_exporter_and_a_new_one(panel: int, tmp_path: Path) -> None:
    """In one unit, and each GPU once, where a collector was told to give both names too."""
    pods = {POD_A: GPU_VALUES[0], CANARY_A: GPU_VALUES[1], f"{POD_A[:-1]}q": GPU_VALUES[0] | GPU_VALUES[1]}
    given: Given = {f'pagedserve_engine_up{{{OF_A},pod="{pod}"}}': "1x20" for pod in pods}
    for pod, values in pods.items():
        workload = f'namespace="gpu",pod="exporter",exported_namespace="n",exported_pod="{pod}"'
        labels = f'{workload},gpu="0",modelName="{GPU_MODEL}"'
        given |= {f"{name}{{{labels}}}": f"{value}x20" for name, value in values.items()}
    value = {90: 0.5, 91: 0.18, 92: 72_400 / 81_000, 93: 410, 94: 61, 95: 0}[panel]
    samples = {f'{{gpu="0", namespace="n", pod="{pod}"}}': value for pod in pods}
    check(tmp_path, given, {expression("pagedserve-engine", panel, "A"): samples})


@pytest.mark.parametrize("exported", ["", "exported_"])
def test_keda_is_scraped_with_or_without_honor_labels(exported: str, tmp_path: Path) -> None:
    own = 'namespace="keda",' if exported else ""
    trigger = (
        f'{own}{exported}namespace="n",scaledObject="a",scaler="prometheus",triggerIndex="0",metric="s0-prometheus"'
    )
    given = runs(OF_A, pods=1, up=1) | {f"keda_scaler_metrics_value{{{trigger}}}": "20x20"}
    sample = '{namespace="n", inferenceservice="a", scaledObject="a", metric="s0-prometheus"}'
    check(tmp_path, given, {expression("pagedserve-autoscaling", 23, "A"): {sample: 20}})


@pytest.mark.parametrize(("paused", "shown"), [(0, 0), (1, 2)])
def test_a_paused_scaled_object_is_told(paused: int, shown: int, tmp_path: Path) -> None:
    given = runs(OF_A, pods=1, up=1) | {
        'keda_scaled_object_paused{namespace="keda",exported_namespace="n",scaledObject="a"}': f"{paused}x20"
    }
    sample = '{namespace="n", inferenceservice="a", scaledObject="a"}'
    check(tmp_path, given, {expression("pagedserve-autoscaling", 42, "B"): {sample: shown}})


@pytest.mark.parametrize(("metric", "other"), [("s0-prometheus", "s10-prometheus"), ("pagedserve_requests", "cpu")])
def test_thresholds_of_keda_and_of_prometheus_adapter(metric: str, other: str, tmp_path: Path) -> None:
    hpa = 'namespace="n",horizontalpodautoscaler="h"'
    given = {
        f'kube_horizontalpodautoscaler_info{{{hpa},scaletargetref_kind="Deployment",scaletargetref_name="a"}}': "1x20",
    } | {
        f'kube_horizontalpodautoscaler_spec_target_metric{{{hpa},metric_name="{name}",metric_target_type="average"}}': v
        for name, v in ((metric, "48x20"), (other, "70x20"))
    }
    check(tmp_path, given, {expression("pagedserve-autoscaling", 20, "B"): {A: 48}})


@pytest.mark.parametrize(("inactive", "current", "shown"), [(0, 3, 0), (1, 3, 1), (1, 0, 2)])
def test_an_autoscaler_at_zero_rests_and_is_not_blind(inactive: int, current: int, shown: int, tmp_path: Path) -> None:
    hpa, condition = 'namespace="n",horizontalpodautoscaler="h"', 'condition="ScalingActive",status="false"'
    given = {
        f'kube_horizontalpodautoscaler_info{{{hpa},scaletargetref_name="a-predictor",instance="one"}}': "1x20",
        f"kube_horizontalpodautoscaler_status_condition{{{hpa},{condition}}}": f"{inactive}x20",
        f"kube_horizontalpodautoscaler_status_current_replicas{{{hpa}}}": f"{current}x20",
    }
    check(tmp_path, given, {expression("pagedserve-autoscaling", 4, "A"): {A: shown}})


def test_a_new_replica_set_is_marked_and_a_new_pod_of_an_old_one_is_not(tmp_path: Path) -> None:
    def info(pod: str, values: str) -> Given:
        return {f'pagedserve_info{{{OF_A},pod="{pod}",version="0.1.0"}}': values}

    (text,) = [
        CHOICE.expression(one.expr)
        for one in targets(DASHBOARDS["pagedserve-versions"])
        if one.where == "annotation Version"
    ]
    given = info(POD_A, "1x20") | info(f"{POD_A[:-1]}q", "_x9 1x20") | info(CANARY_A, "0x9 1x20")
    marked = f'{{{OF_A.replace(",", ", ")}, replicaset="a-v2-predictor-7f8d9b", version="0.1.0"}}'
    check(tmp_path, given, {text: {marked: 1}})


@pytest.mark.parametrize("values", ["1x7 _ stale 1x20", "1x5 0x3 1x20"], ids=["a failed scrape", "a restart"])
def test_a_replica_set_that_served_before_is_not_marked(values: str, tmp_path: Path) -> None:
    (text,) = [
        CHOICE.expression(one.expr)
        for one in targets(DASHBOARDS["pagedserve-versions"])
        if one.where == "annotation Version"
    ]
    check(tmp_path, {f'pagedserve_info{{{OF_A},pod="{POD_A}",version="0.1.0"}}': values}, {text: {}})
