"""Which block holds the KV of which content."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator

from engine.core.ids import BlockHash, BlockId
from engine.core.request import Request
from engine.sampling_params import SamplingParams


class PrefixCache:
    """Keys of full blocks, and the one block registered for each key.

    A key is SHA-256 over (parent's key, token ids of the block); the first block's parent covers the extras, so that a
    key names its tokens, all tokens before them and everything else that its KV depends on. The root is random, so
    that a client cannot make up colliding prompts offline.

    NOTE: `reset` begins a new epoch with a new root. A request that was running then keeps its blocks, but its KV and
    its keys belong to the old epoch (weights may have changed): it registers nothing any more, and starts a new chain
    only when it has given its blocks back and looks up anew. So nothing from before a reset is ever hit after it.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = os.urandom(32)
        self._blocks: dict[BlockHash, BlockId] = {}
        self._keys: dict[BlockId, BlockHash] = {}
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: BlockId) -> bool:
        """Whether a lookup can find this block."""
        return block_id in self._keys

    def find(self, request: Request, max_blocks: int) -> Iterator[BlockId]:
        """The blocks that hold the request's first tokens, up to the first miss. The request must hold no blocks."""
        assert not request.block_ids, "a request looks up before it holds blocks"
        if request.cache_epoch != self.epoch:
            request.cache_epoch = self.epoch
            request.block_hashes.clear()
        self._extend(request, max_blocks)
        for key in request.block_hashes[:max_blocks]:
            block_id = self._blocks.get(key)
            if block_id is None:
                return
            yield block_id

    def register(self, request: Request, first: int, end: int) -> None:
        """Makes the request's blocks first..end−1, which planned steps fill with known tokens, findable.

        Where another block is registered for the same content, that one stays and the request keeps its own.
        """
        if request.cache_epoch != self.epoch:
            return
        self._extend(request, end)
        for index in range(first, end):
            key, block_id = request.block_hashes[index], request.block_ids[index]
            assert block_id not in self._keys, f"block {block_id} has a key already"
            if key not in self._blocks:
                self._blocks[key] = block_id
                self._keys[block_id] = key

    def forget(self, block_id: BlockId) -> None:
        """No lookup finds this block any more: its slots are about to be written anew."""
        key = self._keys.pop(block_id)
        del self._blocks[key]

    def reset(self) -> None:
        """Forgets everything; also what running requests computed so far never becomes a hit."""
        self._blocks.clear()
        self._keys.clear()
        self._root = os.urandom(32)
        self.epoch += 1

    def check_integrity(self) -> None:
        """Asserts that the two directions of the map agree."""
        assert len(self._blocks) == len(self._keys)
        assert all(self._blocks[key] == block_id for block_id, key in self._keys.items())

    def _extend(self, request: Request, num_blocks: int) -> None:
        """Hashes the request's first full blocks as far as not yet done."""
        hashes, size = request.block_hashes, self._block_size
        if len(hashes) >= num_blocks:
            return
        parent = hashes[-1] if hashes else self._chain_root(request.params)
        for start in range(len(hashes) * size, num_blocks * size, size):
            tokens = request.token_ids[start : start + size]
            assert len(tokens) == size, "only full blocks have a key"
            parent = BlockHash(hashlib.sha256(b"block" + parent + array("q", tokens).tobytes()).digest())
            hashes.append(parent)

    def _chain_root(self, params: SamplingParams) -> BlockHash:
        digest = hashlib.sha256(b"root" + self._root)
        for tag, value in _extras(params):
            # NOTE: a salt out of JSON may hold a lone surrogate; length prefixes keep tag and value apart.
            for text in (tag, value):
                data = text.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little") + data)
        return BlockHash(digest.digest())


def _extras(params: SamplingParams) -> Iterator[tuple[str, str]]:
    """What KV depends on, or must be kept apart by, beside the tokens: one tagged value each."""
    if params.cache_salt is not None:
        yield "cache_salt", params.cache_salt
