from __future__ import annotations

import random

import pytest

from engine.core.free_list import FreeList
from engine.core.ids import DUMMY_BLOCK, BlockId


def filled(*ids: int) -> FreeList:
    free_list = FreeList(10)
    for i in ids:
        free_list.append(BlockId(i))
    return free_list


def test_gives_blocks_in_the_order_they_came() -> None:
    free_list = filled(3, 1, 2)
    assert [free_list.popleft() for _ in range(3)] == [3, 1, 2]
    assert len(free_list) == 0


@pytest.mark.parametrize(("removed", "left"), [(3, [1, 2]), (1, [3, 2]), (2, [3, 1])])
def test_removes_at_either_end_and_in_the_middle(removed: int, left: list[int]) -> None:
    free_list = filled(3, 1, 2)
    free_list.remove(BlockId(removed))
    assert list(free_list) == left
    assert BlockId(removed) not in free_list
    assert len(free_list) == 2


def test_a_removed_block_can_come_back_as_the_newest() -> None:
    free_list = filled(3, 1, 2)
    free_list.remove(BlockId(3))
    free_list.append(BlockId(3))
    assert list(free_list) == [1, 2, 3]


def test_refuses_a_block_twice_a_block_that_is_not_there_and_the_dummy() -> None:
    free_list = filled(3)
    with pytest.raises(AssertionError):
        free_list.append(BlockId(3))
    with pytest.raises(AssertionError):
        free_list.remove(BlockId(4))
    with pytest.raises(AssertionError):
        free_list.append(DUMMY_BLOCK)
    with pytest.raises(AssertionError):
        FreeList(3).popleft()


def test_random_operations_match_a_python_list() -> None:
    rng, free_list, gold = random.Random(0), FreeList(30), list[int]()
    for _ in range(3000):
        block_id = BlockId(rng.randint(1, 30))
        assert (block_id in free_list) == (block_id in gold)
        if block_id in gold:
            gold.remove(block_id)
            free_list.remove(block_id)
        elif rng.random() < 0.7:
            gold.append(block_id)
            free_list.append(block_id)
        elif gold:
            assert free_list.popleft() == gold.pop(0)
        assert list(free_list) == gold
        assert len(free_list) == len(gold)
