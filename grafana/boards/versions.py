"""Two versions beside each other: a canary and what it would replace."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import VariableSort

from grafana.board import Board
from grafana.boards.version_latency import latency
from grafana.boards.version_load import load
from grafana.boards.version_pairs import CANARY, STABLE
from grafana.boards.version_verdict import verdict
from grafana.events import ALERT, ROLL_OUT
from grafana.variables import revision


def compare_versions() -> Board:
    return Board(
        title="Compare versions",
        description="Two versions of a service beside each other. A version is a ReplicaSet: a canary's Deployment has "
        "its own, and so has every roll-out of one Deployment. Choose which is which in the head.",
        since="1h",
        one_service=True,
        variables=(
            revision(
                STABLE, "Stable", "ReplicaSets of the version that is to be replaced", VariableSort.ALPHABETICAL_ASC
            ),
            revision(CANARY, "Canary", "ReplicaSets of the version that is tried", VariableSort.ALPHABETICAL_DESC),
        ),
        sections=[verdict(), latency(), load()],
        events=(ROLL_OUT, ALERT),
    )
