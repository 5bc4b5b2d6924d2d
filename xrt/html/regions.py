"""The regions of a plan as plain facts: what each runs, what it reads from which, and how long it takes within a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

__all__ = ["INPUTS", "CallTimes", "MeanCall", "Reading", "RegionTimes"]

INPUTS = -1
"""In place of a region's number: the model's inputs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that crosses into a region; only the order, where nothing is read."""

    source: int
    """The number of the region that makes it, in the order in which they run; `INPUTS` for the model's own."""
    value: str
    """Name and type; empty where one region merely waits for another."""
    size: int | None = None
    """Bytes; None where the extents are not known."""


@dataclass(frozen=True, slots=True)
class RegionTimes:
    """One region of a plan."""

    name: str
    engine: str
    nodes: int
    operators: tuple[tuple[str, int], ...]
    """How many of each operator, most frequent first."""
    reads: tuple[Reading, ...]
    is_output: bool
    """Whether the model gives a value of it away."""

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        """Return the region that plain data holds."""
        operators = tuple((op, count) for op, count in data["operators"])
        return cls(**{**data, "operators": operators, "reads": tuple(Reading(**reading) for reading in data["reads"])})


class CallTimes:
    """Where the time of a call goes: means over some calls. Derive from it, and have the three figures as fields."""

    __slots__ = ()
    calls: int
    seconds: float
    """A whole call."""
    regions: tuple[float, ...]
    """Each region, in the order in which they run, one after the other."""

    @property
    def rest(self) -> float:
        """The time of a call outside its regions: XRT's own work."""
        return max(0.0, self.seconds - sum(self.regions))

    @property
    def starts(self) -> tuple[float, ...]:
        """When each region begins: where the one before ends."""
        return tuple(sum(self.regions[:index]) for index in range(len(self.regions)))


@dataclass(frozen=True, slots=True)
class MeanCall(CallTimes):
    """`CallTimes` from the figures."""

    calls: int
    seconds: float
    regions: tuple[float, ...]
