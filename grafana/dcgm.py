"""Metrics of NVIDIA's DCGM exporter, under the names of before 4.9 and since.

NOTE: 4.9 gives the fields the names of DCGM 4.7, some with another unit. Both are asked for, in the new unit: a panel
goes on over an upgrade, and nodes with an old exporter stand beside nodes with a new one.
"""

from __future__ import annotations

from dataclasses import dataclass

from grafana.queries import POD


@dataclass(frozen=True)
class Field:
    """name: since 4.9. before: the name up to 4.8. in_new_unit: what makes the new unit of a value of before."""

    name: str
    before: str
    in_new_unit: str = ""

    def select(self, matchers: str = "") -> str:
        """Its series of the GPUs of the pods chosen, with the namespace and pod of the workload.

        NOTE: scraped with honorLabels: false (as its chart is) the workload's labels are exported_*, else plain.
        """
        chosen = f'{{cluster=~"$cluster"{matchers}}}'
        either = f"{self.name}{chosen} or {self.before}{chosen}{self.in_new_unit}"
        plain = (
            f'label_replace(label_replace({either}, "namespace", "$1", "exported_namespace", "(.+)"), '
            '"pod", "$1", "exported_pod", "(.+)")'
        )
        return f"{plain}\nand on (namespace, pod) max by (namespace, pod) (pagedserve_engine_up{{{POD}}})"


UTILISATION = Field("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL", " / 100")
TENSOR_CORES = Field("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
MEMORY_BANDWIDTH = Field("DCGM_FI_PROF_DRAM_UTIL_RATIO", "DCGM_FI_PROF_DRAM_ACTIVE")
MEMORY_USED = Field("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_USED", " * 1048576")
MEMORY_FREE = Field("DCGM_FI_DEV_FB_FREE_BYTES", "DCGM_FI_DEV_FB_FREE", " * 1048576")
POWER = Field("DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_DEV_POWER_USAGE")
TEMPERATURE = Field("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP")
LAST_ERROR = Field("DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS")

MODELS = f"count by (modelName) ({MEMORY_USED.select()})".replace("\n", " ")
"""A series for each model of the GPUs of the pods chosen."""
