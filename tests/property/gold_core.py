"""A slow, plain second statement of what pool and scheduler must do.

Nothing incremental: content is compared token by token instead of by hash, blocks are searched instead of linked,
queues are sorted anew in each step by the ranks of that moment. Only the rules are the same. As there, a plan may be
made before the results of the last one are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from engine.messages import AddSequence

Content = tuple[int, str | None, tuple[int, ...]]
"""Epoch, salt, and every token from the first to the block's last."""


@dataclass(eq=False)
class GoldBlock:
    holders: list[GoldRequest] = field(default_factory=list)
    content: Content | None = None
    idle_since: int = 0


@dataclass(eq=False)
class GoldRequest:
    message: AddSequence
    serial: int
    tokens: list[int]
    state: str = "waiting"
    was_admitted: bool = False
    computed: int = 0
    pending: int = 0
    blocks: list[GoldBlock] = field(default_factory=list)
    epoch: int = 0

    def content(self, num_tokens: int) -> Content:
        return (self.epoch, self.message.params.cache_salt, tuple(self.tokens[:num_tokens]))


class GoldPool:
    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.block_size = block_size
        self.caching = caching
        self.blocks = [GoldBlock() for _ in range(num_blocks)]
        self.epoch = 0
        self.tick = 0

    def free(self) -> list[GoldBlock]:
        return [b for b in self.blocks if not b.holders and b.content is None]

    def cached(self) -> list[GoldBlock]:
        idle = [b for b in self.blocks if not b.holders and b.content is not None]
        return sorted(idle, key=lambda b: b.idle_since)

    def num_needed(self, num_tokens: int) -> int:
        return len(range(0, num_tokens, self.block_size))

    def match(self, request: GoldRequest) -> list[GoldBlock]:
        if not self.caching:
            return []
        request.epoch = self.epoch
        hit: list[GoldBlock] = []
        for end in range(self.block_size, len(request.tokens), self.block_size):
            found = [b for b in self.blocks if b.content == request.content(end)]
            assert len(found) <= 1
            if not found:
                break
            hit += found
        return hit

    def attach(self, request: GoldRequest, hit: list[GoldBlock]) -> None:
        for block in hit:
            block.holders.append(request)
        request.blocks = list(hit)
        request.computed = len(hit) * self.block_size

    def grow(self, request: GoldRequest, num_tokens: int) -> bool:
        missing = self.num_needed(num_tokens) - len(request.blocks)
        available = self.free() + self.cached()
        if missing > len(available):
            return False
        for block in available[: max(0, missing)]:
            block.content = None
            block.holders.append(request)
            request.blocks.append(block)
        self.name_blocks(request, request.computed, min(num_tokens, len(request.tokens)))
        return True

    def name_blocks(self, request: GoldRequest, num_before: int, num_tokens: int) -> None:
        """Blocks whose last token is one of those after the first `num_before` can be found from now on."""
        if self.caching and request.epoch == self.epoch:
            for index, block in enumerate(request.blocks):
                end = (index + 1) * self.block_size
                taken = any(b.content == request.content(end) for b in self.blocks)
                if num_before < end <= num_tokens and not taken:
                    block.content = request.content(end)

    def release(self, request: GoldRequest) -> None:
        for block in reversed(request.blocks):
            block.holders.remove(request)
            self.tick += 1
            block.idle_since = self.tick
        request.blocks = []
        request.computed = 0

    def reset(self) -> None:
        if self.caching:
            self.epoch += 1
            for block in self.blocks:
                block.content = None

    def num_slots_filled(self) -> int:
        total = 0
        for block in self.blocks:
            filled = {min(self.block_size, r.computed - r.blocks.index(block) * self.block_size) for r in block.holders}
            assert len(filled) <= 1, "holders of one block disagree"
            total += sum(filled)
        return total


@dataclass(frozen=True)
class GoldItem:
    sequence_id: str
    start: int
    num_new_tokens: int
    samples: bool


class GoldScheduler:
    def __init__(
        self,
        pool: GoldPool,
        *,
        aging_seconds: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.pool = pool
        self.aging_seconds = aging_seconds
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.requests: list[GoldRequest] = []
        self.num_added = 0
        self.num_preemptions = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.removed: list[str] = []
        self.last_plan: list[GoldItem] = []

    def add(self, message: AddSequence) -> None:
        self.requests.append(GoldRequest(message, self.num_added, list(message.prompt_token_ids)))
        self.num_added += 1

    def in_order(self, state: str, now: int) -> list[GoldRequest]:
        """By level minus levels earned by waiting until now."""

        def rank(request: GoldRequest) -> tuple[Fraction, int]:
            waited = Fraction(now) - Fraction(request.message.arrival_time)
            return request.message.params.priority_level - waited / self.aging_seconds, request.serial

        return sorted((r for r in self.requests if r.state == state), key=rank)

    def find(self, sequence_id: str) -> GoldRequest | None:
        return next((r for r in self.requests if r.message.sequence_id == sequence_id), None)

    def leave(self, request: GoldRequest, state: str) -> None:
        if request.state == "running":
            self.removed.append(request.message.sequence_id)
        self.pool.release(request)
        request.state = state
        if state == "gone":
            self.requests.remove(request)

    def abort(self, sequence_id: str) -> bool:
        request = self.find(sequence_id)
        if request is not None:
            self.leave(request, "gone")
        return request is not None

    def preempt(self, request: GoldRequest) -> None:
        self.leave(request, "preempted")
        self.num_preemptions += 1

    def is_at_limit(self, request: GoldRequest, num_tokens: int) -> bool:
        num_output = num_tokens - len(request.message.prompt_token_ids)
        return num_output == request.message.params.max_tokens or num_tokens == self.max_model_len

    def plan(self, now: int) -> tuple[list[GoldItem], list[str]]:
        for item in self.last_plan:
            request = self.find(item.sequence_id)
            if request is not None and request.pending:
                assert request.pending == 1
                if self.is_at_limit(request, len(request.tokens) + 1):
                    self.leave(request, "ending")

        budget = self.max_num_batched_tokens
        items: list[GoldItem] = []

        def give(request: GoldRequest) -> None:
            nonlocal budget
            num_new = min(budget, len(request.tokens) + request.pending - request.computed)
            at_end = request.computed + num_new == len(request.tokens) + request.pending
            items.append(GoldItem(request.message.sequence_id, request.computed, num_new, at_end))
            request.computed += num_new
            request.pending += at_end
            budget -= num_new

        for request in self.in_order("running", now):
            if request.state != "running" or budget == 0:
                continue
            num_tokens = min(request.computed + budget, len(request.tokens) + request.pending)
            while request.state == "running" and not self.pool.grow(request, num_tokens):
                self.preempt(self.in_order("running", now)[-1])
            if request.state == "running":
                give(request)

        for request in self.in_order("preempted", now) + self.in_order("waiting", now):
            running = self.in_order("running", now)
            if budget == 0 or len(running) == self.max_num_seqs or request.pending:
                break
            hit = self.pool.match(request)
            available = len(self.pool.free()) + sum(1 for b in self.pool.cached() if b not in hit)
            spared = max(1, len(self.pool.blocks) // 100) if running else 0
            if self.pool.num_needed(len(request.tokens)) - len(hit) + spared > available:
                break
            self.pool.attach(request, hit)
            if not request.was_admitted and self.pool.caching:
                self.query_tokens += len(request.tokens)
                self.hit_tokens += request.computed
            request.was_admitted = True
            request.state = "running"
            assert self.pool.grow(request, request.computed + min(budget, len(request.tokens) - request.computed))
            give(request)

        self.last_plan = items
        removed: list[str] = []
        if items:
            removed, self.removed = self.removed, []
        return items, removed

    def update(self, items: list[GoldItem], token_ids: tuple[tuple[int, ...], ...]) -> None:
        for item, new_tokens in zip(items, token_ids, strict=True):
            request = self.find(item.sequence_id)
            if request is None:
                continue
            num_before = len(request.tokens)
            request.pending -= item.samples
            for token in new_tokens:
                request.tokens.append(token)
                params, num_output = request.message.params, len(request.tokens) - len(request.message.prompt_token_ids)
                is_stop = token in params.stop_token_ids or (token in self.eos_token_ids and not params.ignore_eos)
                if (is_stop and num_output >= params.min_tokens) or self.is_at_limit(request, len(request.tokens)):
                    self.leave(request, "gone")
                    break
            self.pool.name_blocks(request, num_before, min(request.computed, len(request.tokens)))
