"""The metrics contract over scripted events."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from engine.messages import EngineStats, ModelInfo, SequenceId, SequenceOutput, StepOutputs
from engine.metrics import EngineMetrics, RequestRecord, package_version

GAUGES = (
    "kv_cache_waste_ratio",
    "requests_running",
    "requests_waiting",
    "kv_cache_usage_ratio",
    "waiting_prompt_tokens",
    "engine_up",
)
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_query_tokens_total",
    "prefix_cache_hit_tokens_total",
    "preemptions_total",
    "engine_steps_total",
)
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_duration_seconds",
    "request_queue_seconds",
    "request_prefill_seconds",
    "request_decode_seconds",
    "engine_step_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_inference_seconds",
    "request_time_per_output_token_seconds",
    "request_max_generation_tokens",
    "request_prefill_computed_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "step_batch_tokens",
    "step_batch_requests",
)
REPOSITORY = Path(__file__).parents[2]
INFO = ModelInfo("LlamaForCausalLM", 100, 64, (2,), 16, 8, "float32", "cpu", 1000)


class Metrics:
    """The metrics and their values by name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = EngineMetrics("m", self.registry, rejection_reasons=("waiting_requests",))

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"pagedserve_{name}", {"model_name": "m", **labels})
        assert value is not None, name
        return value

    def requests(self) -> float:
        reasons = ("stop", "length", "abort", "error")
        return sum(self.value("requests_total", finish_reason=reason) for reason in reasons)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def record(reason: str = "stop", *, admitted: bool = True, first: bool = True) -> RequestRecord:
    return RequestRecord(
        finish_reason=reason,
        arrival_time=100.0,
        admitted_time=100.5 if admitted else None,
        first_token_time=101.0 if first else None,
        finish_time=104.0,
        num_prompt_tokens=7,
        num_output_tokens=9 if first else 0,
        max_tokens=20,
    )


def test_every_series_exists_at_zero_from_the_start(metrics: Metrics) -> None:
    for name in (*GAUGES, *COUNTERS, *(f"{h}_count" for h in HISTOGRAMS), *(f"{h}_sum" for h in HISTOGRAMS)):
        assert metrics.value(name) == 0, name
    for state in ("used", "cached", "free"):
        assert metrics.value("kv_cache_blocks", state=state) == 0
    for reason in ("stop", "length", "abort", "error"):
        assert metrics.value("requests_total", finish_reason=reason) == 0
    assert metrics.value("requests_rejected_total", reason="waiting_requests") == 0
    text = generate_latest(metrics.registry).decode()
    assert (
        'pagedserve_info{architecture="",device="",dtype="",max_model_len="",model_name="m",num_parameters=""' in text
    )
    assert 'pagedserve_cache_config_info{block_size="",model_name="m",num_blocks=""} 0.0' in text


def test_info_is_replaced_when_the_model_is_loaded(metrics: Metrics) -> None:
    metrics.events.on_ready(INFO)
    text = generate_latest(metrics.registry).decode()
    assert text.count("pagedserve_info{") == 1
    assert 'device="cpu",dtype="float32",max_model_len="64",model_name="m",num_parameters="1000"' in text
    assert metrics.value("cache_config_info", block_size="16", num_blocks="8") == 1
    assert metrics.value("kv_cache_blocks", state="free") == 8


def test_gauges_follow_the_statistics(metrics: Metrics) -> None:
    metrics.events.on_load(3, 2, 50)
    stats = EngineStats(
        num_blocks_used=2,
        num_blocks_cached=3,
        num_blocks_free=5,
        num_slots_allocated=32,
        num_slots_filled=24,
    )
    metrics.events.on_step(StepOutputs(stats=stats))
    assert metrics.value("requests_running") == 3
    assert metrics.value("requests_waiting") == 2
    assert metrics.value("waiting_prompt_tokens") == 50
    assert metrics.value("kv_cache_usage_ratio") == pytest.approx(0.2)  # cached blocks count as free
    assert metrics.value("kv_cache_waste_ratio") == pytest.approx(0.25)
    assert metrics.value("kv_cache_blocks", state="used") == 2
    assert metrics.value("kv_cache_blocks", state="cached") == 3
    assert metrics.value("kv_cache_blocks", state="free") == 5
    metrics.events.on_load(0, 0, 0)
    metrics.events.on_step(StepOutputs())
    assert [metrics.value(name) for name in GAUGES] == [0] * len(GAUGES)


def test_what_is_no_step_counts_as_no_step(metrics: Metrics) -> None:
    metrics.events.on_step(StepOutputs())
    assert metrics.value("engine_step_seconds_count") == 0
    metrics.events.on_step(StepOutputs(step_seconds=0.02, step_tokens=40, step_sequences=3))
    assert metrics.value("engine_step_seconds_count") == 1
    assert metrics.value("step_batch_tokens_sum") == 40
    assert metrics.value("step_batch_requests_sum") == 3


def test_counters_grow_by_the_difference_of_totals_and_never_back(metrics: Metrics) -> None:
    for steps, preemptions in ((5, 1), (9, 1), (2, 0), (4, 0)):
        stats = EngineStats(
            steps_total=steps,
            preemptions_total=preemptions,
            prefix_query_tokens_total=steps * 10,
            prefix_hit_tokens_total=steps,
        )
        metrics.events.on_step(StepOutputs(stats=stats))
    assert metrics.value("engine_steps_total") == 11  # to 9; a restart at 2 counts from there on
    assert metrics.value("preemptions_total") == 1
    assert metrics.value("prefix_cache_query_tokens_total") == 110
    assert metrics.value("prefix_cache_hit_tokens_total") == 11


def test_generated_tokens_count_as_they_come(metrics: Metrics) -> None:
    outputs = (SequenceOutput(SequenceId("a/0"), (1, 2)), SequenceOutput(SequenceId("b/0"), (3,)))
    metrics.events.on_step(StepOutputs(outputs=outputs))
    assert metrics.value("generation_tokens_total") == 3


def test_a_finished_request(metrics: Metrics) -> None:
    metrics.events.on_admitted(0.5)
    metrics.events.on_first_token(1.0, 7)
    metrics.events.on_inter_token(0.1, 4)
    metrics.events.on_finished(record("length"))
    assert metrics.value("requests_total", finish_reason="length") == 1
    assert metrics.value("time_to_first_token_seconds_sum") == 1.0
    assert metrics.value("inter_token_latency_seconds_count") == 4
    assert metrics.value("inter_token_latency_seconds_sum") == pytest.approx(0.4)
    assert metrics.value("request_queue_seconds_sum") == 0.5
    assert metrics.value("request_prefill_seconds_sum") == 0.5
    assert metrics.value("request_decode_seconds_sum") == 3.0
    assert metrics.value("request_duration_seconds_sum") == 4.0
    assert metrics.value("request_prompt_tokens_sum") == 7
    assert metrics.value("request_generation_tokens_sum") == 9
    assert metrics.value("prompt_tokens_total") == 7


def test_M2_histogram_counts_agree_with_the_counters(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.events.on_admitted(0.5)
        metrics.events.on_first_token(1.0, 7)
        metrics.events.on_finished(record("abort"))
    metrics.events.on_admitted(0.5)
    metrics.events.on_finished(record("abort", first=False))
    metrics.events.on_finished(record("abort", admitted=False, first=False))
    assert metrics.value("requests_total", finish_reason="abort") == 5
    for name in ("duration_seconds", "queue_seconds", "prompt_tokens", "generation_tokens"):
        assert metrics.value(f"request_{name}_count") == metrics.requests() == 5, name
    assert metrics.value("request_prefill_seconds_count") == 3
    assert metrics.value("request_decode_seconds_count") == 3
    assert metrics.value("prompt_tokens_total") == 3 * 7  # those that never got a token were never computed to the end


def test_gauges_are_zero_once_the_engine_is_down(metrics: Metrics) -> None:
    metrics.events.on_up(True)
    metrics.events.on_load(3, 2, 50)
    metrics.events.on_step(StepOutputs(stats=EngineStats(num_blocks_used=2, num_blocks_free=1)))
    assert metrics.value("engine_up") == 1
    metrics.events.on_up(False)
    assert [metrics.value(name) for name in GAUGES] == [0] * len(GAUGES)


def test_a_request_of_several_sequences(metrics: Metrics) -> None:
    metrics.events.on_finished(replace(record(), n=3, num_output_tokens=9, longest_output=6, num_cached_tokens=5))
    assert metrics.value("request_params_n_sum") == 3
    assert metrics.value("request_params_max_tokens_sum") == 20
    assert metrics.value("request_generation_tokens_sum") == 9
    assert metrics.value("request_max_generation_tokens_sum") == 6
    assert metrics.value("request_prefill_computed_tokens_sum") == 2
    assert metrics.value("request_inference_seconds_sum") == 3.5
    # Three seconds of decoding, three tokens a sequence: two gaps.
    assert metrics.value("request_time_per_output_token_seconds_sum") == 1.5


def test_a_request_of_one_token_has_no_time_per_further_token(metrics: Metrics) -> None:
    metrics.events.on_finished(replace(record(), num_output_tokens=1))
    assert metrics.value("request_decode_seconds_count") == 1
    assert metrics.value("request_time_per_output_token_seconds_count") == 0


def test_versions(metrics: Metrics) -> None:
    (sample,) = [s for family in metrics.registry.collect() for s in family.samples if s.name.endswith("build_info")]
    assert sample.value == 1
    assert sample.labels.keys() == {"model_name", "version", "python", "torch", "triton"}
    assert sample.labels["version"] == package_version()
    assert sample.labels["python"] == platform.python_version()
    assert sample.labels["torch"] != "unknown"
    assert package_version("no-such-package") == "unknown"


def test_bounds_that_the_rules_name() -> None:
    """SLOs count the requests below a bound: without a bucket of that very bound they would count none."""
    text = "".join(path.read_text() for path in (REPOSITORY / "manifests").rglob("*.yaml"))
    named = set(re.findall(r'pagedserve_(\w+)_bucket\{[^}]*le="([0-9.]+)"', text))
    assert named
    metrics = Metrics()
    for name, bound in named:
        assert metrics.value(f"{name}_bucket", le=bound) == 0


def test_refusals_by_reason(metrics: Metrics) -> None:
    metrics.events.on_rejected("waiting_requests")
    assert metrics.value("requests_rejected_total", reason="waiting_requests") == 1


@pytest.mark.parametrize("seconds", [0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.4, 4.9])
def test_buckets_separate_a_gpu_step_from_a_laptops(metrics: Metrics, seconds: float) -> None:
    """Within the span of one step on either kind of machine, doubling a latency moves it by at least one bucket."""
    metrics.events.on_inter_token(seconds, 1)
    before = metrics.registry
    other = Metrics()
    other.events.on_inter_token(seconds * 2.01, 1)
    assert _bucket(before, "inter_token_latency_seconds") != _bucket(other.registry, "inter_token_latency_seconds")


def _bucket(registry: CollectorRegistry, name: str) -> str:
    for family in registry.collect():
        if family.name == f"pagedserve_{name}":
            return next(s.labels["le"] for s in family.samples if s.name.endswith("_bucket") and s.value == 1)
    raise AssertionError(name)
