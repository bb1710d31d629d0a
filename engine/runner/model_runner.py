"""Runs the model for the engine core."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.core.ids import BlockId
from engine.core.plan import PendingStep, ScheduledSequence, StepPlan, StepResult
from engine.core.request import Request
from engine.cpu import usable_cpus
from engine.errors import ConfigError
from engine.layers.attention import KVCache
from engine.layers.torch_backend import TorchBackend
from engine.messages import AddSequence, LoadProgress, ModelInfo, SequenceId
from engine.models.registry import LoadedModel, load_model, read_config
from engine.runner.memory import (
    available_memory,
    block_bytes,
    check_max_model_len,
    choose_max_model_len,
    choose_num_blocks,
    cpu_budget,
    is_measured,
    warn_of_large_pool,
)
from engine.runner.rows import RowTable
from engine.runner.step_inputs import StepInputs, build_step_inputs
from engine.runner.step_result import step_result
from engine.sampling.sampler import SampledTokens, Sampler
from engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

MAX_WARM_UP_TOKENS = 256
"""Bounds the warm-up on the CPU, where it serves to touch the weights and compile kernels, and costs start time."""


@dataclass(frozen=True, slots=True)
class _LaunchedStep:
    """A step whose inputs stand ready. inputs: None where it computes nothing."""

    runner: ModelRunner
    num_sequences: int
    inputs: StepInputs | None

    def result(self) -> StepResult:
        return self.runner.finish(self)


class ModelRunner:
    """The model, its KV cache and its rows: the `Runner` of the engine core.

    info: what the front needs to know of the model. One thread at a time may use a runner.
    """

    graph_sizes: tuple[int, ...] = ()
    """No steps are recorded on the CPU."""

    def __init__(self, config: EngineConfig, progress: Callable[[LoadProgress], None]) -> None:
        """Loads the model, runs it once, and allocates the KV pool from the memory then left.

        Raises `ModelLoadError` for a model that cannot be served and `ConfigError` for bounds that cannot be met.
        """
        torch.set_num_threads(config.num_threads or usable_cpus())
        check_max_model_len(config, read_config(config.model_dir).max_position_embeddings)
        dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
        self._backend = TorchBackend()
        loaded = load_model(
            config.model_dir,
            dtype,
            self._backend,
            lambda phase, done, total: progress(LoadProgress(phase, done, total)),
            max_model_len=config.max_model_len,
            random_weights=config.load_format == "dummy",
        )
        self._model = loaded.model
        self._block_size = config.block_size
        self._sampler = Sampler(loaded.config.vocab_size, loaded.config.eos_token_ids)

        progress(LoadProgress("warming up", 0, 1))
        self._warm_up(loaded, min(config.step_tokens, MAX_WARM_UP_TOKENS))
        progress(LoadProgress("warming up", 1, 1))

        shape = (config.block_size, loaded.config.num_kv_heads, loaded.config.head_dim)
        bytes_per_block = block_bytes(loaded.config.num_layers, *shape, loaded.dtype.itemsize)
        num_blocks = choose_num_blocks(config, bytes_per_block, lambda: cpu_budget(available_memory()))
        if not is_measured(config):
            warn_of_large_pool((num_blocks + 1) * bytes_per_block, available_memory)
        max_model_len = choose_max_model_len(config, loaded.config.max_position_embeddings, num_blocks)
        self._caches = self._allocate_caches(loaded, num_blocks)
        self._rows = RowTable(config.max_num_seqs, -(-max_model_len // config.block_size))
        self._last_launched: _LaunchedStep | None = None
        self.info = ModelInfo(
            architecture=loaded.config.architecture,
            vocab_size=loaded.config.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=loaded.config.eos_token_ids,
            block_size=config.block_size,
            num_blocks=num_blocks,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device="cpu",
            num_parameters=loaded.num_parameters,
        )
        logger.info(
            "KV pool: %d blocks of %d tokens, %.0f MiB; max_model_len %d; %s; %s",
            num_blocks,
            config.block_size,
            num_blocks * bytes_per_block / (1 << 20),
            max_model_len,
            self.info.dtype,
            "1 thread" if (num_threads := torch.get_num_threads()) == 1 else f"{num_threads} threads",
        )

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """One forward over the plan's tokens, prefill chunks and decodes alike, and one sampling call."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> PendingStep:
        """As `Runner.launch`. The CPU has nothing to run beside: the step is computed when its result is asked for."""
        self._rows.remove(plan.removed)
        inputs = build_step_inputs(plan.scheduled, self._rows, self._block_size) if plan.scheduled else None
        step = _LaunchedStep(self, len(plan.scheduled), inputs)
        self._last_launched = step
        return step

    @torch.inference_mode()
    def finish(self, step: _LaunchedStep) -> StepResult:
        """Computes a launched step, and hands its tokens to the one that waits for them."""
        if step.inputs is None:
            return StepResult((), ())
        result = self._run(step.inputs, step.num_sequences, self._rows, self._caches)
        # NOTE: at most one step was launched after this one. A third may drop rows, so its tokens are entered now.
        later = self._last_launched
        if later is not None and later is not step and later.inputs is not None:
            later.inputs.fill_pending(self._rows)
        return result

    def _run(self, inputs: StepInputs, num_sequences: int, rows: RowTable, caches: tuple[KVCache, ...]) -> StepResult:
        sampled = SampledTokens([], [])
        hidden = self._model.forward(inputs.input_ids, inputs.positions, caches, inputs.metadata)
        layout = inputs.layout
        if layout.sample_rows:
            if inputs.sample_indices is not None:
                hidden = hidden.index_select(0, inputs.sample_indices)
            logits = self._model.logits(hidden)
            assert all(
                row.request.is_finished or row.sampling.position == position
                for row, position in zip(layout.sample_rows, layout.sample_positions, strict=True)
            ), "a step is computed before the tokens of the one before were taken in"
            sampled = self._sampler.sample(logits, [row.sampling for row in layout.sample_rows])
            rows.note_tokens(layout.sample_rows, sampled.token_ids, layout.sample_positions)
        return step_result(num_sequences, layout.sample_places, sampled)

    @torch.inference_mode()
    def _warm_up(self, loaded: LoadedModel, num_tokens: int) -> None:
        """Prompts of `num_tokens` tokens in all, then a decode of each, on a cache of their own."""
        context = loaded.model.max_positions
        requests = list(_warm_up_requests(num_tokens, context, self._block_size))
        num_blocks = sum(len(request.block_ids) for request in requests)
        caches = self._allocate_caches(loaded, num_blocks)
        rows = RowTable(len(requests), max(len(request.block_ids) for request in requests))
        prefill = tuple(ScheduledSequence(r, 0, r.num_tokens, samples=True) for r in requests)
        result = self._run_at_once(prefill, rows, caches)
        for request, (token_id,) in zip(requests, result.token_ids, strict=True):
            request.token_ids.append(token_id)
        fitting = (r for r in requests if r.num_tokens <= context)
        decode = tuple(ScheduledSequence(r, r.num_tokens - 1, 1, samples=True) for r in fitting)
        self._run_at_once(decode[:1], rows, caches)
        self._run_at_once(decode, rows, caches)

    def _run_at_once(
        self, scheduled: tuple[ScheduledSequence, ...], rows: RowTable, caches: tuple[KVCache, ...]
    ) -> StepResult:
        if not scheduled:
            return StepResult((), ())
        return self._run(build_step_inputs(scheduled, rows, self._block_size), len(scheduled), rows, caches)

    def _allocate_caches(self, loaded: LoadedModel, num_blocks: int) -> tuple[KVCache, ...]:
        """Zeroed caches, one a layer, of `num_blocks` blocks and the dummy block.

        Raises `ConfigError` where the system refuses so much memory.
        """
        config = loaded.config
        shape = (num_blocks + 1, self._block_size, config.num_kv_heads, config.head_dim)
        allocate = self._backend.attention.allocate_cache
        try:
            return tuple(allocate(*shape, loaded.dtype, torch.device("cpu")) for _ in range(config.num_layers))
        except MemoryError as error:
            num_bytes = shape[0] * block_bytes(config.num_layers, *shape[1:], loaded.dtype.itemsize)
            raise ConfigError(
                f"the system has no {num_bytes >> 20} MiB for the KV pool of {num_blocks} blocks: "
                "set num_kv_blocks or kv_cache_memory lower, or leave both out to have the pool measured"
            ) from error


def _warm_up_requests(num_tokens: int, context: int, block_size: int) -> Iterator[Request]:
    """Prompts as long as the context allows, each with blocks for one token more."""
    next_block = 1
    longest = max(1, context - 1)
    for serial, first in enumerate(range(0, num_tokens, longest)):
        length = min(longest, num_tokens - first)
        params = SamplingParams(temperature=0.0)
        message = AddSequence(SequenceId(f"warm-up/{serial}"), (0,) * length, params, 0, 0, 0.0)
        request = Request(message, serial)
        num_blocks = -(-(length + 1) // block_size)
        request.block_ids = [BlockId(i) for i in range(next_block, next_block + num_blocks)]
        next_block += num_blocks
        yield request
