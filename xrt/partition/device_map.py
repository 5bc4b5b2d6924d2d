"""Where nodes run: the device that they name, that of their engine, or the plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xrt.graph import FrozenDict, Function
from xrt.graph.device_names import normalize_device, parse_device_kind
from xrt.partition.support_matrix import SupportMatrix

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Devices of nodes that do not require one."""

    device: str = "cpu"
    """The plan's device: for inputs and outputs, and for engines without an entry in ``by_engine``."""
    by_engine: Mapping[str, str] = FrozenDict()
    """Engine spec to requested device."""

    @classmethod
    def at(cls, where: str | DeviceMap) -> DeviceMap:
        """Convert a device name to a DeviceMap with a single device."""
        return where if isinstance(where, DeviceMap) else cls(where)

    def of(self, spec: str) -> str:
        """The device of an engine."""
        return self.by_engine.get(spec, self.device)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The device of each node on each engine."""

    function: Function
    specs: Sequence[str]
    homes: DeviceMap
    named: tuple[str, ...]
    """The normalized device that each node requires; empty if none."""
    elsewhere: Sequence[SupportMatrix]
    """Support of nodes without a required device on the other kinds of device in the graph."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap) -> NodeDevices:
        """Query support on other kinds of device; nothing to query if all devices are of one kind."""
        named = tuple(normalize_device(node.device) for node in function.nodes)
        others = sorted({parse_device_kind(name) for name in named if name} - {parse_device_kind(homes.device)})
        elsewhere = tuple(SupportMatrix.of(function, engines, kind) for kind in others)
        return cls(function, [engine.spec for engine in engines], homes, named, elsewhere)

    def devices(self, engines: Sequence[int]) -> list[str]:
        """The device of each node on the given engine; empty if it may run on the device of its neighbors.

        A required or requested device is a constraint. Other nodes may run on the device of their neighbors if their engine
        supports them there, which saves a copy.
        """
        # The common case: devices of one kind, and none requested for an engine.
        if not self.homes.by_engine and not self.elsewhere:
            return list(self.named)
        return [name or self._device(node, engine) for node, (name, engine) in enumerate(zip(self.named, engines, strict=True))]

    def _device(self, node: int, engine: int) -> str:
        asked = self.homes.by_engine.get(self.specs[engine])
        if asked is not None:
            return normalize_device(asked)
        goes_along = all(answers.reason(node, engine) is None for answers in self.elsewhere)
        return "" if goes_along else normalize_device(self.homes.device)
