"""Which engines each node may go to, once refusals and pins have had their say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import OptionError, PlanError, did_you_mean
from xrt.graph import FrozenDict
from xrt.graph.op_schema import latest_version
from xrt.partition.support_matrix import SupportMatrix

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function
    from xrt.partition.options import Pin

__all__ = ["EligibleEngines", "Refused"]

Refused: TypeAlias = tuple[str, str, str]
"""A node, the spec of an engine that refused it at compile, and the reason."""

Bars: TypeAlias = dict[tuple[int, int], str]
"""(node, engine) to why the node is kept from the engine, whatever the engine's own answer is."""

SHOWN = 20
"""The most nodes that an error lists."""


@dataclass(frozen=True, slots=True)
class EligibleEngines:
    """For each node the engines that may take it, and for the others the reason."""

    engines: tuple[str, ...]
    """Specs, by priority."""
    capability: SupportMatrix
    exclusions: Mapping[tuple[int, int], str]
    """(node, engine) to the refusal, the pin or the choice that keeps the node from the engine."""
    updating_engines: Mapping[tuple[int, int], str] = FrozenDict()
    """(node, engine) of the exclusions by which state is not copied, to the spec of the engine that updates it in place."""

    @classmethod
    def of(
        cls,
        function: Function,
        engines: Sequence[GraphCompiler],
        pins: Sequence[Pin],
        refused: Sequence[Refused],
        device: str | Sequence[str],
        capability: SupportMatrix | None = None,
    ) -> EligibleEngines:
        """Return what capability, refusals and pins leave; ``device`` is as `SupportMatrix.of` has it, which is asked without
        one.

        Raises OptionError for a refusal of an engine or a node that is not there, PlanError for a pin that
        matches no node.
        """
        specs = tuple(engine.spec for engine in engines)
        bars = _pin_bars(function, [(engine.name, engine.spec) for engine in engines], pins)
        bars.update(_refusal_bars(function, specs, refused))
        return cls(specs, capability or SupportMatrix.of(function, engines, device), bars)

    def candidates(self) -> list[tuple[int, ...]]:
        """Return for each node the engines that may take it, by priority."""
        found = self.capability.supporting_engines()
        for node, engine in self.exclusions:
            found[node] = tuple(e for e in found[node] if e != engine)
        return found

    def reason(self, node: int, engine: int) -> str | None:
        """Return why the node may not go to the engine; None when it may."""
        return self.exclusions.get((node, engine)) or self.capability.reason(node, engine)

    def reasons(self, node: int) -> str:
        """Return every engine's reason, on one line."""
        return "; ".join(f"{spec}: {self.reason(node, engine)}" for engine, spec in enumerate(self.engines))


def check_all_taken(
    function: Function, choices: EligibleEngines, candidates: Sequence[tuple[int, ...]], pins: Sequence[Pin], strict: bool
) -> None:
    """Raise PlanError where a node has no candidate: it lists all of these nodes with each engine's reason."""
    left = [node for node, engines in enumerate(candidates) if not engines]
    if not left:
        return
    count = f"{len(left)} of {len(function.nodes)} node{'s' * (len(function.nodes) != 1)}"
    broken = [pin for pin in pins if any(pin.matches(pin.subject(function.nodes[n])) for n in left)]
    if broken:
        said = f"{', '.join(repr(str(pin)) for pin in broken)} cannot be kept: no engine is left for {count}"
        advice = "change the pin, or list an engine that takes them"
    else:
        said = f"no engine of the list ({', '.join(choices.engines)}) takes {count}"
        may = strict and any(latest_version(function.nodes[n].domain) for n in left)  # the reference knows no other domain
        advice = "list an engine that takes them" + (", or leave out strict=True so that the reference engine may" * may)
    lines = [f"\n  {function.nodes[n].name!r} ({function.nodes[n].op}): {choices.reasons(n)}" for n in left[:SHOWN]]
    more = f"\n  and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    untaken = () if broken else tuple(function.nodes[n].name for n in left)
    raise PlanError(f"{said}; {advice}:{''.join(lines)}{more}", untaken)


# ------------------------------------------------------------------ refusals


def _refusal_bars(function: Function, specs: Sequence[str], refused: Sequence[Refused]) -> Bars:
    if not refused:
        return {}
    places = {node.name: number for number, node in enumerate(function.nodes)}
    bars: Bars = {}
    for node, engine, reason in refused:
        if engine not in specs:
            raise OptionError(
                f"a refusal names engine {engine!r}, which is not in the list: {', '.join(specs)}.{did_you_mean(engine, specs)}"
            )
        if node not in places:
            raise OptionError(
                f"a refusal names node {node!r}, which is not in function {function.name!r}.{did_you_mean(node, places)}"
            )
        bars[places[node], specs.index(engine)] = reason
    return bars


# ------------------------------------------------------------------ pins


def _pin_bars(function: Function, engines: Sequence[tuple[str, str]], pins: Sequence[Pin]) -> Bars:
    """Return the bars that pins put up; ``engines`` are (name, spec) pairs."""
    bars: Bars = {}
    for node, pin in _holding(function, pins):
        for engine, (name, spec) in enumerate(engines):
            if pin.covers(name, spec) is pin.forbid:
                bars.setdefault((node, engine), f"{'kept from' if pin.forbid else 'pinned to'} {pin.engine} by {str(pin)!r}")
    return bars


def _holding(function: Function, pins: Sequence[Pin]) -> Iterator[tuple[int, Pin]]:
    """Yield each (node, pin) that holds: every forbidding pin that matches, and of the forcing ones the last.

    Raises PlanError for a pin that matches no node.
    """
    nodes = {pin.by: _by_subject(function, pin) for pin in {pin.by: pin for pin in pins}.values()}
    forced: dict[int, Pin] = {}
    for pin in pins:
        matching = list(pin.match(nodes[pin.by]))
        if not matching:
            near = did_you_mean(pin.patterns[0], nodes[pin.by])
            raise PlanError(f"pin {str(pin)!r} matches no node of function {function.name!r}.{near}")
        found = [node for subject in matching for node in nodes[pin.by][subject]]
        if pin.forbid:
            yield from ((node, pin) for node in found)
        else:
            forced.update(dict.fromkeys(found, pin))
    yield from forced.items()


def _by_subject(function: Function, pin: Pin) -> dict[str, list[int]]:
    """Return the nodes by what such a pin goes by: operator or name."""
    nodes: dict[str, list[int]] = {}
    for number, node in enumerate(function.nodes):
        nodes.setdefault(pin.subject(node), []).append(number)
    return nodes
