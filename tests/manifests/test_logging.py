"""Fluent Bit's configuration, as far as it goes without Fluent Bit: keys, files, and its parsers on real lines."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaling.kserve_rules import CONTAINER
from engine.log_format import JsonFormatter
from predictor.logs import TextFormatter
from tests.manifests.kustomize import MANIFESTS, build, one
from tests.manifests.pods import SERVER_PODS, ServerPod, pods
from tests.manifests.schemas import validate

LOGGING = "manifests/kserve/overlays/logging"
PLUGIN_KEYS = {
    ("inputs", "tail"): {
        *("tag", "path", "multiline.parser", "db", "db.locking", "mem_buf_limit", "skip_long_lines"),
        *("refresh_interval", "rotate_wait", "storage.type"),
    },
    ("filters", "multiline"): {"match", "multiline.key_content", "multiline.parser"},
    ("filters", "kubernetes"): {
        *("match", "kube_tag_prefix", "merge_log", "keep_log", "labels", "annotations", "buffer_size"),
    },
    ("filters", "parser"): {"match", "key_name", "parser", "reserve_data", "preserve_key"},
    ("outputs", "es"): {
        *("match", "host", "port", "http_user", "http_passwd", "tls", "tls.verify", "logstash_format"),
        *("logstash_prefix", "suppress_type_name", "replace_dots", "generate_id", "trace_error", "retry_limit"),
        "storage.total_limit_size",
    },
}
"""The keys that we use, as Fluent Bit's manual (4.0) names them: a new one has to be looked up and added here."""


def configuration() -> dict[str, Any]:
    config = one(build(LOGGING), "ConfigMap")
    loaded = yaml.safe_load(config["data"]["fluent-bit.yaml"])
    assert isinstance(loaded, dict)
    return loaded


def daemon() -> dict[str, Any]:
    pod = one(build(LOGGING), "DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def parse(line: str) -> dict[str, Any]:
    """What the first fitting parser makes of a line. Ruby's (?<name>) is Python's (?P<name>)."""
    by_name = {parser["name"]: parser for parser in configuration()["parsers"]}
    (parser_filter,) = [f for f in configuration()["pipeline"]["filters"] if f["name"] == "parser"]
    for name in parser_filter["parser"]:
        found: dict[str, Any] = {}
        if by_name[name]["format"] == "json":
            with contextlib.suppress(ValueError):
                found = json.loads(line)
        elif match := re.match(by_name[name]["regex"].replace("(?<", "(?P<"), line):
            found = match.groupdict()
        if found:
            # NOTE: Python tells milliseconds by %f, Fluent Bit by %L.
            time_format = by_name[name]["time_format"].replace("%L", "%f")
            return {**found, "time": datetime.strptime(found.pop(by_name[name]["time_key"]), time_format)}
    return {}


def test_sections_and_keys_are_fluent_bits() -> None:
    config = configuration()
    assert config.keys() == {"service", "parsers", "pipeline"}
    assert config["pipeline"].keys() == {"inputs", "filters", "outputs"}
    for section, plugins in config["pipeline"].items():
        for plugin in plugins:
            assert plugin.keys() - {"name"} <= PLUGIN_KEYS[section, plugin["name"]], plugin["name"]
    # A traceback must be joined before anything else looks at its lines.
    assert [f["name"] for f in config["pipeline"]["filters"]] == ["multiline", "kubernetes", "parser"]


def test_lines_are_joined_and_elasticsearch_is_who_it_says() -> None:
    pipeline = configuration()["pipeline"]
    (tail,) = pipeline["inputs"]
    assert tail["multiline.parser"] == "cri", (
        "the kubelet's own format, without which every line has its time before it"
    )
    joining = next(f for f in pipeline["filters"] if f["name"] == "multiline")
    assert (joining["multiline.key_content"], joining["multiline.parser"]) == ("log", "python")
    (output,) = pipeline["outputs"]
    # NOTE: YAML 1.1 reads `on` as true, as it does of the others.
    assert (output["tls"], output["tls.verify"]) == (True, True)


def test_it_may_read_what_its_filter_asks_for() -> None:
    documents = build(LOGGING)
    (rule,) = one(documents, "ClusterRole")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["namespaces", "pods"], "verbs": ["get", "list", "watch"]}
    binding = one(documents, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == one(documents, "ClusterRole")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (daemon()["serviceAccountName"], "logging")


def test_every_path_is_a_volume_and_every_variable_is_set() -> None:
    pod = daemon()
    container = pod["containers"][0]
    text = one(build(LOGGING), "ConfigMap")["data"]["fluent-bit.yaml"]
    mounts = {mount["mountPath"]: bool(mount.get("readOnly")) for mount in container["volumeMounts"]}
    for path in re.findall(r"^ +(?:path|db|storage\.path): (/\S+)", text, re.MULTILINE):
        assert any(path.startswith(mount + "/") for mount in mounts), path
    for path in re.findall(r"^ +(?:db|storage\.path): (/\S+)", text, re.MULTILINE):
        assert not mounts[next(mount for mount in mounts if path.startswith(mount + "/"))], f"{path} is written"
    assert set(re.findall(r"\$\{(\w+)\}", text)) <= {variable["name"] for variable in container["env"]}
    assert container["args"] == ["--config=/config/fluent-bit.yaml"]
    assert {probe["httpGet"]["port"] for probe in (container["readinessProbe"], container["livenessProbe"])} == {"http"}
    assert container["ports"][0]["containerPort"] == configuration()["service"]["http_port"]


def test_it_reads_the_predictors_files_and_no_others() -> None:
    (tail,) = configuration()["pipeline"]["inputs"]
    pattern = re.compile(re.escape(tail["path"]).replace(r"\*", "[^/]*"))
    folder = "/var/log/containers"
    assert pattern.fullmatch(f"{folder}/llm-predictor-5d9c_default_kserve-container-{'0' * 64}.log")
    assert not pattern.fullmatch(f"{folder}/llm-predictor-5d9c_default_storage-initializer-{'0' * 64}.log")
    kubernetes = next(f for f in configuration()["pipeline"]["filters"] if f["name"] == "kubernetes")
    assert kubernetes["kube_tag_prefix"] == tail["tag"].replace("*", folder[1:].replace("/", ".") + ".")


RECORD = logging.LogRecord(
    "predictor", logging.WARNING, "f.py", 1, "The drain timeout of %g s\nhas passed", (30,), None
)
RECORD.fields = {"request_id": "r1", "status": 200, "total_seconds": 0.5}
RECORD.created, RECORD.msecs = 1_800_000_000.25, 250.0


@pytest.mark.parametrize(
    "overlay", ["base", "overlays/gpu", "overlays/httproute", "overlays/knative", "overlays/plain"]
)
def test_the_component_makes_the_lines_json(tmp_path: Path, overlay: str) -> None:
    kserve = os.path.relpath(MANIFESTS / "kserve", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"{kserve}/{overlay}"],
                "components": [f"{kserve}/components/json-logs"],
            }
        )
    )
    documents = build(tmp_path)
    servers = [
        ServerPod(overlay, document, spec, container)
        for document, spec in pods(documents)
        for container in spec["containers"]
        if container["name"] == CONTAINER
    ]
    assert len(servers) == len([pod for pod in SERVER_PODS if pod.overlay == f"manifests/kserve/{overlay}"]) > 0
    assert {pod.config.log_format for pod in servers} == {"json"}
    for document in documents:
        validate(document)


def test_without_it_they_are_text() -> None:
    assert {pod.config.log_format for pod in SERVER_PODS} == {"text"}


def test_lines_of_the_text_format_are_taken_apart() -> None:
    parsed = parse(TextFormatter().format(RECORD))
    assert parsed.pop("time") == datetime.fromtimestamp(RECORD.created)
    message = "The drain timeout of 30 s\nhas passed request_id=r1 status=200 total_seconds=0.5"
    assert parsed == {"logger": "predictor", "level": "WARNING", "message": message}


def test_lines_of_the_json_format_are_fields() -> None:
    parsed = parse(JsonFormatter().format(RECORD))
    assert parsed.pop("time") == datetime.fromtimestamp(RECORD.created, UTC)
    message = "The drain timeout of 30 s\nhas passed"
    assert parsed == {"logger": "predictor", "level": "warning", "message": message, **RECORD.fields}


def test_a_traceback_that_was_joined_to_its_line_stays_there() -> None:
    parsed = parse("2026-11-29 20:08:58.457 predictor ERROR: it failed\nTraceback (most recent call last):\n  a line")
    assert parsed["message"] == "it failed\nTraceback (most recent call last):\n  a line"


def test_a_line_of_none_of_these_kinds_is_kept() -> None:
    assert parse("Serving model (LlamaForCausalLM, 135 M parameters) on REST port 8080") == {}
