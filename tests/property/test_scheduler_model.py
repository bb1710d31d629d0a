"""Random operations on scheduler and pool, step by step against the gold model and a KV cache that checks itself."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

import pytest

from engine.core.plan import PendingStep, StepPlan
from engine.core.request import Request
from engine.messages import AddSequence, SequenceId, SequenceOutput
from engine.sampling_params import SamplingParams
from tests.engine.core.support import PagedFakeRunner, make_scheduler, run_alone
from tests.property.gold_core import GoldItem, GoldPool, GoldScheduler

AGING_SECONDS = 4  # a power of two, as the arrival times are multiples of one: ranks are exact in float


@dataclass
class Seen:
    """What the front has seen of a sequence."""

    message: AddSequence
    tokens: list[int]
    finish_reason: str | None = None


class World:
    """One random configuration, with the scheduler and the gold model side by side.

    ahead: how often a step is planned before the result of the one before it is taken in, from 0 (never) to 1.
    """

    def __init__(self, seed: int, ahead: float) -> None:
        self.ahead = ahead
        self.outstanding: deque[tuple[StepPlan, list[GoldItem], PendingStep]] = deque()
        self.rng = rng = random.Random(seed)
        self.block_size = rng.choice([1, 2, 3, 4, 8, 16])
        num_blocks = rng.choice([rng.randint(2, 6), rng.randint(6, 20), rng.randint(20, 300)])
        self.max_model_len = min(num_blocks * self.block_size + 1, rng.randint(2, 80))
        if rng.random() < 0.3:
            self.max_model_len = min(num_blocks * self.block_size + 1, 80)
        caching = rng.random() < 0.85
        self.vocab_size = rng.choice([2, 5, 50])
        self.eos = (0,) if rng.random() < 0.5 else ()
        bounds = {
            "max_num_seqs": rng.choice([1, 2, 5, 12]),
            "max_num_batched_tokens": rng.choice([1, 3, 7, 16, 64]),
            "max_model_len": self.max_model_len,
            "eos_token_ids": self.eos,
            "aging_seconds": AGING_SECONDS,
        }
        self.scheduler, self.pool = make_scheduler(num_blocks, self.block_size, enable_prefix_caching=caching, **bounds)
        self.gold = GoldScheduler(GoldPool(num_blocks, self.block_size, caching), **bounds)
        several = rng.random() < 0.25 and not ahead
        self.runner = PagedFakeRunner(self.block_size, self.vocab_size, lambda: rng.randint(1, 3) if several else 1)
        self.stems = [[rng.randrange(self.vocab_size) for _ in range(self.max_model_len)] for _ in range(3)]
        self.add_rate = rng.choice([0.1, 0.4, 0.9])
        self.abort_rate = rng.choice([0.0, 0.02, 0.2])
        self.reset_rate = rng.choice([0.0, 0.0, 0.05])
        self.preempt_rate = rng.choice([0.0, 0.0, 0.05])
        self.now = 0
        self.seen: dict[SequenceId, Seen] = {}
        self.requests: dict[SequenceId, Request] = {}
        self.aborted: set[SequenceId] = set()

    # --- operations --------------------------------------------------------------------------------------------------

    def add(self) -> None:
        rng = self.rng
        stem = rng.choice(self.stems)[: rng.randrange(self.max_model_len)]
        tail = [rng.randrange(self.vocab_size) for _ in range(rng.choice([0, 1, 2, self.block_size]))]
        prompt = (stem + tail)[: self.max_model_len - 1] or [1]
        if self.seen and rng.random() < 0.3:  # a follow-up turn: what some sequence has come to, and a bit more
            earlier = rng.choice(list(self.seen.values()))
            prompt = [*earlier.message.prompt_token_ids, *earlier.tokens, *tail][: self.max_model_len - 1]
        max_tokens = rng.choice([1, 2, rng.randint(1, 40)])
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.3 else 0,
            ignore_eos=rng.random() < 0.5,
            stop_token_ids=(1,) if rng.random() < 0.2 else (),
            priority=rng.choice([0, 0, 0, 1, 99, 101, 200]),
            cache_salt=rng.choice([None, None, None, "a", "b"]),
        )
        name = SequenceId(f"s{len(self.seen)}")
        arrival = self.now - rng.randrange(16) / 4
        message = AddSequence(name, tuple(prompt), params, seed=0, index=0, arrival_time=arrival)
        self.seen[name] = Seen(message, [])
        self.requests[name] = Request(message, self.gold.num_added)
        self.scheduler.add(self.requests[name])
        self.gold.add(message)

    def abort(self) -> None:
        name = self.rng.choice([*list(self.seen)[-20:], SequenceId("never seen")])
        was_there = self.scheduler.abort(name)
        assert was_there == self.gold.abort(name)
        assert not self.scheduler.abort(name)
        if was_there:
            self.aborted.add(name)

    def reset(self) -> None:
        self.scheduler.reset_prefix_cache()
        self.gold.pool.reset()
        if self.gold.pool.caching:
            self.runner.generation += 1

    def preempt(self) -> None:
        running = self.gold.in_order("running", self.now)
        if running:
            victim = self.rng.choice(running)
            self.gold.preempt(victim)
            self.scheduler.preempt(self.requests[victim.message.sequence_id])

    def meddle(self) -> None:
        """What may come in at any time, also while a step is in flight."""
        if self.rng.random() < self.abort_rate:
            self.abort()
        if self.rng.random() < self.preempt_rate:
            self.preempt()

    def step(self) -> None:
        self.now += 1
        plan = self.scheduler.schedule()
        items, removed = self.gold.plan(self.now)
        planned = [(s.request.sequence_id, s.start, s.num_new_tokens, s.samples) for s in plan.scheduled]
        assert planned == [(i.sequence_id, i.start, i.num_new_tokens, i.samples) for i in items]
        assert list(plan.removed) == removed
        if items:
            self.outstanding.append((plan, items, self.runner.launch(plan)))
        num_left = 1 if items and self.rng.random() < self.ahead else 0
        while len(self.outstanding) > num_left:
            self.meddle()
            self.scheduler.check_integrity()
            plan, items, launched = self.outstanding.popleft()
            result = launched.result()
            outputs = self.scheduler.update(plan, result)
            self.gold.update(items, result.token_ids)
            for output in outputs:
                self.receive(output)
        self.meddle()

    # --- checks ------------------------------------------------------------------------------------------------------

    def receive(self, output: SequenceOutput) -> None:
        seen = self.seen[output.sequence_id]
        assert output.sequence_id not in self.aborted, "output of an aborted sequence"
        assert seen.finish_reason is None, "output after the last"
        seen.tokens.extend(output.token_ids)
        seen.finish_reason = output.finish_reason
        if output.finish_reason is not None:
            message = seen.message
            expected = run_alone(
                message.prompt_token_ids, message.params, self.vocab_size, self.eos, self.max_model_len
            )
            assert (seen.tokens, seen.finish_reason) == expected

    def check(self) -> None:
        self.scheduler.check_integrity()
        gold, pool = self.gold, self.gold.pool
        waiting = [r for r in gold.requests if r.state in {"waiting", "preempted"}]
        scheduler = self.scheduler
        assert scheduler.num_waiting == len(waiting)
        assert scheduler.num_waiting_prompt_tokens == sum(len(r.message.prompt_token_ids) for r in waiting)
        assert scheduler.num_running == len(gold.in_order("running", self.now))
        assert scheduler.num_slots_filled == pool.num_slots_filled()
        assert (self.pool.num_free, self.pool.num_cached) == (len(pool.free()), len(pool.cached()))
        assert scheduler.preemptions_total == gold.num_preemptions
        assert scheduler.prefix_query_tokens_total == gold.query_tokens
        assert scheduler.prefix_hit_tokens_total == gold.hit_tokens
        salts: dict[int, str | None] = {}
        for request in gold.in_order("running", self.now):
            real = self.requests[request.message.sequence_id]
            for block_id in real.block_ids:
                assert salts.setdefault(block_id, real.params.cache_salt) == real.params.cache_salt

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            while self.rng.random() < self.add_rate and len(self.gold.requests) < 25:
                self.add()
            self.meddle()
            if self.rng.random() < self.reset_rate:
                self.reset()
            if self.gold.requests or self.outstanding:
                self.step()
            self.check()
        self.drain()

    def drain(self) -> None:
        """Everything that is left comes to its end, and the pool with it."""
        self.abort_rate = self.preempt_rate = 0.0
        left = sum(len(r.tokens) + 80 for r in self.gold.requests)
        for _ in range(left * 25):
            if not self.gold.requests and not self.outstanding:
                break
            self.step()
            self.check()
        assert not self.scheduler.has_requests(), "no end"
        assert self.pool.num_available == self.pool.num_blocks
        unfinished = {name for name, seen in self.seen.items() if seen.finish_reason is None}
        assert unfinished == self.aborted


@pytest.mark.parametrize("seed", range(60))
def test_random_operations_match_the_gold_model(seed: int) -> None:
    World(seed, ahead=0).run(num_steps=120)


@pytest.mark.parametrize("seed", range(100, 160))
def test_random_operations_with_steps_planned_ahead_match_the_gold_model(seed: int) -> None:
    World(seed, ahead=0.6 if seed % 3 == 0 else 1).run(num_steps=120)


@pytest.mark.full
@pytest.mark.parametrize("ahead", [0, 0.5, 1])
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_random_operations_match_the_gold_model_at_length(seed: int, ahead: float) -> None:
    World(seed, ahead).run(num_steps=500)
