"""vLLM's names for our metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from engine.messages import EngineStats, ModelInfo, SequenceId, SequenceOutput, StepOutputs
from engine.metrics import PREFIX, EngineMetrics, RequestRecord
from engine.metrics_aliases import ENGINE, VLLM_ALIASES, VLLM_PREFIX, vllm_aliases

INFO = ModelInfo("LlamaForCausalLM", 100, 64, (2,), 16, 8, "float32", "cpu", 1000)
DOCS = Path(__file__).parents[2] / "docs/metrics.md"


@pytest.fixture
def own() -> list[Metric]:
    """What a metrics object exports after some life, every series of it with a value of its own kind."""
    registry = CollectorRegistry()
    metrics = EngineMetrics("m", registry, rejection_reasons=("waiting_requests",))
    metrics.on_ready(INFO)
    metrics.on_up(True)
    metrics.on_load(3, 2, 50)
    stats = EngineStats(
        num_blocks_used=2,
        num_blocks_free=6,
        steps_total=4,
        preemptions_total=5,
        prefix_query_tokens_total=60,
        prefix_hit_tokens_total=16,
    )
    outputs = (SequenceOutput(SequenceId("a/0"), (1, 2)),)
    metrics.on_step(StepOutputs(outputs, stats=stats, step_seconds=0.02, step_tokens=40, step_sequences=3))
    metrics.on_admitted(0.5)
    metrics.on_first_token(0.7, 7)
    metrics.on_inter_token(0.03, 8)
    metrics.on_finished(RequestRecord("length", 100.0, 100.5, 100.7, 101.0, 7, 9, 5, 2, 6, num_cached_tokens=3))
    own = list(registry.collect())
    for metric in own:  # when a counter was made is no part of it: the server turns such samples off
        metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
    return own


def values(metrics: list[Metric], name: str) -> list[tuple[str, dict[str, str], float]]:
    (metric,) = [metric for metric in metrics if metric.name == name]
    return [(sample.name.removeprefix(name), sample.labels, sample.value) for sample in metric.samples]


@pytest.mark.parametrize("alias", VLLM_ALIASES, ids=lambda alias: alias.name)
def test_an_alias_has_the_values_of_its_source(own: list[Metric], alias) -> None:
    aliases = list(vllm_aliases(own))
    source = values(own, PREFIX + alias.source)
    renamed = values(aliases, VLLM_PREFIX + alias.name)
    assert len(source) == len(renamed) > 0
    for (suffix, labels, value), (other_suffix, other_labels, other_value) in zip(source, renamed, strict=True):
        assert (suffix, value) == (other_suffix, other_value)
        expected = {alias.labels.get(name, name): text for name, text in labels.items()}
        assert other_labels == {**expected, **alias.fixed, "engine": ENGINE}
    # What was fed above reaches each of them.
    assert any(value for _, _, value in renamed)


def test_names_are_unlike_each_other(own: list[Metric]) -> None:
    names = [metric.name for metric in vllm_aliases(own)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("time_to_first_token_seconds", (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)),
        ("request_time_per_output_token_seconds", (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)),
    ],
)
def test_objectives_that_vllms_dashboard_offers_are_bounds(
    own: list[Metric], name: str, bounds: tuple[float, ...]
) -> None:
    """It asks for the bucket of that very bound, by its text."""
    (metric,) = [metric for metric in vllm_aliases(own) if metric.name == VLLM_PREFIX + name]
    assert {str(bound) for bound in bounds} <= {sample.labels.get("le") for sample in metric.samples}


def test_a_server_that_takes_requests_is_awake_for_vllms_status_board(own: list[Metric]) -> None:
    (metric,) = [metric for metric in vllm_aliases(own) if metric.name == "vllm:engine_sleep_state"]
    ((labels, value),) = [(sample.labels, sample.value) for sample in metric.samples]
    assert (labels["sleep_state"], value) == ("awake", 1)


def test_labels_as_vllm_calls_them(own: list[Metric]) -> None:
    by_name = {metric.name: metric for metric in vllm_aliases(own)}
    assert [sample.labels for sample in by_name["vllm:cache_config_info"].samples] == [
        {"model_name": "m", "engine": "0", "block_size": "16", "num_gpu_blocks": "8"}
    ]
    reasons = {sample.labels["finished_reason"]: sample.value for sample in by_name["vllm:request_success"].samples}
    assert reasons == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_every_alias_is_documented_with_its_source() -> None:
    section = DOCS.read_text().partition("## vLLM's names")[2]
    documented = set()
    for line in re.findall(r"^\|.*\|$", section, re.MULTILINE):
        names, _, source = line.strip("|").partition(" | ")
        for name in re.findall(r"`vllm:(\w+)`", names):
            documented |= {(name, text) for text in re.findall(r"`pagedserve_(\w+)`", source)}
    counters = {"request_success", "prompt_tokens", "prompt_tokens_cached", "generation_tokens"}
    counters |= {"prefix_cache_queries", "prefix_cache_hits", "num_preemptions"}
    counters |= {"gpu_prefix_cache_queries", "gpu_prefix_cache_hits"}

    def total(alias) -> str:
        return "_total" if alias.name in counters else ""

    assert documented == {(alias.name + total(alias), alias.source + total(alias)) for alias in VLLM_ALIASES}
