"""The KV blocks: who holds them, which may be given away, which can be found again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.core.free_list import FreeList
from engine.core.ids import BlockId
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Blocks that already hold a request's first tokens. num_idle: those of them that no request holds now."""

    block_ids: tuple[BlockId, ...] = ()
    num_idle: int = 0


class BlockPool:
    """Owner of the usable blocks 1..num_blocks (0 is the dummy block).

    A block is *used* (some request holds it), *cached* (nobody does, but a lookup finds it) or *free* (neither). New
    blocks come from the free ones first, then from the cached ones, least recently used first.

    NOTE: a block becomes findable when it is handed out for the step that fills it, not after that step, so that
    requests planned into the same step share it. This is sound because attention writes the KV of the whole batch
    before it reads any, in every layer, and because the scheduler never takes back what it has planned in a step.
    Only a block whose last token is still pending has no key yet; `note_tokens` makes it findable when that is known.

    NOTE: a block may be given away while a launched step still writes or reads it, for its old holder or for one that
    has just been found to have ended. This is sound because steps run in order on one device stream: whatever the new
    holder writes or reads comes in a later step, and it reads no slot that it has not written or found by its key.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        assert num_blocks >= 1
        assert block_size >= 1
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_cache = PrefixCache(block_size) if enable_prefix_caching else None
        self._ref_counts = [0] * (num_blocks + 1)
        self._free = [BlockId(i) for i in range(num_blocks, 0, -1)]
        self._cached = FreeList(num_blocks)
        self.num_repeated = 0
        """Holdings of shared blocks beyond the first holder's: the sum of (reference count − 1) over used blocks."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def caches_prefixes(self) -> bool:
        return self._prefix_cache is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> PrefixHit:
        """The cached prefix of a request that holds no blocks, in full blocks.

        At least one token is left to compute, for there would be no logits to sample from. Changes nothing.
        """
        if self._prefix_cache is None:
            return PrefixHit()
        max_blocks = (request.num_tokens - 1) // self.block_size
        block_ids = tuple(self._prefix_cache.find(request, max_blocks))
        return PrefixHit(block_ids, sum(1 for block_id in block_ids if self._ref_counts[block_id] == 0))

    def can_admit(self, request: Request, hit: PrefixHit, num_spared: int) -> bool:
        """Whether all of the request's tokens fit, given its hit, and `num_spared` blocks stay available."""
        num_new = self.blocks_for(request.num_tokens) - len(hit.block_ids)
        return num_new + hit.num_idle + num_spared <= self.num_available

    def attach(self, request: Request, hit: PrefixHit) -> None:
        """Makes the request a holder of its hit; the hit's tokens count as computed."""
        assert not request.block_ids
        for block_id in hit.block_ids:
            if self._ref_counts[block_id] == 0:
                self._cached.remove(block_id)
            else:
                self.num_repeated += 1
            self._ref_counts[block_id] += 1
        request.block_ids.extend(hit.block_ids)
        request.num_computed_tokens = len(hit.block_ids) * self.block_size

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Gives the request slots for its first `num_tokens` tokens, which the coming step completes.

        The blocks that this fills with known tokens become findable. False, and nothing has changed, when too few are
        available.
        """
        num_new = self.blocks_for(num_tokens) - len(request.block_ids)
        if num_new > 0:
            if num_new > self.num_available:
                return False
            for _ in range(num_new):
                request.block_ids.append(self._take())
        self._register(request, request.num_computed_tokens, min(num_tokens, request.num_tokens))
        return True

    def note_tokens(self, request: Request, num_tokens_before: int) -> None:
        """Makes findable the blocks whose last token was pending when a step was planned that fills them.

        num_tokens_before: how many of the request's tokens were known until now.
        """
        self._register(request, num_tokens_before, min(request.num_computed_tokens, request.num_tokens))

    def release(self, request: Request) -> None:
        """Takes the request's blocks back, last ones first, so that a prefix is evicted from its end. Idempotent."""
        for block_id in reversed(request.block_ids):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] > 0:
                self.num_repeated -= 1
            elif self._prefix_cache is not None and block_id in self._prefix_cache:
                self._cached.append(block_id)
            else:
                self._free.append(block_id)
        request.block_ids.clear()
        request.num_computed_tokens = 0

    def reset_prefix_cache(self) -> None:
        """No content computed so far is found again; running requests keep their blocks."""
        if self._prefix_cache is None:
            return
        self._prefix_cache.reset()
        while self._cached:
            self._free.append(self._cached.popleft())

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """Asserts that reference counts, lists and keys agree with the requests that hold blocks. O(num_blocks)."""
        held = Counter(block_id for request in holders for block_id in request.block_ids)
        assert all(self._ref_counts[i] == held[BlockId(i)] for i in range(self.num_blocks + 1)), "reference counts"
        assert held[BlockId(0)] == 0, "the dummy block is held"
        assert self.num_repeated == held.total() - len(held)
        cached = list(self._cached)
        assert len(cached) == len(self._cached)
        unused = sorted(self._free + cached)
        assert unused == [i for i in range(1, self.num_blocks + 1) if not held[BlockId(i)]], "lost or doubled blocks"
        if self._prefix_cache is None:
            assert not cached
            return
        self._prefix_cache.check_integrity()
        assert all(block_id in self._prefix_cache for block_id in cached)
        assert not any(block_id in self._prefix_cache for block_id in self._free)

    def _register(self, request: Request, num_before: int, num_tokens: int) -> None:
        """Makes findable the blocks that are full with `num_tokens` tokens and were not with `num_before`."""
        if self._prefix_cache is not None:
            first, end = num_before // self.block_size, num_tokens // self.block_size
            if first < end:
                self._prefix_cache.register(request, first, end)

    def _take(self) -> BlockId:
        block_id = self._free.pop() if self._free else self._evict()
        assert self._ref_counts[block_id] == 0
        self._ref_counts[block_id] = 1
        return block_id

    def _evict(self) -> BlockId:
        # NOTE: the one place where cached KV is given up; a further tier (host memory) saves it here and answers in
        # `match`.
        assert self._prefix_cache is not None
        block_id = self._cached.popleft()
        self._prefix_cache.forget(block_id)
        return block_id
