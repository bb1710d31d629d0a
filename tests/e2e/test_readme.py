"""Every command and program of the README, run as it stands (against this test's ports)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import REPOSITORY, Server, until
from tests.manifests import commands as kubectl_commands

README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
MAKE_BLOCKS = [text for kind, text in BLOCKS if kind == "sh" and text.startswith("make ")]
CURL_BLOCKS = [text for kind, text in BLOCKS if kind == "sh" and text.startswith("curl ")]
KUBECTL_BLOCKS = [text for kind, text in BLOCKS if kind == "sh" and text.startswith("kubectl ")]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]


def run(argv: list[str], seconds: float = 300.0, **kwargs: object) -> str:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_ports_of(server: Server, text: str) -> str:
    return text.replace("http://localhost:8080", server.http_url).replace("localhost:8081", server.grpc_address)


def test_every_block_is_of_a_kind_that_is_run_here() -> None:
    run_here = len(MAKE_BLOCKS) + len(CURL_BLOCKS) + len(KUBECTL_BLOCKS) + len(PROGRAMS)
    assert run_here == len(BLOCKS) == README.count("```") // 2
    assert len(MAKE_BLOCKS) == 1
    assert len(CURL_BLOCKS) >= 2
    assert len(KUBECTL_BLOCKS) >= 1
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("command", CURL_BLOCKS, ids=range(len(CURL_BLOCKS)))
def test_curl(chat_server: Server, command: str) -> None:
    assert " Paris" in run(["sh", "-c", at_ports_of(chat_server, command)])


@pytest.mark.parametrize("command", [line for block in KUBECTL_BLOCKS for line in block.splitlines()])
def test_kubectl_without_a_cluster(command: str) -> None:
    """The folder that is applied builds, and every document of it is one that an API server takes."""
    assert command.startswith("kubectl ")
    kubectl_commands.check(command)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: re.search(r"(?:import|from) (\w+)", text)[1])
def test_program(chat_server: Server, program: str) -> None:
    output = run([sys.executable, "-c", at_ports_of(chat_server, program)])
    expected = "blue" if "Why is the sky blue?" in program else "Paris"
    assert expected in output


def test_make_serve_serves_the_demonstration_model_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            ["make", "serve", "SERVE_ARGS=--http_port 0 --grpc_port 0 --kv_cache_memory 64MiB"],
            cwd=REPOSITORY,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            # NOTE: lines of the engine's log may still follow: they come by a pipe of their own.
            commands = until(
                lambda: re.findall(r"^curl .*\n", log.read_text(), re.MULTILINE) or process.poll() is not None,
                "the line with curl",
                300.0,
            )
            assert isinstance(commands, list), log.read_text()
            assert len(commands) == 1
            assert " Paris" in run(["sh", "-c", commands[0]])
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60.0)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_make_test_runs_pytest() -> None:
    assert MAKE_BLOCKS[0].count("make ") == 2
    assert "tests/engine/test_config.py" in run(
        ["make", "test", "PYTEST_ARGS=--collect-only tests/engine/test_config.py -q"]
    )
