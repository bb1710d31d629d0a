from __future__ import annotations

import pytest

from engine.core.ids import BlockId
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request
from tests.engine.core.support import make_request

PROMPT = list(range(10, 22))  # three blocks of four


def stored(cache: PrefixCache, prompt: list[int] = PROMPT, first_id: int = 1, **params: object) -> Request:
    """A request whose full blocks are registered as first_id, first_id + 1, ..."""
    request = make_request("stored", prompt, **params)
    num_blocks = len(prompt) // 4
    list(cache.find(request, num_blocks))
    request.block_ids = [BlockId(first_id + i) for i in range(num_blocks)]
    cache.register(request, 0, num_blocks)
    return request


def found(cache: PrefixCache, prompt: list[int] = PROMPT, **params: object) -> list[int]:
    return list(cache.find(make_request("finder", prompt, **params), len(prompt) // 4))


def test_finds_the_blocks_of_the_same_tokens() -> None:
    cache = PrefixCache(4)
    stored(cache)
    assert found(cache) == [1, 2, 3]
    assert found(cache, [*PROMPT, 99]) == [1, 2, 3]


def test_stops_at_the_first_block_that_differs() -> None:
    cache = PrefixCache(4)
    stored(cache)
    assert found(cache, [*PROMPT[:6], 0, 0, *PROMPT[8:]]) == [1]


def test_the_same_tokens_after_another_beginning_are_another_block() -> None:
    cache = PrefixCache(4)
    stored(cache)
    assert found(cache, PROMPT[4:]) == []


@pytest.mark.parametrize(
    ("mine", "theirs"), [("a", "b"), ("a", None), (None, "a"), ("ab", "a"), ("\ud800", "\ud801"), ("é", "e\u0301")]
)
def test_another_salt_is_another_content(mine: str | None, theirs: str | None) -> None:
    cache = PrefixCache(4)
    stored(cache, cache_salt=mine)
    assert found(cache, cache_salt=theirs) == []
    assert found(cache, cache_salt=mine) == [1, 2, 3]


def test_keys_differ_from_process_to_process() -> None:
    assert stored(PrefixCache(4)).block_hashes != stored(PrefixCache(4)).block_hashes


def test_the_first_block_of_a_content_stays_registered() -> None:
    cache = PrefixCache(4)
    stored(cache)
    stored(cache, first_id=7)
    assert found(cache) == [1, 2, 3]
    assert BlockId(7) not in cache
    cache.check_integrity()


def test_a_forgotten_block_is_not_found_and_its_successors_are_after_it_comes_back() -> None:
    cache = PrefixCache(4)
    stored(cache)
    cache.forget(BlockId(1))
    assert found(cache) == []
    stored(cache, PROMPT[:4], first_id=9)
    assert found(cache) == [9, 2, 3]


def test_E6_nothing_is_found_after_a_reset() -> None:
    cache = PrefixCache(4)
    stored(cache)
    cache.reset()
    assert found(cache) == []
    assert len(cache) == 0


def test_E6_a_request_from_before_a_reset_registers_nothing_after_it() -> None:
    cache = PrefixCache(4)
    request = stored(cache)
    cache.reset()
    request.token_ids += [1, 2, 3, 4]
    request.block_ids.append(BlockId(4))
    cache.register(request, 3, 4)
    assert len(cache) == 0
    request.block_ids.clear()
    assert list(cache.find(request, 4)) == []
    request.block_ids = [BlockId(i) for i in (5, 6, 7, 8)]
    cache.register(request, 0, 4)
    assert found(cache, request.token_ids) == [5, 6, 7, 8]


def test_hashes_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(4)
    request = make_request("r", PROMPT)
    list(cache.find(request, 2))
    first = list(request.block_hashes)
    list(cache.find(request, 3))
    assert len(first) == 2
    assert request.block_hashes[:2] == first
    monkeypatch.setattr("engine.core.prefix_cache.hashlib", None)
    list(cache.find(request, 3))


def test_looking_up_while_holding_blocks_is_refused() -> None:
    cache = PrefixCache(4)
    with pytest.raises(AssertionError):
        list(cache.find(stored(cache), 1))
