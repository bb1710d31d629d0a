"""`grpc.health.v1.Health`: readiness for Kubernetes' gRPC probes and load balancers.

Source: grpc/health/v1/health.proto and "GRPC Health Checking Protocol" of the gRPC project.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc

from engine.brief import brief
from predictor.oip.errors import ModelNotFoundError
from predictor.oip.grpc_calls import Context, server_stream_method, shutting_down, unary_method
from predictor.oip.proto_files import Method, build_file
from predictor.oip.schema import POOL, SERVICE, message_class

if TYPE_CHECKING:
    from predictor.service import GenerationService

PACKAGE = "grpc.health.v1"
HEALTH = f"{PACKAGE}.Health"
SERVICE_NAMES = ("", SERVICE)
"""The whole server, and OIP's service: they are ready together."""
WATCH_SECONDS = 0.25
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)


def file_descriptor() -> Any:
    """The `FileDescriptorProto` of the health service."""
    return build_file(
        "grpc/health/v1/health.proto",
        PACKAGE,
        {
            "HealthCheckRequest": ("string service = 1",),
            "HealthCheckResponse": ("HealthCheckResponse.ServingStatus status = 1",),
        },
        {
            "Health": {
                "Check": Method("HealthCheckRequest", "HealthCheckResponse"),
                "Watch": Method("HealthCheckRequest", "HealthCheckResponse", is_server_stream=True),
            }
        },
        {"HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
    )


POOL.Add(file_descriptor())
HealthCheckRequest = message_class("HealthCheckRequest", PACKAGE)
HealthCheckResponse = message_class("HealthCheckResponse", PACKAGE)


def health_services(service: GenerationService, closing: asyncio.Event) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
    """Handlers by service and method name.

    `Check` of an unknown service name is NOT_FOUND; `Watch` tells SERVICE_UNKNOWN, and then every change of status,
    until `closing` is set.
    """

    def status_of(name: str) -> int:
        if name not in SERVICE_NAMES:
            return SERVICE_UNKNOWN
        return SERVING if service.is_ready else NOT_SERVING

    async def check(request: Any, _context: Context) -> Any:
        status = status_of(request.service)
        if status == SERVICE_UNKNOWN:
            raise ModelNotFoundError(f"unknown service {brief(request.service)}; known are '' and {SERVICE!r}")
        return HealthCheckResponse(status=status)

    async def watch(request: Any, context: Context) -> None:
        told = None
        while True:
            status = status_of(request.service)
            if status != told:
                await context.write(HealthCheckResponse(status=status))
                told = status
            # NOTE: readiness depends on the clock too (a stalled engine), so there is no event to wait for.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), WATCH_SECONDS)
                raise shutting_down()

    return {
        HEALTH: {
            "Check": unary_method(HealthCheckRequest, HealthCheckResponse, check),
            "Watch": server_stream_method(HealthCheckRequest, HealthCheckResponse, watch),
        }
    }
