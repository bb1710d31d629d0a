"""The engine without its process: messages in, steps, outputs out."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.finish import FinishRules
from engine.core.loop import OverlappedLoop, PlainLoop, StepLoop
from engine.core.plan import Runner
from engine.core.policy import AgingPolicy
from engine.core.request import Request
from engine.core.scheduler import Scheduler
from engine.errors import ConfigError
from engine.messages import (
    AbortSequences,
    AddSequence,
    EngineStats,
    FrontMessage,
    ModelInfo,
    ResetPrefixCache,
    SequenceId,
    SequenceOutput,
    Shutdown,
    StepOutputs,
)


class EngineCore:
    """Scheduler, block pool and runner in one loop; `engine.process` and `engine.LLM` turn the crank.

    An exception out of `step` means that the engine is dead: the KV cache is in an unknown state, and nothing here
    hides that.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `ConfigError` when the KV pool cannot hold one sequence of `info.max_model_len` tokens.

        clock: seconds, the same as `AddSequence.arrival_time` is read from. Steps overlap where the configuration says
        so, and where it says nothing, on a CUDA device.
        """
        self._pool = BlockPool(info.num_blocks, info.block_size, config.enable_prefix_caching)
        # NOTE: the last token of a sequence is only sampled, never computed. With this bound a request that runs alone
        # can always go on, so there is no livelock.
        if (needed := self._pool.blocks_for(info.max_model_len - 1)) > info.num_blocks:
            raise ConfigError(
                f"a sequence of max_model_len={info.max_model_len} tokens needs {needed} KV blocks of"
                f" {info.block_size}, and the pool has {info.num_blocks}; lower max_model_len or give the KV pool more"
                " memory"
            )
        self.info = info
        self._scheduler = Scheduler(
            self._pool,
            AgingPolicy(config.aging_seconds),
            FinishRules(info.eos_token_ids, info.max_model_len),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.step_tokens,
        )
        overlap = info.device.startswith("cuda") if config.overlap is None else config.overlap
        self._loop: StepLoop = (OverlappedLoop if overlap else PlainLoop)(self._scheduler, runner, clock)
        self._num_added = 0
        self._refusals: list[SequenceOutput] = []
        """Outputs that no step made: refusals."""
        self._stats_changed = False

    def handle(self, message: FrontMessage) -> None:
        """Takes a message of the front. (`Shutdown` is for whoever turns the crank.)"""
        match message:
            case AddSequence():
                self._add(message)
            case AbortSequences(sequence_ids):
                self._abort(sequence_ids)
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case Shutdown():
                return
        self._stats_changed = True

    def has_work(self) -> bool:
        """Whether a step would compute something, or one that runs is still to be taken in."""
        return self._loop.has_work()

    def step(self) -> StepOutputs:
        """What one step brought; with no work, only what `drain_notices` gives. Whatever the runner raises, rises.

        With overlap the next step runs when this returns, and `admitted`, `preempted` and `resumed` may name sequences
        of that one already.
        """
        if not self.has_work():
            return self.drain_notices() or StepOutputs(stats=self.stats())
        step = self._loop.step()
        return StepOutputs(
            outputs=(*self._take_refusals(), *step.outputs),
            admitted=step.admitted,
            stats=self.stats(),
            step_seconds=step.seconds,
            step_tokens=step.plan.num_tokens,
            step_sequences=len(step.plan.scheduled),
            preempted=step.preempted,
            resumed=step.resumed,
        )

    def drain_notices(self) -> StepOutputs | None:
        """Refusals and fresh stats after messages, without a step; None when nothing changed since the last report."""
        if not self._stats_changed:
            return None
        return StepOutputs(outputs=self._take_refusals(), stats=self.stats())

    def stats(self) -> EngineStats:
        """The state now; O(running sequences)."""
        scheduler, pool = self._scheduler, self._pool
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_waiting_prompt_tokens=scheduler.num_waiting_prompt_tokens,
            num_blocks_used=pool.num_used,
            num_blocks_cached=pool.num_cached,
            num_blocks_free=pool.num_free,
            num_slots_allocated=pool.num_used * pool.block_size,
            num_slots_filled=scheduler.num_slots_filled,
            steps_total=self._loop.steps_total,
            preemptions_total=scheduler.preemptions_total,
            prefix_query_tokens_total=scheduler.prefix_query_tokens_total,
            prefix_hit_tokens_total=scheduler.prefix_hit_tokens_total,
        )

    def check_integrity(self) -> None:
        """Asserts every invariant of scheduler and pool; call it between steps."""
        self._scheduler.check_integrity()

    def _add(self, message: AddSequence) -> None:
        # NOTE: the front refuses these with a named error; here they only must not hurt the other sequences.
        if not 0 < len(message.prompt_token_ids) < self.info.max_model_len:
            self._refusals.append(SequenceOutput(message.sequence_id, (), finish_reason="error"))
            return
        self._scheduler.add(Request(message, serial=self._num_added))
        self._num_added += 1

    def _abort(self, sequence_ids: tuple[SequenceId, ...]) -> None:
        for sequence_id in sequence_ids:
            self._scheduler.abort(sequence_id)
        self._refusals = [output for output in self._refusals if output.sequence_id not in sequence_ids]

    def _take_refusals(self) -> tuple[SequenceOutput, ...]:
        """Refusals to send along with stats."""
        self._stats_changed = False
        refusals, self._refusals = tuple(self._refusals), []
        return refusals
