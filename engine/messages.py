"""Messages between the front process and the engine: frozen, matched by type.

Only `engine.process` and `engine.client` encode them; in process they travel as they are. Times are readings of
`time.monotonic()`, which on Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NewType

from engine.sampling_params import SamplingParams

SequenceId = NewType("SequenceId", str)
"""Names one sequence in the engine. A request with n > 1 is n sequences, named `<request id>/<index>`."""

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the front needs to know of the loaded model, sent once when the engine is ready.

    max_model_len: after clamping to the pool. num_blocks: usable KV blocks (the dummy block not counted).
    eos_token_ids: every id that ends a sequence unless `ignore_eos` (config.json and generation_config.json).
    vocab_size: rows of the embedding; ids from 0 to vocab_size − 1 are valid.
    """

    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    dtype: str
    device: str
    num_parameters: int


# --- front → engine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddSequence:
    """One sequence to generate. `params.max_tokens` is set and `prompt_token_ids` are checked at the door.

    seed: of the request; sampling draws from (seed, index, position). index: of the sequence within its request.
    """

    sequence_id: SequenceId
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    index: int
    arrival_time: float


@dataclass(frozen=True, slots=True)
class AbortSequences:
    """Sequences to drop; unknown and finished ids are ignored. No output follows for them."""

    sequence_ids: tuple[SequenceId, ...]


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Forget every cached prefix (weights changed, or an operator asked)."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the engine process."""


FrontMessage = AddSequence | AbortSequences | ResetPrefixCache | Shutdown


# --- engine → front -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a start phase, e.g. ("loading weights", 3, 30)."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class EngineReady:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot go on; the process ends after this message."""

    message: str


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Log probabilities at one position, of the model's distribution before temperature and masks.

    top_ids and top_logprobs: the k most likely, most likely first (k = `params.logprobs`).
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """New tokens of one sequence. The last message of a sequence has a finish reason.

    logprobs: one entry a new token, or None when not asked for.
    stop_token_id: the EOS or stop id that ended it (the last of token_ids), else None.
    """

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    logprobs: tuple[RawLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence left the waiting queue for the first time. num_cached_tokens: its prefix hit."""

    sequence_id: SequenceId
    num_cached_tokens: int
    time: float


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running sequence gave its blocks to others and went back to the head of the queue."""

    sequence_id: SequenceId
    time: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """A preempted sequence has its place in the batch again."""

    sequence_id: SequenceId
    time: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State after a step or an abort. Totals only grow.

    num_slots_allocated: token slots of the blocks held by running sequences, shared blocks counted once.
    num_slots_filled: those that hold a computed token.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_prompt_tokens: int = 0
    num_blocks_used: int = 0
    num_blocks_cached: int = 0
    num_blocks_free: int = 0
    num_slots_allocated: int = 0
    num_slots_filled: int = 0
    steps_total: int = 0
    preemptions_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """What one step (or the handling of aborts, then with `step_seconds` None) brought."""

    outputs: tuple[SequenceOutput, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    stats: EngineStats = field(default_factory=EngineStats)
    step_seconds: float | None = None
    step_tokens: int = 0
    step_sequences: int = 0
    preempted: tuple[Preempted, ...] = ()
    resumed: tuple[Resumed, ...] = ()


EngineMessage = LoadProgress | EngineReady | EngineFailed | StepOutputs
