"""Requests that hold no blocks and wait for the batch."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine.core.policy import AgingPolicy, OrderKey
from engine.core.request import Request, Status

_Entry = tuple[bool, OrderKey, int, Request]


class WaitingQueue:
    """A heap in the policy's order, preempted requests before all others.

    `push` and `pop` are O(log n). `discard` is lazy: the entry stays in the heap until it comes up or until more than
    half of the heap is such entries, so that it costs O(log n) amortised and peeking stays O(1) in the queue's length.
    """

    def __init__(self, policy: AgingPolicy) -> None:
        self._policy = policy
        self._heap: list[_Entry] = []
        self._entries: dict[int, _Entry] = {}
        self._num_pushes = 0
        self.num_prompt_tokens = 0
        """Prompt tokens of the requests in the queue."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        return (request for *_, request in self._entries.values())

    def push(self, request: Request) -> None:
        assert request.serial not in self._entries, f"{request} is in the queue already"
        self._num_pushes += 1
        is_new = request.status is not Status.PREEMPTED
        entry = (is_new, self._policy.key(request), self._num_pushes, request)
        self._entries[request.serial] = entry
        heapq.heappush(self._heap, entry)
        self.num_prompt_tokens += request.num_prompt_tokens

    def peek(self) -> Request | None:
        """The request to admit next."""
        while self._heap:
            entry = self._heap[0]
            request = entry[-1]
            if self._entries.get(request.serial) is entry:
                return request
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Request:
        """Takes out the request to admit next. The queue must not be empty."""
        request = self.peek()
        assert request is not None, "pop from an empty queue"
        heapq.heappop(self._heap)
        del self._entries[request.serial]
        self.num_prompt_tokens -= request.num_prompt_tokens
        return request

    def discard(self, request: Request) -> None:
        """Takes a request out from wherever it stands; does nothing when it is not in the queue."""
        if self._entries.pop(request.serial, None) is None:
            return
        self.num_prompt_tokens -= request.num_prompt_tokens
        if len(self._heap) > 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
