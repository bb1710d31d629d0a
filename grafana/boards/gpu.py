"""The row of the GPUs, from NVIDIA's DCGM exporter.

NOTE: a classic dashboard cannot hide a row by its data. The row is collapsed, so that it asks nothing until somebody
opens it, and repeated over the models of the GPUs that the chosen pods have. Without the exporter, or on CPUs, that
variable is empty; from Grafana 11 on the head of the row then shows once, with "All" in place of a model.
"""

from __future__ import annotations

from grafana.board import Line, Section
from grafana.dcgm import (
    LAST_ERROR,
    MEMORY_BANDWIDTH,
    MEMORY_FREE,
    MEMORY_USED,
    POWER,
    TEMPERATURE,
    TENSOR_CORES,
    UTILISATION,
    Field,
)
from grafana.panels import Builder, Note, lines
from grafana.queries import Query

NO_GPU = "No GPU, or no DCGM exporter"
_LEGEND = "{{pod}} GPU {{gpu}}"


def _of_gpus(field: Field) -> str:
    matchers = ',modelName=~"$gpu_model"'
    return f"max by (namespace, pod, gpu) ({field.select(matchers)})"


def _panel(
    panel_id: int,
    title: str,
    unit: str,
    note: Note,
    field: Field,
    *,
    top: float | None = None,
    decimals: int | None = None,
) -> Builder:
    query = Query(_of_gpus(field), _LEGEND)
    return lines(panel_id, title, unit, note, [query], top=top, decimals=decimals, no_value=NO_GPU)


def gpus(row_id: int, first_id: int) -> Section:
    utilisation = _panel(
        first_id,
        "GPU utilisation",
        "percentunit",
        Note(
            "The part of the time in which any kernel ran. One stream alone already shows some 90 %.",
            "above 90 % while requests run; low with a long queue means that something else holds the engine up.",
            "Tensor cores and memory bandwidth beside say how hard the GPU works; Steps above whether the CPU is "
            "the brake.",
        ),
        UTILISATION,
        top=1,
    )
    activity = lines(
        first_id + 1,
        "Tensor cores and memory bandwidth",
        "percentunit",
        Note(
            "The share of cycles in which tensor cores, and the interface to the GPU's memory, were active.",
            "decode is bound by memory (0.5 to 0.8 of it), prefill by tensor cores.",
            "both low and the batch small: more requests fit. Memory high: the GPU is full, whatever its utilisation.",
        ),
        [
            Query(_of_gpus(TENSOR_CORES), f"{_LEGEND} tensor"),
            Query(_of_gpus(MEMORY_BANDWIDTH), f"{_LEGEND} memory"),
        ],
        top=1,
        no_value=NO_GPU,
    )
    memory = lines(
        first_id + 2,
        "GPU memory used",
        "percentunit",
        Note(
            "Memory of the GPU in use: weights, KV pool and work space, all taken at the start.",
            "flat, near --memory_utilization (0.9).",
            "it grows: another process on the GPU. Far below: the KV pool was bounded by a flag, see KV cache.",
        ),
        [
            Query(
                f"{_of_gpus(MEMORY_USED)}\n/\n(\n{_of_gpus(MEMORY_USED)}\n+\n{_of_gpus(MEMORY_FREE)}\n)",
                _LEGEND,
            )
        ],
        steps=((None, "green"), (0.97, "red")),
        top=1,
        no_value=NO_GPU,
    )
    power = _panel(
        first_id + 3,
        "GPU power",
        "watt",
        Note(
            "Power that the GPU draws.",
            "rises and falls with the load, below the card's limit.",
            "flat at the limit: the clock is held down (power or heat). Idle power under load: see Steps.",
        ),
        POWER,
    )
    temperature = _panel(
        first_id + 4,
        "GPU temperature",
        "celsius",
        Note(
            "Temperature of the GPU.",
            "steady under a steady load, and alike on all GPUs of a model.",
            "one far above the others: its cooling. Near the limit of the model the clock goes down: see GPU power.",
        ),
        TEMPERATURE,
    )
    last_error = _panel(
        first_id + 5,
        "Last error of the GPU (XID)",
        "none",
        Note(
            "Code of the last error (XID) that the driver reported of the GPU.",
            "0, or a code of long ago.",
            "it changes as a pod goes down: 48, 63, 64, 94, 95 (memory), 74 (NVLink) and 79 (off the bus) are the "
            "card's, so drain the node; 13, 31 and 43 are a program's: the engine's log.",
        ),
        LAST_ERROR,
        decimals=0,
    )
    return Section(
        row_id,
        "GPU: $gpu_model",
        [
            Line(
                8,
                [
                    utilisation,
                    activity,
                    memory,
                    power,
                ],
            ),
            Line(8, [temperature, last_error]),
        ],
        collapsed=True,
        repeat="gpu_model",
    )
