"""What the comparison and its worker processes say to each other: one line of JSON each way."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self

from xrt.bench.targets import BenchCandidate, BenchTarget
from xrt.html.regions import CallTimes, RegionTimes
from xrt.runtime import Profile

__all__ = ["PROFILE", "TURN", "Job", "JobFailure", "Message", "Start", "Timeline", "Turn"]

TURN, PROFILE = "turn\n", "profile\n"
"""What the comparison asks of a worker that has started."""


@dataclass(frozen=True, slots=True)
class Message:
    """One line from a worker."""

    def to_line(self) -> str:
        """Return the message as one line."""
        return json.dumps({"kind": type(self).__name__, **dataclasses.asdict(self)}) + "\n"

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """Return the message that plain data holds."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker is to compile and run."""

    subject: BenchTarget
    candidate: BenchCandidate
    threads: int
    seed: int
    outputs: str
    """The file that takes the first call's results."""
    warm_seconds: float
    """The most that warming up may take; 0 where the results are all that is wanted."""
    turn_seconds: float
    """How long a turn repeats a quick call."""
    auto_seconds: float = 20.0
    """How long ``auto`` may search."""

    def to_line(self) -> str:
        """Return the job as one line."""
        data = dataclasses.asdict(self)
        data["subject"]["sizes"] = dict(self.subject.sizes)
        return json.dumps(data) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the job that a line holds."""
        data = json.loads(line)
        candidate = BenchCandidate(tuple(data["candidate"]["engines"]), tuple(data["candidate"]["pins"]))
        return cls(**{**data, "subject": BenchTarget(**data["subject"]), "candidate": candidate})


@dataclass(frozen=True, slots=True)
class Start(Message):
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
    def of(cls, data: dict[str, Any]) -> Self:
        """Return the start that plain data holds."""
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**{**plain, "plan": tuple(RegionTimes.of(region) for region in data.get("plan", ()))})


@dataclass(frozen=True, slots=True)
class Turn(Message):
    """One turn's mean seconds of a call."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline(CallTimes, Message):
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
class JobFailure(Message):
    """Why a candidate cannot go on."""

    reason: str
