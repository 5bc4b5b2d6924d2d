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

__all__ = ["DeviceMap", "NodeDevices"]


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """The devices of nodes that name none."""

    device: str = "cpu"
    """The plan's: where values come in and go out, and where engines run for which nothing else is asked."""
    by_engine: Mapping[str, str] = FrozenDict()
    """Spec of an engine to the device that was asked for it."""

    @classmethod
    def at(cls, where: str | DeviceMap) -> DeviceMap:
        """Return the homes, or those that are all on one device."""
        return where if isinstance(where, DeviceMap) else cls(where)

    def of(self, spec: str) -> str:
        """Return where the engine's nodes run."""
        return self.by_engine.get(spec, self.device)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The device of each node on each engine."""

    function: Function
    specs: Sequence[str]
    homes: DeviceMap
    named: tuple[str, ...]
    """For each node the device that it names, one name per device; empty where it names none."""
    elsewhere: Sequence[SupportMatrix]
    """What engines answer for nodes that name no device, on other kinds of device that some node names."""

    @classmethod
    def of(cls, function: Function, engines: Sequence[GraphCompiler], homes: DeviceMap) -> NodeDevices:
        """Ask what more there is to know; nothing where all devices are of one kind."""
        named = tuple(normalize_device(node.device) for node in function.nodes)
        others = sorted({parse_device_kind(name) for name in named if name} - {parse_device_kind(homes.device)})
        elsewhere = tuple(SupportMatrix.of(function, engines, kind) for kind in others)
        return cls(function, [engine.spec for engine in engines], homes, named, elsewhere)

    def devices(self, engines: Sequence[int]) -> list[str]:
        """Return the device of each node on that engine; empty where it may be any that its neighbours are on.

        A device that is named, or was asked for an engine, is a constraint. A node without one may go along with its
        neighbours, if its engine takes it there too: a copy is saved.
        """
        if not self.homes.by_engine and not self.elsewhere:
            return list(self.named)
        return [name or self._device(node, engine) for node, (name, engine) in enumerate(zip(self.named, engines, strict=True))]

    def _device(self, node: int, engine: int) -> str:
        asked = self.homes.by_engine.get(self.specs[engine])
        if asked is not None:
            return normalize_device(asked)
        goes_along = all(answers.reason(node, engine) is None for answers in self.elsewhere)
        return "" if goes_along else normalize_device(self.homes.device)
