"""The same metrics under the names that tools made for vLLM ask for.

Names, labels and meanings as vLLM's documentation of its production metrics gives them (version 0.32, and the older
names that dashboards, routers and endpoint pickers still ask for). docs/metrics.md tells where the meanings differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from engine.metrics import PREFIX

VLLM_PREFIX = "vllm:"
ENGINE = "0"
"""vLLM numbers the engines behind one server; here there is one."""

Aliases = Callable[[Iterable[Metric]], Iterator[Metric]]


@dataclass(frozen=True, slots=True)
class Alias:
    """vLLM's `name` for our `source`, both without prefix and without a counter's `_total`.

    labels: what vLLM calls our labels, where it differs. fixed: labels by which vLLM splits what is one series here,
    each with the value that ours is.
    """

    name: str
    source: str
    labels: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)


VLLM_ALIASES = (
    Alias("num_requests_running", "requests_running"),
    Alias("num_requests_waiting", "requests_waiting"),
    # NOTE: what waits here waits for room; nothing is held back for a transfer or an adapter, vLLM's "deferred".
    Alias("num_requests_waiting_by_reason", "requests_waiting", fixed={"reason": "capacity"}),
    # NOTE: vLLM's status board takes a server without it for down.
    Alias("engine_sleep_state", "engine_up", fixed={"sleep_state": "awake"}),
    Alias("kv_cache_usage_perc", "kv_cache_usage_ratio"),
    Alias("gpu_cache_usage_perc", "kv_cache_usage_ratio"),
    Alias("cache_config_info", "cache_config_info", {"num_blocks": "num_gpu_blocks"}),
    Alias("request_success", "requests", {"finish_reason": "finished_reason"}),
    Alias("prompt_tokens", "prompt_tokens"),
    Alias("prompt_tokens_cached", "prefix_cache_hit_tokens"),
    Alias("generation_tokens", "generation_tokens"),
    Alias("prefix_cache_queries", "prefix_cache_query_tokens"),
    Alias("prefix_cache_hits", "prefix_cache_hit_tokens"),
    Alias("gpu_prefix_cache_queries", "prefix_cache_query_tokens"),
    Alias("gpu_prefix_cache_hits", "prefix_cache_hit_tokens"),
    Alias("num_preemptions", "preemptions"),
    Alias("time_to_first_token_seconds", "time_to_first_token_seconds"),
    Alias("inter_token_latency_seconds", "inter_token_latency_seconds"),
    Alias("time_per_output_token_seconds", "inter_token_latency_seconds"),
    Alias("request_time_per_output_token_seconds", "request_time_per_output_token_seconds"),
    Alias("e2e_request_latency_seconds", "request_duration_seconds"),
    Alias("request_queue_time_seconds", "request_queue_seconds"),
    Alias("request_prefill_time_seconds", "request_prefill_seconds"),
    Alias("request_decode_time_seconds", "request_decode_seconds"),
    Alias("request_inference_time_seconds", "request_inference_seconds"),
    Alias("request_prompt_tokens", "request_prompt_tokens"),
    Alias("request_generation_tokens", "request_generation_tokens"),
    Alias("request_max_num_generation_tokens", "request_max_generation_tokens"),
    Alias("request_prefill_kv_computed_tokens", "request_prefill_computed_tokens"),
    Alias("request_params_n", "request_params_n"),
    Alias("request_params_max_tokens", "request_params_max_tokens"),
    # NOTE: a histogram in spite of its ending.
    Alias("iteration_tokens_total", "step_batch_tokens"),
)


def vllm_aliases(own: Iterable[Metric]) -> Iterator[Metric]:
    """`own` under vLLM's names: the very values of this one collection, so the two can never differ on a page."""
    by_name = {metric.name: metric for metric in own}
    for alias in VLLM_ALIASES:
        metric = by_name[PREFIX + alias.source]
        name = VLLM_PREFIX + alias.name
        renamed = Metric(name, metric.documentation, metric.type)
        for sample in metric.samples:
            labels = {alias.labels.get(key, key): value for key, value in sample.labels.items()}
            suffix = sample.name.removeprefix(metric.name)
            renamed.add_sample(name + suffix, {**labels, **alias.fixed, "engine": ENGINE}, sample.value)
        yield renamed


METRICS_ALIASES: Mapping[str, Aliases | None] = {"none": None, "vllm": vllm_aliases}
"""What `--metrics_aliases` can be."""
