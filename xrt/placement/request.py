"""What is to be placed, and on which terms: one value in place of the many that a placement by measurement rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from xrt.graph import FrozenDict, Function
from xrt.partition import ClusteringOptions
from xrt.partition.device_map import DeviceMap
from xrt.runtime import on_device
from xrt.worker.isolated_engine import IsolatedEngine

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler

__all__ = ["PlacementRequest", "unwrap"]


@dataclass(frozen=True)
class PlacementRequest:
    """A Function whose nodes are to be placed on engines, within a budget of seconds."""

    function: Function
    """Its extents must be known."""
    engines: tuple[GraphCompiler, ...]
    """By priority, the implicit one last."""
    context: CompileContext
    clustering: ClusteringOptions = ClusteringOptions()
    implicit: str | None = None
    """The spec of the implicit engine, which the list does not name."""
    devices: Mapping[str, str] = FrozenDict()
    """Specs of engines that run elsewhere than the context says, with their devices."""
    cuda_graph: bool = False
    """Whether calls on a device are captured, where they can be."""
    budget: float = 20.0
    """Seconds that the search may take."""
    spent: float = 0.0
    """Seconds of the budget that are already used; half of it always remains."""
    retune: bool = False
    """Whether to search even if a decision is stored. Later requests use what is found, whatever their budget."""

    @cached_property
    def device_map(self) -> DeviceMap:
        """Where nodes run."""
        return DeviceMap(self.context.device, self.devices)

    @cached_property
    def contexts(self) -> dict[str, CompileContext]:
        """By spec the context of each engine, on its device; raises DeviceError if one is unavailable."""
        return {engine.spec: on_device(self.device_map.of(engine.spec), self.context) for engine in self.engines}


def unwrap(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines for those that stand in front of a worker: what they cost is not the worker's."""
    return [engine.inner if isinstance(engine, IsolatedEngine) else engine for engine in engines]
