"""The order in which unused blocks are given away."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.ids import DUMMY_BLOCK, BlockId

_ABSENT = -1


class FreeList:
    """Block ids from least to most recently used; every operation but iteration is O(1).

    A doubly linked ring over two arrays. The dummy block, which is never free, is its sentinel, so that no operation
    has an end to look after.
    """

    def __init__(self, num_blocks: int) -> None:
        """Room for the ids 1..num_blocks; empty."""
        self._next = [_ABSENT] * (num_blocks + 1)
        self._prev = [_ABSENT] * (num_blocks + 1)
        self._next[DUMMY_BLOCK] = self._prev[DUMMY_BLOCK] = DUMMY_BLOCK
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block_id: BlockId) -> bool:
        return block_id != DUMMY_BLOCK and self._next[block_id] != _ABSENT

    def __iter__(self) -> Iterator[BlockId]:
        """From the least recently used."""
        block_id = self._next[DUMMY_BLOCK]
        while block_id != DUMMY_BLOCK:
            yield BlockId(block_id)
            block_id = self._next[block_id]

    def append(self, block_id: BlockId) -> None:
        """Adds a block as the most recently used."""
        assert block_id != DUMMY_BLOCK, "the dummy block is never free"
        assert block_id not in self, f"block {block_id} is free already"
        last = self._prev[DUMMY_BLOCK]
        self._next[last] = self._prev[DUMMY_BLOCK] = block_id
        self._prev[block_id], self._next[block_id] = last, DUMMY_BLOCK
        self._length += 1

    def remove(self, block_id: BlockId) -> None:
        """Takes a block out of wherever it stands."""
        assert block_id in self, f"block {block_id} is not free"
        before, after = self._prev[block_id], self._next[block_id]
        self._next[before], self._prev[after] = after, before
        self._prev[block_id] = self._next[block_id] = _ABSENT
        self._length -= 1

    def popleft(self) -> BlockId:
        """Takes the least recently used block out. The list must not be empty."""
        block_id = BlockId(self._next[DUMMY_BLOCK])
        self.remove(block_id)
        return block_id
