"""`python -m grafana.preview --prometheus URL` draws each dashboard from that Prometheus as a PNG."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grafana.catalogue import FOLDER
from grafana.preview.page import Drawn, draw
from grafana.preview.source import Source

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """`15m` as 900.0. Raises `ValueError` for another form."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ValueError(f"{text!r} is no duration such as 30s, 15m, 3h or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def draw_all(
    url: str,
    folder: Path,
    *,
    since: float | None = None,
    end: float | None = None,
    min_step: float = 15.0,
    speed: int = 1,
    rewrite: Callable[[str], str] = lambda expression: expression,
    expand: bool = False,
    given: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> dict[str, list[Drawn]]:
    """Draws every dashboard of grafana/dashboards into `folder`, one PNG a uid.

    since: seconds of the time range (each dashboard's own unless given). end: Unix seconds (now unless given).
    min_step: the scrape interval. speed, rewrite, expand: as for `Source` and `draw`.
    given: values of variables by the dashboard's uid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for file in sorted(FOLDER.glob("*.json")):
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        until = time.time() if end is None else end
        length = since if since is not None else seconds(dashboard["time"]["from"].removeprefix("now-"))
        # NOTE: on whole steps, as Grafana asks; 300 points are one for two pixels of a panel of a third of the width.
        step = max(min_step, length / 300)
        until -= until % step
        source = Source(url, until - length, until, step, speed, rewrite)
        values = (given or {}).get(file.stem)
        made[file.stem] = draw(dashboard, source, folder / f"{file.stem}.png", given=values, expand=expand)
    return made


def tell(made: Mapping[str, Sequence[Drawn]], folder: Path) -> None:
    """Prints where the pictures are, and which of their panels have no data."""
    for uid, drawn in made.items():
        empty = [panel.title for panel in drawn if panel.kind != "row" and panel.series == 0]
        print(f"{folder / uid}.png: {len(drawn)} panels" + (f"; without data: {', '.join(empty)}" if empty else ""))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m grafana.preview", description=__doc__)
    parser.add_argument("--prometheus", required=True, help="URL, such as http://127.0.0.1:9090")
    parser.add_argument("--out", type=Path, default=Path("build/dashboards"), help="folder for the pictures")
    parser.add_argument("--since", type=seconds, help="time range, such as 1h (each dashboard's own unless given)")
    parser.add_argument(
        "--var", action="append", default=[], metavar="NAME=VALUE[,VALUE]", help="a variable's value, as in the head"
    )
    parser.add_argument("--expand", action="store_true", help="open collapsed rows")
    given = parser.parse_args(words)
    chosen = {name: values.split(",") for name, _, values in (one.partition("=") for one in given.var)}
    made = draw_all(
        given.prometheus,
        given.out,
        since=given.since,
        expand=given.expand,
        given={file.stem: chosen for file in FOLDER.glob("*.json")},
    )
    tell(made, given.out)


if __name__ == "__main__":
    main()
