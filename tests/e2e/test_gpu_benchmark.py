"""`python -m benchmarks.gpu` end to end, on the CPU under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import REPOSITORY

SECTIONS = ("kernels", "attention", "tiles", "layers", "engine", "qwen2.5-0.5b")
CASES = (
    "| kernels | paged_attention 4/2x16 decode bf16",
    "| kernels | rotary_kv_write 4/2x16, ",
    "| kernels | sample_tokens",
    "| attention | decode 4/2x16, batch 2, 20 keys",
    "| attention | prefill 4/2x16, 1 x 24",
    "| tiles | decode 4/2x16, 1 x 300: ",
    "| tiles | prefill 4/2x16, 1 x 24: the table's ",
    "| layers | linear gate_up",
    "| layers | add_rms_norm_ 32, 3 tokens",
    "| engine | qwen2.5-0.5b, tiny, fp32, greedy, ",
    "| qwen2.5-0.5b | engine: decode, batch 2",
    "| qwen2.5-0.5b | engine: decode step, batch 2",
    "| qwen2.5-0.5b | engine: TTFT of 20 tokens",
    "| qwen2.5-0.5b | engine, overlap: device idle between steps",
    "| qwen2.5-0.5b | engine, no overlap: decode, batch 2",
)
PEER_CASES = ("generate: TTFT of 20 tokens", "generate: decode, batch 2", "continuous batching: decode, batch 2")


def run_benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_smoke_run_fills_the_table(tmp_path: Path) -> None:
    output = tmp_path / "table.md"
    # NOTE: what does not fit into the time is left out: here it is without end.
    done = run_benchmark("--smoke", "--seconds", "36000", "--sections", ",".join(SECTIONS), "--output", str(output))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for case in CASES:
        assert any(line.startswith(case) and "| — |" not in line for line in lines), f"{case}\n{done.stdout}"
    peers = [line for line in lines if line.startswith("| qwen2.5-0.5b | transformers ")]
    for case in PEER_CASES:
        assert any(case in line and "| — |" not in line for line in peers), f"{case}\n{done.stdout}"
    assert "**NO**" not in done.stdout
    assert output.read_text(encoding="utf-8").splitlines() == lines[:-1]
    assert lines[0].startswith("CPU (Triton's interpreter); torch ")
    assert lines[-1].endswith(" checks and targets met, 0 not; 0 left out")


def test_without_a_gpu_it_says_so_and_fails() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = run_benchmark("--sections", "attention,layers")
    assert done.returncode == 1
    assert done.stderr == "torch sees no CUDA device; --smoke tests this script without one\n"
    assert done.stdout == ""


def test_an_unknown_section_is_named() -> None:
    done = run_benchmark("--sections", "attention,nonsense")
    assert done.returncode == 2
    assert "unknown section nonsense; known are kernels, attention" in done.stderr
