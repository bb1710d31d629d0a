"""The row table's twin on the device."""

from __future__ import annotations

import random

import pytest
import torch

from engine.core.ids import BlockId
from engine.core.request import Request
from engine.messages import AddSequence, SequenceId
from engine.runner import device_rows
from engine.runner.accelerator import HostAccelerator
from engine.runner.device_rows import DeviceRows
from engine.runner.step_layout import ON_DEVICE
from engine.sampling_params import SamplingParams


def make_request(name: str, blocks: list[int], num_tokens: int = 5) -> Request:
    request = Request(AddSequence(SequenceId(name), (1,) * num_tokens, SamplingParams(), 0, 0, 0.0), 0)
    request.block_ids = [BlockId(block) for block in blocks]
    return request


def tables_of(rows: DeviceRows, *indices: int) -> list[list[int]]:
    return rows.select_tables(torch.tensor(indices, dtype=torch.int64)).tolist()


def test_the_scratch_row_holds_the_dummy_block() -> None:
    rows = DeviceRows(HostAccelerator(), 2, 3)
    rows.refresh(make_request("a", [4, 5, 6]))
    rows.refresh(make_request("b", [7, 8, 9]))
    rows.send_blocks()
    assert set(tables_of(rows, rows.scratch_row)[0]) == {0}
    assert rows.tables.stride(0) % device_rows.TABLE_ALIGNMENT == 0


@pytest.mark.parametrize("blocks_a_copy", [1, 3, 4096])
def test_tables_follow_the_hosts(monkeypatch: pytest.MonkeyPatch, blocks_a_copy: int) -> None:
    """Random growth, removal and reuse of rows; also where a step's new blocks need several copies."""
    monkeypatch.setattr(device_rows, "BLOCKS_A_COPY", blocks_a_copy)
    rng = random.Random(blocks_a_copy)
    rows = DeviceRows(HostAccelerator(), 5, 20)
    running: list[Request] = []
    for serial in range(120):
        if running and (len(running) == 5 or rng.random() < 0.3):
            rows.remove([running.pop(rng.randrange(len(running))).sequence_id])
        else:
            running.append(make_request(f"s{serial}", []))
        for request in running:
            room = 20 - len(request.block_ids)
            request.block_ids += [BlockId(rng.randrange(1, 1000)) for _ in range(rng.randrange(min(room, 6) + 1))]
        indices = [rows.refresh(request).index for request in running]
        rows.send_blocks()
        for index, request, table in zip(indices, running, tables_of(rows, *indices), strict=True):
            assert table[: len(request.block_ids)] == request.block_ids
            assert rows.block_tables[index, : len(request.block_ids)].tolist() == request.block_ids


def test_rows_given_away_are_named_once() -> None:
    rows = DeviceRows(HostAccelerator(), 2, 1)
    row = rows.refresh(make_request("a", [1]))
    assert rows.take_added() == [row]
    rows.refresh(row.request)
    assert rows.take_added() == []


def test_sampled_tokens_are_the_next_inputs() -> None:
    rows = DeviceRows(HostAccelerator(), 3, 1)
    held = [rows.refresh(make_request(name, [1])) for name in "ab"]
    indices = torch.tensor([row.index for row in held])
    rows.note_sampled(held, [5, 6], indices, torch.tensor([70, 80]))
    assert rows.last_tokens[indices.tolist()].tolist() == [ON_DEVICE, ON_DEVICE]
    assert rows.last_positions[indices.tolist()].tolist() == [5, 6]
    input_ids = torch.tensor([ON_DEVICE, 33, ON_DEVICE])
    rows.fill_tokens_(input_ids, torch.tensor([held[1].index, held[0].index, held[0].index]))
    assert input_ids.tolist() == [80, 33, 70]
