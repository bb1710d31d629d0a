"""The dashboard of the engine."""

from __future__ import annotations

from grafana.board import Board
from grafana.boards.batches import batch, queue, steps, throughput
from grafana.boards.gpu import gpus
from grafana.boards.requests import latency, lengths
from grafana.boards.resources import kv_cache, process
from grafana.events import ALERT, ROLL_OUT, SCALE_DOWN, SCALE_UP
from grafana.variables import gpu_model


def engine() -> Board:
    return Board(
        title="Engine",
        description="What the engines do: batches, steps, queue, KV cache, latency, lengths. Choose a pod to see one.",
        since="1h",
        variables=(gpu_model(),),
        sections=[
            throughput(),
            batch(),
            steps(),
            queue(),
            kv_cache(),
            latency(),
            lengths(),
            process(),
            gpus(108, 90),
        ],
        events=(ALERT, ROLL_OUT, SCALE_UP, SCALE_DOWN),
    )
