"""What a comparison found, as values: they print as rows and go to JSON."""

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
"""The version of what `Report.to_dict` gives; it grows when a field changes its meaning or goes."""
Verdict: TypeAlias = Literal["fastest", "tie", "slower", "too noisy", "wrong", "failed"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the first call's results compare with the reference's."""

    message: str = ""
    """What differs beyond the tolerance, or why there is nothing to compare with; empty when all agrees."""
    absolute: float | None = None
    """The largest absolute difference; None where there is no reference."""
    relative: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether a reference was there, and says otherwise."""
        return bool(self.message) and self.absolute is not None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One candidate on one model."""

    candidate: BenchCandidate
    verdict: Verdict
    reason: str = ""
    """Why it failed, or what is wrong."""
    start: Start | None = None
    """How it started; None where it did not."""
    agreement: Agreement | None = None
    rounds: tuple[float, ...] = ()
    """Seconds per call, one entry per round."""
    median_seconds: float | None = None
    interval: Interval | None = None
    """Of the median, in seconds; 95 per cent."""
    ratio: RatioInterval | None = None
    """Its median over the fastest one's, in the rounds that both took part in; 95 per cent interval."""
    timeline: Timeline | None = None
    """Where the time of a call goes."""


@dataclass(frozen=True, slots=True)
class Group:
    """The candidates that took turns: one model at one batch size, and as many threads for each."""

    model: str
    batch: int | None
    threads: int
    rows: tuple[ReportRow, ...]

    @property
    def title(self) -> str:
        """The model, the batch and the threads, in a few words."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.model}{batch}, {self.threads} thread{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A whole comparison."""

    machine: Mapping[str, str | int]
    settings: Mapping[str, float]
    groups: tuple[Group, ...]
    date: str = ""
    """When it began, in universal time."""
    command: str = ""
    """What the user typed, where it was a command."""

    @property
    def agrees(self) -> bool:
        """Whether no candidate's results differ from the reference's."""
        return not any(row.verdict == "wrong" for group in self.groups for row in group.rows)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the engines that ran, by spec."""
        started = [row for group in self.groups for row in group.rows if row.start]
        return {e: v for row in started if row.start for e, v in zip(row.start.engines, row.start.versions, strict=True)}

    def _repr_html_(self) -> str:
        """Return the report as charts and tables for a notebook."""
        from xrt.bench.html import cell  # for notebooks alone

        return cell(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; seconds, bytes and ratios, None for what there is not."""
        return {"schema": SCHEMA, "versions": self.versions, "agrees": self.agrees, **_plain(self)}


def _plain(value: Any) -> Any:
    """Return dataclasses and mappings as dictionaries, sequences as lists; a candidate gets its text in addition to its parts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"name": str(value), **parts} if isinstance(value, BenchCandidate) else parts
    if isinstance(value, dict | FrozenDict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


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
