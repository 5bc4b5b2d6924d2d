"""Messages between the comparison and its worker processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.html.views import CallTimes, RegionTimes
from xrt.runtime import Profile

__all__ = ["Job", "JobAnswer", "JobFailure", "Start", "Timeline", "Turn"]


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """An answer of a worker."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Parse the output of `to_dict`."""
        # JSON turns tuples into lists.
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


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

    def to_dict(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        data["subject"]["sizes"] = dict(self.subject.sizes)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Parse the output of `to_dict`."""
        candidate = BenchCandidate(tuple(data["candidate"]["engines"]), tuple(data["candidate"]["pins"]))
        return cls(**{**data, "subject": BenchTarget(**data["subject"]), "candidate": candidate})


@dataclass(frozen=True, slots=True)
class Start(JobAnswer):
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

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Parse the output of `to_dict`."""
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**{**plain, "plan": tuple(RegionTimes.of(region) for region in data.get("plan", ()))})


@dataclass(frozen=True, slots=True)
class Turn(JobAnswer):
    """Mean seconds per call of one turn."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline(CallTimes, JobAnswer):
    """Time per region: means over separate calls, recorded after all turns."""

    calls: int
    seconds: float
    """A whole call, recording included."""
    regions: tuple[float, ...]
    """Each region in execution order."""

    @classmethod
    def of_profile(cls, profile: Profile, calls: int, seconds: float) -> Self:
        """Average a profile of ``calls`` calls that took ``seconds`` together."""
        return cls(calls, seconds / calls, tuple(launch.seconds / max(launch.calls, 1) for launch in profile.launches))


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a candidate cannot continue."""

    reason: str
