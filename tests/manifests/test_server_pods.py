"""What the manifests ask of a server, held against the real one: flags, ports, probes, and how long its end takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.errors import ConfigError
from predictor.args import ENV_PREFIX, parse_config
from predictor.flags import FLAGS
from predictor.health import build_router
from predictor.lifecycle import MIN_GRACE_SECONDS
from tests.manifests.pods import SERVER_PODS, ServerPod
from tests.manifests.storage_container import injected, patched, qos_class

LOAD_SECONDS = 600
"""The longest load that the probes must bear."""
MARGIN_SECONDS = 20
"""From the end of the drain to the exit: aborting what is left, open responses, the listeners, the engine."""

each_server = pytest.mark.parametrize("pod", SERVER_PODS, ids=str)


def test_servers_are_found_in_every_overlay_that_makes_one() -> None:
    overlays = {Path(pod.overlay).name for pod in SERVER_PODS}
    assert overlays >= {"base", "canary", "cpu-demo", "hf-token", "httproute", "knative", "plain", "pvc", "s3"}
    assert "servingruntime" in overlays


@each_server
def test_flags_and_environment_are_the_servers(pod: ServerPod) -> None:
    assert pod.config.model_name
    known = {ENV_PREFIX + flag.name.upper() for flag in FLAGS}
    own = {v["name"] for v in pod.container.get("env", []) if v["name"].startswith(ENV_PREFIX)}
    assert own <= known
    # A flag that is given twice, or beside its variable, would hide one of the two.
    names = [word.partition("=")[0] for word in pod.container["args"]]
    assert len(names) == len(set(names))


def test_an_unknown_flag_would_be_noticed() -> None:
    with pytest.raises(ConfigError, match="gpu_memory"):
        parse_config(["--gpu_memory=1"], {})


@each_server
def test_ports(pod: ServerPod) -> None:
    ports = {port["name"]: port["containerPort"] for port in pod.container["ports"]}
    if pod.is_knative:
        assert ports == {"http1": pod.config.http_port}
    else:
        assert list(ports) == ["http", "h2c-grpc"], "KServe makes the first one port 80"
        assert ports == {"http": pod.config.http_port, "h2c-grpc": pod.config.grpc_port}


@each_server
def test_probes(pod: ServerPod) -> None:
    # NOTE: the router only keeps the service it is given; its routes do not depend on it.
    routes = {cast(Any, route).path for route in build_router(cast(Any, SimpleNamespace())).routes}
    port = pod.container["ports"][0]
    probes = {
        name: pod.container[name]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
        if name in pod.container
    }
    for name, probe in probes.items():
        assert probe["httpGet"]["path"] in routes, name
        assert probe["httpGet"]["port"] in {port["name"], port["containerPort"]}, name
        # Thirty-two tokens of a large batch may hold up an answer for a second, Kubernetes' default.
        assert probe["timeoutSeconds"] >= 5, name
    assert probes["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    # While the model loads and however long the queue, live is 200 and ready may be 503.
    assert probes["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert probes["livenessProbe"]["periodSeconds"] * probes["livenessProbe"]["failureThreshold"] >= 60


@each_server
def test_probes_bear_a_load_of_ten_minutes(pod: ServerPod) -> None:
    if pod.is_knative:
        # No startup probe: an unready pod is not restarted, and live is 200 from the opening of the listener.
        assert "startupProbe" not in pod.container
        assert pod.container["livenessProbe"]["initialDelaySeconds"] >= 30
        deadline = pod.document["metadata"]["annotations"]["serving.knative.dev/progress-deadline"]
        assert int(deadline.removesuffix("s")) > LOAD_SECONDS
        return
    startup = pod.container["startupProbe"]
    assert startup["httpGet"]["path"] == "/v2/health/ready"
    budget = startup["periodSeconds"] * startup["failureThreshold"]
    assert budget >= 2 * LOAD_SECONDS
    if pod.document["kind"] == "Deployment":
        assert pod.document["spec"]["progressDeadlineSeconds"] > budget


@each_server
def test_the_pod_ends_in_time(pod: ServerPod) -> None:
    sleep = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod.is_knative or sleep >= 10, "traffic goes on arriving until the endpoints have changed everywhere"
    assert MARGIN_SECONDS > 2 * MIN_GRACE_SECONDS, "open responses of REST and of gRPC get that much"
    assert sleep + pod.config.drain_timeout + MARGIN_SECONDS <= pod.grace
    # The route lets a stream live longer than the drain does, never the other way round.
    if "timeout" in pod.spec and not pod.is_knative:
        assert pod.spec["timeout"] > pod.config.drain_timeout


@each_server
def test_resources(pod: ServerPod) -> None:
    requests, limits = pod.container["resources"]["requests"], pod.container["resources"]["limits"]
    assert requests["cpu"] == limits["cpu"], "Guaranteed, and the number of threads is that of the limit"
    assert requests["memory"] == limits["memory"]
    assert qos_class(injected(pod.spec, patched())) == "Guaranteed", "with KServe's download container"
    assert int(limits["cpu"]) > 0
    cache = pod.config.engine.kv_cache_memory
    if pod.uses_gpu:
        assert cache is None
        return
    assert cache is not None
    assert cache * 3 <= int(limits["memory"].removesuffix("Gi")) * 2**30, "weights and activations need room too"


@each_server
def test_rollouts_add_before_they_take(pod: ServerPod) -> None:
    if pod.is_knative:
        return
    strategy = pod.spec.get("deploymentStrategy") or pod.document["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


@each_server
def test_the_model_is_where_it_is_mounted(pod: ServerPod) -> None:
    model_dir = pod.config.engine.model_dir
    mounts = [Path(entry["mountPath"]) for entry in pod.spec.get("storageUris", [])]
    mounts += [Path(m["mountPath"]) for m in pod.container["volumeMounts"] if m.get("readOnly")]
    mounts += [Path("/mnt/models")] if "storageUri" in pod.spec.get("model", {}) else []
    if mounts:
        assert any(model_dir.is_relative_to(mount) for mount in mounts)
    else:
        assert model_dir.suffix == ".gguf", "the demonstration model, which is in the image"
