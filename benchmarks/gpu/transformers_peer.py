"""The same models and loads in transformers: `generate`, and its continuous batching."""

from __future__ import annotations

import logging
import statistics
import time
from typing import Any

import torch

from benchmarks.gpu.device import Device


class TransformersPeer:
    """A transformers model with random weights. Raises ImportError where transformers is not there."""

    def __init__(self, device: Device, config: dict[str, Any]) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        fields = {key: value for key, value in config.items() if key not in ("model_type", "torch_dtype")}
        self._device = device
        dtype = torch.float32 if device.is_smoke else torch.bfloat16
        with device.torch_device:
            self._model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(config["model_type"], **fields), dtype=dtype, attn_implementation="sdpa"
            )
        self._model.eval()
        self._vocab_size = config["vocab_size"]

    def time_to_first_token(self, num_tokens: int, repeats: int = 3) -> float:
        """Median seconds of a `generate` of one token."""
        times = [self._generate(1, num_tokens, 1) for _ in range(repeats + 1)]
        return statistics.median(times[1:])

    def decode_rate(self, batch: int, prompt_tokens: int, num_steps: int) -> float:
        """Tokens a second of `generate` on a batch, without the time of its prefill."""
        self._generate(batch, prompt_tokens, 2)
        prefill = self._generate(batch, prompt_tokens, 1)
        return batch * num_steps / (self._generate(batch, prompt_tokens, num_steps + 1) - prefill)

    def continuous_decode_rate(self, batch: int, prompt_tokens: int, num_steps: int) -> float:
        """Tokens a second of `generate_batch` while all of the batch decode, or over all its time where they never do.

        Raises RuntimeError where it fails.
        """
        stamps = self._generate_batch(batch, prompt_tokens, num_steps + 1)
        start, end = max(times[0] for times in stamps), min(times[-1] for times in stamps)
        if end <= start:
            start, end = min(times[0] for times in stamps), max(times[-1] for times in stamps)
        return sum(start < moment <= end for times in stamps for moment in times) / (end - start)

    def _generate(self, batch: int, prompt_tokens: int, num_new: int) -> float:
        """Seconds of one call."""
        from transformers import GenerationConfig

        ids = self._prompts(batch, prompt_tokens)
        settings = GenerationConfig(
            max_new_tokens=num_new, min_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        self._wait()
        started = time.perf_counter()
        with torch.inference_mode():
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        self._wait()
        assert out.shape == (batch, prompt_tokens + num_new)
        return time.perf_counter() - started

    def _generate_batch(self, batch: int, prompt_tokens: int, num_new: int) -> list[list[float]]:
        """For each sequence, when its tokens came."""
        from transformers import GenerationConfig

        settings = GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=-1, pad_token_id=0)
        more: dict[str, Any] = {}
        if self._device.is_smoke:
            from transformers.generation.configuration_utils import ContinuousBatchingConfig

            # NOTE: left alone, it takes nine tenths of the machine's memory. First the size of a block, whose name
            # differs between releases.
            more["continuous_batching_config"] = ContinuousBatchingConfig(16, num_blocks=64, max_batch_tokens=64)
        if self._device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        outputs = self._model.generate_batch(
            self._prompts(batch, prompt_tokens).tolist(),
            generation_config=settings,
            record_timestamps=True,
            **more,
        )
        stamps = [output.timestamps for output in outputs.values() if output.error is None and output.timestamps]
        if len(stamps) != batch:
            raise RuntimeError(f"{batch - len(stamps)} of {batch} sequences failed")
        return stamps

    def _prompts(self, batch: int, num_tokens: int) -> torch.Tensor:
        device = self._device
        return torch.randint(
            3, self._vocab_size, (batch, num_tokens), device=device.torch_device, generator=device.generator
        )

    def _wait(self) -> None:
        if self._device.torch_device.type == "cuda":
            torch.cuda.synchronize()
