"""docs/protocols.md against the code and the tests that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.oip.metadata import INPUTS, OUTPUTS
from predictor.oip.schema import METHODS, file_descriptor
from predictor.openai.types import ChatRequest, CompletionRequest, StreamOptions
from predictor.openapi.document import build_document

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "protocols.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
REFERENCES = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)))
CODE = set(re.findall(r"[A-Za-z0-9_]+", " ".join(re.findall(r"`([^`]+)`", PAGE))))
"""Every word that stands as code on the page."""


@pytest.mark.parametrize(("file", "test"), REFERENCES, ids=[f"{f}-{t}" for f, t in REFERENCES])
def test_every_test_named_there_exists(file: str, test: str) -> None:
    paths = [path for folder in ("predictor", "e2e") for path in (TESTS / folder).rglob(file)]
    assert len(paths) == 1, f"{file}: {paths}"
    assert re.search(rf"^(async )?def {test}\(", paths[0].read_text(), re.MULTILINE)


def test_every_row_names_a_test() -> None:
    rows = [row for row in ROWS if set(row[0]) != {"-"} and row[-1] != "test"]
    assert len(rows) > 80
    assert [
        row[0] for row in rows if not re.fullmatch(r"`test_\w+\.py::test_\w+`(, `test_\w+\.py::test_\w+`)*", row[-1])
    ] == []
    assert {len(row) for row in rows} == {3}


def test_every_parameter_that_the_code_takes_is_there() -> None:
    schemas = build_document("model")["components"]["schemas"]
    names = schemas["InferParameters"]["properties"].keys() | schemas["GenerateParameters"]["properties"].keys()
    # NOTE: test_document.py holds these two against the code that reads parameters.
    table = section("### Request parameters")
    assert sorted(n for n in names - {"details"} if f"`{n}`" not in table) == []
    assert "`parameters.details`" in PAGE


def test_every_tensor_rpc_and_field_of_a_message_is_there() -> None:
    assert sorted({*INPUTS, *OUTPUTS, *METHODS} - CODE) == []
    fields = {
        field.name
        for message in file_descriptor().message_type
        if message.name
        in (
            "ModelInferRequest",
            "ModelInferResponse",
            "ModelStreamInferResponse",
            "InferParameter",
            "InferTensorContents",
        )
        for field in message.field
    }
    assert sorted(fields - CODE) == []


def test_every_field_of_openais_is_there() -> None:
    fields = {f for kind in (CompletionRequest, ChatRequest, StreamOptions) for f in kind.__struct_fields__}
    table = section("## OpenAI")
    assert sorted(f for f in fields if f"`{f}`" not in table) == []


def test_every_path_is_there() -> None:
    for path in build_document("model")["paths"]:
        stem, _, verb = path.rpartition("/")
        is_told = path in PAGE or (stem in PAGE and f"`/{verb}`" in PAGE)
        assert is_told or path.startswith(("/openai/v1", "/v1/chat")), path


def section(heading: str) -> str:
    """The text under a heading, up to the next of its level or above."""
    level = len(heading.split(maxsplit=1)[0])
    start = PAGE.index(f"{heading}\n") + len(heading)
    end = re.search(rf"^#{{1,{level}}} ", PAGE[start:], re.MULTILINE)
    return PAGE[start : start + end.start()] if end else PAGE[start:]
