"""The time a section may take."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes about so long still fits."""
        return self.left >= seconds

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raises TimeoutError inside when the time is up. For code of others, in the main thread."""

        def expire(*_: object) -> None:
            raise TimeoutError("no time left")

        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, max(self.left, 0.001))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
