"""Sampling on the device, with nothing waited for until the results are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine.core.request import Request
from engine.messages import RawLogprobs
from engine.sampling.device_copies import download, upload
from engine.sampling.device_logprobs import PendingLogprobs, TopLogprobs
from engine.sampling.sampler import SampledTokens
from engine.sampling_params import SamplingParams
from kernels.penalties import apply_penalties_, count_tokens_
from kernels.row_parameters import SEEN_IN_PROMPT, Column
from kernels.sampling import SamplingWorkspace, sample_tokens

_WORD = 0xFFFFFFFF


@dataclass(slots=True)
class SampleItem:
    """A row of the logits. NOTE: not frozen, since a frozen one takes twice as long to make, for each row and step.

    index: of the sequence's row, as given to `add`. position: of the token to be sampled; one beyond
    `request.num_tokens` while an earlier token of the sequence is still on the device.
    """

    index: int
    request: Request
    position: int


class _Needs(IntFlag):
    """What a row asks for beside the largest logit."""

    DRAW = 1
    """A draw with neither top-k nor top-p."""
    BORDER = 2
    """A draw with one of these."""
    PENALTIES = 4
    HOST = 8
    """Work on the host at each step: a bias, a minimum length, log probabilities."""


class _Edits(NamedTuple):
    """The parameters of a row with _Needs.HOST. All ids are of the vocabulary.

    bias_ids, bias_values: int64 and float32 (entries). end_ids: int64, each once, what min_tokens keeps out.
    """

    bias_ids: npt.NDArray[np.int64]
    bias_values: npt.NDArray[np.float32]
    end_ids: npt.NDArray[np.int64]


class DeviceSamples:
    """The tokens of one step, on their way.

    token_ids: int64 (R), on the device.
    """

    def __init__(self, token_ids: torch.Tensor, logprobs: PendingLogprobs | None) -> None:
        self.token_ids = token_ids
        self._copied_ids = download(token_ids)
        self._logprobs = logprobs
        self._event: torch.cuda.Event | None = None
        if token_ids.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def result(self) -> SampledTokens:
        """Waits for the copies of these tokens, and for nothing that was started after them."""
        if self._event is not None:
            self._event.synchronize()
        token_ids: list[int] = self._copied_ids.tolist()
        logprobs: list[RawLogprobs | None] = [None] * len(token_ids)
        if self._logprobs is not None:
            self._logprobs.put(token_ids, logprobs)
        return SampledTokens(token_ids, logprobs)


class DeviceSampler:
    """The device's counterpart of `Sampler`, of the same semantics; see `kernels.sampling` for the draws.

    vocab_size: columns of the logits. eos_token_ids: of the model.

    A row's parameters are on the device from `add` on, so that a step costs the host nothing a row, but for rows with
    a bias, an unreached minimum length or log probabilities. Nothing here waits for the device: what goes up is copied
    from pinned memory of its own, and what comes down is waited for in `DeviceSamples.result`.

    NOTE: a row's token depends on its logits, its request and its position alone. Its random numbers differ from those
    of `Sampler`, so the same seed gives other tokens on another device.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], max_num_seqs: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._device = device
        self._eos_token_ids = tuple(eos_token_ids)
        self._host_parameters: npt.NDArray[np.float64] = np.zeros((max_num_seqs, len(Column)))
        self._is_stale = True
        """Whether the device's parameters are older than the host's."""
        self._needs: npt.NDArray[np.uint8] = np.zeros(max_num_seqs, dtype=np.uint8)
        self._edits: dict[int, _Edits] = {}
        # NOTE: all of it is allocated now, so that it is there when the memory for the KV cache is measured.
        self._parameters = torch.zeros(self._host_parameters.shape, dtype=torch.float64, device=device)
        self._counts = torch.zeros((max_num_seqs, vocab_size), dtype=torch.int32, device=device)
        self._workspace = SamplingWorkspace(max_num_seqs, vocab_size, device)

    @torch.inference_mode()
    def add(self, index: int, request: Request) -> None:
        """Row `index` holds `request` from now on. Its `token_ids` must hold every token sampled for it so far."""
        params = request.params
        self._host_parameters[index] = _parameters_of(request)
        self._is_stale = True
        self._needs[index] = needs = _needs_of(params, self.vocab_size)
        self._edits.pop(index, None)
        if needs & _Needs.HOST:
            self._edits[index] = self._edits_of(params)
        if needs & _Needs.PENALTIES:
            self._count_all(index, request)

    @torch.inference_mode()
    def sample(
        self, logits: torch.Tensor, items: Sequence[SampleItem], row_indices: torch.Tensor, positions: torch.Tensor
    ) -> DeviceSamples:
        """Starts the sampling of the next token of each row, and counts it for the row's penalties.

        logits: float32 (R, vocab), on the device; changed in place in rows with a bias, mask or penalty.
        row_indices, positions: int64 (R), dense, on the device: `index` and `position` of each item.
        """
        assert logits.shape == (len(items), self.vocab_size), (logits.shape, len(items), self.vocab_size)
        if not items:
            return DeviceSamples(torch.empty(0, dtype=torch.int64, device=self._device), None)
        if self._is_stale:
            self._parameters.copy_(upload(self._host_parameters, self._device))
            self._is_stale = False
        needs = int(np.bitwise_or.reduce(self._needs[[item.index for item in items]]))
        top: TopLogprobs | None = None
        if needs & _Needs.HOST:
            top = self._top_logprobs(logits, items)
            self._edit(logits, items)
        if needs & _Needs.PENALTIES:
            apply_penalties_(logits, self._counts, self._parameters, row_indices)
        token_ids = sample_tokens(
            logits,
            self._parameters,
            row_indices,
            positions,
            has_draws=bool(needs & _Needs.DRAW),
            has_borders=bool(needs & _Needs.BORDER),
            workspace=self._workspace,
        )
        if needs & _Needs.PENALTIES:
            count_tokens_(self._counts, self._parameters, row_indices, token_ids)
        return DeviceSamples(token_ids, None if top is None else top.of(token_ids))

    def _edits_of(self, params: SamplingParams) -> _Edits:
        bias = {i: value for i, value in params.logit_bias.items() if i < self.vocab_size}
        end_ids = {i for i in (*self._eos_token_ids, *params.stop_token_ids) if i < self.vocab_size}
        return _Edits(
            np.fromiter(bias.keys(), dtype=np.int64, count=len(bias)),
            np.fromiter(bias.values(), dtype=np.float32, count=len(bias)),
            np.array(sorted(end_ids), dtype=np.int64),
        )

    def _count_all(self, index: int, request: Request) -> None:
        """Makes the row's token counts anew."""
        counts = self._counts[index]
        counts.zero_()
        token_ids = np.array(request.token_ids, dtype=np.int64)
        num_prompt_tokens = request.num_prompt_tokens
        if request.params.repetition_penalty != 1.0:
            counts.index_fill_(0, upload(token_ids[:num_prompt_tokens], self._device), SEEN_IN_PROMPT)
        if len(token_ids) > num_prompt_tokens:
            output = upload(token_ids[num_prompt_tokens:], self._device)
            counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def _top_logprobs(self, logits: torch.Tensor, items: Sequence[SampleItem]) -> TopLogprobs | None:
        """Of the rows that ask, taken before the logits are changed."""
        asking = [i for i, item in enumerate(items) if item.request.params.logprobs is not None]
        if not asking:
            return None
        return TopLogprobs(logits, asking, [items[i].request.params.logprobs or 0 for i in asking])

    def _edit(self, logits: torch.Tensor, items: Sequence[SampleItem]) -> None:
        """Adds the rows' biases, then keeps out what ends a sequence that is too short."""
        stride = logits.stride(0)
        flat = logits.as_strided(((len(items) - 1) * stride + self.vocab_size,), (1,))
        biased: list[npt.NDArray[np.int64]] = []
        biases: list[npt.NDArray[np.float32]] = []
        banned: list[npt.NDArray[np.int64]] = []
        for place, item in enumerate(items):
            edits = self._edits.get(item.index)
            if edits is None:
                continue
            if len(edits.bias_ids):
                biased.append(edits.bias_ids + place * stride)
                biases.append(edits.bias_values)
            if item.position - item.request.num_prompt_tokens < item.request.params.min_tokens:
                banned.append(edits.end_ids + place * stride)
        if biased:
            index = upload(np.concatenate(biased), self._device)
            flat.index_add_(0, index, upload(np.concatenate(biases), self._device))
        if banned:
            flat.index_fill_(0, upload(np.concatenate(banned), self._device), -torch.inf)


def _needs_of(params: SamplingParams, vocab_size: int) -> _Needs:
    needs = _Needs(0)
    if not params.is_greedy:
        has_border = 0 < params.top_k < vocab_size or params.top_p < 1.0
        needs |= _Needs.BORDER if has_border else _Needs.DRAW
    if params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
        needs |= _Needs.PENALTIES
    if params.logit_bias or params.min_tokens or params.logprobs is not None:
        needs |= _Needs.HOST
    return needs


def _parameters_of(request: Request) -> list[float]:
    """A row of the table of parameters."""
    params = request.params
    row = dict.fromkeys(Column, 0.0)
    row[Column.TEMPERATURE] = params.temperature
    row[Column.TOP_K] = params.top_k
    row[Column.TOP_P] = params.top_p
    row[Column.MIN_P] = params.min_p
    row[Column.SEED_LOW] = request.seed & _WORD
    row[Column.SEED_HIGH] = (request.seed >> 32) & _WORD
    row[Column.INDEX] = request.index
    row[Column.REPETITION] = params.repetition_penalty
    row[Column.FREQUENCY] = params.frequency_penalty
    row[Column.PRESENCE] = params.presence_penalty
    return list(row.values())
