"""Bucket sizes, and graphs over the stand-in recorder."""

from __future__ import annotations

import pytest
import torch

from engine.runner.accelerator import Compute, HostAccelerator
from engine.runner.decode_graphs import DecodeGraphs, bucket_sizes


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 4, 5, 8, 9, 33, 64, 100, 256, 300, 1000])
def test_buckets_rise_to_the_bound(max_num_seqs: int) -> None:
    sizes = bucket_sizes(max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, max_num_seqs)
    graphs = DecodeGraphs(sizes)
    graphs.record(HostAccelerator().recorder(), lambda _size: lambda: None, lambda _done: None)
    for num_seqs in range(1, max_num_seqs + 1):
        size = graphs.bucket(num_seqs)
        assert size is not None
        assert num_seqs <= size
        if num_seqs > 32:
            assert (size - num_seqs) / size < 0.2
    assert graphs.bucket(max_num_seqs + 1) is None


def test_the_usual_buckets() -> None:
    assert bucket_sizes(32) == (1, 2, 4, 8, 16, 24, 32)
    assert len(bucket_sizes(256)) == 23


def test_the_largest_is_recorded_first_and_a_replay_reads_what_lies_there() -> None:
    inputs, outputs = torch.zeros(8), torch.zeros(8)
    made: list[int] = []
    progress: list[int] = []

    def make(size: int) -> Compute:
        made.append(size)

        def compute() -> None:
            outputs[:size] = inputs[:size] * 2

        return compute

    graphs = DecodeGraphs((1, 4, 8))
    assert graphs.bucket(3) is None, "nothing is recorded yet"
    graphs.record(HostAccelerator().recorder(), make, progress.append)
    assert (made, progress) == ([8, 4, 1], [1, 2, 3])
    inputs[:] = torch.arange(8.0)
    graphs.replay(4)
    assert outputs.tolist() == [0, 2, 4, 6, 0, 0, 0, 0]


def test_cleared_graphs_are_gone() -> None:
    graphs = DecodeGraphs((1,))
    graphs.record(HostAccelerator().recorder(), lambda _size: lambda: None, lambda _done: None)
    graphs.clear()
    assert graphs.bucket(1) is None


def test_without_sizes_nothing_is_replayed() -> None:
    graphs = DecodeGraphs(())
    graphs.record(HostAccelerator().recorder(), lambda _size: lambda: None, lambda _done: None)
    assert graphs.bucket(1) is None
