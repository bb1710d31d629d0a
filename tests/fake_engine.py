"""A scripted stand-in for `engine.client.AsyncEngine`: tokens come from a script, all else is as in the real one.

Requests pass the real `InputProcessor`, and tokens the real `OutputProcessor`, so that limits, stop strings and UTF-8
behave as in the product. Only the model and the process are missing.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.errors import (
    DeadlineExceededError,
    EngineDeadError,
    EngineLoadingError,
    InvalidPromptError,
    PagedServeError,
)
from engine.input_processor import InputProcessor
from engine.inputs import EncodedPrompt, GenerationRequest
from engine.messages import FinishReason, LoadProgress, ModelInfo, RawLogprobs, SequenceId, SequenceOutput
from engine.metrics import RequestRecord
from engine.output.processor import OutputProcessor
from engine.sampling_params import SamplingParams
from engine.streams import MAX_STREAM_BUFFER, GenerationStream

EOS = 256
BOS = 257
VOCAB_SIZE = 260


class FakeTokenizer:
    """A byte-level tokenizer: the ids 0 to 255 are bytes, 256 to 259 the special tokens <eos> <bos> <a> <b>."""

    vocab_size = VOCAB_SIZE
    bos_token_id: int | None = BOS
    eos_token_id: int | None = EOS
    special_token_ids = frozenset({256, 257, 258, 259})
    has_chat_template = True
    _special_texts = ("<eos>", "<bos>", "<a>", "<b>")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if i < 256 or not skip_special_tokens)
        return b"".join(self.token_bytes(i) for i in kept).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._special_texts[token_id - 256].encode()

    def first_token_bytes(self, token_id: int) -> bytes:
        return self.token_bytes(token_id)

    def strip_start(self, data: bytes, limit: int | None = None) -> tuple[bytes, int]:
        return data, 0

    def __len__(self) -> int:
        return VOCAB_SIZE

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """`<role>content\\n` for each message. As an alternating template, it refuses two user messages in a row."""
        roles = [message["role"] for message in messages]
        if any(a == b == "user" for a, b in itertools.pairwise(roles)):
            raise InvalidPromptError("Conversation roles must alternate", param="messages")
        text = "".join(f"<{message['role']}>{message['content']}\n" for message in messages)
        return text + ("<assistant>" if add_generation_prompt else "")


MODEL_INFO = ModelInfo(
    architecture="FakeForCausalLM",
    vocab_size=VOCAB_SIZE,
    max_model_len=256,
    eos_token_ids=(EOS,),
    block_size=16,
    num_blocks=64,
    dtype="float32",
    device="cpu",
    num_parameters=1234,
)

Script = Callable[[GenerationRequest, int], Sequence[int]]
"""(request, index of the sequence) to the token ids that it generates; after the script's end the last one repeats."""


def text_script(text: str, *, eos: bool = True) -> Script:
    """Every sequence generates the bytes of `text`, one a token, and then EOS (or repeats the last byte)."""
    ids = [*text.encode(), *([EOS] if eos else [])]
    return lambda request, index: ids


class FakeEngine:
    """The public surface of `AsyncEngine`, driven by a script.

    script: what each sequence generates. fail_after: the engine dies once a sequence has made that many tokens.
    admitting: while false, every request stays in the waiting queue (`release()` admits).
    running: while false, admitted requests make no token (`resume()` goes on); `pause_after`: pauses by itself once a
    sequence has made that many tokens.
    phase: "loading" needs `finish_loading()` or `die()`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        info: ModelInfo = MODEL_INFO,
        phase: str = "ready",
        fail_after: int | None = None,
        pause_after: int | None = None,
        admitting: bool = True,
        tokenizer: FakeTokenizer | None = None,
        max_stream_buffer: int = MAX_STREAM_BUFFER,
    ) -> None:
        self.max_stream_buffer = max_stream_buffer
        self.script = script or text_script("Hello, world!")
        self.fail_after = fail_after
        self.pause_after = pause_after
        self.phase = phase
        self.progress: LoadProgress | None = LoadProgress("loading weights", 3, 30) if phase == "loading" else None
        self.failure: str | None = None
        self.live = True
        self.started = False
        self.pid: int | None = None
        self.aborted: list[str] = []
        """Ids of the requests that were aborted, in order."""
        self._tokenizer = tokenizer or FakeTokenizer()
        self._info = info
        self._loaded = False
        self._ready, self._dead = asyncio.Event(), asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._admitting, self._running = asyncio.Event(), asyncio.Event()
        self._running.set()
        if admitting:
            self._admitting.set()
        self._waiting: dict[str, GenerationStream] = {}
        self._streams: dict[str, GenerationStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_tokens: dict[str, int] = {}
        self.output = OutputProcessor(self._tokenizer)  # type: ignore[arg-type]
        if phase == "ready":
            self.finish_loading()

    # --- the surface of AsyncEngine ---

    def start(self) -> None:
        self.started = True

    async def wait_ready(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._dead)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._dead.is_set():
            raise EngineDeadError(self.failure or "the engine died")

    async def wait_dead(self) -> None:
        await self._dead.wait()

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def is_live(self, stall_timeout: float) -> bool:
        return self.live and self.phase in ("loading", "ready")

    @property
    def tokenizer(self) -> FakeTokenizer:
        if not self._loaded:
            self._check_phase()
        return self._tokenizer

    @property
    def info(self) -> ModelInfo:
        if not self._loaded:
            self._check_phase()
        return self._info

    @property
    def num_requests(self) -> int:
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        return sum(stream.request.params.n for stream in self._waiting.values())

    @property
    def num_waiting_prompt_tokens(self) -> int:
        return sum(s.request.params.n * len(s.request.prompt_token_ids) for s in self._waiting.values())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> EncodedPrompt:
        self._check_phase()
        return InputProcessor(self._tokenizer, self._info).encode(text, add_special_tokens=add_special_tokens)

    def prepare(
        self,
        prompt: str | EncodedPrompt | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> GenerationRequest:
        self._check_phase()
        door = InputProcessor(self._tokenizer, self._info)
        return door.prepare(prompt, params, request_id=request_id, deadline=deadline)

    def submit(self, request: GenerationRequest) -> GenerationStream:
        self._check_phase()
        if request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id!r} is in flight already")
        stream = GenerationStream(request, self._forget, self.max_stream_buffer)
        self._idle.clear()
        self._streams[request.request_id] = self._waiting[request.request_id] = stream
        self.output.add(request)
        self._tasks[request.request_id] = asyncio.ensure_future(self._generate(stream))
        return stream

    def abort_all(self, error: PagedServeError) -> None:
        for stream in list(self._streams.values()):
            self._fail(stream, error)

    async def stop(self) -> None:
        self.abort_all(EngineDeadError("the engine was stopped"))
        self.phase = "stopped"

    # --- levers for tests ---

    def finish_loading(self) -> None:
        """The engine becomes ready."""
        self.phase, self._loaded = "ready", True
        self._ready.set()

    def die(self, message: str = "the engine process was killed") -> None:
        """The engine process ends: every stream raises `EngineDeadError`."""
        self.phase, self.failure = "dead", message
        self._dead.set()
        self.abort_all(EngineDeadError(message))

    def release(self) -> None:
        """Admits what waits, and everything after."""
        self._admitting.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self.pause_after = None
        self._running.set()

    # --- the scripted model ---

    def _check_phase(self) -> None:
        if self.phase == "loading":
            raise EngineLoadingError("the model is loading")
        if self.phase != "ready":
            raise EngineDeadError(self.failure or "the engine is dead")

    def _forget(self, stream: GenerationStream, error: PagedServeError | None = None) -> None:
        request_id = stream.request.request_id
        if self._streams.pop(request_id, None) is None:
            return
        self._note_idle()
        self._waiting.pop(request_id, None)
        self.output.abort(request_id)
        self._tasks.pop(request_id).cancel()
        self.aborted.append(request_id)
        self._tell_end(stream, "error" if isinstance(error, EngineDeadError) else "abort", error)

    def _tell_end(self, stream: GenerationStream, finish_reason: str, error: PagedServeError | None = None) -> None:
        """The record that the real engine's books make of a request that has left."""
        if stream.on_end is None:
            return
        request = stream.request
        stream.on_end(
            RequestRecord(
                finish_reason=finish_reason,
                arrival_time=request.arrival_time,
                admitted_time=None if stream.first_token_time is None else request.arrival_time,
                first_token_time=stream.first_token_time,
                finish_time=time.monotonic(),
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=self._num_tokens.pop(request.request_id, 0),
                n=request.params.n,
                request_id=request.request_id,
                finish_reasons=(finish_reason,) * request.params.n,
                error=None if error is None else type(error).__name__,
            )
        )

    def _note_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    def _fail(self, stream: GenerationStream, error: PagedServeError) -> None:
        self._forget(stream, error)
        stream.fail(error)

    async def _generate(self, stream: GenerationStream) -> None:
        request = stream.request
        request_id, params = request.request_id, request.params
        await self._until(self._admitting, stream)
        self._waiting.pop(request_id, None)
        scripts = [list(self.script(request, index)) for index in range(params.n)]
        unfinished = set(range(params.n))
        position = 0
        while unfinished:
            await self._until(self._running, stream)
            await asyncio.sleep(0)
            outputs = [self._token(request, index, scripts[index], position) for index in sorted(unfinished)]
            unfinished -= {o.index for o in map(_Ended, outputs) if o.finished}
            processed = self.output.process(outputs)
            unfinished -= {_index(sequence_id) for sequence_id in processed.to_abort}
            position += 1
            self._num_tokens[request_id] = self._num_tokens.get(request_id, 0) + len(outputs)
            if not unfinished:
                self._streams.pop(request_id, None)
                self._note_idle()
                self._tasks.pop(request_id, None)
            if stream.first_token_time is None:
                stream.first_token_time = time.monotonic()
            for _, delta in processed.deltas:
                stream.push(delta)
            if not unfinished:
                reasons = {delta.finish_reason for _, delta in processed.deltas}
                self._tell_end(stream, "length" if "length" in reasons else "stop")
            if position == self.fail_after:
                self.die("the engine failed on purpose")
                return
            if position == self.pause_after:
                self.pause()

    async def _until(self, event: asyncio.Event, stream: GenerationStream) -> None:
        deadline = stream.request.deadline
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
                await event.wait()
        except TimeoutError:
            self._fail(stream, DeadlineExceededError("the request's deadline has passed"))
            raise asyncio.CancelledError from None

    def _token(self, request: GenerationRequest, index: int, script: list[int], position: int) -> SequenceOutput:
        params = request.params
        token_id = script[min(position, len(script) - 1)]
        finish_reason: FinishReason | None = None
        stop_token_id = None
        ends = token_id in params.stop_token_ids or (token_id in self._info.eos_token_ids and not params.ignore_eos)
        if ends and position + 1 > params.min_tokens:
            finish_reason, stop_token_id = "stop", token_id
        elif position + 1 == params.max_tokens:
            finish_reason = "length"
        logprobs = None
        if params.logprobs is not None:
            top = tuple((token_id + k) % VOCAB_SIZE for k in range(params.logprobs))
            logprobs = (RawLogprobs(token_id, -0.5, top, tuple(-0.5 - k for k in range(len(top)))),)
        sequence_id = SequenceId(f"{request.request_id}/{index}")
        return SequenceOutput(sequence_id, (token_id,), logprobs, finish_reason, stop_token_id)


class _Ended:
    def __init__(self, output: SequenceOutput) -> None:
        self.index = _index(output.sequence_id)
        self.finished = output.finish_reason is not None


def _index(sequence_id: SequenceId) -> int:
    return int(sequence_id.rpartition("/")[2])
