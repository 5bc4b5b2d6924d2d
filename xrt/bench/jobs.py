"""Messages between the comparison and its worker processes, which msgspec converts to plain data and back."""

from __future__ import annotations

from dataclasses import dataclass

from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.html.views import RegionTimes


@dataclass(frozen=True, slots=True)
class Job:
    """The model and candidate that a worker compiles and runs."""

    subject: BenchTarget
    candidate: BenchCandidate
    threads: int
    seed: int
    warm_seconds: float
    """Maximum warm-up time; 0 if only the results are needed."""
    turn_seconds: float
    """Duration of a turn of a fast call."""
    budget_seconds: float = 20.0
    """Maximum search time of ``auto``."""


@dataclass(frozen=True, slots=True)
class Start:
    """Costs up to the first steady call, with no other candidate running."""

    versions: tuple[str, ...]
    """Per engine."""
    regions: tuple[str, ...]
    """The engine of each region in execution order."""
    import_seconds: float
    compile_seconds: float
    first_seconds: float
    """The first call after the compile."""
    warm_calls: int
    steady: bool
    alone_seconds: float
    """Median call before any other candidate ran; 0 if not measured."""
    loaded_bytes: int
    """Peak resident memory before the compile: interpreter, libraries and model."""
    peak_bytes: int
    """Peak resident memory at the end."""
    plan: tuple[RegionTimes, ...] = ()
    """Details of the regions."""
    engines: tuple[str, ...] = ()
    """Specs of the engines, for ``auto`` those that it selected."""
    placement: tuple[str, ...] = ()
    """How ``auto`` chose the plan, line by line; empty for other candidates."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a candidate cannot continue."""

    reason: str
