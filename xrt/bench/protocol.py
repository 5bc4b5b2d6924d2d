"""What the comparison and its worker processes say to each other: one line of JSON each way."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self

from xrt.bench.subjects import Candidate, Subject

__all__ = ["Failure", "Job", "Start", "Turn"]


@dataclass(frozen=True, slots=True)
class _Message:
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

    subject: Subject
    candidate: Candidate
    threads: int
    seed: int
    outputs: str
    """The file that takes the first call's results."""
    warm_seconds: float
    """The most that warming up may take; 0 where the results are all that is wanted."""
    turn_seconds: float
    """How long a turn repeats a quick call."""

    def to_line(self) -> str:
        """Return the job as one line."""
        data = dataclasses.asdict(self)
        data["subject"]["sizes"] = dict(self.subject.sizes)
        return json.dumps(data) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the job that a line holds."""
        data = json.loads(line)
        candidate = Candidate(tuple(data["candidate"]["engines"]), tuple(data["candidate"]["pins"]))
        return cls(**{**data, "subject": Subject(**data["subject"]), "candidate": candidate})


@dataclass(frozen=True, slots=True)
class Start(_Message):
    """How the way to the first steady call went, with the process to itself."""

    versions: tuple[str, ...]
    """Of each engine, in the candidate's order."""
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


@dataclass(frozen=True, slots=True)
class Turn(_Message):
    """One turn's mean seconds of a call."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Failure(_Message):
    """Why a candidate cannot go on."""

    reason: str
