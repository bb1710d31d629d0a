"""The offline API over a tiny random checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine import LLM, SamplingParams
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.errors import ConfigError, InvalidPromptError, ModelLoadError
from engine.models.decoder import DecoderModel
from tests.tiny_models import make_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llm") / "tiny")


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    torch.set_num_threads(1)
    return LLM(model=checkpoint, num_kv_blocks=64, dtype="float32", num_threads=1, use_tqdm=False)


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["hello world", [5, 6, 7], "the capital of France is"]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    alone = [llm.generate(p, GREEDY, use_tqdm=False)[0] for p in prompts]
    assert [o.prompt for o in together] == ["hello world", None, "the capital of France is"]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]
    assert together[1].prompt_token_ids == [5, 6, 7]
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in together)
    assert together[0].outputs[0].text == llm.tokenizer.decode(together[0].outputs[0].token_ids)


def test_parameters_of_each_prompt_are_its_own(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=k, temperature=0, ignore_eos=True, logprobs=k) for k in (1, 3)]
    outputs = llm.generate(["a", "b"], params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 3]
    logprobs = outputs[1].outputs[0].logprobs
    assert logprobs is not None
    assert [len(p.top) for p in logprobs] == [3, 3, 3]
    assert outputs[1].outputs[0].cumulative_logprob == pytest.approx(sum(p.sampled.logprob for p in logprobs))


def test_the_same_seed_gives_the_same_samples_and_indices_differ(llm: LLM) -> None:
    params = SamplingParams(n=2, seed=11, max_tokens=12, ignore_eos=True)
    first, second = (llm.generate("hello", params, use_tqdm=False)[0] for _ in range(2))
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    assert first.outputs[0].token_ids != first.outputs[1].token_ids


def test_a_repeated_prompt_hits_the_prefix_cache_until_it_is_reset(llm: LLM) -> None:
    prompt = list(range(3, 3 + 40))
    llm.reset_prefix_cache()
    cold = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    warm = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    llm.reset_prefix_cache()
    again = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert (cold.num_cached_tokens, warm.num_cached_tokens, again.num_cached_tokens) == (0, 32, 0)
    assert cold.outputs[0].token_ids == warm.outputs[0].token_ids == again.outputs[0].token_ids


def test_an_interrupted_step_leaves_no_prefix_that_was_not_computed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(3, 3 + 40))
    llm.reset_prefix_cache()
    expected = llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    llm.reset_prefix_cache()
    llm.generate([[7 + i] * 100 for i in range(6)], GREEDY, use_tqdm=False)  # writes over the blocks

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DecoderModel, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompt, GREEDY, use_tqdm=False)
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected


def test_chat_uses_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    output = llm.chat(messages, GREEDY, use_tqdm=False)[0]
    text = llm.tokenizer.apply_chat_template([dict(m) for m in messages])
    assert output.prompt_token_ids == llm.tokenizer.encode(text, add_special_tokens=False)
    assert len(llm.chat([messages, messages], GREEDY, use_tqdm=False)) == 2


def test_mistakes_are_named_and_leave_the_engine_usable(llm: LLM) -> None:
    with pytest.raises(InvalidPromptError, match="empty"):
        llm.generate(["fine", ""], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidPromptError, match="2 prompts and 1"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    with pytest.raises(InvalidPromptError, match="messages"):
        llm.chat([], GREEDY)
    with pytest.raises(InvalidPromptError, match="None"):
        llm.generate(None, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidPromptError, match="None"):
        llm.generate([None], GREEDY, use_tqdm=False)  # type: ignore[list-item]
    assert llm.generate([], GREEDY, use_tqdm=False) == []
    assert llm.generate("still alive", GREEDY, use_tqdm=False)[0].finished


def test_a_bad_argument_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="max_seqs"):
        LLM(model=checkpoint, max_seqs=3)
    with pytest.raises(ConfigError, match=r"unknown argument tensor_parallel_size; known are ") as caught:
        LLM(model=checkpoint, tensor_parallel_size=1)
    known = str(caught.value).partition("known are ")[2].split(", ")
    assert {"model", "model_dir", "gpu_memory_utilization", "memory_utilization", "use_tqdm"} <= set(known)
    assert known == sorted(known)
    with pytest.raises(ConfigError, match="model"):
        LLM()
    with pytest.raises(ModelLoadError, match="absent"):
        LLM(model=checkpoint / "absent")


def test_the_memory_share_has_the_name_that_other_engines_give_it(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineConfig] = []

    def build(config: EngineConfig, _progress: object) -> EngineCore:
        seen.append(config)
        raise ModelLoadError("far enough")

    monkeypatch.setattr("engine.llm.build_engine", build)
    with pytest.raises(ModelLoadError):
        LLM(model=checkpoint, gpu_memory_utilization=0.5)
    assert seen[0].memory_utilization == 0.5
    with pytest.raises(ConfigError, match="another name of memory_utilization"):
        LLM(model=checkpoint, gpu_memory_utilization=0.5, memory_utilization=0.5)


def test_in_process_it_needs_no_zmq_msgspec_gguf_or_kserve(checkpoint: Path) -> None:
    program = f"""
import sys
for name in ("zmq", "msgspec", "gguf", "kserve", "fastapi", "grpc"):
    sys.modules[name] = None  # importing it now raises ImportError
from engine import LLM, SamplingParams
from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
llm = LLM(model={str(checkpoint)!r}, num_kv_blocks=16, use_tqdm=False, dtype="float32", num_threads=1)
print(len(llm.generate("hi", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"


def test_a_progress_bar_shows(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate("hello", GREEDY)
    assert "Generating" in capsys.readouterr().err
