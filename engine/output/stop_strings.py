"""Stop strings: where in a growing text one of them is complete, and how much may yet become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`stop` is complete after `end` characters of the scanned piece (it may have begun before the piece)."""

    stop: str
    end: int


class StopStrings:
    """A set of stop strings as one automaton over characters (Aho and Corasick 1975); it holds no state of a sequence.

    NOTE: the stop string that is complete first wins; of those complete at the same character, the longest. This
    depends on the text alone, not on how tokens or steps cut it, so a stream and a whole answer end at the same place.

    A sequence's state is one integer: the longest end of its text that begins a stop string.
    """

    START = 0

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._stop: list[str | None] = [None]
        depth = [0]
        for stop in stops:
            state = self.START
            for char in stop:
                following = self._next[state].get(char)
                if following is None:
                    following = len(self._next)
                    self._next[state][char] = following
                    self._next.append({})
                    self._stop.append(None)
                    depth.append(depth[state] + 1)
                state = following
            self._stop[state] = stop
        self._shorter = [self.START] * len(self._next)
        self._held = [0] * len(self._next)
        queue = deque([self.START])
        while queue:
            state = queue.popleft()
            shorter = self._shorter[state]
            if self._stop[state] is None:
                self._stop[state] = self._stop[shorter]
            self._held[state] = depth[state] if self._next[state] else self._held[shorter]
            for char, following in self._next[state].items():
                if state != self.START:
                    self._shorter[following] = self._step(shorter, char)
                queue.append(following)

    def scan(self, state: int, piece: str, *, may_stop: bool = True) -> tuple[int, StopMatch | None]:
        """Reads `piece` on from `state`; returns the state after it, and the first match unless `may_stop` is False."""
        for position, char in enumerate(piece):
            state = self._step(state, char)
            stop = self._stop[state]
            if stop is not None and may_stop:
                return state, StopMatch(stop, position + 1)
        return state, None

    def num_held(self, state: int) -> int:
        """How many characters at the end of the text may yet become part of a stop string."""
        return self._held[state]

    def _step(self, state: int, char: str) -> int:
        while True:
            following = self._next[state].get(char)
            if following is not None:
                return following
            if state == self.START:
                return state
            state = self._shorter[state]


@lru_cache(maxsize=16)
def stop_automaton(stops: tuple[str, ...]) -> StopStrings:
    """The automaton of these stop strings, shared by every sequence that has the same ones."""
    return StopStrings(stops)
