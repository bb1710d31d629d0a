"""Ids that must not mix."""

from typing import NewType

BlockId = NewType("BlockId", int)
"""Index into the KV tensors. 0 is the dummy block that padded rows write to; it is never allocated."""

BlockHash = NewType("BlockHash", bytes)
"""Key of a full block in the prefix cache: covers its tokens, everything before them, and the extras."""

DUMMY_BLOCK = BlockId(0)
