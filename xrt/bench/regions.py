"""A candidate's regions as plain facts: what each runs, and what it reads from whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from xrt.graph import TensorType
from xrt.partition import Launch, Plan

__all__ = ["INPUTS", "Reading", "Region", "regions_of"]

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
class Region:
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


def regions_of(plan: Plan) -> tuple[Region, ...]:
    """Return the facts of a plan's regions, in the order in which they run."""
    number = {launch.name: index for index, launch in enumerate(plan.launches)}
    makers = {value: index for index, launch in enumerate(plan.launches) for value in launch.outputs}
    given = {value.name for value in plan.function.outputs}
    return tuple(
        Region(
            launch.name,
            launch.engine,
            len(launch.nodes),
            tuple(Counter(node.op for node in launch.function.nodes).most_common()),
            (*_readings(launch, makers), *(Reading(number[before], "") for before in launch.control)),
            not given.isdisjoint(launch.outputs),
        )
        for launch in plan.launches
    )


def _readings(launch: Launch, makers: dict[str, int]) -> Iterator[Reading]:
    for name, value in zip(launch.inputs, launch.function.inputs, strict=True):
        yield Reading(makers.get(name, INPUTS), str(value), value.type.nbytes if isinstance(value.type, TensorType) else None)
