"""What was measured on: the machine, the interpreter, the versions."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path

from xrt import __version__
from xrt.runtime import available_cores

__all__ = ["describe", "machine", "peak_bytes"]


def machine(*distributions: str) -> str:
    """Name the machine and the versions of what was measured, in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "onnx", *distributions))
    return f"{platform.machine()} {platform.system()}, Python {platform.python_version()}, {versions}"


def describe() -> dict[str, str | int]:
    """Return what else may explain a time: the processor, its cores and how busy it was, as plain data."""
    return {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "load": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "xrt": __version__,
        "numpy": metadata.version("numpy"),
        "onnx": metadata.version("onnx"),
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"


def peak_bytes() -> int:
    """Return the most memory that this process has had resident.

    Linux's ``ru_maxrss`` starts at what the parent had when it started the child, however little the child takes; the
    high-water mark in /proc does not. Elsewhere there is only the former.
    """
    status = Path("/proc/self/status")
    if status.exists():
        marks = [line.split()[1] for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM")]
        if marks:
            return int(marks[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
