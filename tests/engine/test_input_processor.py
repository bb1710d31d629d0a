import time

import pytest

from engine.errors import ContextLengthError, InvalidParameterError, InvalidPromptError
from engine.input_processor import MAX_CHARACTERS_PER_TOKEN, InputProcessor
from engine.messages import ModelInfo
from engine.sampling_params import SamplingParams

INFO = ModelInfo(
    architecture="test",
    vocab_size=100,
    max_model_len=16,
    eos_token_ids=(2,),
    block_size=4,
    num_blocks=4,
    dtype="float32",
    device="cpu",
    num_parameters=1,
)


class ByteEncoder:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [b % 100 for b in text.encode()]


@pytest.fixture
def door() -> InputProcessor:
    return InputProcessor(ByteEncoder(), INFO)


@pytest.mark.parametrize("prompt", ["", []])
def test_V1_an_empty_prompt_is_refused(door: InputProcessor, prompt: str | list[int]) -> None:
    with pytest.raises(InvalidPromptError, match="empty"):
        door.prepare(prompt, SamplingParams())


@pytest.mark.parametrize(("prompt", "named"), [([5, 999999], "999999"), ([-1], "-1"), ([100], "100"), ([True], "True")])
def test_V2_an_id_outside_the_vocabulary_is_refused_by_name(
    door: InputProcessor, prompt: list[int], named: str
) -> None:
    with pytest.raises(InvalidPromptError, match=named):
        door.prepare(prompt, SamplingParams())


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc"), 5, {1: 2}])
def test_what_is_neither_text_nor_ids_is_refused(door: InputProcessor, prompt: object) -> None:
    with pytest.raises(InvalidPromptError, match="text or a list of token ids"):
        door.prepare(prompt, SamplingParams())  # type: ignore[arg-type]


@pytest.mark.parametrize("kwargs", [{"stop_token_ids": [100]}, {"logit_bias": {100: 1.0}}])
def test_V3_a_parameter_that_names_an_unknown_id_is_refused(door: InputProcessor, kwargs: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError, match="100") as caught:
        door.prepare([1], SamplingParams(**kwargs))  # type: ignore[arg-type]
    assert caught.value.param == next(iter(kwargs))


def test_V6_too_many_ids_are_refused_before_any_is_looked_at(door: InputProcessor) -> None:
    with pytest.raises(ContextLengthError):
        door.prepare(range(10**12), SamplingParams())


@pytest.mark.parametrize(("length", "room"), [(15, 1), (16, None), (17, None)])
def test_V6_the_context_leaves_room_for_one_token_or_refuses(
    door: InputProcessor, length: int, room: int | None
) -> None:
    if room is None:
        with pytest.raises(ContextLengthError) as caught:
            door.prepare([1] * length, SamplingParams())
        assert caught.value.code == "context_length_exceeded"
    else:
        assert door.prepare([1] * length, SamplingParams()).params.max_tokens == room


def test_V7_max_tokens_is_clamped_to_the_context(door: InputProcessor) -> None:
    request = door.prepare([1] * 10, SamplingParams(max_tokens=10, min_tokens=8))
    assert (request.params.max_tokens, request.params.min_tokens) == (6, 6)


def test_V5_max_tokens_none_is_the_rest_of_the_context(door: InputProcessor) -> None:
    assert door.prepare([1] * 10, SamplingParams(max_tokens=None)).params.max_tokens == 6


def test_text_too_long_for_any_tokenizer_is_refused_before_tokenising() -> None:
    class Forbidden:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("tokenised")

    with pytest.raises(ContextLengthError, match="characters"):
        InputProcessor(Forbidden(), INFO).prepare("x" * (16 * MAX_CHARACTERS_PER_TOKEN + 1), SamplingParams())


def test_an_added_token_without_an_embedding_is_refused_by_id() -> None:
    class Padded:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [1, 100, 2]

    with pytest.raises(InvalidPromptError, match="token id 100"):
        InputProcessor(Padded(), INFO).prepare("hi [PAD]", SamplingParams())


def test_a_lone_surrogate_is_refused(door: InputProcessor) -> None:
    with pytest.raises(InvalidPromptError, match="Unicode"):
        door.prepare("a\ud800b", SamplingParams())


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidPromptError, match="token ids"):
        InputProcessor(None, INFO).prepare("text", SamplingParams())


def test_requests_of_one_name_get_different_ids_and_seeds(door: InputProcessor) -> None:
    first, second = (door.prepare("ab", SamplingParams(n=2), request_id="mine") for _ in range(2))
    assert first.request_id.startswith("mine-")
    assert first.request_id != second.request_id
    assert first.seed != second.seed
    assert door.prepare("ab", SamplingParams(seed=7)).seed == 7
    assert [s.index for s in first.sequences()] == [0, 1]
    assert first.arrival_time <= time.monotonic()
