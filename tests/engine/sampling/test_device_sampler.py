"""The device's sampler, under Triton's interpreter, against the CPU's."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine.core.request import Request
from engine.sampling import device_logprobs, device_sampler
from engine.sampling.device_copies import download, upload
from engine.sampling.device_sampler import DeviceSampler, SampleItem
from engine.sampling.logprobs import compute_logprobs
from engine.sampling.row import SamplingRow
from engine.sampling.sampler import SampledTokens, Sampler
from kernels.reference import penalties as penalties_twin
from kernels.reference import sampling as sampling_twin
from tests.engine.sampling.rows import make_request

VOCAB = 500
EOS = (0, 2)
CPU = torch.device("cpu")

GREEDY: list[dict[str, Any]] = [
    {},
    {"logit_bias": {3: 5.0, VOCAB - 1: 4.5, 5000: 100.0}},
    {"min_tokens": 3, "stop_token_ids": [7, 0, 9000], "logit_bias": {7: 100.0, 0: 99.0}},
    {"repetition_penalty": 1.4, "logprobs": 3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": 0},
    {"logprobs": 20, "repetition_penalty": 0.8, "logit_bias": {9: 3.0}, "min_tokens": 2},
    {"frequency_penalty": -1.0},
    {"logprobs": 5, "ignore_eos": True, "min_tokens": 4, "logit_bias": {2: 50.0}},
]


def _logits(rows: int, seed: int, vocab_size: int = VOCAB) -> torch.Tensor:
    """Rounded, so that ties are common."""
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)).mul_(2).bfloat16().float()


def _requests(shapes: Iterable[dict[str, Any]], **common: Any) -> list[Request]:
    return [
        make_request(prompt=range(3, i + 5), output=[9] * (i % 3), index=i, seed=i * 77 - 90, **{**common, **shape})
        for i, shape in enumerate(shapes)
    ]


def _sampler(requests: Sequence[Request], indices: Sequence[int], max_num_seqs: int = 16) -> DeviceSampler:
    sampler = DeviceSampler(VOCAB, EOS, max_num_seqs, CPU)
    for index, request in zip(indices, requests, strict=True):
        sampler.add(index, request)
    return sampler


def _positions(items: Sequence[SampleItem]) -> torch.Tensor:
    return torch.tensor([item.position for item in items])


def _sample(
    sampler: DeviceSampler, logits: torch.Tensor, indices: Sequence[int], requests: Sequence[Request], ahead: int = 0
) -> SampledTokens:
    items = [SampleItem(i, r, r.num_tokens + ahead) for i, r in zip(indices, requests, strict=True)]
    samples = sampler.sample(logits.clone(), items, torch.tensor(indices), _positions(items))
    result = samples.result()
    assert samples.token_ids.tolist() == result.token_ids
    return result


def test_greedy_equals_the_cpu_sampler_exactly() -> None:
    """Bias, minimum length, penalties and log probabilities, with rows that come and go."""
    requests = _requests(GREEDY, temperature=0.0)
    rows = [SamplingRow(request) for request in requests]
    indices = list(range(2, 10))
    random.Random(1).shuffle(indices)
    sampler = _sampler(requests, indices)
    reference = Sampler(VOCAB, EOS)
    rng = random.Random(2)
    for step in range(8):
        chosen = sorted(rng.sample(range(len(rows)), rng.randrange(1, len(rows) + 1)))
        logits = _logits(len(chosen), step)
        expected = reference.sample(logits, [rows[i] for i in chosen])
        assert _sample(sampler, logits, [indices[i] for i in chosen], [requests[i] for i in chosen]) == expected
        for i, token_id in zip(chosen, expected.token_ids, strict=True):
            requests[i].token_ids.append(token_id)
        moved = rng.randrange(len(rows))  # as after preemption: another row, counts made anew
        indices[moved] = next(i for i in range(16) if i not in indices)
        sampler.add(indices[moved], requests[moved])


@pytest.mark.parametrize("shape", [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 30}], ids=str)
def test_a_token_in_flight_changes_nothing(shape: dict[str, Any]) -> None:
    """Each step starts before the one before it has been read."""
    plain = _requests(GREEDY[2:6], **shape)
    ahead = _requests(GREEDY[2:6], **shape)
    indices = [3, 0, 2, 1]
    plain_sampler, ahead_sampler = _sampler(plain, indices), _sampler(ahead, indices)
    place = torch.tensor(indices)
    expected = []
    for step in range(4):
        expected.append(_sample(plain_sampler, _logits(4, step), indices, plain))
        for request, token_id in zip(plain, expected[-1].token_ids, strict=True):
            request.token_ids.append(token_id)
    pending = None
    for step in range(4):
        items = [SampleItem(i, r, r.num_tokens + (step > 0)) for i, r in zip(indices, ahead, strict=True)]
        started = ahead_sampler.sample(_logits(4, step), items, place, _positions(items))
        if pending is not None:
            result = pending.result()
            assert result == expected[step - 1]
            for request, token_id in zip(ahead, result.token_ids, strict=True):
                request.token_ids.append(token_id)
        pending = started
    assert pending is not None
    assert pending.result() == expected[-1]


def test_min_tokens_counts_the_token_in_flight() -> None:
    request = make_request(temperature=0.0, min_tokens=2)
    sampler = _sampler([request], [0])
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = 5.0
    logits[0, 4] = 1.0
    assert _sample(sampler, logits, [0], [request]).token_ids == [4]
    assert _sample(sampler, logits, [0], [request], ahead=1).token_ids == [4]
    request.token_ids.append(4)
    assert _sample(sampler, logits, [0], [request]).token_ids == [4]
    assert _sample(sampler, logits, [0], [request], ahead=1).token_ids == [2]


DRAWN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.9, "logprobs": 2},
    {"min_p": 0.1, "presence_penalty": 1.0},
    {"temperature": 1.5, "top_k": 120, "top_p": 0.95, "min_p": 0.01, "logit_bias": {4: 3.0}},
    {"top_k": VOCAB, "seed": -(2**63)},
]


def test_draws_equal_the_twins_and_depend_on_no_neighbour() -> None:
    requests = _requests([{k: v for k, v in shape.items() if k != "seed"} for shape in DRAWN])
    for request, shape in zip(requests, DRAWN, strict=True):
        request.seed = shape.get("seed", request.seed)
    indices = [5, 1, 6, 0, 3, 2, 4]
    logits = _logits(len(requests), 3)
    together = _sample(_sampler(requests, indices), logits, indices, requests)
    again = _sample(_sampler(requests, range(9, 16)), logits, range(9, 16), requests)
    assert again == together
    for i, request in enumerate(requests):
        alone = _sample(_sampler([request], [i]), logits[i : i + 1], [i], [request])
        assert (alone.token_ids, alone.logprobs) == ([together.token_ids[i]], [together.logprobs[i]])
    moved = _sample(_sampler(requests, indices), logits, indices, requests, ahead=1)
    assert moved.token_ids != together.token_ids
    assert moved.token_ids[1] == together.token_ids[1]


def test_twin_behind_the_sampler_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = _requests(DRAWN[:6])
    indices = list(range(6))
    by_kernels = [_sample(_sampler(requests, indices), _logits(6, seed), indices, requests) for seed in range(3)]
    _use_twins(monkeypatch)
    by_twins = [_sample(_sampler(requests, indices), _logits(6, seed), indices, requests) for seed in range(3)]
    assert by_twins == by_kernels


def _use_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample_tokens(*arguments: torch.Tensor, **_: object) -> torch.Tensor:
        return sampling_twin.sample_tokens(*arguments)

    monkeypatch.setattr(device_sampler, "sample_tokens", sample_tokens)
    monkeypatch.setattr(device_sampler, "apply_penalties_", penalties_twin.apply_penalties_)
    monkeypatch.setattr(device_sampler, "count_tokens_", penalties_twin.count_tokens_)


def test_sample_and_add_read_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_twins(monkeypatch)  # the interpreter reads tensors as a matter of course
    requests = _requests([*GREEDY, *DRAWN[:6]])
    indices = list(range(len(requests)))
    sampler = DeviceSampler(VOCAB, EOS, 16, CPU)

    def refuse(*_: object) -> Any:
        raise AssertionError("reads from the device")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
            patch.setattr(torch.Tensor, name, refuse)
        for index, request in zip(indices, requests, strict=True):
            sampler.add(index, request)
        logits = _logits(len(requests), 0)
        items = [SampleItem(i, r, r.num_tokens) for i, r in zip(indices, requests, strict=True)]
        place, positions = torch.tensor(indices), _positions(items)
        samples = [sampler.sample(logits.clone(), items, place, positions) for _ in range(2)]
    assert len(samples[1].result().token_ids) == len(requests)


def test_parameters_go_up_once_and_rows_cost_nothing_unless_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    _use_twins(monkeypatch)
    requests = _requests([{}, {"top_k": 3}, {"temperature": 0.0}])
    sampler = _sampler(requests, [0, 1, 2])
    uploads: list[tuple[int, ...]] = []

    def count(array: Any, device: torch.device) -> torch.Tensor:
        uploads.append(array.shape)
        return upload(array, device)

    monkeypatch.setattr(device_sampler, "upload", count)
    for _ in range(3):
        _sample(sampler, _logits(3, 0), [0, 1, 2], requests)
    assert uploads == [(16, len(device_sampler.Column))]


def test_a_row_forgets_the_sequence_before() -> None:
    first = make_request(temperature=0.0, repetition_penalty=3.0, logit_bias={4: 50.0}, min_tokens=9, logprobs=2)
    second = make_request(temperature=0.0, prompt=[8], frequency_penalty=2.0)
    sampler = _sampler([first], [0])
    logits = torch.zeros(1, VOCAB)
    logits[0, [1, 2]] = torch.tensor([1.0, 2.0])
    assert _sample(sampler, logits, [0], [first]).token_ids == [4]
    sampler.add(0, second)
    result = _sample(sampler, logits, [0], [second])
    assert (result.token_ids, result.logprobs) == ([2], [None])
    second.token_ids.append(2)
    assert _sample(sampler, logits, [0], [second]).token_ids == [1]


def test_no_rows() -> None:
    sampler = DeviceSampler(VOCAB, EOS, 4, CPU)
    none = torch.empty(0, dtype=torch.int64)
    assert sampler.sample(torch.empty(0, VOCAB), [], none, none).result() == SampledTokens([], [])


def test_log_probabilities_of_some_rows_take_no_more_memory_than_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that ask are copied, and the copy is gone when the most memory is needed."""
    copies: list[weakref.ref[torch.Tensor]] = []
    select, top_ids = torch.Tensor.index_select, device_logprobs._top_ids

    def noted(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        result = select(tensor, dim, index)
        copies.append(weakref.ref(result))
        return result

    def checked(logprobs: torch.Tensor, count: int) -> torch.Tensor:
        assert copies
        assert all(copy() is None for copy in copies)
        return top_ids(logprobs, count)

    monkeypatch.setattr(torch.Tensor, "index_select", noted)
    monkeypatch.setattr(device_logprobs, "_top_ids", checked)
    device_logprobs.TopLogprobs(_logits(4, 1), [0, 2, 3], [1, 0, 2])


@pytest.mark.parametrize("slice_size", [2**23, 700], ids=["whole", "sliced"])
@pytest.mark.parametrize("kind", ["ties", "equal", "forbidden", "float"])
def test_top_logprobs_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, kind: str, slice_size: int) -> None:
    monkeypatch.setattr(device_logprobs, "_SLICE", slice_size)
    make: dict[str, Callable[[], torch.Tensor]] = {
        "ties": lambda: _logits(5, 4, 300).round(),
        "equal": lambda: torch.zeros(5, 300),
        "forbidden": lambda: torch.where(torch.arange(300) % 40 == 7, _logits(5, 4, 300), -torch.inf),
        "float": lambda: torch.randn(5, 300, generator=torch.Generator().manual_seed(1)),
    }
    logits = make[kind]()
    token_ids = [0, 7, 47, 299, 150]
    places, num_top = [0, 1, 3, 4], [3, 0, 20, 400]
    pending = device_logprobs.TopLogprobs(logits, places, num_top).of(torch.tensor(token_ids))
    results: list[Any] = [None] * 5
    pending.put(token_ids, results)
    expected = compute_logprobs(logits[places], [token_ids[i] for i in places], num_top)
    assert results[2] is None
    assert [results[i] for i in places] == expected


def test_copies_are_of_their_own() -> None:
    array = np.arange(4)
    tensor = upload(array, CPU)
    array[0] = 9
    assert tensor.tolist() == [0, 1, 2, 3]
    copied = download(tensor)
    tensor.zero_()
    assert copied.tolist() == [0, 1, 2, 3]
