"""CPU model and features as reported by Linux, beyond the instruction sets that NumPy knows."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["describe_cpu"]

_INFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "CPU implementer", "CPU part")
_FLAGS = ("flags", "Features")


def describe_cpu() -> str:
    """Model name of the first CPU and a hash of its features; empty if unavailable."""
    facts: dict[str, str] = {}
    try:
        with _INFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if not value.strip() and facts:
                    break  # the next processor
                facts[key.strip()] = value.strip()
    except OSError:
        return ""
    name = " ".join(facts[key] for key in _NAMES if key in facts)
    flags = sorted(flag for key in _FLAGS for flag in facts.get(key, "").split())
    return f"{name} {hashlib.sha256(' '.join(flags).encode()).hexdigest()[:12]}".strip()
