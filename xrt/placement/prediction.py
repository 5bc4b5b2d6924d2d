"""What a Plan is predicted to cost: region by region, boundary by boundary, and how each is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from xrt.graph import FrozenDict, Function, TensorType, shape_key
from xrt.partition.cost_table import CostTable, MeasuredCost
from xrt.placement.bitset_graph import BitsetGraph, iter_bits, register_keys, to_mask
from xrt.placement.cost_model import NodeCosts

if TYPE_CHECKING:
    from xrt.partition.plan import Launch, Plan

__all__ = ["BoundaryCost", "Prediction", "RegionPrediction", "inline_regions", "predict_cost"]

Source = Literal["measured", "estimated", "impossible"]


@dataclass(frozen=True, slots=True)
class RegionPrediction:
    """What one region costs, its launch included."""

    name: str
    engine: str
    nodes: int
    seconds: float
    """Infinite where the table says that the engine cannot run it."""
    source: Source
    note: str = ""
    """How it was estimated, or why it is impossible."""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.name} on {self.engine}, {_counted(self.nodes, 'node')}: {_seconds(self.seconds)} {self.source}{note}"


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What it costs that a value goes from one region to another."""

    value: str
    source: str
    """The launch that makes it."""
    target: str
    """The launch that reads it."""
    bytes: int
    """Estimated where it is not known before the run."""
    seconds: float
    is_estimated: bool
    """Whether the bytes are."""

    def __str__(self) -> str:
        about = "about " if self.is_estimated else ""
        return f"{self.value} from {self.source} to {self.target}, {about}{self.bytes} bytes: {_seconds(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A Plan's cost, and what it is the sum of."""

    seconds: float
    """Infinite where a region is impossible."""
    regions: tuple[RegionPrediction, ...]
    """In the order of the Plan's launches."""
    boundaries: tuple[BoundaryCost, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def predict_cost(plan: Plan, table: CostTable) -> Prediction:
    """Return what the Plan costs if regions and boundaries cost what the table says.

    A region that is not in the table is estimated from those parts of the model that are: see
    `xrt.placement.cost_model`.
    """
    function = inline_regions(plan)
    specs = tuple(dict.fromkeys(launch.engine for launch in plan.launches))
    whole = (1 << len(function.nodes)) - 1
    ground = BitsetGraph(function, specs, (whole,) * len(specs))
    places = {node.name: place for place, node in enumerate(function.nodes)}
    for launch in plan.launches:  # without the control edges between regions, the order of nodes may be another than it was
        ground.know(to_mask([places[name] for name in launch.nodes]), shape_key(launch.function))
    return _Predictor(ground.forget_keys(), table).prediction(plan)


def inline_regions(plan: Plan) -> Function:
    """Return the model that was partitioned, from the bodies of its launch nodes; control edges between regions are left out."""
    outer = plan.function
    bodies = [launch.function for launch in plan.launches]
    types = {**outer.types}
    for body in bodies:
        types.update(body.types)
        types.update((value.name, value.type) for value in body.outputs if value.type is not None)
    made = {name for body in bodies for node in body.nodes for name in node.defines} - {v.name for v in outer.outputs}
    constants = {**outer.constants, **{name: one for body in bodies for name, one in body.constants.items()}}
    return outer.replace(
        nodes=tuple(node for body in bodies for node in body.nodes),
        constants=FrozenDict(constants),
        types=FrozenDict({name: type_ for name, type_ in types.items() if name in made}),
        opsets=FrozenDict({domain: version for domain, version in outer.opsets.items() if domain != "xrt"}),
    )


class _Predictor:
    """One model's parts and shares, and what regions of it cost."""

    def __init__(self, ground: BitsetGraph, table: CostTable) -> None:
        self._ground, self._table = ground, table
        self._places = {node.name: place for place, node in enumerate(ground.function.nodes)}

    def prediction(self, plan: Plan) -> Prediction:
        masks = [to_mask([self._places[name] for name in launch.nodes]) for launch in plan.launches]
        for mask in masks:
            self._ground.key(mask)
        regions = tuple(self._region(launch, mask) for launch, mask in zip(plan.launches, masks, strict=True))
        boundaries = tuple(self._boundaries(plan))
        seconds = math.fsum([*(region.seconds for region in regions), *(boundary.seconds for boundary in boundaries)])
        return Prediction(seconds, regions, boundaries)

    def _region(self, launch: Launch, mask: int) -> RegionPrediction:
        cost = self._table.region(self._ground.key(mask), launch.engine)
        count = len(launch.nodes)
        if isinstance(cost, MeasuredCost):
            return RegionPrediction(launch.name, launch.engine, count, cost.seconds, "measured")
        if cost is not None:
            return RegionPrediction(launch.name, launch.engine, count, math.inf, "impossible", cost)
        seconds = self._shares.seconds(self._ground.engines.index(launch.engine), mask, self._before)
        seconds += self._table.launch(launch.engine)
        return RegionPrediction(launch.name, launch.engine, count, seconds, "estimated", self._note(launch.engine, mask))

    @cached_property
    def _shares(self) -> NodeCosts:
        register_keys(self._ground)
        return NodeCosts.fit(self._ground, self._table)

    @cached_property
    def _before(self) -> list[int]:
        return [to_mask(earlier) for earlier in self._ground.graph.predecessors]

    def _note(self, spec: str, mask: int) -> str:
        """Say from what a region was estimated."""
        measured = [part for part, key in self._ground.list_known().items() if part & mask and self._is_measured(key, spec)]
        held = to_mask([place for place in iter_bits(mask) if self._is_measured(self._ground.kinds[place], spec)])
        for part in measured:
            held |= part if not part & ~mask else 0
        if held == mask:
            return "from parts that were measured"
        if held:
            return f"{held.bit_count()} of {mask.bit_count()} nodes from parts that were measured, the others by their shares"
        return "by its share of larger parts" if measured else "from its size; nothing of it was measured"

    def _is_measured(self, key: str, spec: str) -> bool:
        return isinstance(self._table.region(key, spec), MeasuredCost)

    def _boundaries(self, plan: Plan) -> Iterator[BoundaryCost]:
        makers = {name: launch for launch in plan.launches for name in launch.outputs}
        for launch in plan.launches:
            for name in dict.fromkeys(launch.inputs):
                if name in makers:
                    yield self._boundary(name, makers[name], launch)

    def _boundary(self, name: str, source: Launch, target: Launch) -> BoundaryCost:
        type_ = self._ground.function.get_type(name)
        exact = isinstance(type_, TensorType) and type_.nbytes is not None
        size = self._ground.sizes[self._ground.values[name]]
        fixed, per_byte = self._table.boundary(source.engine, target.engine)
        return BoundaryCost(name, source.name, target.name, size, fixed + per_byte * size, not exact)


# ------------------------------------------------------------------ as text


def _lines(prediction: Prediction) -> Iterator[str]:
    known = sum(region.source == "measured" for region in prediction.regions)
    total = _counted(len(prediction.regions), "region")
    yield f"predicted: {_seconds(prediction.seconds)}; {known} of {total} measured"
    yield from (f"  {region}" for region in prediction.regions)
    yield from (f"  {boundary}" for boundary in prediction.boundaries)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _seconds(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value * 1e3:.3f} ms" if value >= 1e-3 else f"{value * 1e6:.1f} us"
