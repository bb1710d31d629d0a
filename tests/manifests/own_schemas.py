"""Small schemas, written from their documentation, of kinds that neither Kubernetes' schemas nor a CRD at hand covers.

NOTE: they know only the fields that our manifests use, so that a new field has to be looked up and added here.
"""

from __future__ import annotations

from typing import Any

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {}
"""By (apiVersion, kind). `metadata` is checked apart."""
