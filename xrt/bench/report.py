"""The result of a comparison as values, for printing and JSON, and a description of the machine."""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xrt import __version__
from xrt.bench.targets import BenchCandidate
from xrt.graph import FrozenDict
from xrt.runtime import available_cores

if TYPE_CHECKING:
    from xrt.bench.jobs import Start, Timeline
    from xrt.measure.statistics import Interval, RatioInterval

__all__ = ["SCHEMA", "Agreement", "BenchReport", "Group", "ReportRow", "Verdict", "describe", "machine", "peak_bytes"]

SCHEMA = 2
"""Version of `BenchReport.to_dict`; incremented when a field changes its meaning or is removed."""
Verdict: TypeAlias = Literal["fastest", "tie", "slower", "too noisy", "wrong", "failed"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the results of the first call compare with the reference."""

    message: str = ""
    """The difference beyond the tolerance, or why there is no reference; empty if all agrees."""
    absolute: float | None = None
    """Largest absolute difference; None without a reference."""
    relative: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether there is a reference and the results differ from it."""
        return bool(self.message) and self.absolute is not None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One candidate on one model."""

    candidate: BenchCandidate
    verdict: Verdict
    reason: str = ""
    """Why it failed or is wrong."""
    start: Start | None = None
    """None if it did not start."""
    agreement: Agreement | None = None
    rounds: tuple[float, ...] = ()
    """Seconds per call, one entry per round."""
    median_seconds: float | None = None
    interval: Interval | None = None
    """95 % interval of the median in seconds."""
    ratio: RatioInterval | None = None
    """Ratio of its median to the fastest one's over common rounds, with 95 % interval."""
    timeline: Timeline | None = None
    """Time per region of a call."""


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates measured in turns: one model, batch size and thread count."""

    model: str
    batch: int | None
    threads: int
    rows: tuple[ReportRow, ...]

    @property
    def title(self) -> str:
        """Model, batch and threads."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.model}{batch}, {self.threads} thread{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A whole comparison."""

    machine: Mapping[str, str | int]
    settings: Mapping[str, float]
    groups: tuple[Group, ...]
    date: str = ""
    """Start time in UTC."""
    command: str = ""
    """The command line, if there was one."""

    @property
    def agrees(self) -> bool:
        """Whether no candidate's results are wrong."""
        return not any(row.verdict == "wrong" for group in self.groups for row in group.rows)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the engines that ran, by spec."""
        started = [row for group in self.groups for row in group.rows if row.start]
        return {e: v for row in started if row.start for e, v in zip(row.start.engines, row.start.versions, strict=True)}

    def _repr_html_(self) -> str:
        """Charts and tables for a notebook."""
        from xrt.bench.html import cell  # needed only in notebooks

        return cell(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data: seconds, bytes and ratios; None for missing values."""
        return {"schema": SCHEMA, "versions": self.versions, "agrees": self.agrees, **_plain(self)}


def _plain(value: Any) -> Any:
    """Convert dataclasses, mappings and sequences to dicts and lists; a candidate gets its text as ``name``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"name": str(value), **parts} if isinstance(value, BenchCandidate) else parts
    if isinstance(value, dict | FrozenDict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def machine(*distributions: str) -> str:
    """The machine and versions of libraries, in one line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "onnx", *distributions))
    return f"{platform.machine()} {platform.system()}, Python {platform.python_version()}, {versions}"


def describe() -> dict[str, str | int]:
    """Facts about the machine that may explain timings: processor, cores, load, versions."""
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
    """Peak resident memory of this process.

    Linux's ``ru_maxrss`` includes the parent's memory at the time of the fork; the high-water mark in /proc does not. Other
    systems have only the former.
    """
    status = Path("/proc/self/status")
    if status.exists():
        marks = [line.split()[1] for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM")]
        if marks:
            return int(marks[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
