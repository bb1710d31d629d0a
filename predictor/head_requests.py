"""HEAD wherever there is GET (RFC 9110, section 9.1: the two methods that every server must have)."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from starlette.routing import Route


def add_head(routers: Iterable[APIRouter]) -> None:
    """Every route of these that answers GET answers HEAD too; the HTTP server leaves the body out."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, Route) and route.methods and "GET" in route.methods:
                route.methods.add("HEAD")
