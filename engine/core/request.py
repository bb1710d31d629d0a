"""One sequence inside the engine."""

from __future__ import annotations

from enum import Enum, auto

from engine.core.ids import BlockHash, BlockId
from engine.messages import AddSequence, FinishReason


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    ENDING = auto()
    """Its last step has been planned and its last token is on the way; holds nothing any more."""
    FINISHED = auto()


class Request:
    """A sequence on its way: `num_computed_tokens` chases `num_tokens + num_pending`.

    There is no prefill or decode phase. A step gives the request up to `num_tokens + num_pending −
    num_computed_tokens` new tokens; when a step computes the last one, the model's next token is pending until the
    step's result brings it. Preemption sets `num_computed_tokens` back to 0 and keeps the tokens made so far and the
    one that is pending. NOTE: `num_computed_tokens` and `num_pending` move on when a step is planned, not when its
    result arrives; the positions of a step stand in its `ScheduledSequence`.

    token_ids: prompt and output, one list that only grows.
    block_ids: KV blocks in order; slot of token i is block_ids[i // block_size] * block_size + i % block_size.
    block_hashes: prefix-cache keys of the full blocks hashed so far (a prefix of the request's full blocks).
    cache_epoch: the prefix cache's epoch that block_hashes and the KV in block_ids belong to; −1 before any lookup.
    """

    __slots__ = (
        "admitted_once",
        "arrival_time",
        "block_hashes",
        "block_ids",
        "cache_epoch",
        "finish_reason",
        "index",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "params",
        "seed",
        "sequence_id",
        "serial",
        "status",
        "stop_token_id",
        "token_ids",
    )

    def __init__(self, message: AddSequence, serial: int) -> None:
        self.sequence_id = message.sequence_id
        self.params = message.params
        self.seed = message.seed
        self.index = message.index
        self.arrival_time = message.arrival_time
        self.serial = serial
        """Order of arrival in this engine; breaks ties between equal priority keys."""
        self.token_ids: list[int] = list(message.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_pending = 0
        """Sampled tokens that planned steps are still to bring. A step is planned with at most one there."""
        self.num_cached_tokens = 0
        """Prefix hit at the first admission."""
        self.block_ids: list[BlockId] = []
        self.block_hashes: list[BlockHash] = []
        self.cache_epoch = -1
        self.status = Status.WAITING
        self.admitted_once = False
        self.num_preemptions = 0
        self.finish_reason: FinishReason | None = None
        self.stop_token_id: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    def __repr__(self) -> str:
        return (
            f"Request({self.sequence_id}, {self.status.name}, tokens={self.num_prompt_tokens}+{self.num_output_tokens},"
            f"+{self.num_pending}, computed={self.num_computed_tokens}, blocks={len(self.block_ids)})"
        )
