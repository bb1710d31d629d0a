"""The one door from the protocol layers to the engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.errors import (
    EngineDeadError,
    EngineDrainingError,
    EngineLoadingError,
    OverloadedError,
    UnavailableError,
)
from engine.inputs import EncodedPrompt
from engine.sampling_params import SamplingParams
from predictor.config import MAX_BODY_SIZE
from predictor.request_context import RequestContext, current_request

if TYPE_CHECKING:
    from engine.client import AsyncEngine
    from engine.messages import ModelInfo
    from engine.streams import GenerationStream
    from engine.tokenizer import Tokenizer
    from predictor.admission import Admission

REJECTION_REASONS = ("waiting_requests", "waiting_tokens", "loading", "draining", "dead")
"""Values of the label `reason` of `requests_rejected_total`."""

Prompt = str | EncodedPrompt | Sequence[int]

MAX_INLINE_CHARACTERS = 4096
"""Texts of one request that are tokenised on the event loop: about 1 to 10 ms. More goes to a thread."""
TOKENIZER_THREADS = 2


class GenerationService:
    """What REST and gRPC handlers call: availability, preparation, admission and submission in one synchronous step.

    model_name: the name on the OIP paths. aliases: further names that OpenAI bodies may use. max_body_size: bytes of
    one REST body.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        admission: Admission,
        *,
        model_name: str,
        aliases: tuple[str, ...] = (),
        stall_timeout: float = 120.0,
        max_body_size: int = MAX_BODY_SIZE,
        on_rejected: Callable[[str], None] | None = None,
    ) -> None:
        self.engine = engine
        self.admission = admission
        self.model_name = model_name
        self.aliases = aliases
        self.stall_timeout = stall_timeout
        self.max_body_size = max_body_size
        self._on_rejected = on_rejected
        self._draining = False
        self._serial = itertools.count()
        self._num_encoding = 0
        self._tokenizer_threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises `EngineLoadingError` or `EngineDeadError` before the engine is ready."""
        return self.engine.tokenizer

    @property
    def info(self) -> ModelInfo:
        """Facts of the loaded model. Raises `EngineLoadingError` or `EngineDeadError` before the engine is ready."""
        return self.engine.info

    def serves(self, name: str) -> bool:
        """Whether `name` is the model's name or one of its aliases."""
        return name == self.model_name or name in self.aliases

    @property
    def is_draining(self) -> bool:
        return self._draining

    def start_draining(self) -> None:
        """From now on ready is false and new requests are refused; running ones go on."""
        self._draining = True

    @property
    def is_ready(self) -> bool:
        """Loaded, warmed up, alive and not draining."""
        return self.engine.phase == "ready" and not self._draining and self.is_live

    @property
    def is_live(self) -> bool:
        """The engine process is alive, and idle or stepping within the stall timeout. A full queue is not sickness."""
        return bool(self.engine.is_live(self.stall_timeout))

    def check_available(self) -> None:
        """Raises `EngineDeadError`, `EngineDrainingError` or `EngineLoadingError` where no request can be taken.

        It then counts as one refused request.
        """
        with self._counted():
            self._check_available()

    def _check_available(self) -> None:
        if self._draining and self.engine.phase != "dead":
            raise EngineDrainingError("the server is shutting down and takes no new requests; try another replica")
        self._check_phase()

    async def encode(self, prompts: Sequence[Prompt], *, add_special_tokens: bool = True) -> list[Prompt]:
        """The prompts for `submit_many`, texts that take long to tokenise turned into ids off the event loop.

        add_special_tokens: false leaves the model's own out, and turns every text into ids. Raises as `submit`.
        """
        characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        if characters <= MAX_INLINE_CHARACTERS:
            return list(prompts) if add_special_tokens else self._encode(prompts, add_special_tokens)
        with self._counted():
            self._check_available()
            # NOTE: those that are being tokenised wait, too: without a bound they would be a queue of their own.
            self.admission.check_room(len(prompts), self._num_encoding)
        self._num_encoding += len(prompts)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._tokenizer_threads, self._encode, prompts, add_special_tokens
            )
        finally:
            self._num_encoding -= len(prompts)

    def _encode(self, prompts: Sequence[Prompt], add_special_tokens: bool) -> list[Prompt]:
        return [
            self.engine.encode(prompt, add_special_tokens=add_special_tokens) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> GenerationStream:
        """Starts one request. deadline: a `time.monotonic()` reading after which it is aborted.

        Raises `UnavailableError`, `RequestError` or `OverloadedError`; nothing is left behind then.
        """
        return self.submit_many([prompt], params, request_ids=[request_id], deadline=deadline)[0]

    def submit_many(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        request_ids: Sequence[str | None] | None = None,
        deadline: float | Sequence[float | None] | None = None,
    ) -> list[GenerationStream]:
        """Starts one request a prompt, all or none, by one admission decision. Raises as `submit`.

        params, deadline: one for all prompts, or one a prompt. request_ids: what the engine's ids begin with, one a
        prompt; they need not differ. None gives a random one. Within a request of the edge they begin with its id.
        """
        current = current_request()
        every = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        ids = [None] * len(prompts) if request_ids is None else list(request_ids)
        deadlines = list(deadline) if isinstance(deadline, Sequence) else [deadline] * len(prompts)
        assert len(every) == len(ids) == len(deadlines) == len(prompts)
        if current is not None:
            current.num_prompts, current.params = len(prompts), every[0] if every else None
        with self._counted():
            self._check_available()
            self.admission.check_size(sum(one.n for one in every))
            requests = [
                self.engine.prepare(prompt, one, request_id=self._unique(request_id, current), deadline=until)
                for prompt, one, request_id, until in zip(prompts, every, ids, deadlines, strict=True)
            ]
            if current is not None and current.edge.keeps_prompts and requests:
                current.prompt = requests[0].prompt
            self.admission.check(requests)
        streams: list[GenerationStream] = []
        try:
            for request in requests:
                stream = self.engine.submit(request)
                if current is not None:
                    stream.on_end = current.records.append
                streams.append(stream)
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        return streams

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts a refusal that is not the caller's mistake."""
        try:
            yield
        except (OverloadedError, UnavailableError) as error:
            if self._on_rejected is not None:
                self._on_rejected(_rejection_reason(error))
            raise

    def _unique(self, request_id: str | None, current: RequestContext | None) -> str | None:
        if current is not None and (request_id is None or current.request_id not in request_id):
            request_id = current.request_id if request_id is None else f"{current.request_id}.{request_id}"
        # NOTE: callers choose their ids, and two may choose the same; inside the engine each names one request.
        return None if request_id is None else f"{request_id}.{next(self._serial)}"

    def _check_phase(self) -> None:
        phase = self.engine.phase
        if phase == "loading":
            progress = self.engine.progress
            detail = "" if progress is None else f" ({progress.phase}: {progress.done} of {progress.total})"
            raise EngineLoadingError(f"the model is still loading{detail}; try again when the server is ready")
        if phase != "ready":
            detail = f": {self.engine.failure}" if self.engine.failure else ""
            raise EngineDeadError(f"the engine has stopped{detail}; the server restarts it by exiting")


def _rejection_reason(error: OverloadedError | UnavailableError) -> str:
    match error:
        case OverloadedError():
            return error.reason
        case EngineLoadingError():
            return "loading"
        case EngineDrainingError():
            return "draining"
        case _:
            return "dead"
