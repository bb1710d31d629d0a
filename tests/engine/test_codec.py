from pathlib import Path

import msgspec
import pytest

from engine import messages
from engine.codec import engine_codec, front_codec
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams

FRONT = [
    messages.AddSequence(
        messages.SequenceId("r/0"),
        (1, 2, 3),
        SamplingParams(stop=("a",), logit_bias={5: -1.5}, seed=3, logprobs=2, cache_salt="s"),
        seed=2**63 - 1,
        index=0,
        arrival_time=1.5,
    ),
    messages.AbortSequences((messages.SequenceId("r/0"),)),
    messages.ResetPrefixCache(),
    messages.Shutdown(),
]
ENGINE = [
    messages.LoadProgress("loading weights", 1, 2),
    messages.EngineReady(messages.ModelInfo("a", 10, 20, (1, 2), 16, 100, "float32", "cpu", 5)),
    messages.EngineFailed("why"),
    messages.StepOutputs(
        outputs=(
            messages.SequenceOutput(
                messages.SequenceId("r/0"), (1,), (messages.RawLogprobs(1, -0.5, (1, 2), (-0.5, -1.0)),), "stop", 1
            ),
        ),
        admitted=(messages.Admitted(messages.SequenceId("r/0"), 16, 2.0),),
        stats=messages.EngineStats(num_running=1),
        step_seconds=0.1,
        step_tokens=4,
        step_sequences=1,
        preempted=(messages.Preempted(messages.SequenceId("r/1"), 2.5),),
        resumed=(messages.Resumed(messages.SequenceId("r/2"), 2.5),),
    ),
]


@pytest.mark.parametrize("message", FRONT, ids=lambda m: type(m).__name__)
def test_front_messages_survive_the_wire(message: object) -> None:
    assert front_codec().decode(front_codec().encode(message)) == message


@pytest.mark.parametrize("message", ENGINE, ids=lambda m: type(m).__name__)
def test_engine_messages_survive_the_wire(message: object) -> None:
    assert engine_codec().decode(engine_codec().encode(message)) == message


def test_every_message_type_has_a_place_on_the_wire() -> None:
    assert {type(m) for m in FRONT} == set(messages.FrontMessage.__args__)
    assert {type(m) for m in ENGINE} == set(messages.EngineMessage.__args__)


def test_a_body_of_the_wrong_shape_is_refused() -> None:
    kind, _ = front_codec().encode(FRONT[0])
    with pytest.raises(msgspec.ValidationError):
        front_codec().decode((kind, msgspec.msgpack.encode({"sequence_id": 5})))


def test_the_configuration_survives_the_command_line() -> None:
    config = EngineConfig(model_dir=Path("a b/c"), max_model_len=64)
    encoded = msgspec.json.encode(config, enc_hook=str)
    assert msgspec.json.decode(encoded, type=EngineConfig, dec_hook=lambda kind, value: kind(value)) == config
