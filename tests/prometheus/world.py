"""Two real predictors behind a real Prometheus, brought through the states that the queries must survive.

Everything is watched once and asked about afterwards: an instant query can be put to any moment of the past. Times are
those of production divided by `FACTOR` (a scrape of 15 s takes 1 s), in rules, queries and Prometheus' look-back alike.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.server import Server, until
from tests.manifests.kustomize import build, one
from tests.prometheus.exporters import Exporter, Scaler, healthy_page
from tests.prometheus.expressions import NAMESPACE, SERVICE, rules_file
from tests.prometheus.promql import shorten_duration
from tests.prometheus.scrape import meta, pod_scrape_configs
from tests.prometheus.server import Prometheus

FACTOR = 15
PODS = ("llm-predictor-7d9c5b8f6d-2xk4q", "llm-v2-predictor-6b5f9d7c8-w8rtz")
"""Named as Deployments name theirs: one of the stable version, one of a canary."""
WATCH_SECONDS = 6
"""How long each state is watched: six scrapes, longer than the longest range of a scaler's query (4 s)."""
SCRAPE_SECONDS = 1.5
"""By then a scrape that began has ended: its time is that of its begin, and it is given up after a second."""
HEALTH_SECONDS = 300.0
"""Generous: a machine that is busy for long has such seconds seldom."""
RECORD = f'inferenceservice:pagedserve_replicas:count{{namespace="{NAMESPACE}",inferenceservice="{SERVICE}"}}'


@dataclass(frozen=True)
class World:
    """Moments in Unix seconds, and what was fetched then.

    start: the first rule evaluation that saw a pod. next: the one after it. two, one, none: the seconds watched with as
    many pods. lost: one pod is dead and service discovery still lists it. metrics, targets, rules: with two pods.
    lost_alerts: at `lost`.

    NOTE: a scrape that takes more than a second has failed, which a machine that is busy elsewhere makes happen. The
    seconds of two, one and none, and `lost`, are chosen among those in which no scrape of what runs was missed.
    """

    prometheus: Prometheus
    start: float
    next: float
    two: list[float]
    lost: float
    one: list[float]
    none: list[float]
    metrics: str
    targets: dict[str, Any]
    rules: dict[str, Any]
    lost_alerts: dict[str, Any]


@contextmanager
def live_world(model: Path, folder: Path) -> Iterator[World]:
    """Starts it all, runs through the states, and ends it all but Prometheus, which goes when the context is left."""
    discovered = folder / "pods.json"
    discovered.write_text("[]")
    servers = {pod: _server(model) for pod in PODS}
    try:
        with Exporter() as exporter:
            # NOTE: one replica less than there will be, so that the world has a scale-out in it.
            exporter.page = healthy_page(PODS, Scaler(replicas=len(PODS) - 1))
            (folder / "rules.yml").write_text(yaml.safe_dump(rules_file(FACTOR), sort_keys=False))
            with Prometheus(
                folder, scrape_config(folder, exporter.address), lookback=shorten_duration("5m", FACTOR)
            ) as prometheus:
                for server in servers.values():
                    server.launch()
                for server in servers.values():
                    server.attach()
                until(lambda: prometheus.query('up{job="exporters"} == 1'), "the exporters to be scraped")
                exporter.page = healthy_page(PODS)
                discover(discovered, servers)
                for server in servers.values():
                    server.wait_ready()
                yield _run(prometheus, servers, discovered, exporter)
    finally:
        for server in servers.values():
            server.close()


class PodServer(Server):
    """A server whose process is launched first and waited for later, so that two start at once."""

    def attach(self) -> None:
        """Returns once REST listens."""
        port = self._wait_log(r"Uvicorn running on http://[^:]+:(\d+)")
        self.http_url = f"http://127.0.0.1:{port}"


def _server(model: Path) -> PodServer:
    return PodServer(model_dir=model, model_name=SERVICE, dtype="float32", num_threads=1, num_kv_blocks=64)


def scrape_config(folder: Path, exporter: str) -> dict[str, Any]:
    """Prometheus' configuration: our PodMonitor's targets in pods.json, the exporter, the rules in rules.yml."""
    monitor = one(build("manifests/monitoring/base"), "PodMonitor")
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [
            *pod_scrape_configs(monitor, "monitoring", [str(folder / "pods.json")]),
            {"job_name": "exporters", "honor_labels": True, "static_configs": [{"targets": [exporter]}]},
        ],
    }


def pod_labels(pod: str, port: str, labels: dict[str, str]) -> dict[str, str]:
    """What Kubernetes' service discovery knows of one container port of a running pod."""
    made = {
        "__meta_kubernetes_namespace": NAMESPACE,
        "__meta_kubernetes_pod_name": pod,
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_container_name": "kserve-container",
        "__meta_kubernetes_pod_container_port_name": port,
    }
    for name, value in labels.items():
        made[f"__meta_kubernetes_pod_label_{meta(name)}"] = value
        made[f"__meta_kubernetes_pod_labelpresent_{meta(name)}"] = "true"
    return made


def kserve_pod_labels() -> dict[str, str]:
    """The labels that KServe gives the predictor's pods: the InferenceService's, the predictor's and its own."""
    service = one(build("manifests/kserve/base"), "InferenceService")
    name = service["metadata"]["name"]
    return {
        **service["metadata"].get("labels", {}),
        **service["spec"]["predictor"].get("labels", {}),
        "app": f"isvc.{name}-predictor",
        "component": "predictor",
        "serving.kserve.io/inferenceservice": name,
    }


def discover(file: Path, servers: dict[str, PodServer]) -> None:
    """The file of service discovery: these pods with each of their ports, and a neighbour that is none of ours."""
    labels = kserve_pod_labels()
    container = one(build("manifests/kserve/base"), "InferenceService")["spec"]["predictor"]["containers"][0]
    targets = []
    for pod, server in servers.items():
        address = server.http_url.removeprefix("http://")
        targets += [
            {"targets": [address], "labels": pod_labels(pod, port["name"], labels)} for port in container["ports"]
        ]
    targets.append({"targets": ["127.0.0.1:1"], "labels": pod_labels("neighbour", "http", {"app": "other"})})
    # NOTE: Prometheus watches the folder; a file that is renamed into place is never read half written.
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(targets))
    fresh.rename(file)


@contextmanager
def _load(servers: list[PodServer]) -> Iterator[None]:
    """A few requests a second to each server, until the context is left."""
    ended = threading.Event()
    body = {"model": SERVICE, "max_tokens": 16, "temperature": 0, "ignore_eos": True}

    def ask(server: PodServer) -> None:
        with httpx.Client(base_url=server.http_url, timeout=60.0) as client:
            count = 0
            while not ended.wait(0.2):
                count += 1
                prompt = [3 + (count * 7 + index) % 200 for index in range(40)]
                assert client.post("/v1/completions", json={**body, "prompt": prompt}).status_code == 200

    threads = [threading.Thread(target=ask, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _run(prometheus: Prometheus, servers: dict[str, PodServer], discovered: Path, exporter: Exporter) -> World:
    def is_whole(pods: Sequence[str], end: float, seconds: int) -> bool:
        """Whether these pods and the exporters were scraped every second until `end`, and in time."""
        up = f'up{{pod=~"{"|".join(["", *pods])}"}}[{seconds}s]'  # NOTE: exporters have no pod
        whole = prometheus.query(f"min_over_time({up}) == 1 and count_over_time({up}) >= {seconds - 1}", end)
        return len(whole) == len(pods) + 1

    def watch(*pods: str) -> list[float]:
        begin = time.time()

        def seconds() -> list[float]:
            end = time.time() - SCRAPE_SECONDS
            if end < begin + WATCH_SECONDS or not is_whole(pods, end, WATCH_SECONDS):
                return []
            return [end - WATCH_SECONDS + second for second in range(1, WATCH_SECONDS + 1)]

        return until(seconds, f"{WATCH_SECONDS} seconds without a missed scrape", HEALTH_SECONDS)

    def losing() -> tuple[float, dict[str, Any]] | None:
        """A moment at which the dead pod alone is missed, and the alerts then."""
        at, alerts = time.time(), prometheus.get("alerts")
        names = {(alert["labels"]["alertname"], alert["labels"].get("pod")) for alert in alerts["alerts"]}
        if ("PagedServeScrapeFailed", PODS[1]) not in names:
            return None
        until(lambda: time.time() >= at + SCRAPE_SECONDS, "the scrapes of that moment to end")
        return (at, alerts) if is_whole(PODS[:1], at, 3) else None

    def all_up() -> dict[str, Any] | None:
        found = prometheus.targets()
        return found if all(target["health"] == "up" for target in found["activeTargets"]) else None

    def replicas(number: int) -> bool:
        return [sample.value for sample in prometheus.query(RECORD)] == ([number] if number else [])

    with _load(list(servers.values())):
        until(lambda: replicas(2), "both pods to be seen")
        start, after, *_ = until(lambda: times if (times := prometheus.times(RECORD))[1:] else None, "two evaluations")
        until(lambda: prometheus.query('{__name__=~"inferenceservice:.*3d"}'), "the rules that run seldom")
        # NOTE: kube-state-metrics knows a new pod before its first scrape.
        until(lambda: not prometheus.query("ALERTS"), "no alert to be pending any more")
        two = watch(*PODS)
        metrics = httpx.get(servers[PODS[0]].http_url + "/metrics", timeout=60.0).text
        targets = until(all_up, "every target to be up")
        rules = prometheus.get("rules")
    gone = servers.pop(PODS[1])
    gone.close()
    until(lambda: prometheus.query(f'up{{pod="{PODS[1]}"}} == 0'), "the scrape of the dead pod to fail")
    lost, lost_alerts = until(losing, "the alert", HEALTH_SECONDS)
    discover(discovered, servers)
    # NOTE: its Deployment is scaled in; its pod stays listed for a while.
    exporter.page = healthy_page(PODS, Scaler(replicas=1))
    with _load(list(servers.values())):
        until(lambda: not prometheus.query(f'up{{pod="{PODS[1]}"}}'), "the dead pod to be forgotten")
        until(lambda: replicas(1), "one pod to be left")
        only = watch(PODS[0])
    servers[PODS[0]].close()
    discover(discovered, {})
    until(lambda: not prometheus.query(f'up{{pod="{PODS[0]}"}}'), "the last pod to be forgotten")
    until(lambda: replicas(0), "no pod to be left")
    # NOTE: by its last second averages over a minute (4 s) have run out; rates over five minutes have not.
    none = watch()
    return World(prometheus, start, after, two, lost, only, none, metrics, targets, rules, lost_alerts)
