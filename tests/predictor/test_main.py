"""The process's own entry: refusals before anything heavy is imported, and a light front."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.__main__ import main

REPOSITORY = Path(__file__).parents[2]
MODEL_CODE = ("torch", "transformers.models", "engine.runner", "engine.layers", "safetensors.torch")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_bad_flag_ends_with_2_and_says_where_help_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no_such_flag"]) == 2
    error = capsys.readouterr().err
    assert "--no_such_flag" in error
    assert "--help" in error


def test_a_port_in_use_ends_with_1_and_names_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--model_dir", str(tmp_path), "--http_port", str(port), "--grpc_port", "0"]) == 1
        assert f"port {port} is in use; choose another one with --http_port" in capsys.readouterr().err


def test_flags_are_refused_without_importing_kserve() -> None:
    result = python(
        "import sys; from predictor.__main__ import main; code = main(['--nope']); "
        "assert code == 2; assert 'kserve' not in sys.modules, 'kserve'"
    )
    assert result.returncode == 0, result.stderr


def test_the_front_process_holds_no_torch_and_no_model_code() -> None:
    result = python(
        "import sys, pkgutil, importlib, predictor\n"
        "for module in pkgutil.walk_packages(predictor.__path__, 'predictor.'):\n"
        "    importlib.import_module(module.name)\n"
        "import engine.client\n"
        f"held = [name for name in {MODEL_CODE!r} if name in sys.modules]\n"
        "assert not held, held\n"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ssl_certfile", "none.crt", "--ssl_keyfile", "none.key"], "ssl_certfile none.crt cannot be read"),
        (["--api_key_file", "none.txt"], "api_key_file none.txt cannot be read"),
    ],
)
def test_security_files_that_cannot_be_used_end_with_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["--model_dir", str(tmp_path), "--http_port", "0", "--grpc_port", "0", *words]) == 1
    assert capsys.readouterr().err.strip() == f"pagedserve: {text}: No such file or directory"


def test_the_processes_that_are_started_from_here_get_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDSERVE_API_KEY", "sk-secret")
    with socket.socket() as taken:  # a start that ends after the flags have been read
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert main(["--model_dir", str(tmp_path), "--http_port", str(taken.getsockname()[1])]) == 1
    assert "PAGEDSERVE_API_KEY" not in os.environ
