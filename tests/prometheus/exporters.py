"""Stand-ins of the exporters beside the predictors: what kube-state-metrics, KEDA, DCGM and the endpoint picker say."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tests.prometheus.expressions import NAMESPACE, SERVICE

GPU_MODEL = "NVIDIA H100 80GB HBM3"
GPU_VALUES = (
    {
        "DCGM_FI_DEV_GPU_UTIL": 50.0,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.18,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.46,
        "DCGM_FI_DEV_FB_USED": 72_400.0,  # MiB
        "DCGM_FI_DEV_FB_FREE": 8_600.0,
        "DCGM_FI_DEV_POWER_USAGE": 410.0,
        "DCGM_FI_DEV_GPU_TEMP": 61.0,
        "DCGM_FI_DEV_XID_ERRORS": 0.0,
    },
    {
        "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.5,
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 0.18,
        "DCGM_FI_PROF_DRAM_UTIL_RATIO": 0.46,
        "DCGM_FI_DEV_FB_USED_BYTES": 72_400.0 * 2**20,
        "DCGM_FI_DEV_FB_FREE_BYTES": 8_600.0 * 2**20,
        "DCGM_FI_DEV_BOARD_POWER_WATTS": 410.0,
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 61.0,
        "DCGM_FI_DEV_XID_ERROR": 0.0,
    },
)
"""What DCGM's exporter says of each GPU by its default metrics, up to 4.8 and since 4.9.

Names and units as NVIDIA's field identifiers and the notes of the release have them.
"""


@dataclass(frozen=True)
class Scaler:
    """The HPA and its ScaledObject.

    replicas: as many as pods unless given. desired: as replicas unless given.
    values: what the triggers' queries gave, as totals of the service. targets: their thresholds, those of
    manifests/keda/base unless given. bounds: minimum and maximum. limited: one of them holds it back.
    """

    replicas: int | None = None
    desired: int | None = None
    values: tuple[float, ...] = (20.0, 60.0)
    targets: tuple[float, ...] = (48.0, 80.0)
    bounds: tuple[int, int] = (2, 8)
    limited: bool = False


def healthy_page(pods: Sequence[str], scaler: Scaler = Scaler()) -> str:
    """A /metrics page of a cluster in health, in which these pods run. Labels as the exporters' documentation lists."""
    replicas = len(pods) if scaler.replicas is None else scaler.replicas
    desired = replicas if scaler.desired is None else scaler.desired
    hpa = f'namespace="{NAMESPACE}",horizontalpodautoscaler="keda-hpa-{SERVICE}"'
    target = f'scaletargetref_kind="Deployment",scaletargetref_name="{SERVICE}-predictor"'
    limited = f'{hpa},condition="ScalingLimited"'
    scaled = f'namespace="{NAMESPACE}",scaledObject="{SERVICE}"'
    lines = [
        f"kube_horizontalpodautoscaler_info{{{hpa},{target}}} 1",
        f"kube_horizontalpodautoscaler_spec_max_replicas{{{hpa}}} {scaler.bounds[1]}",
        f"kube_horizontalpodautoscaler_spec_min_replicas{{{hpa}}} {scaler.bounds[0]}",
        f"kube_horizontalpodautoscaler_status_current_replicas{{{hpa}}} {replicas}",
        f"kube_horizontalpodautoscaler_status_desired_replicas{{{hpa}}} {desired}",
        f'kube_horizontalpodautoscaler_status_condition{{{hpa},condition="ScalingActive",status="true"}} 1',
        f'kube_horizontalpodautoscaler_status_condition{{{hpa},condition="ScalingActive",status="false"}} 0',
        f'kube_horizontalpodautoscaler_status_condition{{{limited},status="true"}} {int(scaler.limited)}',
        f'kube_horizontalpodautoscaler_status_condition{{{limited},status="false"}} {int(not scaler.limited)}',
        f"keda_scaled_object_errors_total{{{scaled}}} 0",
        f"keda_scaled_object_paused{{{scaled}}} 0",
    ]
    for index, (value, threshold) in enumerate(zip(scaler.values, scaler.targets, strict=True)):
        metric = f'{hpa},metric_name="s{index}-prometheus",metric_target_type="average"'
        trigger = f'{scaled},scaler="prometheus",triggerIndex="{index}",metric="s{index}-prometheus"'
        lines += [
            f"kube_horizontalpodautoscaler_spec_target_metric{{{metric}}} {threshold}",
            f"kube_horizontalpodautoscaler_status_target_metric{{{metric}}} {value / max(replicas, 1)}",
            f"keda_scaler_metrics_value{{{trigger}}} {value}",
            f"keda_scaler_active{{{trigger}}} {int(value > 0)}",
            f"keda_scaler_metrics_latency_seconds{{{trigger}}} 0.02",
        ]
    for deployment, count in ((f"{SERVICE}-predictor", replicas), (f"{SERVICE}-epp", 2)):
        labels = f'namespace="{NAMESPACE}",deployment="{deployment}"'
        lines += [
            f"kube_deployment_spec_replicas{{{labels}}} {count}",
            f"kube_deployment_status_replicas_available{{{labels}}} {count}",
            f"kube_deployment_status_replicas_unavailable{{{labels}}} 0",
        ]
    for index in (0, 1):  # two replicas of the picker
        picker = (
            f'namespace="{NAMESPACE}",pod="llm-epp-{index}",inference_pool="{SERVICE}",fairness_id="a",priority="0"'
        )
        lines.append(f"inference_extension_flow_control_queue_size{{{picker}}} 0")
    for index, pod in enumerate(pods):
        container = f'namespace="{NAMESPACE}",pod="{pod}",uid="{pod}",container="kserve-container"'
        image = 'image="registry.example.com/pagedserve:0.1.0",image_spec="registry.example.com/pagedserve:0.1.0"'
        lines += [
            f"kube_pod_container_info{{{container},{image}}} 1",
            f"kube_pod_container_status_running{{{container}}} 1",
            f"kube_pod_container_status_restarts_total{{{container}}} 0",
            f'kube_pod_init_container_status_restarts_total{{namespace="{NAMESPACE}",pod="{pod}",container="init"}} 0',
        ]
        for gpu in (0, 1):
            # NOTE: as scraped with honorLabels: false, where namespace and pod are the exporter's own.
            workload = f'exported_namespace="{NAMESPACE}",exported_pod="{pod}",namespace="gpu",pod="dcgm-exporter-a"'
            labels = f'{workload},gpu="{gpu}",modelName="{GPU_MODEL}"'
            # NOTE: the nodes of every other pod have the newer exporter.
            lines += [f"{name}{{{labels}}} {value}" for name, value in GPU_VALUES[index % 2].items()]
    return "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a scrape that Prometheus gave up
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class Exporter:
    """Serves `page` as /metrics on a port of loopback that the system chooses."""

    def __init__(self) -> None:
        self.page = ""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                """Silent: a line a second would bury a failing test's output."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
