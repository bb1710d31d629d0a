"""The overlapped loop against the plain one: the same random traffic, token for token."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.messages import (
    AbortSequences,
    AddSequence,
    Admitted,
    EngineStats,
    ResetPrefixCache,
    SequenceId,
    StepOutputs,
)
from engine.sampling_params import SamplingParams
from tests.engine.core.support import PagedFakeRunner, make_info, run_alone


@dataclass(frozen=True)
class Traffic:
    """What the front does, and on which engine.

    adds: the sequences that come before step i, and so on. resets: before which steps the prefix cache is reset.
    quits: sequences that the front aborts once they have brought so many tokens, as a stop string or a client's
    disconnect makes it do: the same moment in both loops, counted in tokens. kills: sequences aborted before step i.
    """

    config: EngineConfig
    num_blocks: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    adds: dict[int, list[AddSequence]]
    resets: frozenset[int]
    quits: dict[SequenceId, int]
    kills: dict[int, list[SequenceId]]

    @property
    def messages(self) -> list[AddSequence]:
        return [message for messages in self.adds.values() for message in messages]


@dataclass
class Seen:
    """What the front has seen of a sequence."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_token_id: int | None = None
    admitted: Admitted | None = None


def make_traffic(seed: int, num_steps: int) -> Traffic:
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 16])
    num_blocks = rng.choice([rng.randint(3, 8), rng.randint(6, 20), rng.randint(10, 30), 200])
    max_model_len = min(num_blocks * block_size + 1, rng.randint(4, 90))
    vocab_size = rng.choice([2, 6, 50])
    stems = [[rng.randrange(vocab_size) for _ in range(max_model_len)] for _ in range(3)]
    adds: dict[int, list[AddSequence]] = {}
    quits: dict[SequenceId, int] = {}
    kills: dict[int, list[SequenceId]] = {}
    num_requests = 0
    add_rate, quit_rate, kill_rate = rng.choice([0.1, 0.5]), rng.choice([0.0, 0.3]), rng.choice([0.0, 0.2])
    for step in range(num_steps):
        while rng.random() < add_rate:
            stem = rng.choice(stems)[: rng.randrange(max_model_len)]
            prompt = ([*stem, rng.randrange(vocab_size)])[: max_model_len - 1]
            max_tokens = rng.choice([1, 2, rng.randint(1, 40)])
            n = rng.choice([1, 1, 1, 3])
            params = SamplingParams(
                temperature=1.0,
                n=n,
                max_tokens=max_tokens,
                min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.3 else 0,
                ignore_eos=rng.random() < 0.3,
                stop_token_ids=(1,) if rng.random() < 0.2 else (),
                priority=rng.choice([0, 0, 0, 1, 99, 101]),
                cache_salt=rng.choice([None, None, None, "a"]),
            )
            for index in range(n):
                name = SequenceId(f"r{num_requests}/{index}")
                message = AddSequence(name, tuple(prompt), params, seed=5, index=index, arrival_time=float(step))
                adds.setdefault(step, []).append(message)
                if rng.random() < quit_rate:
                    quits[name] = rng.randint(1, max_tokens)
                if rng.random() < kill_rate:
                    kills.setdefault(step + rng.randint(0, 12), []).append(name)
            num_requests += 1
    return Traffic(
        EngineConfig(
            model_dir=Path("unused"),
            block_size=block_size,
            max_num_seqs=rng.choice([1, 4, 12, 12]),
            max_num_batched_tokens=rng.choice([1, 5, 16, 64]),
            enable_prefix_caching=rng.random() < 0.85,
            aging_seconds=4.0,
        ),
        num_blocks,
        max_model_len,
        vocab_size,
        (0,) if rng.random() < 0.6 else (),
        adds,
        frozenset(s for s in range(num_steps) if rng.random() < 0.02),
        quits,
        kills,
    )


class Front:
    """Sends the traffic to an engine, and keeps what comes back."""

    def __init__(self, traffic: Traffic, overlap: bool) -> None:
        self.traffic = traffic
        self.runner = PagedFakeRunner(traffic.config.block_size, traffic.vocab_size)
        config = replace(traffic.config, overlap=overlap)
        info = make_info(traffic.num_blocks, config.block_size, traffic.max_model_len, traffic.eos_token_ids)
        self.core = EngineCore(config, info, self.runner)
        self.seen: dict[SequenceId, Seen] = {}
        self.aborted: set[SequenceId] = set()
        self.num_generated = 0
        self.num_computed = 0
        self.last_stats = EngineStats()

    def run(self) -> None:
        """All of the traffic, to its end."""
        last = max([*self.traffic.adds, *self.traffic.kills, 0])
        work = sum(len(m.prompt_token_ids) + (m.params.max_tokens or 0) for m in self.traffic.messages)
        for step in range(last + 5 * work):
            if step > last and not self.core.has_work():
                break
            self.before(step)
            self.receive(self.core.drain_notices())
            if self.core.has_work():
                self.receive(self.core.step())
            self.core.check_integrity()
        assert not self.core.has_work(), "the engine does not come to an end"
        assert not self.runner.unfinished

    def before(self, step: int) -> None:
        for message in self.traffic.adds.get(step, []):
            self.seen[message.sequence_id] = Seen()
            self.core.handle(message)
        for sequence_id in self.traffic.kills.get(step, []):
            self.abort(sequence_id)
        if step in self.traffic.resets:
            self.core.handle(ResetPrefixCache())
            self.runner.generation += self.traffic.config.enable_prefix_caching

    def abort(self, sequence_id: SequenceId) -> None:
        if self.seen[sequence_id].finish_reason is None:
            self.aborted.add(sequence_id)
            self.core.handle(AbortSequences((sequence_id,)))

    def receive(self, step: StepOutputs | None) -> None:
        if step is None:
            return
        for admitted in step.admitted:
            assert self.seen[admitted.sequence_id].admitted is None, "admitted twice"
            self.seen[admitted.sequence_id].admitted = admitted
        for output in step.outputs:
            seen = self.seen[output.sequence_id]
            assert output.sequence_id not in self.aborted, "output of an aborted sequence"
            assert seen.finish_reason is None, "output after the last"
            assert seen.admitted is not None, "a token before the admission"
            seen.tokens += output.token_ids
            seen.finish_reason, seen.stop_token_id = output.finish_reason, output.stop_token_id
            self.num_generated += len(output.token_ids)
        for output in step.outputs:
            quit_after = self.traffic.quits.get(output.sequence_id)
            if quit_after is not None and len(self.seen[output.sequence_id].tokens) >= quit_after:
                self.abort(output.sequence_id)
        assert step.stats.steps_total == self.last_stats.steps_total + (step.step_seconds is not None)
        assert step.stats.preemptions_total >= self.last_stats.preemptions_total
        self.last_stats = step.stats
        self.num_computed += step.step_tokens

    def check_end(self) -> None:
        stats = self.core.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_blocks_used, stats.num_slots_filled) == (0, 0, 0, 0)
        assert stats.num_blocks_free + stats.num_blocks_cached == self.traffic.num_blocks
        assert stats.steps_total == len(self.runner.plans)
        assert self.num_computed == self.runner.num_computed, "step_tokens are the tokens that were computed"
        for message in self.traffic.messages:
            seen = self.seen[message.sequence_id]
            tokens, finish_reason = run_alone(
                message.prompt_token_ids,
                message.params,
                self.traffic.vocab_size,
                self.traffic.eos_token_ids,
                self.traffic.max_model_len,
                message.index,
            )
            if message.sequence_id in self.aborted:
                assert seen.finish_reason is None
                assert seen.tokens == tokens[: len(seen.tokens)]
            else:
                assert (seen.tokens, seen.finish_reason) == (tokens, finish_reason)


def compare(traffic: Traffic) -> tuple[Front, Front]:
    plain, overlapped = Front(traffic, overlap=False), Front(traffic, overlap=True)
    for front in (plain, overlapped):
        front.run()
        front.check_end()
    killed = {name for names in traffic.kills.values() for name in names}
    for name in plain.seen.keys() - killed:  # where a kill hits depends on the steps, and is held by check_end alone
        one, other = plain.seen[name], overlapped.seen[name]
        assert one.tokens == other.tokens, name
        assert (one.finish_reason, one.stop_token_id) == (other.finish_reason, other.stop_token_id)
        assert (name in plain.aborted) == (name in overlapped.aborted)
    if not killed:
        assert plain.num_generated == overlapped.num_generated
    return plain, overlapped


@pytest.mark.parametrize("seed", range(60))
def test_the_loops_give_the_same_tokens(seed: int) -> None:
    compare(make_traffic(seed, num_steps=100))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_the_loops_give_the_same_tokens_at_length(seed: int) -> None:
    compare(make_traffic(seed, num_steps=300))


def test_the_traffic_holds_what_the_loops_could_get_wrong() -> None:
    """Preemptions, hits, chunks, all ends, dropped results: each more than once over the seeds above."""
    preemptions = hits = chunks = dropped = 0
    ends = {"stop": 0, "length": 0}
    quits = kills = 0
    for seed in range(60):
        _, front = compare(make_traffic(seed, num_steps=100))
        stats = front.core.stats()
        preemptions += stats.preemptions_total
        hits += stats.prefix_hit_tokens_total
        items = [item for plan in front.runner.plans for item in plan.scheduled]
        chunks += sum(1 for item in items if not item.samples)
        dropped += sum(1 for item in items if item.samples) - front.num_generated
        for seen in front.seen.values():
            if seen.finish_reason is not None:
                ends[seen.finish_reason] += 1
        killed = {name for names in front.traffic.kills.values() for name in names}
        quits += len(front.aborted - killed)
        kills += len(front.aborted & killed)
    assert min(preemptions, hits, chunks, dropped, *ends.values(), quits, kills) > 50
