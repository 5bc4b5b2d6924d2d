"""Measured costs of regions, launches and boundaries, and their records in placement files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.errors import OptionError, PlacementFileError
from xrt.graph import FrozenDict

if TYPE_CHECKING:
    from xrt.formats.placement_file import PlacementFile

__all__ = ["BOUNDARY", "LAUNCH", "CostTable", "MeasuredCost", "RegionCost"]

LAUNCH = 5e-6
"""Default cost of an empty launch in seconds, if not measured for an engine."""

BOUNDARY = (5e-6, 7e-11)
"""Default cost of a boundary value if not measured: seconds, and seconds per byte.

Corresponds to one dispatch, and to the measured cost of cutting at a value of 3 MB without a copy (a layout conversion, a
cold cache).
"""

# Longest stored reason in characters: a library's error may be a page.
MOST_TEXT = 2000

LONGEST = 1e9  # seconds; anything longer is an error of the clock


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Seconds per run of a region including its launch, with an interval.

    Raises OptionError unless ``0 <= low <= seconds <= high`` and all are finite.
    """

    seconds: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not all(type(value) in (int, float) for value in (self.seconds, self.low, self.high)):
            raise OptionError(f"a measured cost is three numbers of seconds; got {self.seconds!r}, {self.low!r}, {self.high!r}")
        if not 0 <= self.low <= self.seconds <= self.high <= LONGEST:
            said = f"seconds={self.seconds}, low={self.low}, high={self.high}"
            raise OptionError(f"a measured cost needs 0 <= low <= seconds <= high <= {LONGEST:g}; got {said}")

    @classmethod
    def exactly(cls, seconds: float) -> MeasuredCost:
        """A cost with an interval of width zero."""
        return cls(seconds, seconds, seconds)


RegionCost: TypeAlias = MeasuredCost | str
"""The cost of a region, or the reason why it has none: refused, failed, hung, wrong."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Known costs by shape key and engine. Immutable: additions return a new table.

    Raises OptionError for an invalid cost.
    """

    regions: Mapping[tuple[str, str], RegionCost] = FrozenDict()
    """(`xrt.graph.shape_key` of the region's Function, spec) to its cost, or why it has none."""
    launches: Mapping[str, float] = FrozenDict()
    """Spec to the seconds of an empty launch."""
    boundaries: Mapping[tuple[str, str], tuple[float, float]] = FrozenDict()
    """(spec of the producer, spec of the reader) to seconds, and seconds per byte."""
    _usual_boundary: tuple[float, float] = field(default=BOUNDARY, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("launches", "boundaries"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        object.__setattr__(
            self, "regions", FrozenDict({subject: _checked(subject, cost) for subject, cost in self.regions.items()})
        )
        _check_seconds("launch on", ((spec, (seconds,)) for spec, seconds in self.launches.items()))
        _check_seconds("boundary", self.boundaries.items())
        if self.boundaries:
            once, per_byte = zip(*self.boundaries.values(), strict=True)
            # Computed here once, not at every lookup of a pair that was not measured.
            object.__setattr__(self, "_usual_boundary", (median(once), median(per_byte)))

    def region(self, key: str, spec: str) -> RegionCost | None:
        """The cost of a region on an engine; None if unknown."""
        return self.regions.get((key, spec))

    def launch(self, spec: str) -> float:
        """Seconds of an empty launch; `LAUNCH` if not measured."""
        return self.launches.get(spec, LAUNCH)

    def boundary(self, source: str, target: str) -> tuple[float, float]:
        """Seconds, and seconds per byte, for passing a value between two engines.

        The default for a pair is the median of the measured pairs, or `BOUNDARY` if there are none.
        """
        return self.boundaries.get((source, target), self._usual_boundary)

    def with_region(self, key: str, spec: str, cost: RegionCost) -> CostTable:
        """Copy with the cost of a region, replacing an earlier one."""
        return replace(self, regions=FrozenDict({**self.regions, (key, spec): cost}))

    def with_launch(self, spec: str, seconds: float) -> CostTable:
        """Copy with the cost of an empty launch on an engine."""
        return replace(self, launches=FrozenDict({**self.launches, spec: seconds}))

    def with_boundary(self, source: str, target: str, seconds: float, per_byte: float) -> CostTable:
        """Copy with the cost of passing a value from one engine to another."""
        return replace(self, boundaries=FrozenDict({**self.boundaries, (source, target): (seconds, per_byte)}))

    def merge(self, other: CostTable) -> CostTable:
        """Union of two tables; entries of ``other`` have priority."""
        return CostTable(
            {**self.regions, **other.regions}, {**self.launches, **other.launches}, {**self.boundaries, **other.boundaries}
        )

    def to_document(self) -> PlacementFile:
        """Convert to a placement file, sorted."""
        from xrt.formats.placement_file import BoundaryRecord, CostRecords, LaunchRecord, PlacementFile, RegionRecord

        regions = (RegionRecord(*subject, **_figures(self.regions[subject])) for subject in sorted(self.regions))
        launches = (LaunchRecord(spec, float(self.launches[spec])) for spec in sorted(self.launches))
        boundaries = (BoundaryRecord(*pair, *map(float, self.boundaries[pair])) for pair in sorted(self.boundaries))
        return PlacementFile(costs=CostRecords(tuple(regions), tuple(launches), tuple(boundaries)))

    @classmethod
    def from_document(cls, document: PlacementFile) -> CostTable:
        """Read the table of a placement file; raises PlacementFileError if it has none or lists a cost twice."""
        records = document.costs
        if records is None:
            raise PlacementFileError("it has no section 'costs', so it is no cost table")
        regions = {(x.region, x.engine): x.why_not or MeasuredCost(x.seconds, x.low, x.high) for x in records.regions}  # type: ignore[arg-type]  # the schema requires numbers where there is no reason
        launches = {x.engine: x.seconds for x in records.launches}
        boundaries = {(x.source, x.target): (x.seconds, x.per_byte) for x in records.boundaries}
        for name, found in (("regions", regions), ("launches", launches), ("boundaries", boundaries)):
            # Entries with the same key have become one.
            if len(found) != len(getattr(records, name)):
                raise PlacementFileError(f"costs.{name}: a cost is listed twice", position=f"costs.{name}")
        return cls(regions, launches, boundaries)


def _figures(cost: RegionCost) -> dict[str, Any]:
    if isinstance(cost, str):
        return {"why_not": cost}
    return {"seconds": float(cost.seconds), "low": float(cost.low), "high": float(cost.high)}


def _checked(subject: tuple[str, str], cost: object) -> RegionCost:
    if isinstance(cost, MeasuredCost):
        return cost
    if isinstance(cost, str) and cost:
        return cost if len(cost) <= MOST_TEXT else f"{cost[: MOST_TEXT - 3]}..."
    raise OptionError(f"the cost of region {subject} must be Measured or a reason; got {cost!r}")


def _check_seconds(what: str, rows: Iterable[tuple[object, tuple[float, ...]]]) -> None:
    for subject, row in rows:
        if not all(type(value) in (int, float) and math.isfinite(value) and 0 <= value <= LONGEST for value in row):
            raise OptionError(f"the cost of {what} {subject} must be seconds from 0 to {LONGEST:g}; got {row}")
