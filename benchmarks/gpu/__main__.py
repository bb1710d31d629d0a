"""Proves and measures the GPU path in under 8 minutes, and prints one table.

    python -m benchmarks.gpu [--sections kernels,attention,...] [--seconds 465] [--output FILE] [--smoke]

Needs a CUDA device, torch 2.11 or newer with its Triton, and nothing from a network; transformers is measured beside
the engine where it can be imported. Exits with 1 where a check fails, a target is missed, or there is no device.

Rows appear on stderr as they are found, and in the table on stdout at the end, there with one row for the passed checks
of a kernel. --sections: a selection of those listed by --help, in order; `tiles`, which looks for better tiles of the
attention kernel than its table has, only runs where it is named. --output: the table also goes to this file.
--smoke: tiny shapes on the CPU under Triton's interpreter: tests the script, measures nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.results import DEVICE_MARK, NO_DEVICE, Result, condensed, parse, table

SECTIONS: dict[str, float] = {
    "kernels": 110,
    "attention": 70,
    "layers": 50,
    "engine": 60,
    "llama-3.1-8b": 200,
    "qwen2.5-0.5b": 100,
    "tiles": 300,
}
"""By name, the seconds that a section may take at most; it leaves out what does not fit."""
DEFAULT_SECTIONS = tuple(name for name in SECTIONS if name != "tiles")
DEFAULT_SECONDS = 465
SMOKE_SECONDS = 600
GRACE_SECONDS = 15
"""A section that still runs so long after its time is ended."""
REPOSITORY = Path(__file__).resolve().parents[2]
SECTION = ("-m", "benchmarks.gpu.section")
"""What runs a section, as words for Python."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    names = arguments.sections.split(",") if arguments.sections else list(DEFAULT_SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        print(f"unknown section {', '.join(unknown)}; known are {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    end = time.monotonic() + (arguments.seconds or (SMOKE_SECONDS if arguments.smoke else DEFAULT_SECONDS))
    # NOTE: each section has a process of its own: a fault on the device ends that section alone, its memory is free
    # for the next one, and its time can be bounded. A smoke run saves the starts.
    groups = [names] if arguments.smoke else [[name] for name in names]
    results: list[Result] = []
    devices: set[str] = set()
    for group in groups:
        started = time.monotonic()
        seconds = end - started if arguments.smoke else min(end - started, SECTIONS[group[0]])
        if seconds <= 0:
            results.append(Result(",".join(group), "section", note="no time left"))
            continue
        try:
            results += _run_group(group, seconds, arguments.smoke, devices)
        except _NoDeviceError:
            return 1
        print(f"{','.join(group)} took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    text = "\n".join([*sorted(devices), "", table(condensed(results))])
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    failed = sum(result.passed is False for result in results)
    met = sum(result.passed is True for result in results)
    left_out = sum(result.value is None and result.passed is None for result in results)
    print(f"{len(results)} rows: {met} checks and targets met, {failed} not; {left_out} left out", flush=True)
    return 1 if failed else 0


class _NoDeviceError(Exception):
    """There is nothing to measure; the section has said so."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--sections", help=f"some of {', '.join(SECTIONS)}, separated by commas; all but tiles by default"
    )
    parser.add_argument("--seconds", type=float, help=f"for all sections together, {DEFAULT_SECONDS} by default")
    parser.add_argument("--output", type=Path, help="write the table to this file too")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on the CPU under Triton's interpreter")
    return parser


def _run_group(names: Sequence[str], seconds: float, is_smoke: bool, devices: set[str]) -> list[Result]:
    """Runs sections in one process and collects their rows, as they come, and what they call their device."""
    # NOTE: nothing may wait for a network that is not there.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if is_smoke:
        environment["TRITON_INTERPRET"] = "1"  # must be there before triton is imported
    else:
        environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, *SECTION, *(["--smoke"] if is_smoke else []), "--seconds"]
    was_ended = threading.Event()
    results: list[Result] = []
    with subprocess.Popen(
        [*command, str(seconds), *names], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None

        def end() -> None:
            was_ended.set()
            process.kill()

        timer = threading.Timer(seconds + GRACE_SECONDS, end)
        timer.start()
        try:
            for line in process.stdout:
                if (result := parse(line)) is not None:
                    results.append(result)
                    print(table([result]).splitlines()[-1], file=sys.stderr, flush=True)
                elif line.startswith(DEVICE_MARK):
                    devices.add(line[len(DEVICE_MARK) :].strip())
                else:
                    print(line, end="", file=sys.stderr, flush=True)
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
    if was_ended.is_set():
        results.append(Result(",".join(names), "section", passed=False, note=f"ended after {seconds:.0f} s"))
    elif code == NO_DEVICE and not devices:
        raise _NoDeviceError
    elif code != 0:
        results.append(
            Result(",".join(names), "section", passed=False, note=f"failed with exit code {code}: see above")
        )
    return results


if __name__ == "__main__":
    sys.exit(main())
