from __future__ import annotations

from engine.core.block_pool import BlockPool, PrefixHit
from engine.core.request import Request
from tests.engine.core.support import make_request

PROMPT = list(range(100, 112))  # three blocks of four


def admitted(pool: BlockPool, prompt: list[int] = PROMPT, name: str = "r", **params: object) -> Request:
    """A request that holds slots for its whole prompt, as after its first step."""
    request = make_request(name, prompt, **params)
    pool.attach(request, pool.match(request))
    assert pool.grow(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    return request


def test_grow_gives_as_many_blocks_as_the_tokens_need() -> None:
    pool = BlockPool(10, 4)
    request = make_request("r", range(20))
    for num_tokens, num_blocks in [(1, 1), (4, 1), (5, 2), (5, 2), (16, 4)]:
        assert pool.grow(request, num_tokens)
        assert len(request.block_ids) == num_blocks
        assert pool.num_used == num_blocks
        request.num_computed_tokens = num_tokens
    assert 0 not in request.block_ids
    assert len(set(request.block_ids)) == 4
    pool.check_integrity([request])


def test_grow_changes_nothing_when_blocks_are_short() -> None:
    pool = BlockPool(2, 4)
    request = make_request("r", range(12))
    assert not pool.grow(request, 9)
    assert request.block_ids == []
    assert pool.num_available == 2
    assert pool.match(make_request("s", range(12))) == PrefixHit()


def test_a_block_with_a_pending_last_token_is_found_when_that_is_known() -> None:
    pool = BlockPool(10, 4)
    request = admitted(pool, PROMPT[:7])
    assert pool.grow(request, 8)  # the eighth token is computed, and nobody knows it yet
    request.num_computed_tokens = 8
    assert len(pool.match(make_request("s", PROMPT)).block_ids) == 1
    request.token_ids.append(PROMPT[7])
    pool.note_tokens(request, 7)
    assert pool.match(make_request("s", PROMPT)).block_ids == tuple(request.block_ids)
    assert pool.grow(request, 9)
    request.num_computed_tokens = 9
    request.token_ids.append(PROMPT[8])
    pool.note_tokens(request, 8)
    pool.check_integrity([request])


def test_a_known_token_names_no_block_that_no_step_fills() -> None:
    pool = BlockPool(10, 4)
    request = admitted(pool, PROMPT[:7])
    request.token_ids.append(PROMPT[7])
    pool.note_tokens(request, 7)
    assert len(pool.match(make_request("s", PROMPT)).block_ids) == 1


def test_release_is_idempotent() -> None:
    pool = BlockPool(4, 4)
    request = admitted(pool)
    pool.release(request)
    pool.release(request)
    assert pool.num_available == 4
    assert request.num_computed_tokens == 0
    pool.check_integrity([])


def test_E4_a_prompt_of_two_blocks_hits_one_so_that_a_token_is_left_to_compute() -> None:
    pool = BlockPool(10, 16)
    first = admitted(pool, list(range(32)))
    second = make_request("s", range(32))
    hit = pool.match(second)
    assert hit.block_ids == (first.block_ids[0],)
    pool.attach(second, hit)
    assert second.num_computed_tokens == 16


def test_a_prompt_one_token_longer_hits_both_blocks() -> None:
    pool = BlockPool(10, 16)
    first = admitted(pool, list(range(32)))
    assert pool.match(make_request("s", range(33))).block_ids == tuple(first.block_ids)


def test_only_full_blocks_are_shared() -> None:
    pool = BlockPool(10, 4)
    first = admitted(pool, PROMPT[:7])
    assert pool.match(make_request("s", PROMPT)).block_ids == (first.block_ids[0],)


def test_a_block_is_found_from_the_moment_it_is_handed_out_to_be_filled() -> None:
    pool = BlockPool(10, 4)
    first = make_request("r", PROMPT)
    pool.match(first)
    assert pool.grow(first, 8)
    assert pool.match(make_request("s", PROMPT)).block_ids == tuple(first.block_ids)


def test_generated_tokens_are_found_too() -> None:
    pool = BlockPool(10, 4)
    first = admitted(pool, PROMPT[:7])
    first.token_ids.append(PROMPT[7])
    assert pool.grow(first, 8)
    first.num_computed_tokens = 8
    assert pool.match(make_request("s", PROMPT)).block_ids == tuple(first.block_ids)


def test_a_shared_block_is_free_when_its_last_holder_leaves() -> None:
    pool = BlockPool(10, 4)
    first, second = admitted(pool, name="r"), admitted(pool, name="s")
    assert second.block_ids[:2] == first.block_ids[:2]
    assert pool.num_used == 4
    assert pool.num_repeated == 2
    pool.release(first)
    assert pool.num_used == 3
    assert pool.num_repeated == 0
    pool.check_integrity([second])
    pool.release(second)
    assert pool.num_used == 0
    pool.check_integrity([])


def test_released_blocks_are_found_until_they_are_given_away() -> None:
    pool = BlockPool(3, 4)
    first = admitted(pool)
    block_ids = tuple(first.block_ids)
    pool.release(first)
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 3, 0)
    assert pool.match(make_request("s", [*PROMPT, 1])) == PrefixHit(block_ids, num_idle=3)


def test_free_blocks_are_given_away_before_cached_ones() -> None:
    pool = BlockPool(5, 4)
    pool.release(admitted(pool))
    other = admitted(pool, list(range(8)), "other")
    assert len(pool.match(make_request("s", [*PROMPT, 1])).block_ids) == 3
    pool.check_integrity([other])


def test_a_prefix_is_evicted_from_its_end() -> None:
    pool = BlockPool(3, 4)
    pool.release(admitted(pool))
    for left in (2, 1, 0):
        other = make_request("other", range(12))
        assert pool.grow(other, (3 - left) * 4)
        pool.release(other)
        # NOTE: `other` never looked anything up, so its blocks have no key and are the next to be given away again.
        assert len(pool.match(make_request("s", [*PROMPT, 1])).block_ids) == left
        pool.check_integrity([])


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(4, 4)
    old, new = list(range(8)), list(range(50, 58))
    pool.release(admitted(pool, old))
    pool.release(admitted(pool, new))
    pool.release(admitted(pool, old))  # used again: now `new` is the older one
    admitted(pool, list(range(70, 74)))
    assert len(pool.match(make_request("s", [*old, 1])).block_ids) == 2
    assert len(pool.match(make_request("s", [*new, 1])).block_ids) == 1


def test_an_evicted_block_is_not_found_under_its_old_content() -> None:
    pool = BlockPool(3, 4)
    pool.release(admitted(pool))
    admitted(pool, list(range(12)), "other")
    assert pool.match(make_request("s", [*PROMPT, 1])) == PrefixHit()


def test_can_admit_counts_idle_hits_as_blocks_it_takes() -> None:
    pool = BlockPool(5, 4)
    pool.release(admitted(pool))
    same = make_request("same", [*PROMPT, 1])
    hit = pool.match(same)
    assert hit.num_idle == 3
    assert pool.can_admit(same, hit, num_spared=1)
    assert not pool.can_admit(same, hit, num_spared=2)


def test_can_admit_counts_hits_in_use_as_free_of_charge() -> None:
    pool = BlockPool(5, 4)
    admitted(pool)
    same = make_request("same", [*PROMPT, 1])
    assert pool.can_admit(same, pool.match(same), num_spared=1)
    assert not pool.can_admit(make_request("other", range(13)), PrefixHit(), num_spared=0)


def test_two_that_fill_the_same_content_each_keep_their_own_block() -> None:
    pool = BlockPool(10, 4)
    requests = [make_request(name, PROMPT[:4]) for name in "rs"]
    for request in requests:  # one token at a time, side by side: neither finds the other's block at the start
        pool.attach(request, pool.match(request))
    for num_tokens in range(1, 5):
        for request in requests:
            assert pool.grow(request, num_tokens)
            request.num_computed_tokens = num_tokens
    assert requests[0].block_ids != requests[1].block_ids
    pool.check_integrity(requests)
    pool.release(requests[0])
    assert pool.match(make_request("t", PROMPT)).num_idle == 1
    pool.release(requests[1])
    assert (pool.num_cached, pool.num_free) == (1, 9)
    pool.check_integrity([])


def test_E6_reset_makes_cached_blocks_free_and_those_in_use_unfindable_for_good() -> None:
    pool = BlockPool(10, 4)
    pool.release(admitted(pool, list(range(8)), "gone"))
    running = admitted(pool)
    pool.reset_prefix_cache()
    assert (pool.num_used, pool.num_cached, pool.num_free) == (3, 0, 7)
    running.token_ids += [1, 2, 3, 4]
    assert pool.grow(running, 16)
    running.num_computed_tokens = 16
    everything = [*running.token_ids, 5]
    assert pool.match(make_request("s", everything)) == PrefixHit()
    pool.release(running)
    assert pool.match(make_request("s", everything)) == PrefixHit()
    assert pool.num_free == 10
    pool.check_integrity([])


def test_without_prefix_caching_nothing_is_found() -> None:
    pool = BlockPool(10, 4, enable_prefix_caching=False)
    pool.release(admitted(pool))
    assert pool.match(make_request("s", PROMPT)) == PrefixHit()
    pool.reset_prefix_cache()
    assert pool.num_free == 10
    pool.check_integrity([])
