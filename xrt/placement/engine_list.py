"""The engines of a module, in priority order, and where they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrt.engines import GraphCompiler
from xrt.graph import FrozenDict
from xrt.runtime.devices.streams import Streams

if TYPE_CHECKING:
    from xrt.engines import CompileContext
    from xrt.graph import Function, Node
    from xrt.partition import Launch
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.request import PlacementRequest

__all__ = ["AUTO", "EngineList", "is_always_dynamic", "is_auto"]

AUTO = "auto"
"""The word for placement by measurement in a list of engines."""


def is_auto(asked: Any) -> bool:
    """Whether a module's ``engine`` asks for placement by measurement."""
    return asked == AUTO or (isinstance(asked, list | tuple) and AUTO in [one for one in asked if isinstance(one, str)])


@dataclass(frozen=True, slots=True)
class EngineList:
    """Engines in priority order, and the context in which they compile."""

    engines: tuple[GraphCompiler, ...]
    implicit: str | None
    """The spec of the engine that was appended without being named."""
    context: CompileContext
    is_auto: bool = False
    """Whether nodes are placed by measurement."""
    left_out: tuple[str, ...] = ()
    """A line for each engine that could not be among them."""
    devices: Mapping[str, str] = FrozenDict()
    """Spec of each engine that runs elsewhere than the module, with its device."""
    lowered: tuple[GraphCompiler, ...] = ()
    """Engines of lower precision, which only plans within an error budget have."""
    streams: Streams = field(default_factory=Streams, compare=False)
    """The module's streams."""

    @property
    def homes(self) -> DeviceMap:
        """Where engines run."""
        from xrt.partition.device_map import DeviceMap

        return DeviceMap(self.context.device, self.devices)

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(engine.spec for engine in self.engines)

    @property
    def by_spec(self) -> dict[str, GraphCompiler]:
        return {engine.spec: engine for engine in (*self.engines, *self.lowered)}

    def make_request(self, function: Function, **terms: Any) -> PlacementRequest:
        """Return the request to place a Function on these engines; ``terms`` are other fields, or these."""
        from xrt.placement.request import PlacementRequest

        own = {"engines": self.engines, "implicit": self.implicit, "devices": self.devices}
        return PlacementRequest(function, context=self.context, **{**own, **terms})

    def on_host(self, launch: Launch) -> GraphCompiler | None:
        """Return the engine of a launch; None where it runs on a device, or is not among these."""
        return self.by_spec.get(launch.engine) if self.homes.of(launch.engine) == "cpu" else None

    def fuse_dequantization(self, node: Node, function: Function) -> bool:
        """Whether an engine that was named wants a DequantizeLinear of constants as it is."""
        return any(one.fuses_dequantization(node, function) for one in self.engines if one.spec != self.implicit)

    def close(self) -> None:
        """End the workers of those that have one."""
        from xrt.worker.isolated_engine import IsolatedEngine

        for engine in self.engines:
            if isinstance(engine, IsolatedEngine):
                engine.close()

    @property
    def can_be_dynamic(self) -> bool:
        """Whether a plan can have symbolic dims: all engines support them, or one where nodes are placed by measurement."""
        if self.is_auto:
            return any(engine.supports_dynamic_shapes for engine in self.engines if engine.spec != self.implicit)
        return all(engine.supports_dynamic_shapes for engine in self.engines)

    @property
    def are_dynamic(self) -> bool:
        """Whether one executable of any of them serves every size, whatever the Function."""
        always = (engine.spec == self.implicit or is_always_dynamic(engine) for engine in self.engines)
        return not self.is_auto and self.can_be_dynamic and all(always)


def is_always_dynamic(engine: GraphCompiler) -> bool:
    """Whether an engine has no Function that is better compiled for each set of sizes."""
    return engine.supports_dynamic_shapes and engine.implementation.why_not_dynamic is GraphCompiler.why_not_dynamic
