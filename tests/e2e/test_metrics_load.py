"""`/metrics` under 64 streams that come, end and break off: its cost, its consistency, and vLLM's names on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.metrics_aliases import VLLM_ALIASES
from tests.e2e.load import Streams
from tests.e2e.server import START_SECONDS, Server, until
from tests.prometheus.server import Prometheus

NUM_STREAMS = 64
Series = tuple[str, frozenset[tuple[str, str]]]
GROWING = ("_total", "_bucket", "_count", "_sum")

ENDPOINT_PICKER = (
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
)
"""What the endpoint picker of the Gateway API Inference Extension reads of a vLLM server, adapters left out."""

DASHBOARD = (
    'histogram_quantile(0.99, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="tiny"}[1m])))',
    'rate(vllm:e2e_request_latency_seconds_sum{model_name="tiny"}[1m]) '
    '/ rate(vllm:e2e_request_latency_seconds_count{model_name="tiny"}[1m])',
    'rate(vllm:prompt_tokens_total{model_name="tiny"}[1m])',
    'rate(vllm:generation_tokens_total{model_name="tiny"}[1m])',
    'histogram_quantile(0.95, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="tiny"}[1m])))',
    'histogram_quantile(0.9, sum by (le) (rate(vllm:time_per_output_token_seconds_bucket{model_name="tiny"}[1m])))',
    "histogram_quantile(0.5, "
    'sum by (le) (rate(vllm:request_time_per_output_token_seconds_bucket{model_name="tiny"}[1m])))',
    'histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="tiny"}[1m])))',
    'vllm:num_requests_running{model_name="tiny"}',
    'vllm:num_requests_waiting{model_name="tiny"}',
    'vllm:kv_cache_usage_perc{model_name="tiny"}',
    'vllm:gpu_cache_usage_perc{model_name="tiny"}',
    'sum by (le) (increase(vllm:request_prompt_tokens_bucket{model_name="tiny"}[1m]))',
    'sum by (le) (increase(vllm:request_generation_tokens_bucket{model_name="tiny"}[1m]))',
    'sum by (finished_reason) (increase(vllm:request_success_total{model_name="tiny"}[1m]))',
    'rate(vllm:request_queue_time_seconds_sum{model_name="tiny"}[1m])',
    'rate(vllm:request_prefill_time_seconds_sum{model_name="tiny"}[1m])',
    'rate(vllm:request_decode_time_seconds_sum{model_name="tiny"}[1m])',
    'rate(vllm:request_inference_time_seconds_sum{model_name="tiny"}[1m])',
    'rate(vllm:request_max_num_generation_tokens_sum{model_name="tiny"}[1m])',
    "rate(vllm:request_params_max_tokens_sum[1m]) / rate(vllm:request_params_max_tokens_count[1m])",
    "rate(vllm:request_params_n_sum[1m]) / rate(vllm:request_params_n_count[1m])",
    "rate(vllm:prefix_cache_hits_total[1m]) / rate(vllm:prefix_cache_queries_total[1m])",
    "rate(vllm:num_preemptions_total[1m])",
    "rate(vllm:iteration_tokens_total_sum[1m]) / rate(vllm:iteration_tokens_total_count[1m])",
    "vllm:cache_config_info * on (model_name) group_left vllm:kv_cache_usage_perc",
)
"""What the panels of vLLM's example dashboard, and of others made for it, ask about."""


def page(server: Server) -> dict[Series, float]:
    text = httpx.get(server.http_url + "/metrics", timeout=60).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: dict[Series, float], name: str) -> float:
    return sum(value for (other, _), value in values.items() if other == name)


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Iterator[Server]:
    """Under load from the first test here to the last."""
    with (
        Server(
            model_dir=tiny_model, dtype="float32", num_threads=1, num_kv_blocks=4096, metrics_aliases="vllm"
        ) as server,
        Streams(server, NUM_STREAMS),
    ):
        yield server


def test_a_scrape_takes_well_under_a_second(loaded: Server) -> None:
    seconds = []
    with httpx.Client(timeout=60) as client:
        for _ in range(30):
            start = time.perf_counter()
            assert client.get(loaded.http_url + "/metrics").status_code == 200
            seconds.append(time.perf_counter() - start)
    print(f"{NUM_STREAMS} streams: median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s")
    assert statistics.median(seconds) < 1


def test_counters_never_go_back_and_histograms_are_whole(loaded: Server) -> None:
    before = page(loaded)
    until_gone = time.monotonic() + START_SECONDS
    scrapes, aborts = 0, total(before, "pagedserve_requests_total")
    while scrapes < 20 or total(before, "pagedserve_requests_total") < aborts + NUM_STREAMS:
        assert time.monotonic() < until_gone, "too few requests end"
        now = page(loaded)
        scrapes += 1
        for series, value in before.items():
            assert series in now, f"{series} is gone"
            if series[0].endswith(GROWING):
                assert now[series] >= value, f"{series} fell from {value} to {now[series]}"
        check_histograms(now)
        # One page is one moment: what counts the same is equal on it.
        ended = total(now, "pagedserve_requests_total")
        for name in ("duration_seconds", "prompt_tokens", "generation_tokens", "params_n"):
            assert total(now, f"pagedserve_request_{name}_count") == ended
        # NOTE: who leaves a stream and opens the next one has two for the moment that it takes to notice.
        assert total(now, "pagedserve_requests_running") <= 2 * NUM_STREAMS
        before = now
    aborted = [v for (name, labels), v in before.items() if ("finish_reason", "abort") in labels]
    assert aborted[0] > 0, "no stream was left: nothing shown"


def check_histograms(values: dict[Series, float]) -> None:
    buckets: dict[Series, list[tuple[float, float]]] = {}
    for (name, labels), value in values.items():
        if name.endswith("_bucket"):
            le = dict(labels)["le"]
            rest = frozenset(label for label in labels if label[0] != "le")
            buckets.setdefault((name.removesuffix("_bucket"), rest), []).append((float(le), value))
    assert len([name for name, _ in buckets if name.startswith("pagedserve_")]) == 17
    for (name, labels), counts in buckets.items():
        heights = [value for _, value in sorted(counts)]
        assert heights == sorted(heights), f"{name} is not cumulative"
        assert max(counts)[0] == float("inf")
        assert heights[-1] == values[f"{name}_count", labels], name


def test_vllm_names_have_the_values_of_ours(loaded: Server) -> None:
    values = page(loaded)
    compared = 0
    for alias in VLLM_ALIASES:
        for (name, labels), value in values.items():
            base, suffix = name.removeprefix("pagedserve_"), ""
            for ending in GROWING:
                if base.endswith(ending) and base != alias.source:
                    base, suffix = base.removesuffix(ending), ending
                    break
            if base != alias.source or not name.startswith("pagedserve_"):
                continue
            renamed = {alias.labels.get(label, label): text for label, text in labels} | alias.fixed | {"engine": "0"}
            assert values[f"vllm:{alias.name}{suffix}", frozenset(renamed.items())] == value, alias
            compared += 1
    assert compared == sum(name.startswith("vllm:") for name, _ in values)
    assert total(values, "vllm:num_requests_running") > 0
    assert total(values, "vllm:generation_tokens_total") > 0


def test_names_that_the_endpoint_picker_reads(loaded: Server) -> None:
    values = page(loaded)
    for name in ENDPOINT_PICKER:
        assert len([series for series, _ in values if series == name]) == 1, name
    (labels,) = [dict(labels) for name, labels in values if name == "vllm:cache_config_info"]
    assert (labels["block_size"], labels["num_gpu_blocks"]) == ("16", "4096")


def test_queries_of_dashboards_made_for_vllm(loaded: Server, tmp_path: Path) -> None:
    config = {
        # NOTE: a scrape that is given up would leave a gap; two cores are shared with all those streams.
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [
            {"job_name": "vllm", "static_configs": [{"targets": [loaded.http_url.removeprefix("http://")]}]}
        ],
    }
    with Prometheus(tmp_path, config, lookback="60s") as prometheus:

        def is_known(expression: str) -> bool:
            answer = prometheus.query(expression)
            return bool(answer) and all(sample.is_finite for sample in answer)

        # NOTE: a rate needs two scrapes, and a request that has ended in between.
        for expression in DASHBOARD:
            until(lambda asked=expression: is_known(asked), f"finite data of {expression}", START_SECONDS)


def test_both_processes(loaded: Server) -> None:
    values = page(loaded)
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        front, engine = total(values, f"process_{name}"), total(values, f"pagedserve_engine_process_{name}")
        assert front > 0, name
        assert engine > 0, name
    assert total(values, "pagedserve_engine_process_threads") >= 1
    assert loaded.process is not None
    for prefix, pid in (("process", loaded.process.pid), ("pagedserve_engine_process", loaded.engine_pid)):
        process = psutil.Process(pid)
        assert total(values, f"{prefix}_start_time_seconds") == pytest.approx(process.create_time(), abs=1)
        assert total(values, f"{prefix}_resident_memory_bytes") == pytest.approx(process.memory_info().rss, rel=0.5)
