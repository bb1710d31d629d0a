"""Strict validation of Kubernetes documents: an unknown field is an error, as with `--validate=strict`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.manifests.kustomize import REPOSITORY, Document
from tests.manifests.own_schemas import SCHEMAS
from tests.missing import missing

CRDS = REPOSITORY.parent / "shared" / "crds"
KUBERNETES_VERSIONS = ("1.32", "1.36")
"""Oldest (what KServe 0.20 asks for) and newest that the manifests are held to."""


class InvalidDocumentError(AssertionError):
    """A document that the API server would refuse."""


def validate(document: Document) -> None:
    """Raises `InvalidDocumentError` naming each fault; skips the test where the CRD is not at hand.

    Core kinds are held to Kubernetes' own schemas, custom ones to their CRD (../shared/crds), others to `own_schemas`.
    CEL rules of a CRD (x-kubernetes-validations) are not evaluated.
    """
    api_version, kind = document["apiVersion"], document["kind"]
    if not document.get("metadata", {}).get("name"):
        raise InvalidDocumentError(f"{kind} without metadata.name")
    if (api_version, kind) in SCHEMAS:
        _check_custom(document, SCHEMAS[api_version, kind])
    elif is_core(api_version):
        _check_core(document)
    else:
        _check_custom(document, crd_schema(api_version, kind))


def is_core(api_version: str) -> bool:
    """Whether the kinds of this version are Kubernetes' own."""
    group = api_version.rpartition("/")[0]
    return "." not in group or group in {
        "rbac.authorization.k8s.io",
        "networking.k8s.io",
        "storage.k8s.io",
        "scheduling.k8s.io",
        "apiregistration.k8s.io",
        "admissionregistration.k8s.io",
        "coordination.k8s.io",
        "apiextensions.k8s.io",
    }


def _check_core(document: Document) -> None:
    for version in KUBERNETES_VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise InvalidDocumentError(f"{_title(document)}: {error.json_path}: {error.message}") from None
        except kubernetes_validate.SchemaNotFoundError:
            raise InvalidDocumentError(f"{_title(document)}: Kubernetes {version} has no such kind") from None
    _check_metadata(document)


def _check_custom(document: Document, schema: dict[str, Any]) -> None:
    body = {key: value for key, value in document.items() if key not in {"apiVersion", "kind", "metadata"}}
    faults = [f"{error.json_path}: {error.message[:400]}" for error in _validator(schema).iter_errors(body)]
    faults += _repeated_keys(document, schema)
    if faults:
        raise InvalidDocumentError("\n".join([f"{_title(document)}:", *faults]))
    _check_metadata(document)


def _check_metadata(document: Document) -> None:
    # NOTE: a ConfigMap has metadata and nothing that is required, so it lends its check of labels and annotations.
    stand_in = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": document["metadata"]}
    try:
        kubernetes_validate.validate(stand_in, KUBERNETES_VERSIONS[-1], strict=True)
    except kubernetes_validate.ValidationError as error:
        raise InvalidDocumentError(f"{_title(document)}: {error.json_path}: {error.message}") from None


def _title(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


# --- custom resources ---


def crd_schema(api_version: str, kind: str) -> dict[str, Any]:
    """The strict JSON schema of a custom kind. Skips the test where ../shared/crds is absent."""
    if not CRDS.is_dir():
        missing(f"the CRDs of {api_version} {kind} are not at hand: there is no ../shared/crds")
    group, _, version = api_version.partition("/")
    file = CRDS / f"{group}_{kind.lower()}s.yaml"
    if not file.is_file():
        raise InvalidDocumentError(f"no CRD of {api_version} {kind} in {CRDS}, and no schema in own_schemas")
    return _strict_of(file, version, kind)


@functools.cache
def _strict_of(file: Path, version: str, kind: str) -> dict[str, Any]:
    crd = yaml.load(file.read_text(), yaml.CSafeLoader)
    assert crd["spec"]["names"]["kind"] == kind
    for served in crd["spec"]["versions"]:
        if served["name"] == version and served["served"]:
            schema = strict(served["schema"]["openAPIV3Schema"])
            for name in ("apiVersion", "kind", "metadata"):
                schema["properties"].pop(name, None)
            schema["required"] = [n for n in schema.get("required", []) if n in schema["properties"]]
            return schema
    raise InvalidDocumentError(f"the CRD of {kind} serves no version {version}")


def strict(schema: Any) -> Any:
    """A structural schema as JSON schema in which unknown fields are refused, as the API server prunes them."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        # NOTE: below `properties` the keys are the fields' names, which may be those of keywords.
        made[key] = {name: strict(item) for name, item in value.items()} if key == "properties" else strict(value)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not open_ended:
        made["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        made.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    if schema.get("nullable") and "type" in schema:
        made["type"] = [schema["type"], "null"]
    # NOTE: formats are annotations to JSON schema; the API server checks few of them.
    made.pop("format", None)
    return made


@functools.cache
def _validator_of(key: int) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(_SCHEMA_BY_ID[key])


_SCHEMA_BY_ID: dict[int, dict[str, Any]] = {}


def _validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    _SCHEMA_BY_ID[id(schema)] = schema
    return _validator_of(id(schema))


def _repeated_keys(value: Any, schema: Any, path: str = "$") -> Iterator[str]:
    """Faults of lists that are maps: two items with the same key (two ports of one name, two environment variables)."""
    if not isinstance(schema, dict):
        return
    if isinstance(value, dict):
        for name, item in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from _repeated_keys(item, below, f"{path}.{name}")
    if isinstance(value, list):
        if keys := schema.get("x-kubernetes-list-map-keys"):
            defaults = {k: schema["items"]["properties"][k].get("default") for k in keys}
            seen = [tuple(item.get(k, defaults[k]) for k in keys) for item in value]
            yield from (f"{path}: {key} stands twice" for key in {k for k in seen if seen.count(k) > 1})
        for index, item in enumerate(value):
            yield from _repeated_keys(item, schema.get("items"), f"{path}[{index}]")
