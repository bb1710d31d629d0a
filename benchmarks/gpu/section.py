"""The process of one section (or of all of them, in a smoke run): measures, and prints rows for `benchmarks.gpu`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback

import torch
import triton

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.results import DEVICE_MARK, NO_DEVICE, Reporter


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    started = time.monotonic()
    if not arguments.smoke and not torch.cuda.is_available():
        print("torch sees no CUDA device; --smoke tests this script without one", file=sys.stderr)
        return NO_DEVICE
    device = Device(is_smoke=arguments.smoke)
    print(f"{DEVICE_MARK}{device.name}; torch {torch.__version__}, triton {triton.__version__}", flush=True)
    for name in arguments.names:
        report = Reporter(name, is_smoke=arguments.smoke)
        budget = Budget(arguments.seconds - (time.monotonic() - started))
        try:
            run_section(name, device, report, budget)
        except Exception as error:
            # NOTE: time on a device is rare: the other sections of a smoke run, and the rows so far, still count.
            traceback.print_exc()
            report.failed("section", f"{type(error).__name__}: {error}"[:200])
    return 0


def run_section(name: str, device: Device, report: Reporter, budget: Budget) -> None:
    """NOTE: imports are per section, so that what one needs cannot keep another from running."""
    if name == "kernels":
        from benchmarks.gpu import kernel_checks

        report.speed("copy within the device's memory, read and written", device.copy_rate / 1e9, "GB/s")
        report.speed("bf16 matrix product of torch", device.matmul_rate / 1e12, "TFLOP/s")
        kernel_checks.run(device, report, budget)
    elif name == "attention":
        from benchmarks.gpu import attention_speed

        attention_speed.run(device, report, budget)
    elif name == "layers":
        from benchmarks.gpu import layer_speed

        layer_speed.run(device, report, budget)
    elif name == "engine":
        from benchmarks.gpu import engine_checks

        engine_checks.run(device, report, budget)
    elif name == "tiles":
        from benchmarks.gpu import split_sweep, tile_sweep

        split_sweep.run(device, report, budget)
        tile_sweep.run(device, report, budget)
    else:
        from benchmarks.gpu import end_to_end

        end_to_end.run(name, device, report, budget)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # NOTE: not by way of `sys.exit`, which would wait for threads that another library has left behind.
    os._exit(code)
