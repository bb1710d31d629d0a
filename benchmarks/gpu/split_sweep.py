"""The number of segments that decodes are cut into, against others: part of the section `tiles`."""

from __future__ import annotations

from benchmarks.gpu.budget import Budget
from benchmarks.gpu.device import Device
from benchmarks.gpu.paged_batch import LLAMA_8B, QWEN_05B, Heads, attend, paged_batch
from benchmarks.gpu.results import Reporter
from benchmarks.gpu.tile_candidates import ITEMSIZE, Load
from kernels.attention_splits import MAX_SPLITS, MIN_SEGMENT, choose_splits
from kernels.tiles import attention_tile, device_of

LOADS = (
    Load(QWEN_05B, 32, 2048, True),
    Load(LLAMA_8B, 40, 2048, True),
    Load(LLAMA_8B, 48, 4096, True),
    Load(LLAMA_8B, 8, 8192, True),
    Load(LLAMA_8B, 1, 32768, True),
)
"""Too few programs without splits for the device, or a last wave of few."""
SMOKE_LOADS = (Load(Heads(4, 2, 16), 1, 300, True),)
NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LOAD_SECONDS = 6


def run(device: Device, report: Reporter, budget: Budget) -> None:
    for load in SMOKE_LOADS if device.is_smoke else LOADS:
        if budget.allows(LOAD_SECONDS):
            _measure(device, report, load)
        else:
            report.missing(f"splits of {load}", "no time left")


def _measure(device: Device, report: Reporter, load: Load) -> None:
    heads = load.heads
    what = device_of(device.torch_device)
    tile = attention_tile(what.family, heads.head_dim, ITEMSIZE, True)
    chosen = choose_splits(what, tile, load.batch * heads.num_kv_heads, load.num_keys)
    most = min(MAX_SPLITS, max(1, load.num_keys // MIN_SEGMENT))
    batch = paged_batch(device, heads, (1,) * load.batch, (load.num_keys,) * load.batch)
    seconds = {
        number: device.seconds(lambda number=number: attend(batch, num_splits=number), in_graph=True)
        for number in sorted({chosen, *(number for number in NUMBERS if number <= most)})
    }
    best = min(seconds, key=lambda number: seconds[number])
    # NOTE: the bytes that are read without splits; partial results come on top.
    num_bytes = heads.decode_bytes(load.batch, load.num_keys)
    times = ", ".join(f"{number}: {found * 1e6:.1f}" for number, found in seconds.items())
    report.speed(
        f"{load}: {chosen} splits as chosen, {best} are best",
        num_bytes / seconds[chosen] / 1e9,
        "GB/s",
        against=device.copy_rate / 1e9,
        note=f"µs by splits: {times}",
    )
