"""prometheus-adapter's rules: the PromQL that they become for an HPA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TEMPLATE = re.compile(r"<<\s*\.(\w+)\s*>>")


def adapter_query(rule: Mapping[str, Any], matchers: Mapping[str, str], group_by: str = "pod") -> str:
    """The query of a rule. matchers: the HPA's namespace, and the labels of its selector or the pods it asks for.

    Raises `ValueError` for a part of the template language that this does not know.
    """
    series = re.split(r"[{]", rule["seriesQuery"], maxsplit=1)[0]
    parts = {
        "Series": series,
        "LabelMatchers": ",".join(f'{name}="{value}"' for name, value in matchers.items()),
        "GroupBy": group_by,
    }

    def fill(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise ValueError(f"prometheus-adapter's template {match[0]} is not known here")
        return parts[match[1]]

    query = _TEMPLATE.sub(fill, rule["metricsQuery"])
    if "<<" in query:
        raise ValueError(f"{rule['metricsQuery']!r} holds a template that is not known here")
    return query


def metric_name(rule: Mapping[str, Any]) -> str:
    """The name under which the HPA finds it."""
    name: str = rule["name"]["as"]
    return name
