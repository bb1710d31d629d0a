"""Value mappings as the preview reads them."""

from __future__ import annotations

import math

import pytest

from grafana.preview.style import NAMED, mapping_of

MAPPED = {
    "mappings": [
        {"type": "special", "options": {"match": "null+nan", "result": {"text": "No metrics", "color": "text"}}},
        {"type": "value", "options": {"1": {"text": "takes requests", "color": "green"}}},
    ]
}


@pytest.mark.parametrize(
    ("value", "found"),
    [(math.nan, ("No metrics", NAMED["text"])), (1.0, ("takes requests", NAMED["green"])), (0.0, None)],
)
def test_a_number_and_what_is_no_number_have_their_text(value: float, found: tuple[str, str] | None) -> None:
    assert mapping_of(MAPPED, value) == found


def test_without_mappings_a_number_stays_one() -> None:
    assert mapping_of({}, math.nan) is None
