"""Recorded steps of decodes, one for each of a few batch sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from engine.runner.accelerator import Compute, GraphRecorder

_SMALL = (1, 2, 4)


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Batch sizes to record, rising, up to `max_num_seqs`: 1, 2, 4, then in steps of 8 to 64, 16 to 256, 32 beyond.

    A step is padded to the next one: with 4 sequences or more, at most a fifth of the rows beyond 32 are padding.
    """
    sizes = list(_SMALL)
    while sizes[-1] < max_num_seqs:
        last = sizes[-1]
        sizes.append(last + (4 if last < 8 else 8 if last < 64 else 16 if last < 256 else 32))
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


class DecodeGraphs:
    """Graphs of decode-only steps by batch size."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """sizes: rising."""
        self.sizes = sizes
        self._graphs: dict[int, Compute] = {}

    def record(self, recorder: GraphRecorder, make: Callable[[int], Compute], progress: Callable[[int], None]) -> None:
        """Records `make(size)` for every size, the largest first, so that the smaller ones fit the memory it took.

        progress: called with the number of graphs done.
        """
        for done, size in enumerate(reversed(self.sizes), start=1):
            self._graphs[size] = recorder.record(make(size))
            progress(done)

    def bucket(self, num_seqs: int) -> int | None:
        """The smallest recorded size that holds `num_seqs` decodes; None where there is none."""
        place = bisect_left(self.sizes, num_seqs)
        return self.sizes[place] if place < len(self.sizes) and self._graphs else None

    def replay(self, size: int) -> None:
        """Launches the recorded step of a size that `bucket` gave."""
        self._graphs[size]()

    def clear(self) -> None:
        """Forgets the graphs, and with them the memory that they hold."""
        self._graphs.clear()
