"""`python -m tests.prometheus.preview` draws the dashboards from a little cluster of its own.

Real servers under a load that comes and goes, behind a real Prometheus, with an autoscaler that follows its rule and a
canary beside the stable version. Times are those of production divided by `FACTOR`, as in the tests' world. It takes
about five minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import yaml

from grafana.preview.__main__ import draw_all, tell
from tests.e2e.server import until
from tests.prometheus.exporters import Exporter, Scaler, healthy_page
from tests.prometheus.expressions import NAMESPACE, SERVICE, rules_file
from tests.prometheus.promql import shorten, shorten_duration
from tests.prometheus.server import Prometheus
from tests.prometheus.world import FACTOR, PodServer, kserve_pod_labels, pod_labels, scrape_config

CHAT = ("chat-predictor-5d8f6c9b7-m4n2p", "chat-v2-predictor-6b5f9d7c8-w8rtz")
"""A second service that does not scale: a stable version, and a canary with a smaller budget of tokens."""
LLM = ("llm-predictor-7d9c5b8f6d-2xk4q", "llm-predictor-7d9c5b8f6d-9hj7c", "llm-predictor-7d9c5b8f6d-tq5vz")
"""Two from the start; the third comes when the load asks for it."""
SHOWN = {
    "pagedserve-versions": {"inferenceservice": ["chat"]},
    "pagedserve-autoscaling": {"inferenceservice": [SERVICE]},
}
"""The service whose dashboard it is; the others show both."""
TARGETS = (6.0, 80.0)
"""The first is passed at the peak on a calm machine too, which has fewer requests at once than a busy one."""
BOUNDS = (2, 3)
SELECTOR = f'{{namespace="{NAMESPACE}",inferenceservice="{SERVICE}"}}'


class NamedServer(PodServer):
    """A server of one of the services."""

    name = ""


def server(model: Path, name: str, **flags: Any) -> NamedServer:
    """A small engine: eight sequences at once, and a KV cache that they can fill."""
    small = {"max_num_seqs": 8, "num_kv_blocks": 72, "max_num_batched_tokens": 256, "max_waiting_requests": 12}
    made = NamedServer(model_dir=model, model_name=name, dtype="float32", num_threads=1, **(small | flags))
    made.name = name
    return made


def write_pods(file: Path, pods: dict[str, NamedServer]) -> None:
    """The file of service discovery, each pod with the name of its service."""
    made = []
    for pod, one in pods.items():
        labels = {**kserve_pod_labels(), "serving.kserve.io/inferenceservice": one.name}
        made.append({"targets": [one.http_url.removeprefix("http://")], "labels": pod_labels(pod, "http", labels)})
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(made))
    fresh.rename(file)


def cluster(pods: Sequence[str], scaler: Scaler) -> str:
    """What the exporters say: of the first service its autoscaler too, of the second its two Deployments."""
    deployments = [f'namespace="{NAMESPACE}",deployment="{pod.rsplit("-", 2)[0]}"' for pod in CHAT]
    return healthy_page(pods, scaler) + "".join(f"kube_deployment_spec_replicas{{{one}}} 1\n" for one in deployments)


class Load:
    """Clients whose number follows the clock; each picks a server as a gateway would.

    A third of them asks the second service, and its canary gets a quarter of that.
    """

    def __init__(self, llm: list[NamedServer], chat: list[NamedServer]) -> None:
        self.llm = llm
        self._chat = chat
        self._ended = threading.Event()
        self._wanted = 1
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(48)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def want(self, clients: int) -> None:
        self._wanted = clients

    def _client(self, number: int) -> None:
        dice = random.Random(number)
        with httpx.Client(timeout=30.0) as client:
            while not self._ended.wait(0.1 + 0.4 * dice.random()):
                if number < self._wanted:
                    self._ask(client, dice)

    def _ask(self, client: httpx.Client, dice: random.Random) -> None:
        chosen = self._chat[dice.random() < 0.25] if dice.random() < 0.33 else dice.choice(self.llm)
        shared = [5 + index % 150 for index in range(32 * dice.choice((0, 1, 1, 2, 4)))]
        own = [dice.randrange(3, 200) for _ in range(int(8 * dice.lognormvariate(1.0, 0.7)))]
        tokens = max(4, int(24 * dice.lognormvariate(0.5, 0.6)))
        body = {
            "model": chosen.name,
            "prompt": shared + own,
            "max_tokens": min(tokens, 256),
            "temperature": 1.0,
            "ignore_eos": dice.random() < 0.5,
        }
        # NOTE: a few clients lose patience, so that there are aborts.
        patience = 0.3 if dice.random() < 0.03 else 30.0
        try:
            client.post(chosen.http_url + "/v1/completions", json=body, timeout=patience)
        except httpx.TransportError:
            return


def clients_at(share: float) -> int:
    """How many clients there are at a share (0 to 1) of the run: a quiet time, a rise, a peak, and quiet again."""
    peak = math.exp(-(((share - 0.55) / 0.16) ** 2))
    return round(3 + 40 * peak + 2 * math.sin(40 * share))


def run(folder: Path, out: Path, seconds: float, *, expand: bool) -> None:
    """Lives through `seconds` and draws them."""
    import torch

    from tests.tiny_models import make_checkpoint

    torch.set_num_threads(1)
    model = make_checkpoint("llama", folder / "model" / "tiny", max_position_embeddings=1024)
    file = folder / "pods.json"
    file.write_text("[]")
    (folder / "rules.yml").write_text(yaml.safe_dump(rules_file(FACTOR), sort_keys=False))
    with ExitStack() as stack:
        pods = {pod: server(model, SERVICE) for pod in LLM[:2]}
        pods |= {CHAT[0]: server(model, "chat"), CHAT[1]: server(model, "chat", max_num_batched_tokens=48)}
        for one in pods.values():
            stack.callback(one.close)
            one.launch()
        exporter = stack.enter_context(Exporter())
        exporter.page = cluster(list(pods), Scaler(replicas=2, targets=TARGETS, bounds=BOUNDS))
        config = scrape_config(folder, exporter.address)
        prometheus = stack.enter_context(Prometheus(folder, config, lookback=shorten_duration("5m", FACTOR)))
        for one in pods.values():
            one.attach()
        write_pods(file, pods)
        for one in pods.values():
            one.wait_ready()
        begin = time.time()
        load = stack.enter_context(Load([pods[pod] for pod in LLM[:2]], [pods[pod] for pod in CHAT]))
        while (now := time.time()) < begin + seconds:
            load.want(clients_at((now - begin) / seconds))
            scaler = decide(prometheus, replicas=sum(pod in LLM for pod in pods))
            exporter.page = cluster(list(pods), scaler)
            if scaler.desired == len(LLM) and LLM[2] not in pods:
                pods[LLM[2]] = late = server(model, SERVICE)
                stack.callback(late.close)
                late.launch()
            elif (late := pods.get(LLM[2])) is not None and late not in load.llm:
                grow(late, pods, file, load)
            until(lambda since=now: time.time() >= since + 1, "the next second")
        made = draw_all(
            prometheus.url,
            out,
            since=seconds,
            end=begin + seconds,
            min_step=1,
            speed=FACTOR,
            rewrite=lambda text: shorten(text, FACTOR),
            expand=expand,
            given=SHOWN,
        )
    tell(made, out)


def grow(late: NamedServer, pods: dict[str, NamedServer], file: Path, load: Load) -> None:
    """A further step of the pod that came late: it is discovered once it listens, and gets load once it is ready."""
    if not late.http_url:
        if "Uvicorn running" in late.logs:
            late.attach()
            write_pods(file, pods)
    elif late.status("/v2/health/ready") == 200:
        load.llm.append(late)


def decide(prometheus: Prometheus, replicas: int) -> Scaler:
    """What the HPA would: each signal over its target, the largest, within the bounds; here it never scales in."""
    values = []
    for metric, factor in (("requests_running", 1.0), ("kv_cache_usage_ratio", 100.0)):
        found = prometheus.query(f"sum(avg_over_time(pagedserve_{metric}{SELECTOR}[4s]))")
        waiting = prometheus.query(f"sum(avg_over_time(pagedserve_requests_waiting{SELECTOR}[4s]))")
        total = factor * (found[0].value if found else 0.0)
        values.append(total + (waiting[0].value if waiting and metric == "requests_running" else 0.0))
    asked = max(math.ceil(value / target / 1.1) for value, target in zip(values, TARGETS, strict=True))
    desired = max(replicas, min(max(asked, BOUNDS[0]), BOUNDS[1]))
    return Scaler(
        replicas=replicas,
        desired=desired,
        values=tuple(values),
        targets=TARGETS,
        bounds=BOUNDS,
        limited=not BOUNDS[0] <= asked <= BOUNDS[1],
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.prometheus.preview", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/dashboards"), help="folder for the pictures")
    parser.add_argument("--seconds", type=float, default=240.0, help="how long the servers are watched")
    parser.add_argument("--expand", action="store_true", help="open collapsed rows")
    parser.add_argument("--keep", type=Path, help="a new folder for Prometheus' data, to draw it again")
    given = parser.parse_args(words)
    print(f"Servers under load are watched for {given.seconds:.0f} s, then drawn", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        run(folder, given.out, given.seconds, expand=given.expand)


if __name__ == "__main__":
    main()
