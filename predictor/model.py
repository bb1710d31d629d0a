"""The KServe model: one path for every surface that speaks of tensors or instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kserve import InferRequest, InferResponse, Model

from predictor.instances import predict_instances

if TYPE_CHECKING:
    from collections.abc import Mapping

    from predictor.service import GenerationService


class PagedModel(Model):  # type: ignore[misc]
    """A large language model on pagedserve's engine, as a KServe custom predictor.

    Subclass it and override `preprocess` or `postprocess`: OIP infer over REST and gRPC and V1 `:predict` all go
    through `__call__`, which runs preprocess, predict and postprocess.
    """

    def __init__(self, service: GenerationService) -> None:
        super().__init__(service.model_name)
        self.service = service

    async def healthy(self) -> bool:
        """Loaded, alive and not draining."""
        return self.service.is_ready

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
            from predictor.oip.infer import infer

            return await infer(self.service, payload)
        return await predict_instances(self.service, payload)
