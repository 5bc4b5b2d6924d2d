"""Which engines each node may go to, once pins and refusals have had their say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xrt.engines import GraphCompiler
from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import Function, Node
from xrt.partition.capability import Capability
from xrt.partition.options import ClusteringOptions, Pin

__all__ = ["Choices", "Refused"]

Refused: TypeAlias = tuple[str, str, str]
"""A node, the spec of an engine that refused it at compile, and the reason."""

SHOWN = 20
"""The most nodes that an error lists."""


@dataclass(frozen=True, slots=True)
class Choices:
    """For each node the engines that may take it, and for the others the reason."""

    engines: tuple[str, ...]
    capability: Capability
    open: list[tuple[int, ...]]
    """For each node the engines that may take it, by priority; never empty."""
    barred: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Why a pin or a refusal keeps a node from an engine, whatever the engine's own answer."""

    @classmethod
    def of(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        options: ClusteringOptions,
        refused: Sequence[Refused],
        *,
        strict: bool,
        device: str,
    ) -> Choices:
        """Return the choices that capability, refusals and pins leave.

        Raises PlanError when a pin cannot be kept, or nobody takes a node; it lists the nodes, and each engine's reason.
        """
        capability = Capability.of(function, engines, device)
        open_ = capability.willing()
        barred: dict[tuple[int, int], str] = {}
        specs = tuple(engine.spec for engine in engines)
        _bar_refused(barred, function, specs, refused)
        for node, engine in barred:
            open_[node] = tuple(e for e in open_[node] if e != engine)
        choices = cls(specs, capability, open_, barred)
        for node, pins in _pinned(function, options.pins).items():
            choices._keep(node, function.nodes[node], pins, [engine.name for engine in engines])
        choices._check_all_taken(function, strict)
        return choices

    def reason(self, node: int, engine: int) -> str | None:
        """Return why the node may not go to the engine; None when it may."""
        return self.barred.get((node, engine)) or self.capability.reason(node, engine)

    def _keep(self, node: int, asked: Node, pins: Sequence[Pin], names: Sequence[str]) -> None:
        """Close the engines that the pins exclude; the caller hands over a forcing pin only as the last one."""
        for pin in pins:
            covered = {i for i, spec in enumerate(self.engines) if pin.covers(names[i], spec)}
            word = "kept from" if pin.forbid else "pinned to"
            excluded = [i for i in range(len(names)) if (i in covered) is pin.forbid]
            allowed = tuple(i for i in self.open[node] if i not in excluded)
            if not allowed:
                raise self._unkept(node, asked, pin, [i for i in range(len(names)) if i not in excluded])
            self.open[node] = allowed
            for engine in excluded:
                self.barred.setdefault((node, engine), f"{word} {pin.engine} by {str(pin)!r}")  # type: ignore[attr-defined]  # ours until we return

    def _unkept(self, node: int, asked: Node, pin: Pin, wanted: Iterable[int]) -> PlanError:
        reasons = self._reasons(node, wanted)
        where = "no other engine of the list takes it" if pin.forbid else "it cannot go there"
        return PlanError(
            f"pin {str(pin)!r} cannot be kept for node {asked.name!r} ({asked.op}): {where} ({reasons or 'there is no other engine'}); "
            f"change the pin, or list an engine that takes the node"
        )

    def _reasons(self, node: int, engines: Iterable[int]) -> str:
        return "; ".join(f"{self.engines[e]}: {self.reason(node, e)}" for e in engines)

    def _check_all_taken(self, function: Function, strict: bool) -> None:
        """Raise PlanError listing every node that no engine takes, with each engine's reason."""
        left = [node for node, open_ in enumerate(self.open) if not open_]
        if not left:
            return
        lines = [
            f"\n  {function.nodes[node].name!r} ({function.nodes[node].op}): {self._reasons(node, range(len(self.engines)))}"
            for node in left[:SHOWN]
        ]
        if len(left) > SHOWN:
            lines.append(f"\n  and {len(left) - SHOWN} more")
        advice = "list an engine that takes them" + (
            ", or leave out strict=True so that the reference engine may" if strict else ""
        )
        raise PlanError(
            f"no engine of the list ({', '.join(self.engines)}) takes {len(left)} of {len(function.nodes)} nodes; {advice}:{''.join(lines)}"
        )


def _bar_refused(
    barred: dict[tuple[int, int], str], function: Function, specs: Sequence[str], refused: Sequence[Refused]
) -> None:
    if not refused:
        return
    places = {node.name: number for number, node in enumerate(function.nodes)}
    for node, engine, reason in refused:
        if engine not in specs:
            raise OptionError(f"a refusal names engine {engine!r}, which is not in the list: {', '.join(specs)}")
        if node not in places:
            raise OptionError(f"a refusal names node {node!r}, which is not in the function.{did_you_mean(node, places)}")
        barred[places[node], specs.index(engine)] = f"refused at compile: {reason}"


def _pinned(function: Function, pins: Sequence[Pin]) -> dict[int, list[Pin]]:
    """Return for each node that a pin matches the pins that hold for it: the forbidding ones, then the last forcing one.

    Raises PlanError for a pin by name that matches no node: a name is meant for one model, so that is a mistake.
    """
    found: dict[int, list[Pin]] = {}
    for forbid in (True, False):
        forced: dict[int, Pin] = {}
        for pin in (pin for pin in pins if pin.forbid is forbid):
            numbers = _matches(function, pin)
            for number in numbers:
                if forbid:
                    found.setdefault(number, []).append(pin)
                else:
                    forced[number] = pin
        for number, pin in forced.items():
            found.setdefault(number, []).append(pin)
    return found


def _matches(function: Function, pin: Pin) -> list[int]:
    matcher = pin.matcher()
    numbers = [number for number, node in enumerate(function.nodes) if matcher.fullmatch(pin.subject(node))]
    if pin.by == "name" and not numbers:
        names = [node.name for node in function.nodes]
        raise PlanError(f"pin {str(pin)!r} matches no node of function {function.name!r}.{did_you_mean(pin.patterns[0], names)}")
    return numbers
