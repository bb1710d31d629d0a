"""The KServe model: one path for every surface that speaks of tensors or instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from predictor.instances import predict_instances
from predictor.kserve_adapter import InferRequest, InferResponse, Model
from predictor.oip.infer import infer

if TYPE_CHECKING:
    from predictor.service import GenerationService


class PagedModel(Model):  # type: ignore[misc]
    """A large language model on pagedserve's engine, as a KServe custom predictor.

    Subclass it and override `preprocess` or `postprocess`: OIP infer over REST and gRPC and V1 `:predict` all go
    through `__call__`, which runs preprocess, predict and postprocess. Serve the subclass with
    `predictor.server.serve(config, MyModel)`.
    """

    def __init__(self, service: GenerationService) -> None:
        self.service = service
        self._is_registering = True
        super().__init__(service.model_name)

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        # NOTE: KServe registers only a model that is ready when the server starts, which is before ours loads.
        return self._is_registering or self.service.is_ready

    @ready.setter
    def ready(self, value: bool) -> None:
        # NOTE: KServe's base class sets it at several points; the engine's state alone decides.
        pass

    def load(self) -> bool:
        """Loading is the engine's; says whether it is done."""
        return self.service.is_ready

    def start(self) -> None:
        """Called by KServe right after it has registered the model."""
        self._is_registering = False

    async def healthy(self) -> bool:
        """Loaded, alive and not draining."""
        return self.service.is_ready

    def validate(self, payload: Any) -> Any:
        """Passes everything on: `predict` validates, whatever protocol KServe's global configuration names."""
        return payload

    async def predict(
        self,
        payload: InferRequest | dict[str, Any],
        headers: Mapping[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> InferResponse | dict[str, Any]:
        """Generates for an OIP request, or for V1's {"instances": [...]}.

        Raises the errors of `GenerationService.submit`.
        """
        if isinstance(payload, InferRequest):
            return await infer(self.service, payload)
        return await predict_instances(self.service, payload)
