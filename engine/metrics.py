"""The engine's metrics in Prometheus form, and the events that feed them.

Gauges and engine-side totals come from the statistics of each step; request histograms from the front, which knows
when a request arrived and when its caller got the first token.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from engine.messages import EngineStats, FinishReason, ModelInfo, StepOutputs
from engine.metrics_histogram import Histogram

PREFIX = "pagedserve_"
FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)
M = TypeVar("M", Gauge, Counter)
BLOCK_STATES = ("used", "cached", "free")
BUILD_PACKAGES = {"version": "pagedserve", "torch": "torch", "triton": "triton"}
"""Labels of `build_info` and the packages whose versions they tell."""

# NOTE: buckets are fine where an H100 works (5 to 50 ms between tokens, 20 ms to 10 s to the first one) and reach to
# what a laptop's CPU takes. The bounds that SLOs and alerts name (manifests/monitoring) must stay among them, and so
# must those that vLLM's own dashboard offers as objectives, for `--metrics_aliases vllm`.
STEP_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.25, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0),
)
LATENCY_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5),
    *(5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_BUCKETS = tuple(float(2**k) for k in range(18))
BATCH_BUCKETS = tuple(float(2**k) for k in range(11))
N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that has ended. Times are readings of `time.monotonic()`; one that never came is None.

    finish_reason: "stop", "length", "abort" or "error". num_output_tokens: over all n sequences. longest_output:
    tokens of the longest. max_tokens: that each may generate. request_id: the engine's. num_cached_tokens: prefix hit
    of the first admitted sequence. finish_reasons: of each sequence; one that did not finish has the request's. error:
    class of what ended it. num_preemptions: how often one of its sequences lost its place; preempted_times,
    resumed_times: when, and when each had it again, of the first `engine.in_flight.MAX_PREEMPTION_TIMES`.
    """

    finish_reason: str
    arrival_time: float
    admitted_time: float | None
    first_token_time: float | None
    finish_time: float
    num_prompt_tokens: int
    num_output_tokens: int
    longest_output: int = 0
    n: int = 1
    max_tokens: int = 0
    request_id: str = ""
    num_cached_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None
    num_preemptions: int = 0
    preempted_times: tuple[float, ...] = ()
    resumed_times: tuple[float, ...] = ()


class EngineListener(Protocol):
    """Events of an engine client. A request with n > 1 is one request here."""

    def on_ready(self, info: ModelInfo) -> None:
        """The model is loaded."""
        ...

    def on_up(self, up: bool) -> None:
        """The engine is there from now on, or no longer is; a server that drains has one."""
        ...

    def on_step(self, outputs: StepOutputs) -> None:
        """A step ran, or (with `step_seconds` None) aborts were handled."""
        ...

    def on_load(self, num_running: int, num_waiting: int, num_waiting_prompt_tokens: int) -> None:
        """Sequences in the batch and before it, as the front knows them: without waiting for a running step."""
        ...

    def on_admitted(self, queue_seconds: float) -> None:
        """A request's first sequence left the waiting queue."""
        ...

    def on_first_token(self, seconds_since_arrival: float, num_prompt_tokens: int) -> None:
        """A request's first token came: its prompt has been computed, once for all its sequences."""
        ...

    def on_inter_token(self, seconds: float, count: int) -> None:
        """`count` further tokens of a sequence came, `seconds` apart each."""
        ...

    def on_finished(self, record: RequestRecord) -> None: ...

    def on_rejected(self, reason: str) -> None:
        """A request was refused for want of room or of an engine."""
        ...


class EngineMetrics:
    """Every metric of one model, as an `EngineListener`. All series exist, at 0, from construction on.

    A request with n > 1 counts once in `requests_total` and in the request histograms; `generation_tokens_total` counts
    the tokens of all its sequences, as they are generated. `prompt_tokens_total` grows with a request's first token.
    `requests_running` and `requests_waiting` count sequences, a preempted one as running.
    """

    def __init__(
        self, model_name: str, registry: CollectorRegistry, *, rejection_reasons: tuple[str, ...] = ()
    ) -> None:
        self._make = _Factory(model_name, registry)
        make = self._make
        self._running = make.gauge("requests_running", "Sequences in the running batch")
        self._waiting = make.gauge("requests_waiting", "Sequences that wait for a place in the batch")
        self._waiting_tokens = make.gauge("waiting_prompt_tokens", "Prompt tokens of the waiting sequences")
        self._usage = make.gauge("kv_cache_usage_ratio", "KV blocks held by sequences, of all (0 to 1)")
        self._waste = make.gauge("kv_cache_waste_ratio", "KV slots allocated and not filled, of those allocated")
        blocks = make.family(Gauge, "kv_cache_blocks", "KV blocks by state", ("state",))
        self._blocks = {state: blocks.labels(model_name, state) for state in BLOCK_STATES}
        self._up = make.gauge("engine_up", "1 from when the model is loaded until the engine ends")
        self._info = make.family(
            Gauge,
            "info",
            "1 once the model is loaded",
            ("version", "architecture", "device", "dtype", "max_model_len", "num_parameters"),
        )
        self._info.labels(model_name, package_version(), "", "", "", "", "").set(0)
        versions = {label: package_version(package) for label, package in BUILD_PACKAGES.items()}
        build = make.family(Gauge, "build_info", "1, with the versions that run", ("python", *versions))
        build.labels(model_name, platform.python_version(), *versions.values()).set(1)
        self._cache_config = make.family(Gauge, "cache_config_info", "The KV cache", ("block_size", "num_blocks"))
        self._cache_config.labels(model_name, "", "").set(0)

        requests = make.family(Counter, "requests", "Requests that ended", ("finish_reason",))
        self._requests = {reason: requests.labels(model_name, reason) for reason in FINISH_REASONS}
        self._rejected = make.family(Counter, "requests_rejected", "Requests refused before the engine", ("reason",))
        for reason in rejection_reasons:
            self._rejected.labels(model_name, reason)
        self._model_name = model_name
        self._prompt_tokens = make.counter("prompt_tokens", "Prompt tokens of the requests that got their first token")
        self._generation_tokens = make.counter("generation_tokens", "Tokens generated")
        self._totals = {
            "prefix_query_tokens_total": make.counter(
                "prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache"
            ),
            "prefix_hit_tokens_total": make.counter("prefix_cache_hit_tokens", "Prompt tokens found there"),
            "preemptions_total": make.counter("preemptions", "Sequences that gave up their KV blocks to others"),
            "steps_total": make.counter("engine_steps", "Steps of the engine"),
        }
        self._last_stats = EngineStats()

        self._ttft = make.histogram("time_to_first_token_seconds", "Arrival to the first token", LATENCY_BUCKETS)
        self._itl = make.histogram("inter_token_latency_seconds", "Between tokens of a sequence", STEP_BUCKETS)
        self._duration = make.histogram("request_duration_seconds", "Arrival to the end", DURATION_BUCKETS)
        self._queue = make.histogram("request_queue_seconds", "Arrival to the first place in a batch", QUEUE_BUCKETS)
        self._prefill = make.histogram("request_prefill_seconds", "Admission to the first token", LATENCY_BUCKETS)
        self._decode = make.histogram("request_decode_seconds", "First token to the end", DURATION_BUCKETS)
        self._inference = make.histogram("request_inference_seconds", "Admission to the end", DURATION_BUCKETS)
        self._per_token = make.histogram(
            "request_time_per_output_token_seconds", "Mean between the tokens of a request's sequences", STEP_BUCKETS
        )
        self._step = make.histogram("engine_step_seconds", "One step of the engine", STEP_BUCKETS)
        self._request_prompt = make.histogram("request_prompt_tokens", "Prompt tokens of a request", TOKEN_BUCKETS)
        self._request_generation = make.histogram(
            "request_generation_tokens", "Tokens generated for a request, over all its sequences", TOKEN_BUCKETS
        )
        self._request_longest = make.histogram(
            "request_max_generation_tokens", "Tokens of the longest sequence of a request", TOKEN_BUCKETS
        )
        self._request_computed = make.histogram(
            "request_prefill_computed_tokens", "Prompt tokens computed, not found in the prefix cache", TOKEN_BUCKETS
        )
        self._request_n = make.histogram("request_params_n", "Sequences asked for by a request", N_BUCKETS)
        self._request_max_tokens = make.histogram(
            "request_params_max_tokens", "Tokens that a request lets each of its sequences generate", TOKEN_BUCKETS
        )
        self._step_tokens = make.histogram("step_batch_tokens", "Tokens computed in one step", TOKEN_BUCKETS)
        self._step_requests = make.histogram("step_batch_requests", "Sequences in one step", BATCH_BUCKETS)

    # --- EngineListener ---------------------------------------------------------------------------------------------

    def on_ready(self, info: ModelInfo) -> None:
        self._info.clear()
        self._info.labels(
            self._model_name,
            package_version(),
            info.architecture,
            info.device,
            info.dtype,
            str(info.max_model_len),
            str(info.num_parameters),
        ).set(1)
        self._cache_config.clear()
        self._cache_config.labels(self._model_name, str(info.block_size), str(info.num_blocks)).set(1)
        self._blocks["free"].set(info.num_blocks)

    def on_up(self, up: bool) -> None:
        self._up.set(1 if up else 0)
        if not up:
            self._set_gauges(EngineStats())
            self.on_load(0, 0, 0)

    def on_step(self, outputs: StepOutputs) -> None:
        stats = outputs.stats
        self._set_gauges(stats)
        for name, counter in self._totals.items():
            grown = getattr(stats, name) - getattr(self._last_stats, name)
            if grown > 0:
                counter.inc(grown)
        self._last_stats = stats
        if generated := sum(len(output.token_ids) for output in outputs.outputs):
            self._generation_tokens.inc(generated)
        if outputs.step_seconds is not None:
            self._step.observe(outputs.step_seconds)
            self._step_tokens.observe(outputs.step_tokens)
            self._step_requests.observe(outputs.step_sequences)

    def on_load(self, num_running: int, num_waiting: int, num_waiting_prompt_tokens: int) -> None:
        self._running.set(num_running)
        self._waiting.set(num_waiting)
        self._waiting_tokens.set(num_waiting_prompt_tokens)

    def on_admitted(self, queue_seconds: float) -> None:
        self._queue.observe(queue_seconds)

    def on_first_token(self, seconds_since_arrival: float, num_prompt_tokens: int) -> None:
        self._ttft.observe(seconds_since_arrival)
        self._prompt_tokens.inc(num_prompt_tokens)

    def on_inter_token(self, seconds: float, count: int) -> None:
        self._itl.observe(seconds, count)

    def on_finished(self, record: RequestRecord) -> None:
        self._requests[record.finish_reason].inc()
        self._duration.observe(record.finish_time - record.arrival_time)
        self._request_prompt.observe(record.num_prompt_tokens)
        self._request_generation.observe(record.num_output_tokens)
        self._request_longest.observe(record.longest_output)
        self._request_n.observe(record.n)
        self._request_max_tokens.observe(record.max_tokens)
        if record.admitted_time is None:
            self._queue.observe(record.finish_time - record.arrival_time)
        else:
            self._inference.observe(record.finish_time - record.admitted_time)
        if record.first_token_time is not None:
            self._request_computed.observe(record.num_prompt_tokens - record.num_cached_tokens)
            decode_seconds = record.finish_time - record.first_token_time
            self._decode.observe(decode_seconds)
            if record.admitted_time is not None:
                self._prefill.observe(record.first_token_time - record.admitted_time)
            if record.num_output_tokens > record.n:
                self._per_token.observe(decode_seconds / (record.num_output_tokens / record.n - 1))

    def on_rejected(self, reason: str) -> None:
        self._rejected.labels(self._model_name, reason).inc()

    def _set_gauges(self, stats: EngineStats) -> None:
        num_blocks = stats.num_blocks_used + stats.num_blocks_cached + stats.num_blocks_free
        self._usage.set(stats.num_blocks_used / num_blocks if num_blocks else 0.0)
        allocated = stats.num_slots_allocated
        self._waste.set(1.0 - stats.num_slots_filled / allocated if allocated else 0.0)
        self._blocks["used"].set(stats.num_blocks_used)
        self._blocks["cached"].set(stats.num_blocks_cached)
        self._blocks["free"].set(stats.num_blocks_free)


class _Factory:
    """Makes metrics that carry the prefix and the label `model_name`."""

    def __init__(self, model_name: str, registry: CollectorRegistry) -> None:
        self._model_name = model_name
        self._registry = registry

    def family(self, kind: type[M], name: str, text: str, labels: tuple[str, ...] = ()) -> M:
        return kind(PREFIX + name, text, ("model_name", *labels), registry=self._registry)

    def gauge(self, name: str, text: str) -> Gauge:
        return self.family(Gauge, name, text).labels(self._model_name)

    def counter(self, name: str, text: str) -> Counter:
        return self.family(Counter, name, text).labels(self._model_name)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, {"model_name": self._model_name}, buckets, self._registry)


def package_version(package: str = "pagedserve") -> str:
    """The installed version of a package, or "unknown" where it is not installed (or runs from its source)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
