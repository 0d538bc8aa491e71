"""Facts about this machine: the CPU's name, its instruction sets, the CPUs that the process may use."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from pathlib import Path

# The flags that matter to inference, as Linux spells them, and the names that engineers use.
FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX VNNI (fast int8)",
    "avx512_vnni": "AVX-512 VNNI (fast int8)",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bfloat16",
    "asimd": "NEON",
    "asimddp": "NEON dot product (fast int8)",
    "i8mm": "NEON int8 matrices",
    "sve": "SVE",
}


def cpu_name() -> str:
    """Return the CPU's name, as the system tells it."""
    found = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Return the CPU's flags as Linux lists them; none where the system does not tell."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def cpu_features() -> tuple[str, ...]:
    """Return the names of the instruction sets in `FEATURES` that this CPU has."""
    flags = cpu_flags()
    return tuple(name for flag, name in FEATURES.items() if flag in flags)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> str:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return Path("/proc/cpuinfo").read_text()
    return ""
