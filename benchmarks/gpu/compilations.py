"""Which kernels Triton compiles, or loads from its cache on disk: after a warm-up, none should be."""

from __future__ import annotations

from typing import Any

import triton


class Compilations:
    """Counts from when it is made; one at a time. Nothing is compiled under Triton's interpreter."""

    def __init__(self) -> None:
        self.names: list[str] = []
        triton.knobs.compilation.listener = self._note

    def _note(self, *, metadata: dict[str, Any], **_: object) -> None:
        self.names.append(str(metadata.get("name", "?")))
