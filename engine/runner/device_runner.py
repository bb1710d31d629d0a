"""Runs the model on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine.config import EngineConfig
from engine.core.plan import StepPlan, StepResult
from engine.cpu import usable_cpus
from engine.layers.attention import AttentionMetadata, KVCache
from engine.layers.triton_backend import TritonBackend
from engine.messages import LoadProgress, ModelInfo
from engine.models.registry import load_model, read_config
from engine.runner.accelerator import Accelerator, Compute
from engine.runner.decode_graphs import DecodeGraphs, bucket_sizes
from engine.runner.device_memory import DeviceMemory, check_share, device_budget
from engine.runner.device_rows import DeviceRows
from engine.runner.device_step import DeviceStep
from engine.runner.device_warm_up import PROVISIONAL_BLOCKS, DeviceWarmUp
from engine.runner.kernel_limits import check_kernel_limits
from engine.runner.late_compilation import expect_compilation, warn_of_late_compilation
from engine.runner.memory import (
    Budget,
    available_memory,
    block_bytes,
    check_max_model_len,
    choose_max_model_len,
    choose_num_blocks,
    cpu_budget,
    is_measured,
)
from engine.runner.step_buffer import DeviceInputs, StepBuffer
from engine.runner.step_layout import StepLayout, lay_out
from engine.sampling.device_sampler import DeviceSampler, DeviceSamples, SampleItem

logger = logging.getLogger(__name__)


class DeviceRunner:
    """The model, its KV cache and its rows on a device: the `Runner` of the engine core.

    A launch copies the step's layout to the device, starts the forward, eagerly or as a recorded graph, and the
    sampling, and waits for nothing. What the next step needs of this one (tokens, block tables) stays on the device.

    info: what the front needs to know of the model. One thread at a time may use a runner.
    """

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[LoadProgress], None],
        accelerator: Accelerator,
        memory: DeviceMemory | None,
    ) -> None:
        """Loads the model, warms up, and allocates the KV pool from the memory then left.

        memory: of the device, from before anything was on it; None where the pool lies in the host's memory.
        Raises `ModelLoadError` for a model that cannot be served and `ConfigError` for bounds that cannot be met.
        """
        torch.set_num_threads(config.num_threads or usable_cpus())
        model_config = read_config(config.model_dir)
        context = model_config.max_position_embeddings
        check_max_model_len(config, context)
        check_kernel_limits(config, model_config)
        if memory is not None and is_measured(config):
            check_share(memory, config.memory_utilization)
        expect_compilation()
        self._config = config
        self._progress = progress
        self._accelerator = accelerator
        self._backend = TritonBackend()
        loaded = load_model(
            config.model_dir,
            None if config.dtype == "auto" else getattr(torch, config.dtype),
            self._backend,
            lambda phase, done, total: progress(LoadProgress(phase, done, total)),
            max_model_len=config.max_model_len,
            device=accelerator.device,
            random_weights=config.load_format == "dummy",
        )
        self._model = loaded.model
        self._model_config = loaded.config
        self._dtype = loaded.dtype

        max_num_seqs, device = config.max_num_seqs, accelerator.device
        self._sampler = DeviceSampler(
            loaded.config.vocab_size, loaded.config.eos_token_ids, max_num_seqs, accelerator.device
        )
        self._buffer = StepBuffer(accelerator, config.step_tokens, max_num_seqs, scratch_row=max_num_seqs)
        self._graphs = DecodeGraphs(bucket_sizes(min(max_num_seqs, config.step_tokens)) if config.cuda_graphs else ())
        self._logits = torch.empty(
            (max(self._graphs.sizes, default=0), loaded.config.vocab_size), dtype=torch.float32, device=device
        )
        """Where the graphs put their logits: float32 (most sequences of a graph, vocab)."""
        self._graph_inputs: dict[int, DeviceInputs] = {}
        """Where each graph reads its inputs."""
        self._rows: DeviceRows
        self._caches: tuple[KVCache, ...] = ()
        self._max_model_len = 0
        self._is_warm = False

        shape = (config.block_size, loaded.config.num_kv_heads, loaded.config.head_dim)
        self._bytes_per_block = block_bytes(loaded.config.num_layers, *shape, loaded.dtype.itemsize)
        wanted = loaded.model.max_positions
        num_blocks = choose_num_blocks(config, self._bytes_per_block, lambda: self._measure(memory, wanted))
        max_model_len = choose_max_model_len(config, context, num_blocks)
        self._open(num_blocks, max_model_len)
        self._warm_up(num_blocks)
        self._record_graphs("recording decode graphs")
        if accelerator.compiles:
            # NOTE: recording has given unused memory back. The largest steps take theirs again now, not while the first
            # requests wait, and show that it is there beside the pool.
            self._run_all(DeviceWarmUp(config, max_model_len, num_blocks).largest())
            self._replay_all()
            warn_of_late_compilation()

        self.info = ModelInfo(
            architecture=loaded.config.architecture,
            vocab_size=loaded.config.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=loaded.config.eos_token_ids,
            block_size=config.block_size,
            num_blocks=num_blocks,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=accelerator.device.type,
            num_parameters=loaded.num_parameters,
        )
        logger.info(
            "KV pool: %d blocks of %d tokens, %.0f MiB; max_model_len %d; %s; %d decode graphs",
            num_blocks,
            config.block_size,
            num_blocks * self._bytes_per_block / (1 << 20),
            max_model_len,
            self.info.dtype,
            len(self._graphs.sizes),
        )

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Decodes in a step for which a graph is recorded."""
        return self._graphs.sizes

    # --- steps -------------------------------------------------------------------------------------------------------

    def execute(self, plan: StepPlan) -> StepResult:
        """One forward over the plan's tokens, prefill chunks and decodes alike, and one sampling call."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> DeviceStep:
        """As `Runner.launch`. Nothing here waits for the device, but for copies four launches back."""
        try:
            return self._launch(plan)
        except torch.OutOfMemoryError as error:
            error.add_note(
                "A step needs more memory than the GPU has left: set max_num_batched_tokens or max_num_seqs lower. Once"
                " the engine serves, the largest step's memory is there: then another process has probably taken it"
                " (nvidia-smi lists them), so keep it off this GPU, or set memory_utilization lower"
            )
            raise

    def _launch(self, plan: StepPlan) -> DeviceStep:
        rows = self._rows
        rows.remove(plan.removed)
        done = self._accelerator.event()
        if not plan.scheduled:
            return DeviceStep(0, (), None, done)
        layout = lay_out(plan.scheduled, rows, self._config.block_size)
        for row in rows.take_added():
            self._sampler.add(row.index, row.request)
        rows.send_blocks()
        is_decode_only = layout.num_decodes == layout.num_seqs
        size = self._graphs.bucket(layout.num_seqs) if is_decode_only else None
        samples = self._run(layout) if size is None else self._replay(layout, size)
        done.record()
        return DeviceStep(len(plan.scheduled), layout.sample_places, samples, done)

    def _run(self, layout: StepLayout) -> DeviceSamples | None:
        """A step kernel by kernel."""
        inputs = self._buffer.send(layout)
        hidden = self._forward(inputs, layout.num_decodes, layout.max_query_len, layout.max_seq_len)
        num_samples = len(layout.sample_rows)
        if not num_samples:
            return None
        if not layout.samples_every_token:
            hidden = hidden.index_select(0, inputs.sample_indices[:num_samples])
        return self._sample(layout, inputs, self._model.logits(hidden))

    def _replay(self, layout: StepLayout, size: int) -> DeviceSamples | None:
        """A step of decodes as the recorded one of `size` decodes."""
        self._buffer.send_padded(layout, size)
        self._graphs.replay(size)
        num_samples = len(layout.sample_rows)
        if not num_samples:
            return None
        inputs = self._graph_inputs[size]
        logits = self._logits[: layout.num_seqs]
        if not layout.samples_every_token:
            logits = logits.index_select(0, inputs.sample_indices[:num_samples])
        return self._sample(layout, inputs, logits)

    def _forward(self, inputs: DeviceInputs, num_decodes: int, max_query_len: int, max_seq_len: int) -> torch.Tensor:
        """Hidden states, (T, hidden_size), of inputs that are on the device."""
        if num_decodes:
            self._rows.fill_tokens_(inputs.input_ids[:num_decodes], inputs.row_indices[:num_decodes])
        is_mixed = 0 < num_decodes < len(inputs.seq_lens)
        metadata = AttentionMetadata(
            query_starts=inputs.query_starts,
            seq_lens=inputs.seq_lens,
            block_tables=self._rows.select_tables(inputs.row_indices),
            slot_mapping=inputs.slots,
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            prefill_starts=inputs.query_starts[num_decodes:] - num_decodes if is_mixed else None,
        )
        return self._model.forward(inputs.input_ids, inputs.positions, self._caches, metadata)

    def _sample(self, layout: StepLayout, inputs: DeviceInputs, logits: torch.Tensor) -> DeviceSamples:
        num_samples = len(layout.sample_rows)
        row_indices, positions = inputs.sample_row_indices[:num_samples], inputs.sample_positions[:num_samples]
        items = [
            SampleItem(row.index, row.request, position)
            for row, position in zip(layout.sample_rows, layout.sample_positions, strict=True)
        ]
        samples = self._sampler.sample(logits, items, row_indices, positions)
        self._rows.note_sampled(layout.sample_rows, layout.sample_positions, row_indices, samples.token_ids)
        return samples

    # --- start -------------------------------------------------------------------------------------------------------

    def _measure(self, memory: DeviceMemory | None, max_model_len: int) -> Budget:
        """The memory for the pool: with everything else in place, the graphs too, over a pool of a few blocks."""
        if memory is None:
            return cpu_budget(available_memory())
        num_blocks = PROVISIONAL_BLOCKS
        self._open(num_blocks, max_model_len)
        warm_up = DeviceWarmUp(self._config, max_model_len, num_blocks)
        work_space = memory.peak_of(lambda: self._run_all(warm_up.largest()))
        self._warm_up(num_blocks)
        self._record_graphs("recording decode graphs to measure them")
        self._accelerator.release_memory()
        provisional = (num_blocks + 1) * self._bytes_per_block
        budget = device_budget(memory, self._config.memory_utilization, work_space, provisional)
        self._close()
        return budget

    @torch.inference_mode()
    def _open(self, num_blocks: int, max_model_len: int) -> None:
        """Allocates rows and caches: what graphs hold the addresses of."""
        config = self._model_config
        self._max_model_len = max_model_len
        self._rows = DeviceRows(
            self._accelerator, self._config.max_num_seqs, -(-max_model_len // self._config.block_size)
        )
        shape = (num_blocks + 1, self._config.block_size, config.num_kv_heads, config.head_dim)
        allocate = self._backend.attention.allocate_cache
        self._caches = tuple(allocate(*shape, self._dtype, self._accelerator.device) for _ in range(config.num_layers))

    def _close(self) -> None:
        """Gives back what `_open` and the graphs have taken."""
        # NOTE: nothing else may hold a graph: see `CudaAccelerator` on graphs that outlive their recorder's.
        self._graphs.clear()
        self._caches = ()
        del self._rows
        self._accelerator.release_memory()

    def _warm_up(self, num_blocks: int) -> None:
        """Launches every kernel that serving can need, in each of its variants, once."""
        if self._is_warm:
            return
        self._is_warm = True
        warm_up = DeviceWarmUp(self._config, self._max_model_len, num_blocks)
        steps: list[tuple[int | None, StepPlan]] = [(None, step) for step in warm_up.largest()[-1:]]
        if self._accelerator.compiles:
            steps = [(None, step) for step in warm_up.steps()]
            steps += [(num_splits, step) for num_splits in (1, 2) for step in warm_up.single_chunks()]
        attention = self._backend.triton_attention
        self._progress(LoadProgress("warming up", 0, len(steps)))
        for number, (num_splits, step) in enumerate(steps, start=1):
            attention.num_splits = num_splits
            self._run_all([step])
            self._progress(LoadProgress("warming up", number, len(steps)))
        attention.num_splits = None

    def _run_all(self, steps: list[StepPlan]) -> None:
        for step in steps:
            self.execute(step)
            self.execute(StepPlan((), tuple(item.request.sequence_id for item in step.scheduled)))

    @torch.inference_mode()
    def _record_graphs(self, phase: str) -> None:
        sizes = self._graphs.sizes
        if not sizes:
            return
        self._progress(LoadProgress(phase, 0, len(sizes)))
        try:
            self._graphs.record(
                self._accelerator.recorder(),
                self._decode_step,
                lambda done: self._progress(LoadProgress(phase, done, len(sizes))),
            )
        except RuntimeError as error:
            error.add_note("This came while decode graphs were recorded: cuda_graphs=false serves without them")
            raise

    @torch.inference_mode()
    def _replay_all(self) -> None:
        """Replays every graph once, with no sequence: a first replay brings the graph to the device, and shows that it
        runs there."""
        for size in self._graphs.sizes:
            self._buffer.send_idle(size)
            self._graphs.replay(size)
        done = self._accelerator.event()
        done.record()
        done.synchronize()

    def _decode_step(self, size: int) -> Compute:
        """The work of a step of `size` decodes, from the step buffer to the logits."""
        # NOTE: recording runs the work, so valid inputs must lie there.
        self._buffer.send_idle(size)
        inputs = self._graph_inputs[size] = self._buffer.inputs(size, size)
        logits = self._logits[:size]

        def compute() -> None:
            # NOTE: how the work is split must not depend on the lengths, which a graph cannot know: any may come.
            hidden = self._forward(inputs, size, max_query_len=1, max_seq_len=self._max_model_len)
            self._model.logits(hidden, out=logits)

        return compute
