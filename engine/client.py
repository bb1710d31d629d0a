"""The async API of the engine: its process behind it, streams in front.

One `AsyncEngine` owns one engine process. Everything here runs on one event loop, so a check followed by `submit`
with no await between them cannot be overtaken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Literal

from engine.config import EngineConfig
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLoadingError,
    PagedServeError,
    RequestAbortedError,
)
from engine.in_flight import InFlight, TrackedRequest
from engine.input_processor import InputProcessor
from engine.inputs import EncodedPrompt, GenerationRequest
from engine.link import EngineLink
from engine.messages import (
    AbortSequences,
    EngineFailed,
    EngineMessage,
    EngineReady,
    LoadProgress,
    ModelInfo,
    SequenceId,
    StepOutputs,
)
from engine.metrics import EngineListener
from engine.output.processor import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.streams import MAX_STREAM_BUFFER, GenerationStream
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Phase = Literal["loading", "ready", "dead", "stopped"]


class AsyncEngine:
    """An engine in its own process.

    `start()` returns at once; `phase` goes from "loading" to "ready" or "dead". After "dead" every stream has raised
    `EngineDeadError` and `failure` says why. max_stream_buffer: tokens that may wait for the reader of one stream.
    on_log_line: called with each line that the process writes to standard error, in JSON; without it they go to ours.
    """

    def __init__(
        self,
        config: EngineConfig,
        listener: EngineListener,
        *,
        max_stream_buffer: int = MAX_STREAM_BUFFER,
        on_log_line: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.max_stream_buffer = max_stream_buffer
        self.phase: Phase = "loading"
        self.progress: LoadProgress | None = None
        self.failure: str | None = None
        self._listener = listener
        self._info: ModelInfo | None = None
        self._tokenizer: Tokenizer | None = None
        self._input_processor: InputProcessor | None = None
        self._output_processor: OutputProcessor | None = None
        self._in_flight = InFlight(listener)
        self._last_activity = time.monotonic()
        self._ready = asyncio.Event()
        self._dead = asyncio.Event()
        self._link = EngineLink(config, self._on_message, on_log_line)
        self._task: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to load, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="engine-client")

    async def wait_ready(self) -> None:
        """Returns once requests are taken. Raises `EngineDeadError` if loading failed."""
        waits = [asyncio.create_task(self._ready.wait()), asyncio.create_task(self._dead.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.phase != "ready":
            raise EngineDeadError(self.failure or "the engine was stopped")

    async def wait_dead(self) -> None:
        """Returns once the engine process has failed or ended without being asked to."""
        await self._dead.wait()

    async def wait_idle(self) -> None:
        """Returns once no request is in flight."""
        await self._in_flight.idle.wait()

    async def stop(self) -> None:
        """Ends the engine process; streams still open raise `RequestAbortedError`. Idempotent."""
        if self.phase == "stopped":
            return
        was_dead = self.phase == "dead"
        self.phase = "stopped"
        self._listener.on_up(False)
        self.abort_all(RequestAbortedError("the engine was stopped"))
        was_started = await self._link.end(ask=not was_dead)
        if self._task is not None:
            # NOTE: with its process gone the task ends by itself and cleans up; one still starting it must be told.
            if not was_started:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._dead.set()

    @property
    def pid(self) -> int | None:
        """Process id of the engine process, once started."""
        return self._link.pid

    def is_live(self, stall_timeout: float) -> bool:
        """Whether the process is alive and idle, loading, or has been heard of within `stall_timeout` seconds."""
        if self.phase == "loading":
            return True
        if self.phase != "ready":
            return False
        return not self._in_flight or time.monotonic() - self._last_activity < stall_timeout

    # --- the loaded model -------------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        """Raises `EngineLoadingError` or `EngineDeadError` before the model is loaded."""
        if self._info is None:
            raise self._unavailable()
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises `EngineLoadingError` or `EngineDeadError` before the model is loaded."""
        if self._tokenizer is None:
            raise self._unavailable()
        return self._tokenizer

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def num_requests(self) -> int:
        """Requests in flight."""
        return len(self._in_flight)

    @property
    def num_waiting(self) -> int:
        """Sequences accepted and not yet admitted to a batch."""
        return self._in_flight.num_waiting

    @property
    def num_waiting_prompt_tokens(self) -> int:
        return self._in_flight.num_waiting_prompt_tokens

    def encode(self, text: str, *, add_special_tokens: bool = True) -> EncodedPrompt:
        """See `InputProcessor.encode`. Also raises `EngineLoadingError` and `EngineDeadError`."""
        if self._input_processor is None or self.phase != "ready":
            raise self._unavailable()
        return self._input_processor.encode(text, add_special_tokens=add_special_tokens)

    def prepare(
        self,
        prompt: str | EncodedPrompt | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> GenerationRequest:
        """See `InputProcessor.prepare`. Also raises `EngineLoadingError` and `EngineDeadError`."""
        if self._input_processor is None or self.phase != "ready":
            raise self._unavailable()
        return self._input_processor.prepare(prompt, params, request_id=request_id, deadline=deadline)

    def submit(self, request: GenerationRequest) -> GenerationStream:
        """Hands the request to the engine. Raises `EngineLoadingError` or `EngineDeadError`."""
        if self._output_processor is None or self.phase != "ready":
            raise self._unavailable()
        sequences = request.sequences()
        stream = GenerationStream(request, self._abort, self.max_stream_buffer)
        tracked = TrackedRequest(stream, (sequence.sequence_id for sequence in sequences))
        # NOTE: what may raise comes first, so that nothing is left in the books of a request that was not sent.
        messages = [self._link.encode(sequence) for sequence in sequences]
        self._output_processor.add(request)
        if not self._in_flight:
            self._last_activity = time.monotonic()
        self._in_flight.add(tracked)
        for message in messages:
            self._link.send_encoded(message)
        self._in_flight.report_load()
        if request.deadline is not None:
            tracked.deadline_timer = asyncio.get_running_loop().call_later(
                max(0.0, request.deadline - time.monotonic()), self._deadline_passed, tracked
            )
        return stream

    def abort_all(self, error: PagedServeError) -> None:
        """Ends every request in flight; their streams raise `error`."""
        for tracked in self._in_flight.all():
            self._end(tracked, error)

    def _abort(self, stream: GenerationStream) -> None:
        if (tracked := self._in_flight.get(stream.request.request_id)) is not None:
            self._end(tracked, None)

    def _deadline_passed(self, tracked: TrackedRequest) -> None:
        self._end(tracked, DeadlineExceededError("the request's timeout passed before it finished"))

    def _end(self, tracked: TrackedRequest, error: PagedServeError | None) -> None:
        """The one way a request leaves before its sequences have all finished."""
        if not self._in_flight.holds(tracked):
            return
        assert self._output_processor is not None
        if running := self._output_processor.abort(tracked.stream.request.request_id):
            self._link.send(AbortSequences(tuple(running)))
        self._in_flight.close(tracked, "error" if isinstance(error, EngineDeadError) else "abort", error)
        self._in_flight.report_load()
        if error is not None:
            tracked.stream.fail(error)

    def _unavailable(self) -> PagedServeError:
        if self.phase == "loading":
            at = "" if self.progress is None else f": {self.progress.phase}"
            return EngineLoadingError(f"the model is still loading{at}; try again when /v2/health/ready answers 200")
        return EngineDeadError(f"the engine has stopped: {self.failure}" if self.failure else "the engine has stopped")

    # --- the process and its messages -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Loads the tokenizer beside the process, and serves until that ends."""
        serving = asyncio.create_task(self._link.run())
        try:
            self._tokenizer = await asyncio.to_thread(Tokenizer.load, self.config.model_dir)
            self._become_ready()
            self._died(f"the engine process ended with exit code {await serving}")
        except PagedServeError as error:
            self._died(str(error))
        except Exception as error:
            logger.exception("The engine client failed")
            self._died(f"{type(error).__name__}: {error}")
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _on_message(self, message: EngineMessage) -> None:
        self._last_activity = time.monotonic()
        match message:
            case StepOutputs():
                self._on_step(message)
            case LoadProgress():
                self.progress = message
            case EngineReady(info):
                self._info = info
                self._become_ready()
            case EngineFailed(reason):
                self._died(reason)

    def _become_ready(self) -> None:
        """Takes requests from now on, once the engine and the tokenizer are both there."""
        if self.phase != "loading" or self._info is None or self._tokenizer is None:
            return
        self._input_processor = InputProcessor(self._tokenizer, self._info)
        self._output_processor = OutputProcessor(self._tokenizer)
        self.phase = "ready"
        self._listener.on_ready(self._info)
        self._listener.on_up(True)
        self._ready.set()

    def _died(self, reason: str) -> None:
        if self.phase in ("dead", "stopped"):
            return
        logger.error("The engine is dead: %s", reason)
        self.failure = reason
        self.phase = "dead"
        self._listener.on_up(False)
        self.abort_all(EngineDeadError(f"the engine has stopped: {reason.splitlines()[0]}"))
        self._dead.set()

    def _on_step(self, step: StepOutputs) -> None:
        now = time.monotonic()
        for admitted in step.admitted:
            self._in_flight.admit(admitted)
        for preempted in step.preempted:
            self._in_flight.preempt(preempted)
        for resumed in step.resumed:
            self._in_flight.resume(resumed)
        for output in step.outputs:
            self._in_flight.count_tokens(output, now)
        assert self._output_processor is not None
        processed = self._output_processor.process(step.outputs)
        if processed.to_abort:
            self._link.send(AbortSequences(tuple(processed.to_abort)))
        for request_id, delta in processed.deltas:
            if (tracked := self._in_flight.get(request_id)) is None:
                continue
            if delta.finish_reason == "error":
                self._end(tracked, RequestAbortedError("the engine could not run this request: it exceeds its pool"))
                continue
            tracked.stream.push(delta)
            # NOTE: a stream whose reader is too slow ends itself at this point.
            if delta.finish_reason is not None and self._in_flight.holds(tracked):
                sequence_id = SequenceId(f"{request_id}/{delta.index}")
                self._in_flight.finish_sequence(tracked, sequence_id, delta.finish_reason)
        self._listener.on_step(step)
        self._in_flight.report_load()
