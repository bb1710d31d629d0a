"""The demonstration model in float32 against transformers' own reading of the same GGUF file."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from engine.demo import demo_model_path
from engine.models.registry import load_model
from tests.engine.models.dense_backend import DenseBackend, flat_batch, no_caches

# "The capital of France is" and "Once upon a time"
PROMPTS = [[504, 3575, 282, 4649, 314], [6403, 2852, 253, 655]]
PARIS = 7042


def test_logits_equal_transformers() -> None:
    torch.set_num_threads(1)
    path = demo_model_path()
    with torch.inference_mode():
        loaded = load_model(path, torch.float32, DenseBackend(), lambda *_: None)
        input_ids, positions, metadata = flat_batch(PROMPTS)
        logits = loaded.model.logits(loaded.model.forward(input_ids, positions, no_caches(30), metadata))
        reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        expected = torch.cat([reference(torch.tensor([prompt])).logits[0] for prompt in PROMPTS])
    # Logits have a standard deviation of 6; float32 sums in another order differ by about 1e-4.
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=0)
    assert logits[4].argmax() == PARIS
    assert loaded.num_parameters == 134_515_008
