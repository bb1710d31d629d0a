"""Makes a machine ready to serve a model: `python -m engine.warm_up CONFIG`.

It loads the model and warms it up as a server does at its start, and ends. What the kernels compile to stays in
Triton's cache (`TRITON_CACHE_DIR`), where the next start with the same flags finds it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

from engine.config import EngineConfig
from engine.errors import PagedServeError
from engine.kernel_cache import cache_folder, count_kernels
from engine.messages import LoadProgress


def encode(config: EngineConfig) -> str:
    """The configuration as the JSON that `main` takes."""
    return json.dumps(asdict(config), default=str)


def main(config_json: str) -> int:
    """Warms up and says what it did; returns the exit code."""
    started = time.monotonic()
    try:
        config = EngineConfig.from_kwargs(**json.loads(config_json))
        from engine.build import build_runner
        from engine.runner.choice import is_interpreted, resolve

        config = resolve(config)
        cache = cache_folder()
        before = count_kernels(cache)
        runner = build_runner(config, _Phases())
    except PagedServeError as error:
        print(f"pagedserve warmup: {error}", file=sys.stderr)
        return 1
    info = runner.info
    lines = [f"{info.architecture} in {info.dtype} on {info.device}, {info.num_blocks} KV blocks of {info.block_size}"]
    if config.attention_backend == "torch" or is_interpreted():
        lines.append("there is nothing to compile for the CPU")
    else:
        after = count_kernels(cache)
        lines.append(f"{after - before} kernels compiled, {after} in {cache}")
        sizes = ", ".join(str(size) for size in runner.graph_sizes)
        lines.append(f"decode graphs recorded for batches of {sizes}" if sizes else "no decode graphs")
    print("\n".join(f"pagedserve warmup: {line}" for line in (*lines, f"done in {time.monotonic() - started:.1f} s")))
    return 0


class _Phases:
    """Prints the name of each phase when it begins."""

    def __init__(self) -> None:
        self._phase: str | None = None

    def __call__(self, progress: LoadProgress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            print(f"pagedserve warmup: {progress.phase}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
