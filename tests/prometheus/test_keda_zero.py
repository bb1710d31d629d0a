"""How the queries of scale-to-zero-gateway tell no pods from lost targets, evaluated by promtool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests.keda import OVERLAY, scaled_object
from tests.prometheus.server import promtool

RUNNING = 'pagedserve_requests_running{namespace="default",inferenceservice="llm",pod="%s"}'
WAITING = 'pagedserve_requests_waiting{namespace="default",inferenceservice="llm",pod="%s"}'
USAGE = 'pagedserve_kv_cache_usage_ratio{namespace="default",inferenceservice="llm",pod="%s"}'
READY = 'kube_deployment_status_replicas_ready{namespace="default",deployment="llm-predictor"}'
ELSEWHERE = 'kube_deployment_status_replicas_ready{namespace="other",deployment="llm-predictor"}'
PICKED = 'up{namespace="default",pool="llm",pod="llm-epp-0"}'
QUEUE = 'inference_extension_flow_control_queue_size{namespace="default",inference_pool="llm",fairness_id="%s"}'


def pod(name: str, values: str) -> dict[str, str]:
    return {RUNNING % name: values, WAITING % name: values, USAGE % name: values}


@pytest.mark.parametrize(
    ("series", "requests", "kv_usage"),
    [
        ({READY: "0x10"}, 0, 0),  # no pods: idle
        ({READY: "2x10"}, None, None),  # pods and none of their series: lost targets
        ({}, None, None),  # kube-state-metrics is lost as well
        ({ELSEWHERE: "0x10"}, None, None),  # the pods of another namespace say nothing
        ({READY: "0x10", **pod("a", "0x10")}, 0, 0),  # a first pod that loads
        ({READY: "1x10", **pod("a", "1x10")}, 2, 100),
        ({READY: "2x10", **pod("a", "1x10"), **pod("b", "0x10")}, 2, 100),
        ({READY: "2x10", **pod("a", "1x10"), **pod("b", "1x10")}, 4, 200),
        ({READY: "0x10", **pod("a", "1x10")}, 2, 100),  # a pod that drains
        ({READY: "2x10", **pod("a", "1x9 stale")}, 2, 100),  # a scrape that failed, within the minute
        ({READY: "2x10", **pod("a", "1x5 stale stale stale stale stale")}, None, None),  # and beyond it
    ],
)
def test_K1_K3_no_pods_are_idle_and_lost_targets_are_not(
    series: dict[str, str], requests: float | None, kv_usage: float | None, tmp_path: Path
) -> None:
    queries = {
        trigger["name"]: trigger["metadata"]["query"]
        for trigger in scaled_object(f"{OVERLAY}scale-to-zero-gateway")["spec"]["triggers"]
    }
    checks: list[dict[str, Any]] = [
        {
            "expr": queries[name],
            "eval_time": "150s",  # the last of ten intervals
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for name, value in (("requests", requests), ("kv_usage", kv_usage))
    ]
    evaluate(series, checks, tmp_path)


@pytest.mark.parametrize(
    ("series", "queue"),
    [
        ({PICKED: "1x10"}, 0),  # scraped, and nothing has waited yet
        ({PICKED: "1x10", QUEUE % "a": "0x10"}, 0),
        ({PICKED: "1x10", QUEUE % "a": "1x10", QUEUE % "b": "2x10"}, 3),
        ({PICKED: "0x10"}, None),  # the scrape is refused
        ({}, None),  # no scrape at all
        ({PICKED.replace("default", "other"): "1x10"}, None),
    ],
)
def test_K3_a_picker_out_of_sight_is_not_idle(series: dict[str, str], queue: float | None, tmp_path: Path) -> None:
    (query,) = [
        trigger["metadata"]["query"]
        for trigger in scaled_object(f"{OVERLAY}scale-to-zero-gateway")["spec"]["triggers"]
        if trigger["name"] == "gateway_queue"
    ]
    samples = [] if queue is None else [{"labels": "{}", "value": queue}]
    evaluate(series, [{"expr": query, "eval_time": "150s", "exp_samples": samples}], tmp_path)


def evaluate(series: dict[str, str], checks: list[dict[str, Any]], folder: Path) -> None:
    """Holds the series' values, one in 15 s, against the checks of promtool's `promql_expr_test`."""
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": checks,
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [test]}))
    promtool("test", "rules", str(file))
