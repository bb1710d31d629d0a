"""The offline API: the same engine in this process, for notebooks and batch jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError, InvalidPromptError, PagedServeError
from engine.input_processor import InputProcessor
from engine.inputs import GenerationRequest
from engine.messages import AbortSequences, Admitted, LoadProgress, ModelInfo, ResetPrefixCache, StepOutputs
from engine.output.processor import OutputProcessor
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

_ALIASES = {"gpu_memory_utilization": "memory_utilization"}
"""Names of arguments that users of other engines know, and ours."""


class LLM:
    """A model loaded for offline generation.

        llm = LLM(model="path/to/model")
        for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8)):
            print(output.prompt, output.outputs[0].text)

    model (or model_dir): a Hugging Face folder or a GGUF file; every further argument is a field of `EngineConfig`
    (gpu_memory_utilization is another name of memory_utilization). use_tqdm: show progress while loading.

    Raises `ConfigError` for an unknown or bad argument and `ModelLoadError` for a model that cannot be served.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        model_dir: str | Path | None = None,
        use_tqdm: bool = True,
        **kwargs: Any,
    ) -> None:
        if (model is None) == (model_dir is None):
            raise ConfigError("give the model's path once, as model or as model_dir")
        for alias, name in _ALIASES.items():
            if alias in kwargs and name in kwargs:
                raise ConfigError(f"{alias} is another name of {name}: give one of them")
        kwargs = {_ALIASES.get(name, name): value for name, value in kwargs.items()}
        config = EngineConfig.from_kwargs(
            ("model", "use_tqdm", *_ALIASES), model_dir=Path(model or model_dir or ""), **kwargs
        )
        self.tokenizer = Tokenizer.load(config.model_dir)
        with _LoadingBar(use_tqdm) as bar:
            self._core = build_engine(config, bar.update)
        self._input_processor = InputProcessor(self.tokenizer, self._core.info)

    @property
    def info(self) -> ModelInfo:
        """The loaded model: context length, vocabulary, KV pool."""
        return self._core.info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generates for one prompt or many, batched continuously; outputs come in the order of the prompts.

        prompts: a string, a list of token ids, or a list of either. sampling_params: one for all, or one a prompt;
        None is `SamplingParams()`.

        Raises a `RequestError` for a prompt or parameter that cannot be run, before anything is generated.
        """
        prompt_list = _as_list(prompts)
        requests = [
            self._input_processor.prepare(prompt, params)
            for prompt, params in zip(prompt_list, _params_for(prompt_list, sampling_params), strict=True)
        ]
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **template_arguments: Any,
    ) -> list[RequestOutput]:
        """As `generate`, from one conversation or many, each a list of {"role", "content"}, by the model's template.

        Raises `InvalidPromptError` where the model has no template or its template refuses the messages.
        """
        if not messages:
            raise InvalidPromptError("messages is empty: give at least one message", param="messages")
        conversations: list[Any] = [messages] if isinstance(messages[0], Mapping) else list(messages)
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = self.tokenizer.apply_chat_template([dict(m) for m in conversation], **template_arguments)
            prompts.append(self.tokenizer.encode(text, add_special_tokens=False))
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix."""
        self._core.handle(ResetPrefixCache())

    def _run(self, requests: list[GenerationRequest], use_tqdm: bool) -> list[RequestOutput]:
        processor = OutputProcessor(self.tokenizer)
        results = {
            r.request_id: RequestOutput(
                r.request_id, r.prompt, list(r.prompt_token_ids), [CompletionOutput(i) for i in range(r.params.n)]
            )
            for r in requests
        }
        in_flight = [s.sequence_id for r in requests for s in r.sequences()]
        try:
            for request in requests:
                processor.add(request)
                for sequence in request.sequences():
                    self._core.handle(sequence)
            with tqdm(total=len(requests), desc="Generating", unit="prompt", disable=not use_tqdm) as bar:
                while self._core.has_work():
                    bar.update(self._step(processor, results))
        except BaseException:
            # NOTE: an interrupted call (Ctrl-C in a notebook) must not leave its sequences to the next one, nor blocks
            # that can be found though the step that was to fill them did not come to its end.
            self._core.handle(AbortSequences(tuple(in_flight)))
            self._core.handle(ResetPrefixCache())
            raise
        return list(results.values())

    def _step(self, processor: OutputProcessor, results: dict[str, RequestOutput]) -> int:
        """One engine step; returns how many requests it finished."""
        step: StepOutputs = self._core.step()
        for admitted in step.admitted:
            _note_prefix_hit(admitted, results)
        processed = processor.process(step.outputs)
        if processed.to_abort:
            self._core.handle(AbortSequences(tuple(processed.to_abort)))
        num_finished = 0
        for request_id, delta in processed.deltas:
            if delta.finish_reason == "error":
                raise PagedServeError(f"the engine could not run request {request_id}: it exceeds the KV pool")
            result = results[request_id]
            result.outputs[delta.index].append(delta)
            num_finished += delta.finish_reason is not None and result.finished
        return num_finished


def _note_prefix_hit(admitted: Admitted, results: dict[str, RequestOutput]) -> None:
    request_id, _, index = admitted.sequence_id.rpartition("/")
    if index == "0" and request_id in results:
        results[request_id].num_cached_tokens = admitted.num_cached_tokens


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if not isinstance(prompts, Sequence):
        raise InvalidPromptError(f"give a string, token ids, or a list of either as prompts, got {prompts!r}")
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # one prompt: mypy cannot see that a list of ints is a Prompt
    return list(prompts)  # type: ignore[arg-type]  # the other arm of the same union


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * len(prompts)
    if len(params) != len(prompts):
        raise InvalidPromptError(
            f"got {len(prompts)} prompts and {len(params)} sampling parameters: give one for all, or one a prompt",
            param="sampling_params",
        )
    return params


class _LoadingBar:
    """A tqdm bar that follows `LoadProgress`; also usable where nothing is shown."""

    def __init__(self, enabled: bool) -> None:
        self._bar: Any = None
        self._phase: str | None = None
        self.update: Callable[[LoadProgress], None] = self._update if enabled else lambda _progress: None

    def __enter__(self) -> _LoadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _update(self, progress: LoadProgress) -> None:
        if progress.phase != self._phase:
            if self._bar is not None:
                self._bar.close()
            self._phase = progress.phase
            self._bar = tqdm(total=progress.total, desc=progress.phase.capitalize())
        self._bar.update(progress.done - self._bar.n)
