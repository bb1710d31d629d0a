"""`pagedserve warmup` and the process behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import warm_up
from engine.config import EngineConfig
from tests.tiny_models import make_config

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A configuration and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps(make_config("llama")))
    return tmp_path


def config(model_dir: Path, **arguments: Any) -> EngineConfig:
    return EngineConfig(model_dir=model_dir, num_threads=1, device="cpu", **arguments)


def test_the_configuration_survives_the_command_line(model_dir: Path) -> None:
    full = config(model_dir, max_num_seqs=3, memory_utilization=0.5, overlap=True, load_format="dummy")
    assert EngineConfig.from_kwargs(**json.loads(warm_up.encode(full))) == full


def test_the_cpu_has_nothing_to_compile(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_up.main(warm_up.encode(config(model_dir, load_format="dummy"))) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "loading weights" in lines[0]
    assert any("LlamaForCausalLM" in line and "on cpu" in line for line in lines)
    assert "nothing to compile" in lines[-2]
    assert lines[-1].startswith("pagedserve warmup: done in ")


def test_what_is_wrong_is_said_in_one_line(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_up.main(warm_up.encode(config(model_dir))) == 1
    assert capsys.readouterr().err.startswith("pagedserve warmup: ")


def test_the_subcommand(model_dir: Path) -> None:
    """With the server's own flags, in a front that loads no torch itself."""
    words = ["warmup", "--model_dir", str(model_dir), "--load_format=dummy", "--device", "cpu", "--num-threads", "1"]
    script = (
        "import sys; from predictor.__main__ import main\n"
        f"code = main({words!r})\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "pagedserve warmup: done in" in result.stdout
