"""Compiles kernels for GPUs that need not be there. A program: `TRITON_INTERPRET` must not be set where it runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.catalogue import kernel_modules
from kernels.variant import KernelVariant

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def main() -> None:
    """Arguments: a module of kernels, "default" or "full", capabilities. Writes a line of JSON for each kernel."""
    module, extent, *capabilities = sys.argv[1:]
    for variant in kernel_modules()[module].variants(extent == "full"):
        for capability in map(int, capabilities):
            if capability in variant.capabilities:
                print(json.dumps(compiled(variant, capability)), flush=True)


def compiled(variant: KernelVariant, capability: int) -> dict[str, Any]:
    """What a variant takes: bytes of shared memory a program, registers and bytes of stack (spills) a thread."""
    line: dict[str, Any] = {"name": variant.name, "capability": capability, "spills_allowed": variant.spills_allowed}
    names = variant.kernel.arg_names
    source = ASTSource(
        fn=variant.kernel,
        signature=dict(variant.signature),
        constexprs=dict(variant.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    try:
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        return line | {"error": f"{type(error).__name__}: {error}"}
    return line | {"shared": kernel.metadata.shared} | _usage(kernel.asm["cubin"])


def _usage(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", text)
    assert found, f"cuobjdump wrote no resource usage: {text}"
    registers, stack, local = map(int, found.groups())
    return {"registers": registers, "spilled": stack + local}


if __name__ == "__main__":
    main()
