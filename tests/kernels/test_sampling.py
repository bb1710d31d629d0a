"""`kernels.sampling` against its torch twin, the sorted definition, and the filters of the CPU's sampler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
import triton
import triton.language as tl

from engine.sampling.filters import apply_filters
from engine.sampling_params import SamplingParams
from kernels.reference.sampling import kept_tokens, race_times, scaled_distances
from kernels.reference.sampling import sample_tokens as reference
from kernels.row_parameters import Column
from kernels.sampling import SamplingWorkspace, sample_tokens
from kernels.sampling_border import find_kept
from kernels.sampling_candidates import CANDIDATES, PLANS
from kernels.sampling_row import COLUMNS, load_divisor, load_largest
from tests.kernels.rows import Row, make_table

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
"""numpy's, of differences that a device makes -inf as well, as is meant."""

T, K, P, M = Column.TEMPERATURE, Column.TOP_K, Column.TOP_P, Column.MIN_P
INF = math.inf
Z_BOUND = 3.1
"""The 99.9 % quantile of the normal distribution."""


@triton.jit
def _border_kernel(logits, vocab_size, num_chunks, parameters, chunk_largest, plans, near, near_ids, out):
    """The border that `_finish_kernel` draws within, of one row."""
    row = tl.program_id(0)
    own = parameters + row * COLUMNS
    largest = load_largest(chunk_largest + row * num_chunks, num_chunks, 4)
    plan = plans + row * PLANS
    num_near = tl.load(plan).to(tl.int32)
    is_short = num_near >= 0
    count = tl.where(is_short, num_near, vocab_size)
    border, last_tie = find_kept(
        own,
        logits + row * vocab_size,
        near + row * CANDIDATES,
        near_ids + row * CANDIDATES,
        is_short,
        count,
        vocab_size,
        largest,
        load_divisor(own),
        plan,
    )
    tl.store(out + row * 2, border)
    tl.store(out + row * 2 + 1, last_tie)


def _poisoned_workspace(num_rows: int, vocab_size: int) -> SamplingWorkspace:
    workspace = SamplingWorkspace(num_rows, vocab_size, torch.device("cpu"))
    for tensor in vars(workspace).values():
        if isinstance(tensor, torch.Tensor):
            tensor.fill_(torch.nan if tensor.is_floating_point() else -(2**31) + 77)
    return workspace


def _sample(logits: torch.Tensor, table: torch.Tensor, positions: Sequence[int] | None = None) -> list[int]:
    places = torch.arange(len(logits))
    workspace = _poisoned_workspace(len(logits), logits.shape[1])
    at = torch.tensor(positions) if positions is not None else places + 10
    return sample_tokens(logits, table, places, at, workspace=workspace).tolist()


def _kept(logits: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
    """bool (R, vocab), what the kernels keep by top-k and top-p, and whether each row was searched in a part of it."""
    num_rows, vocab_size = logits.shape
    places = torch.arange(num_rows)
    workspace = _poisoned_workspace(num_rows, vocab_size)
    sample_tokens(logits, table, places, places, workspace=workspace)
    out = torch.full((num_rows, 2), -7, dtype=torch.int32)
    w = workspace
    _border_kernel[(num_rows,)](
        logits, vocab_size, w.num_chunks, table, w.chunk_largest, w.plans, w.candidates, w.candidate_ids, out
    )
    bits = scaled_distances(logits, table[:, T]).view(torch.int32)
    ids = torch.arange(vocab_size)
    kept = (bits < out[:, :1]) | ((bits == out[:, :1]) & (ids <= out[:, 1:]))
    return kept, (w.plans[:, 0] >= 0).tolist()


def _logits(vocab_size: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def _with(logits: torch.Tensor, places: Sequence[int] | slice, value: float) -> torch.Tensor:
    changed = logits.clone()
    changed[places] = value
    return changed


BORDERS: list[Row] = [
    {K: 1},
    {K: 7},
    {P: 0.5},
    {P: 0.95, T: 1.5},
    {K: 40, P: 0.9},
    {K: 40, P: 0.9, T: 0.2},
]
V = 4200
"""Two chunks, and more tokens than are copied."""
ALL = torch.arange(V)
PEAK = _with(torch.zeros(V), [4100], 9.0)
EQUAL_10 = _with(torch.full((V,), -50.0), slice(4090, 4100), 3.0)

ROWS: dict[str, tuple[torch.Tensor, Row]] = {
    **{f"normal {row}": (_logits(V, 1), row) for row in BORDERS},
    **{f"ties {row}": (_logits(V, 2).bfloat16().float(), row) for row in BORDERS},
    "few values, k": (_logits(V, 3).round(), {K: 300}),
    "few values, p": (_logits(V, 3).round(), {P: 0.6}),
    "few values, k and p at one border": (_logits(V, 3).round(), {K: 300, P: 0.99}),
    "all equal, k": (torch.zeros(V), {K: 37}),
    "all equal, k across chunks": (torch.full((V,), -3.5), {K: 4150}),
    "all equal, p": (torch.zeros(V), {P: 0.25}),
    "all equal, k and p": (torch.zeros(V), {K: 100, P: 0.3}),
    "10 equal, p 0.9": (EQUAL_10, {P: 0.9}),
    "10 equal, p 0.6": (EQUAL_10, {P: 0.6}),
    "10 equal, p 0.7, k 10": (EQUAL_10, {P: 0.7, K: 10}),
    "p reached exactly": (_with(_with(torch.full((V,), -INF), [4150], 0.0), [7, 4000], -math.log(2)), {P: 0.5}),
    "tail, k": (PEAK, {K: 3}),
    "tail, p below the peak": (PEAK, {P: 0.6}),
    "tail, p within the tail": (PEAK, {P: 0.9}),
    "p tiny": (_logits(V, 4), {P: 1e-9}),
    "p nearly 1": (_logits(60, 4).repeat(70), {P: 0.999}),
    "k = vocabulary - 1": (_logits(V, 5), {K: V - 1}),
    "k = vocabulary, p": (_logits(V, 5), {K: V, P: 0.7}),
    "k above the vocabulary, p": (_logits(V, 5), {K: 2**31 - 1, P: 0.7}),
    "k above the finite": (_with(_logits(V, 6), slice(5, V), -INF), {K: 9}),
    "one finite": (_with(torch.full((V,), -INF), [4150], -3.0), {K: 5, P: 0.5}),
    "NaN and -inf": (_with(_with(_logits(V, 7), slice(0, V, 3), -INF), slice(0, V, 4), math.nan), {K: 50, P: 0.8}),
    "+inf twice": (_with(_logits(V, 8), [40, 4130], INF), {P: 0.4}),
    "+inf and -inf": (_with(_with(_logits(V, 8), [4130], INF), slice(0, 4096), -INF), {K: 2}),
    "huge": (_logits(V, 9) * 1e38, {K: 30, P: 0.9}),
    "huge outlier below": (_with(_logits(V, 9), [3, 4], -1e30), {K: 30}),
    "close": (1000.0 + _logits(V, 10) * 1e-3, {K: 100, P: 0.5}),
    "temperature 1e-20": (_logits(V, 11), {T: 1e-20, K: 3}),
    "temperature below float32": (_with(_logits(V, 11), [17, 4100], 99.0), {T: 1e-60, P: 0.5}),
    "temperature 100, k": (_logits(V, 11), {T: 100.0, K: 600}),
    "temperature 100, p": (_logits(V, 11), {T: 100.0, P: 0.95}),
    "denormal": (_logits(V, 12) * 1e-42, {K: 20}),
    "steps of one bit": ((ALL + 0x3F800000).int().view(torch.float32), {K: 1000}),
    "geometric": (-(1.01 ** (ALL % 3000).float()), {K: 500, P: 0.9}),
}


def test_kept_set_equals_the_sorted_definition() -> None:
    logits = torch.stack([row_logits for row_logits, _ in ROWS.values()])
    table = make_table([row for _, row in ROWS.values()])
    kept, is_part = _kept(logits, table)
    expected = kept_tokens(scaled_distances(logits, table[:, T]), table)
    wrong = [name for i, name in enumerate(ROWS) if not torch.equal(kept[i], expected[i])]
    assert not wrong
    assert any(is_part)
    assert not all(is_part)


def test_definition_equals_the_filters_of_the_cpu_sampler() -> None:
    finite = {name: row for name, row in ROWS.items() if bool(row[0].isfinite().all())}
    for minimum in (0.0, 0.02, 1.0):
        table = make_table([{**row, M: minimum} for _, row in finite.values()])
        logits = torch.stack([row_logits for row_logits, _ in finite.values()])
        scaled = -scaled_distances(logits, table[:, T])
        weights = scaled.exp()
        params = [
            SamplingParams(top_k=int(row.get(K, 0)), top_p=row.get(P, 1.0), min_p=minimum) for _, row in finite.values()
        ]
        apply_filters(scaled, weights, params)
        kept = kept_tokens(-scaled, table)
        for i, name in enumerate(finite):
            assert torch.equal(weights[i] > 0, kept[i] & (scaled[i].exp() > 0)), name


def test_tokens_equal_the_twins() -> None:
    """All kinds of rows in one batch, over poisoned scratch memory."""
    chosen = list(ROWS.values())[::3]
    rows = [row for _, row in chosen]
    logits = torch.stack([*(row_logits for row_logits, _ in chosen), *(_logits(V, seed) for seed in range(8))])
    rows += [{T: 0.0}, {}, {M: 0.1}, {T: 0.7}, {M: 1.0}, {K: 20, M: 0.9}, {P: 0.9, M: 0.9}, {K: 20, M: 1.0}]
    table = make_table([{Column.SEED_HIGH: 2**31 + i, Column.INDEX: i, **row} for i, row in enumerate(rows)])
    positions = [2**33 + 100 * i for i in range(len(rows))]
    assert (
        _sample(logits, table, positions)
        == reference(logits, table, torch.arange(len(rows)), torch.tensor(positions)).tolist()
    )


def test_a_row_depends_neither_on_the_batch_nor_on_its_place() -> None:
    rows: list[Row] = [{T: 0.0}, {}, {K: 5}, {P: 0.9, T: 1.2}, {M: 0.05}, {K: 4150, P: 0.99}]
    logits = torch.stack([_logits(V, seed) for seed in range(len(rows))])
    table = make_table(rows)
    together = _sample(logits, table)
    order = [3, 5, 0, 2, 4, 1]
    wide = torch.full((len(rows), V + 8), torch.nan)
    wide[:, 3 : V + 3] = logits[order]
    places = torch.tensor(order)
    shuffled = sample_tokens(wide[:, 3 : V + 3], table, places, places + 10)
    assert shuffled.tolist() == [together[i] for i in order]
    for i in range(len(rows)):
        place = torch.tensor([i])
        kind = {"has_draws": i in {1, 4}, "has_borders": i in {2, 3, 5}}
        assert sample_tokens(logits[i : i + 1], table, place, place + 10, **kind).tolist() == [together[i]]


def test_rows_without_anything_to_draw_end_in_token_0() -> None:
    rows: list[Row] = [{T: 0.0}, {}, {K: 5}, {P: 0.5}, {M: 0.1}, {K: 3, P: 0.9, M: 1.0}]
    table = make_table(rows)
    for value in (-INF, math.nan):
        assert _sample(torch.full((len(rows), V), value), table) == [0] * len(rows)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(5, V)
    logits[1, V - 1] = 1.0
    logits[2, [17, 4000, 4199]] = 5.0
    logits[3] = -INF
    logits[3, 4100] = -3e38
    logits[4, [9, 4099]] = INF
    logits[4, 2] = math.nan
    places = torch.arange(5)
    table = make_table([{T: 0.0}] * 5)
    tokens = sample_tokens(logits, table, places, places, has_draws=False, has_borders=False)
    assert tokens.tolist() == [0, V - 1, 17, 4100, 9]


def test_no_rows_and_one_token() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert sample_tokens(torch.empty(0, 5), make_table([{}]), none, none).tolist() == []
    table = make_table([{}, {K: 1, P: 0.1}, {P: 0.5}, {T: 0.0}])
    assert _sample(torch.zeros(4, 1), table) == [0] * 4


def _assert_distribution(tokens: Sequence[int], probabilities: Sequence[float]) -> None:
    """Chi-square test; every probability is 0 or large enough for it. The seeds are fixed, so it is deterministic."""
    counts = Counter(tokens)
    assert all(probabilities[i] > 0.0 for i in counts)
    expected = {i: p * len(tokens) for i, p in enumerate(probabilities) if p > 0.0}
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in expected.items())
    freedom = len(expected) - 1
    # Wilson and Hilferty's normal approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + Z_BOUND * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound, (chi_square, bound)


def _probabilities(logits: torch.Tensor, row: Row) -> list[float]:
    """Of each token of one row: of what the sorted definition keeps."""
    table = make_table([row])
    found = scaled_distances(logits.unsqueeze(0), table[:, T])
    weights = (-found[0].double()).exp() * kept_tokens(found, table)[0]
    return (weights / weights.sum()).tolist()


@pytest.mark.parametrize("moving", ["position", "seed", "index"])
@pytest.mark.parametrize(
    "row",
    [{}, {T: 0.6}, {T: 1.7}, {K: 7}, {P: 0.8}, {M: 0.15}, {T: 1.3, K: 20, P: 0.9, M: 0.05}],
    ids=str,
)
def test_distribution_of_the_twin(row: Row, moving: str) -> None:
    """Over thousands of draws; `test_tokens_equal_the_twins` carries it over to the kernels."""
    logits = _logits(40, seed=3, spread=1.0)
    count = 4000
    moved = torch.arange(count)
    table = make_table([row]).repeat(count, 1)
    positions = torch.full((count,), 3)
    if moving == "position":
        positions = moved
    else:
        table[:, Column.SEED_LOW if moving == "seed" else Column.INDEX] = moved.double()
    tokens = []
    for part in moved.split(1000):
        tokens += reference(logits.expand(len(part), -1), table, part, positions[part]).tolist()
    _assert_distribution(tokens, _probabilities(logits, row))


def test_distribution_of_the_twin_over_many_chunks() -> None:
    logits = torch.full((9000,), -INF)
    places = list(range(5, 9000, 700))
    logits[places] = _logits(len(places), spread=0.7)
    table = make_table([{}]).repeat(200, 1)
    tokens: list[int] = []
    for start in range(0, 2000, 200):
        at = torch.arange(start, start + 200)
        tokens += reference(logits.expand(200, -1), table, torch.arange(200), at).tolist()
    _assert_distribution(tokens, logits.softmax(-1).tolist())


@pytest.mark.parametrize("row", [{}, {K: 5, P: 0.9}], ids=str)
def test_distribution_of_the_kernels(row: Row) -> None:
    logits = _with(_logits(8, seed=3, spread=0.8), [2], -INF)
    count = 100
    table = make_table([row], seed=1).repeat(count, 1)
    kind = {"has_draws": not row, "has_borders": bool(row)}
    places = torch.arange(count)
    tokens = sample_tokens(logits.expand(count, -1), table, places, places, **kind).tolist()
    _assert_distribution(tokens, _probabilities(logits, row))


def test_forbidden_tokens_have_no_time() -> None:
    rows: list[Row] = [{}, {K: 4}, {P: 0.9}, {M: 0.01}, {T: 100.0}]
    logits = _with(_logits(300), [0, 7, 29, 299], -INF)
    logits[int(logits.argmax())] = math.nan
    times = race_times(logits.expand(5, -1), make_table(rows), torch.arange(5), torch.arange(5))
    assert bool((times[:, ~logits.isfinite()] == INF).all())
    assert bool((times < INF).any(-1).all())


@pytest.mark.full
@pytest.mark.parametrize("vocab_size", [4095, 4096, 4097, 12_289])
def test_random_rows(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    rows: list[Row] = []
    for _ in range(30):
        k, p, t, m = torch.rand(4, generator=generator).tolist()
        rows.append({K: int(vocab_size ** (1.1 * k)), P: min(0.999, 1.2 * p), T: 4 * t, M: max(0.0, m - 0.5) ** 3})
    logits = torch.randn(len(rows), vocab_size, generator=generator) * torch.rand(30, 1, generator=generator) * 5
    logits[::2] = logits[::2].bfloat16().float()
    table = make_table(rows)
    kept, _ = _kept(logits, table)
    free = table.clone()
    free[:, M] = 0.0
    expected = kept_tokens(scaled_distances(logits, table[:, T]), free)
    assert torch.equal(kept, expected)
    positions = torch.arange(len(rows)) * 31
    assert (
        _sample(logits, table, positions.tolist())
        == reference(logits, table, torch.arange(len(rows)), positions).tolist()
    )
