"""Measured costs of regions, and their conversion to and from placement files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import OptionError, PlacementFileError
from xrt.graph import FrozenDict
from xrt.measure.timing import MeasuredCost

if TYPE_CHECKING:
    from xrt.formats.placement_file import PlacementFile

LAUNCH = 5e-6
"""Seconds that an empty launch takes. Measured in us: ort 2, tvm 2, toy 3, iree 5, torch 8, openvino 19, xla 22."""
BOUNDARY = (5e-6, 7e-11)
"""Cost of a value that one region passes to another: seconds per value, and seconds per byte.

One dispatch, and the measured cost of cutting at a value of 3 MB without a copy (a layout conversion, a cold cache). The 42
pairs of seven engines measured 0 to 30 us, median 0.8 us, with noise of the same size, so all pairs share these numbers.
"""
MAX_REASON_CHARACTERS = 2000  # longer ones are cut: a library's error may be a page


class WrongResult(str):
    """The reason why a region has no cost, if the region ran and its results differ from the expected ones."""


RegionCost: TypeAlias = MeasuredCost | str
"""The cost of a region, or the reason why it has none: it was refused, failed, hung, or was wrong (a `WrongResult`)."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of regions. Immutable: `with_region` and `merge` return a new table. Raises OptionError for an invalid cost."""

    regions: Mapping[tuple[str, str], RegionCost] = FrozenDict()
    """A pair (`xrt.graph.shape_key` of the region's Function, engine spec) to the cost."""

    def __post_init__(self) -> None:
        regions = {subject: _check_cost(subject, cost) for subject, cost in self.regions.items()}
        object.__setattr__(self, "regions", FrozenDict(regions))

    def region(self, key: str, spec: str) -> RegionCost | None:
        """The cost of the region with a shape key on an engine; None if unknown."""
        return self.regions.get((key, spec))

    def with_region(self, key: str, spec: str, cost: RegionCost) -> CostTable:
        return CostTable({**self.regions, (key, spec): cost})

    def merge(self, other: CostTable) -> CostTable:
        return CostTable({**self.regions, **other.regions})

    def to_document(self) -> PlacementFile:
        from xrt.formats.placement_file import PlacementFile, RegionRecord

        regions = []
        for subject, cost in sorted(self.regions.items(), key=lambda item: item[0]):
            is_wrong = isinstance(cost, WrongResult)
            regions.append(RegionRecord(*subject, cost if isinstance(cost, MeasuredCost) else str(cost), is_wrong))
        return PlacementFile(costs=tuple(regions))

    @classmethod
    def from_document(cls, document: PlacementFile) -> CostTable:
        """Read the table of a placement file; raises PlacementFileError if it has none or lists a cost twice."""
        records = document.costs
        if records is None:
            raise PlacementFileError("it has no section 'costs', so it is not a cost table")
        regions = {(x.region, x.engine): WrongResult(x.cost) if x.is_wrong else x.cost for x in records}
        if len(regions) != len(records):
            raise PlacementFileError("costs: a cost is listed twice", position="costs")
        return cls(regions)


def _check_cost(subject: tuple[str, str], cost: object) -> RegionCost:
    if isinstance(cost, MeasuredCost):
        return cost
    if isinstance(cost, str) and cost:
        return cost if len(cost) <= MAX_REASON_CHARACTERS else type(cost)(f"{cost[: MAX_REASON_CHARACTERS - 3]}...")
    raise OptionError(f"the cost of region {subject} must be a MeasuredCost or a reason; got {cost!r}")
