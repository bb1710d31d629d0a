"""The flat batch against a token-by-token construction."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from engine.core.ids import BlockId
from engine.core.plan import ScheduledSequence
from engine.core.request import Request
from engine.messages import AddSequence, SequenceId
from engine.runner.rows import RowTable
from engine.runner.step_inputs import StepInputs, build_step_inputs
from engine.sampling_params import SamplingParams


@dataclass
class Span:
    """A sequence's share of a step: it has `num_tokens`, of which `start` are computed and `new` come now."""

    num_tokens: int
    start: int
    new: int


def make_step(spans: list[Span], block_size: int, seed: int = 0) -> list[ScheduledSequence]:
    rng = random.Random(seed)
    free = list(range(1, 4000))
    rng.shuffle(free)
    scheduled = []
    for serial, span in enumerate(spans):
        tokens = tuple(rng.randrange(1000) for _ in range(span.num_tokens))
        request = Request(AddSequence(SequenceId(f"s{serial}"), tokens, SamplingParams(), 0, 0, 0.0), serial)
        end = span.start + span.new
        request.block_ids = [BlockId(free.pop()) for _ in range(-(-end // block_size))]
        scheduled.append(ScheduledSequence(request, span.start, span.new, samples=end == span.num_tokens))
    return scheduled


def check(scheduled: list[ScheduledSequence], inputs: StepInputs, block_size: int) -> None:
    """Every tensor against loops over tokens; sequences are recognised by their slots."""
    metadata = inputs.metadata
    num_decodes = sum(item.num_new_tokens == 1 for item in scheduled)
    assert metadata.num_decodes == num_decodes
    assert all(n == 1 for n in metadata.query_lens[:num_decodes])
    assert all(n > 1 for n in metadata.query_lens[num_decodes:])
    decode_lens = list(metadata.seq_lens_list[:num_decodes])
    assert decode_lens == sorted(decode_lens, reverse=True)
    assert metadata.query_starts.tolist() == [sum(metadata.query_lens[:i]) for i in range(len(scheduled) + 1)]
    assert metadata.seq_lens.tolist() == list(metadata.seq_lens_list)
    assert metadata.query_starts.dtype == metadata.seq_lens.dtype == metadata.block_tables.dtype == torch.int32
    assert metadata.slot_mapping.dtype == inputs.input_ids.dtype == inputs.positions.dtype == torch.int64

    item_of_block = {item.request.block_ids[0]: item for item in scheduled}
    laid_out = [item_of_block[BlockId(block)] for block in metadata.block_tables[:, 0].tolist()]
    ids, positions, slots = [], [], []
    for item in laid_out:
        for position in range(item.start, item.start + item.num_new_tokens):
            ids.append(item.request.token_ids[position])
            positions.append(position)
            slots.append(item.request.block_ids[position // block_size] * block_size + position % block_size)
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    assert metadata.slot_mapping.tolist() == slots
    width = metadata.block_tables.shape[1]
    assert width == max(len(item.request.block_ids) for item in scheduled)
    for item, table in zip(laid_out, metadata.block_tables.tolist(), strict=True):
        assert table == item.request.block_ids + [0] * (width - len(item.request.block_ids))

    sampling = [item for item in laid_out if item.samples]
    assert [row.request for row in inputs.layout.sample_rows] == [item.request for item in sampling]
    assert [scheduled[place].request for place in inputs.layout.sample_places] == [item.request for item in sampling]
    if inputs.sample_indices is None:
        assert len(sampling) == len(ids)
    else:
        ends = metadata.query_starts[1:].tolist()
        assert inputs.sample_indices.tolist() == [ends[laid_out.index(item)] - 1 for item in sampling]


@pytest.mark.parametrize("seed", range(40))
def test_random_steps(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([1, 7, 16])
    spans = []
    for _ in range(rng.randrange(1, 20)):
        num_tokens = rng.randrange(1, 150)
        start = rng.choice([0, num_tokens - 1, rng.randrange(num_tokens)])
        spans.append(
            Span(num_tokens, start, rng.choice([num_tokens - start, rng.randrange(1, num_tokens - start + 1)]))
        )
    scheduled = make_step(spans, block_size, seed)
    check(scheduled, build_step_inputs(scheduled, RowTable(32, 200), block_size), block_size)


def test_only_decodes_sample_everything() -> None:
    scheduled = make_step([Span(5, 4, 1), Span(90, 89, 1), Span(17, 16, 1)], 16)
    inputs = build_step_inputs(scheduled, RowTable(3, 8), 16)
    check(scheduled, inputs, 16)
    assert inputs.sample_indices is None
    assert inputs.layout.sample_places == (1, 2, 0)


def test_a_chunk_in_the_middle_of_a_prompt_samples_nothing() -> None:
    scheduled = make_step([Span(50, 10, 20)], 16)
    inputs = build_step_inputs(scheduled, RowTable(1, 8), 16)
    check(scheduled, inputs, 16)
    assert inputs.layout.sample_rows == ()


def test_a_decode_takes_its_token_from_the_table() -> None:
    """The runner knows the token before the core has appended it."""
    table = RowTable(4, 8)
    scheduled = make_step([Span(6, 0, 6)], 4)
    request = scheduled[0].request
    first = build_step_inputs(scheduled, table, 4)
    table.note_tokens(first.layout.sample_rows, [777], first.layout.sample_positions)
    request.block_ids.append(BlockId(3999))
    second = build_step_inputs([ScheduledSequence(request, 6, 1, samples=True)], table, 4)
    assert request.num_tokens == 6
    assert second.input_ids.tolist() == [777]


def test_the_last_token_of_a_prompt_is_not_taken_for_a_sampled_one() -> None:
    table = RowTable(4, 8)
    scheduled = make_step([Span(6, 0, 5)], 4)
    request = scheduled[0].request
    build_step_inputs(scheduled, table, 4)
    request.block_ids.append(BlockId(3999))
    inputs = build_step_inputs([ScheduledSequence(request, 5, 1, samples=True)], table, 4)
    assert inputs.input_ids.tolist() == [request.token_ids[5]]


def test_a_token_that_nobody_knows_yet_is_entered_when_it_has_come() -> None:
    table = RowTable(4, 8)
    scheduled = make_step([Span(6, 0, 6), Span(9, 0, 9)], 4)
    first = build_step_inputs(scheduled, table, 4)
    assert first.layout.pending == ()
    for item in scheduled:
        item.request.block_ids.append(BlockId(3998 + len(item.request.token_ids)))
    follow = [ScheduledSequence(item.request, item.num_new_tokens, 1, samples=True) for item in scheduled]
    second = build_step_inputs(follow, table, 4)
    assert (second.layout.pending, second.layout.sample_positions) == ((0, 1), (10, 7))
    table.note_tokens(first.layout.sample_rows, [70, 71], first.layout.sample_positions)
    second.fill_pending(table)
    assert second.input_ids.tolist() == [71, 70]
