"""The server as its image runs it: user 1000, nothing writable but /tmp and /dev/shm, the Dockerfile's environment.

No container engine is at hand, so a mount namespace of Linux stands in for one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import REPOSITORY, START_SECONDS, until
from tests.manifests.test_dockerfile import environment
from tests.missing import missing

# NOTE: $1 is the model, $2 the checkout (which shows through the fresh /tmp where it lies there), $3 where to run.
# Whoever may read all files (dac_read_search) may still write none; the Python of a test may lie in root's home.
AS_IN_THE_IMAGE = """
set -e
mount --make-rprivate /
mount --bind "$1" /srv
for place in $(awk '{print $5}' /proc/self/mountinfo); do
  case $place in /proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$place" ;; esac
done
case $2 in /tmp/*) mount --bind "$2" /mnt ;; esac
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
case $2 in /tmp/*) mkdir -p "$2"; mount --bind /mnt "$2"; mount -o remount,bind,ro "$2" ;; esac
cd "$3"
shift 3
exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --bounding-set=-all,+dac_read_search \\
  --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "$@"
"""


def unshared() -> list[str]:
    """The command's beginning. Skips where it would be refused."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        missing("unshare and setpriv are missing: Debian's package util-linux brings them")
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        missing("this test needs root and leave to make mount namespaces")
    return command


def test_serves_and_drains_with_a_read_only_root(tiny_model: Path, tmp_path: Path) -> None:
    # NOTE: /cache is no folder of this machine, so its part is played by one below /tmp.
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        **{name: value.replace("/cache", "/tmp/cache") for name, value in environment().items() if name != "PATH"},
        "PYTHONPATH": str(REPOSITORY),
    }
    flags = ["--model_dir=/srv", "--model_name=llm", "--http_port=0", "--grpc_port=0", "--num_threads=1"]
    server = [sys.executable, "-m", "predictor", *flags, "--num_kv_blocks=64", "--drain_timeout=10"]
    shell = ["sh", "-c", AS_IN_THE_IMAGE, "sh", str(tiny_model), str(REPOSITORY), str(REPOSITORY), *server]
    log = tmp_path / "log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*unshared(), *shell],
            cwd=REPOSITORY,
            env=env,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def port() -> str | None:
            assert process.poll() is None, log.read_text()
            found = re.search(r"Uvicorn running on http://[^:]+:(\d+)", log.read_text())
            return found[1] if found else None

        url = f"http://127.0.0.1:{until(port, 'the listener', START_SECONDS)}"
        until(lambda: httpx.get(f"{url}/v2/health/ready", timeout=60).status_code == 200, "readiness", START_SECONDS)
        answer = httpx.post(f"{url}/v1/completions", json={"model": "llm", "prompt": "a", "max_tokens": 4}, timeout=60)
        assert answer.status_code == 200, answer.text
        (inner,) = children(process.pid)
        os.kill(inner, signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def children(pid: int) -> list[int]:
    """The server: `unshare` waits for it and passes no signal on."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("place", ["/", str(REPOSITORY), "/var/tmp", "/srv"])
def test_nothing_else_can_be_written(place: str, tiny_model: Path) -> None:
    """The stand-in is worth something: what an image's root file system refuses, it refuses."""
    touch = ["touch", f"{place}/written-by-a-test"]
    shell = ["sh", "-c", AS_IN_THE_IMAGE, "sh", str(tiny_model), str(REPOSITORY), "/", *touch]
    done = subprocess.run([*unshared(), *shell], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr
