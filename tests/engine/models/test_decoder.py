"""The shared decoder against transformers' models, every family, float32."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.models.registry import LoadedModel, load_model
from tests.engine.models.dense_backend import DenseBackend, flat_batch, no_caches
from tests.tiny_models import FAMILIES, VOCAB_SIZE, make_checkpoint

# Logits have a standard deviation of about 2.5; float32 sums in another order differ by less than 4e-5.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield


def load(path: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(path, dtype, DenseBackend(), lambda phase, done, total: None)


def logits(loaded: LoadedModel, prompts: list[list[int]]) -> torch.Tensor:
    input_ids, positions, metadata = flat_batch(prompts)
    hidden = loaded.model.forward(input_ids, positions, no_caches(loaded.config.num_layers), metadata)
    return loaded.model.logits(hidden)


def reference_logits(path: Path, prompts: list[list[int]]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return torch.cat([model(torch.tensor([prompt])).logits[0] for prompt in prompts])


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    path = make_checkpoint(family, tmp_path, num_shards=2, tokenizer=False)
    prompts = random_prompts(1, 5, 40, 200)
    loaded = load(path)
    expected = reference_logits(path, prompts)
    torch.testing.assert_close(logits(loaded, prompts), expected, atol=TOLERANCE, rtol=0)
    assert loaded.num_parameters == sum(
        p.numel() for p in AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).parameters()
    )


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_other_activations_equal_transformers(activation: str, tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False, hidden_act=activation)
    prompts = random_prompts(9)
    torch.testing.assert_close(logits(load(path), prompts), reference_logits(path, prompts), atol=TOLERANCE, rtol=0)


def test_explicit_head_dim_of_llama(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False, head_dim=10)
    prompts = random_prompts(9)
    torch.testing.assert_close(logits(load(path), prompts), reference_logits(path, prompts), atol=TOLERANCE, rtol=0)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="holds for oneDNN's own kernels on x86")
def test_rows_do_not_depend_on_their_neighbours(tmp_path: Path) -> None:
    """To the last bit, in float32, for a sequence alone or among others (linear layers, norms, rotation, MLP)."""
    loaded = load(make_checkpoint("qwen3", tmp_path, tokenizer=False))
    prompts = random_prompts(1, 3, 17)
    alone = torch.cat([logits(loaded, [prompt]) for prompt in prompts])
    assert torch.equal(logits(loaded, prompts), alone)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False, dtype=torch.bfloat16)
    prompts = random_prompts(12)
    coarse = logits(load(path, torch.bfloat16), prompts)
    assert coarse.dtype == torch.float32
    exact = logits(load(path), prompts)
    # bfloat16 keeps 8 bits: relative errors of 2^-8 that add up over 3 layers.
    assert (coarse - exact).std() < 0.05 * exact.std()


def test_empty_batch(tmp_path: Path) -> None:
    loaded = load(make_checkpoint("llama", tmp_path, tokenizer=False))
    assert loaded.model.logits(torch.empty(0, 64)).shape == (0, VOCAB_SIZE)


def test_positions_table_is_bounded_by_max_model_len(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path, tokenizer=False)
    backend = DenseBackend()
    for asked, prepared in ((None, 256), (100, 100), (1000, 256)):
        loaded = load_model(path, torch.float32, backend, lambda *_: None, max_model_len=asked)
        assert loaded.model.max_positions == prepared
