"""The async API of the engine: its process behind it, streams in front.

One `AsyncEngine` owns one engine process. Everything here runs on one event loop, so a check followed by `submit`
with no await between them cannot be overtaken.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
import zmq
import zmq.asyncio

from engine.codec import engine_codec, front_codec
from engine.config import EngineConfig
from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLoadingError,
    PagedServeError,
    RequestAbortedError,
)
from engine.input_processor import InputProcessor
from engine.inputs import EncodedPrompt, GenerationRequest
from engine.messages import (
    AbortSequences,
    EngineFailed,
    EngineMessage,
    EngineReady,
    FrontMessage,
    LoadProgress,
    ModelInfo,
    ResetPrefixCache,
    SequenceId,
    Shutdown,
    StepOutputs,
)
from engine.metrics import EngineListener, RequestRecord
from engine.output.processor import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.streams import MAX_STREAM_BUFFER, GenerationStream
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Phase = Literal["loading", "ready", "dead", "stopped"]
STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.2


class ProcessLike(Protocol):
    """The part of `asyncio.subprocess.Process` used here."""

    pid: int

    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class _Tracked:
    """A request in flight: its stream, and what the metrics need."""

    __slots__ = (
        "admitted_time",
        "deadline_timer",
        "finish_reasons",
        "last_token_times",
        "num_output_tokens",
        "running",
        "stream",
        "waiting",
    )

    def __init__(self, stream: GenerationStream, sequence_ids: Sequence[SequenceId]) -> None:
        self.stream = stream
        self.waiting = set(sequence_ids)
        self.running: set[SequenceId] = set()
        self.admitted_time: float | None = None
        self.last_token_times: dict[SequenceId, float] = {}
        self.num_output_tokens = 0
        self.finish_reasons: list[str] = []
        self.deadline_timer: asyncio.TimerHandle | None = None


class AsyncEngine:
    """An engine in its own process.

    `start()` returns at once; `phase` goes from "loading" to "ready" or "dead". After "dead" every stream has raised
    `EngineDeadError` and `failure` says why. max_stream_buffer: tokens that may wait for the reader of one stream.
    """

    def __init__(
        self, config: EngineConfig, listener: EngineListener, *, max_stream_buffer: int = MAX_STREAM_BUFFER
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
        self._requests: dict[str, _Tracked] = {}
        self._num_running = 0
        self._num_waiting = 0
        self._num_waiting_prompt_tokens = 0
        self._last_activity = time.monotonic()
        self._ready = asyncio.Event()
        self._dead = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._process: ProcessLike | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._outgoing = front_codec()
        self._incoming = engine_codec()
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
        await self._idle.wait()

    async def stop(self) -> None:
        """Ends the engine process; streams still open raise `RequestAbortedError`. Idempotent."""
        if self.phase == "stopped":
            return
        was_dead = self.phase == "dead"
        self.phase = "stopped"
        self._listener.on_up(False)
        self.abort_all(RequestAbortedError("the engine was stopped"))
        if self._process is not None and self._process.returncode is None:
            if not was_dead:
                self._send(Shutdown())
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._task is not None:
            # NOTE: with its process gone the task ends by itself and cleans up; one still starting it must be told.
            if self._process is None:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._dead.set()

    @property
    def pid(self) -> int | None:
        """Process id of the engine process, once started."""
        return None if self._process is None else self._process.pid

    def is_live(self, stall_timeout: float) -> bool:
        """Whether the process is alive and idle, loading, or has been heard of within `stall_timeout` seconds."""
        if self.phase == "loading":
            return True
        if self.phase != "ready":
            return False
        return not self._requests or time.monotonic() - self._last_activity < stall_timeout

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
        return len(self._requests)

    @property
    def num_waiting(self) -> int:
        """Sequences accepted and not yet admitted to a batch."""
        return self._num_waiting

    @property
    def num_waiting_prompt_tokens(self) -> int:
        return self._num_waiting_prompt_tokens

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
        assert request.request_id not in self._requests, "a prepared request is submitted once"
        stream = GenerationStream(request, self._abort, self.max_stream_buffer)
        sequences = request.sequences()
        tracked = _Tracked(stream, [s.sequence_id for s in sequences])
        # NOTE: what may raise comes first, so that nothing is left in the books of a request that was not sent.
        messages = [self._outgoing.encode(sequence) for sequence in sequences]
        self._output_processor.add(request)
        if not self._requests:
            self._last_activity = time.monotonic()
        self._requests[request.request_id] = tracked
        self._idle.clear()
        self._num_waiting += len(sequences)
        self._num_waiting_prompt_tokens += len(sequences) * len(request.prompt_token_ids)
        for message in messages:
            self._send_frames(message)
        self._report_load()
        if request.deadline is not None:
            tracked.deadline_timer = asyncio.get_running_loop().call_later(
                max(0.0, request.deadline - time.monotonic()), self._deadline_passed, tracked
            )
        return stream

    def abort_all(self, error: PagedServeError) -> None:
        """Ends every request in flight; their streams raise `error`."""
        for tracked in list(self._requests.values()):
            self._end(tracked, error)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        self._send(ResetPrefixCache())

    def _abort(self, stream: GenerationStream) -> None:
        if (tracked := self._requests.get(stream.request.request_id)) is not None:
            self._end(tracked, None)

    def _deadline_passed(self, tracked: _Tracked) -> None:
        self._end(tracked, DeadlineExceededError("the request's timeout passed before it finished"))

    def _end(self, tracked: _Tracked, error: PagedServeError | None) -> None:
        """The one way a request leaves before its sequences have all finished."""
        request = tracked.stream.request
        if self._requests.get(request.request_id) is not tracked:
            return
        assert self._output_processor is not None
        if running := self._output_processor.abort(request.request_id):
            self._send(AbortSequences(tuple(running)))
        self._close(tracked, "error" if isinstance(error, EngineDeadError) else "abort")
        self._report_load()
        if error is not None:
            tracked.stream.fail(error)

    def _close(self, tracked: _Tracked, finish_reason: str) -> None:
        request = tracked.stream.request
        del self._requests[request.request_id]
        self._num_running -= len(tracked.running)
        tracked.running.clear()
        if not self._requests:
            self._idle.set()
        for sequence_id in list(tracked.waiting):
            self._leave_queue(tracked, sequence_id)
        if tracked.deadline_timer is not None:
            tracked.deadline_timer.cancel()
        self._listener.on_finished(
            RequestRecord(
                finish_reason=finish_reason,
                arrival_time=request.arrival_time,
                admitted_time=tracked.admitted_time,
                first_token_time=tracked.stream.first_token_time,
                finish_time=time.monotonic(),
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=tracked.num_output_tokens,
            )
        )

    def _leave_queue(self, tracked: _Tracked, sequence_id: SequenceId) -> None:
        if sequence_id in tracked.waiting:
            tracked.waiting.remove(sequence_id)
            self._num_waiting -= 1
            self._num_waiting_prompt_tokens -= len(tracked.stream.request.prompt_token_ids)

    def _finish_sequence(self, tracked: _Tracked, sequence_id: SequenceId) -> None:
        self._leave_queue(tracked, sequence_id)
        if sequence_id in tracked.running:
            tracked.running.remove(sequence_id)
            self._num_running -= 1

    def _report_load(self) -> None:
        self._listener.on_load(self._num_running, self._num_waiting, self._num_waiting_prompt_tokens)

    def _unavailable(self) -> PagedServeError:
        if self.phase == "loading":
            at = "" if self.progress is None else f": {self.progress.phase}"
            return EngineLoadingError(f"the model is still loading{at}; try again when /v2/health/ready answers 200")
        return EngineDeadError(f"the engine has stopped: {self.failure}" if self.failure else "the engine has stopped")

    # --- the process and its messages -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Starts the process and serves its messages until it ends."""
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="pagedserve-")
        context = zmq.asyncio.Context()
        tasks: list[asyncio.Task[Any]] = []
        try:
            address = f"ipc://{folder}/engine"
            self._socket = _listen(context, address)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "engine.process",
                address,
                msgspec.json.encode(self.config, enc_hook=str).decode(),
                stdin=asyncio.subprocess.PIPE,
                # NOTE: an own session keeps a terminal's Ctrl-C and group signals away: the front decides when it ends.
                start_new_session=True,
            )
            self._process = process
            exited = asyncio.create_task(process.wait())
            tokenizer = asyncio.create_task(asyncio.to_thread(Tokenizer.load, self.config.model_dir))
            receiver = asyncio.create_task(self._receive(self._socket, tokenizer))
            tasks = [exited, tokenizer, receiver]
            await tokenizer
            await asyncio.wait({exited, receiver}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                # NOTE: the process may have said why before it ended; its last words are still in the socket.
                await asyncio.wait({receiver}, timeout=LAST_WORDS_SECONDS)
                self._died(f"the engine process ended with exit code {exited.result()}")
            if receiver.done():
                receiver.result()
        except PagedServeError as error:
            self._died(str(error))
        except Exception as error:
            logger.exception("The engine client failed")
            self._died(f"{type(error).__name__}: {error}")
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
            for task in tasks:
                task.cancel()
            if self._socket is not None:
                self._socket.close(linger=0)
            context.destroy(linger=0)
            shutil.rmtree(folder, ignore_errors=True)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, socket: zmq.asyncio.Socket, tokenizer: asyncio.Task[Tokenizer]) -> None:
        while True:
            message: EngineMessage = self._incoming.decode(await socket.recv_multipart())
            self._last_activity = time.monotonic()
            match message:
                case StepOutputs():
                    self._on_step(message)
                case LoadProgress():
                    self.progress = message
                case EngineReady(info):
                    self._on_ready(info, await asyncio.shield(tokenizer))
                case EngineFailed(reason):
                    self._died(reason)
                    return

    def _on_ready(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        if self.phase != "loading":
            return
        self._info = info
        self._tokenizer = tokenizer
        self._input_processor = InputProcessor(tokenizer, info)
        self._output_processor = OutputProcessor(tokenizer)
        self.phase = "ready"
        self._listener.on_ready(info)
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

    def _send(self, message: FrontMessage) -> None:
        self._send_frames(self._outgoing.encode(message))

    def _send_frames(self, frames: tuple[bytes, bytes]) -> None:
        if self._socket is not None and not self._socket.closed:
            # NOTE: with no high-water mark the frames are queued at once; the future is already done.
            self._socket.send_multipart(frames)

    def _on_step(self, step: StepOutputs) -> None:
        now = time.monotonic()
        for admitted in step.admitted:
            if (tracked := self._owner(admitted.sequence_id)) is not None:
                if tracked.admitted_time is None:
                    tracked.admitted_time = admitted.time
                    tracked.stream.num_cached_tokens = admitted.num_cached_tokens
                    self._listener.on_admitted(admitted.time - tracked.stream.request.arrival_time)
                self._leave_queue(tracked, admitted.sequence_id)
                tracked.running.add(admitted.sequence_id)
                self._num_running += 1
        for output in step.outputs:
            if output.token_ids and (tracked := self._owner(output.sequence_id)) is not None:
                self._count_tokens(tracked, output.sequence_id, len(output.token_ids), now)
        assert self._output_processor is not None
        processed = self._output_processor.process(step.outputs)
        if processed.to_abort:
            self._send(AbortSequences(tuple(processed.to_abort)))
        for request_id, delta in processed.deltas:
            if (tracked := self._requests.get(request_id)) is None:
                continue
            if delta.finish_reason == "error":
                self._end(tracked, RequestAbortedError("the engine could not run this request: it exceeds its pool"))
                continue
            tracked.stream.push(delta)
            if self._requests.get(request_id) is not tracked:
                continue  # its reader was too slow, and the stream has ended itself
            if delta.finish_reason is not None:
                tracked.finish_reasons.append(delta.finish_reason)
                self._finish_sequence(tracked, SequenceId(f"{request_id}/{delta.index}"))
                if tracked.stream.is_done:
                    self._close(tracked, "length" if "length" in tracked.finish_reasons else "stop")
        self._listener.on_step(step)
        self._report_load()

    def _owner(self, sequence_id: SequenceId) -> _Tracked | None:
        return self._requests.get(sequence_id.rpartition("/")[0])

    def _count_tokens(self, tracked: _Tracked, sequence_id: SequenceId, count: int, now: float) -> None:
        if tracked.stream.first_token_time is None:
            tracked.stream.first_token_time = now
            self._listener.on_first_token(now - tracked.stream.request.arrival_time)
        last = tracked.last_token_times.get(sequence_id)
        if last is not None:
            self._listener.on_inter_token((now - last) / count, count)
        tracked.last_token_times[sequence_id] = now
        tracked.num_output_tokens += count


def _listen(context: zmq.asyncio.Context, address: str) -> zmq.asyncio.Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.bind(address)
    return socket
