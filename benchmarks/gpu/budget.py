"""The time a section may take."""

from __future__ import annotations

import time


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
