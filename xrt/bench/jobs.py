"""What the comparison and its worker processes say to each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.html.drawing import CallTimes, RegionTimes
from xrt.runtime import Profile

__all__ = ["Job", "JobAnswer", "JobFailure", "Start", "Timeline", "Turn"]


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """An answer of a worker."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the answer that plain data holds."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker is to compile and run."""

    subject: BenchTarget
    candidate: BenchCandidate
    threads: int
    seed: int
    warm_seconds: float
    """The most that warming up may take; 0 where the results are all that is wanted."""
    turn_seconds: float
    """How long a turn repeats a quick call."""
    budget_seconds: float = 20.0
    """How long ``auto`` may search."""

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain data."""
        data = dataclasses.asdict(self)
        data["subject"]["sizes"] = dict(self.subject.sizes)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the job that plain data holds."""
        candidate = BenchCandidate(tuple(data["candidate"]["engines"]), tuple(data["candidate"]["pins"]))
        return cls(**{**data, "subject": BenchTarget(**data["subject"]), "candidate": candidate})


@dataclass(frozen=True, slots=True)
class Start(JobAnswer):
    """How the way to the first steady call went, with the process to itself."""

    versions: tuple[str, ...]
    """Of each of the engines."""
    regions: tuple[str, ...]
    """The engine of each region, in the order in which they run."""
    import_seconds: float
    compile_seconds: float
    first_seconds: float
    """The first call, after compiling."""
    warm_calls: int
    steady: bool
    alone_seconds: float
    """The median call before any other candidate had its turn; 0 where nothing was measured."""
    loaded_bytes: int
    """Peak resident memory of the process before it compiled: the interpreter, the libraries and the model."""
    peak_bytes: int
    """Peak resident memory at the end."""
    plan: tuple[RegionTimes, ...] = ()
    """The regions in full."""
    engines: tuple[str, ...] = ()
    """The specs of the engines: the candidate's, or those that ``auto`` selected."""
    placement: tuple[str, ...] = ()
    """How ``auto`` chose the plan, line by line; empty for other candidates."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the start that plain data holds."""
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**{**plain, "plan": tuple(RegionTimes.of(region) for region in data.get("plan", ()))})


@dataclass(frozen=True, slots=True)
class Turn(JobAnswer):
    """One turn's mean seconds of a call."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline(CallTimes, JobAnswer):
    """Where the time of a call goes: means over calls that were made for this alone, after all the turns."""

    calls: int
    seconds: float
    """A whole call, recording included."""
    regions: tuple[float, ...]
    """Each region, in the order in which they run, one after the other."""

    @classmethod
    def of_profile(cls, profile: Profile, calls: int, seconds: float) -> Self:
        """Return the means of that many calls, which took those seconds together."""
        return cls(calls, seconds / calls, tuple(launch.seconds / max(launch.calls, 1) for launch in profile.launches))


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a candidate cannot go on."""

    reason: str
