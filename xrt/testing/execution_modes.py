"""Ways to run a graph that must all agree with the reference: on one engine, on a list of them, by chance, in alternation."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from xrt.errors import CompileRefused, PlanError
from xrt.partition import Pin
from xrt.testing.alternating import make_alternating_program
from xrt.testing.running import as_planned, make_module
from xrt.verify.execution import run_alone

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function

__all__ = ["Alternating", "ExecutionMode", "PriorityListMode", "RandomMixMode", "SingleEngineMode"]


class ExecutionMode(Protocol):
    """One way to run a Function."""

    @property
    def engines(self) -> tuple[GraphCompiler, ...]:
        """The engines that may have nodes, the reference among them or not."""
        ...  # pragma: no cover

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs. Raises CompileRefused where this way cannot take the function."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class SingleEngineMode:
    """The whole graph on one engine, by its contract alone. An engine that declines a node cannot take it."""

    engine: GraphCompiler

    def __str__(self) -> str:
        return f"{self.engine.name} alone"

    @property
    def engines(self) -> tuple[GraphCompiler, ...]:
        return (self.engine,)

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        return run_alone(self.engine, function.replace(aliases=()), inputs)


@dataclass(frozen=True)
class PriorityListMode:
    """What each engine of a list accepts, in the order of preference, and the reference behind them."""

    engines: tuple[GraphCompiler, ...]

    def __str__(self) -> str:
        return ",".join(engine.name for engine in self.engines)

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        return _run_module(function, self.engines, (), inputs)


@dataclass(frozen=True)
class RandomMixMode:
    """Each node on an engine by chance, of those that accept it.

    The chance is drawn from the node's name and the seed, so a node stays where it is while others are taken away.
    """

    engines: tuple[GraphCompiler, ...]
    """The last one accepts everything."""
    seed: int = 0

    def __str__(self) -> str:
        return f"mixture {self.seed} of {','.join(engine.name for engine in self.engines)}"

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        living = as_planned(function)  # reasons are given by type; a pin that names a node that is gone is refused
        try:
            return _run_module(living, self.engines, self._pins(living), inputs)
        except PlanError as error:
            # A pin forces, so a region that its engine refuses as a whole has nowhere to go; a library that fails is a finding.
            if "failed to compile" in str(error):
                raise
            raise CompileRefused(str(error)) from error

    def _pins(self, function: Function) -> list[Pin]:
        homes: dict[str, list[str]] = {}
        for node in function.nodes:
            willing = [e for e in self.engines if e.why_not(node, function) is None] or [self.engines[-1]]
            chance = zlib.crc32(f"{self.seed}/{node.name}".encode())
            homes.setdefault(willing[chance % len(willing)].spec, []).append(node.name)
        return [Pin(tuple(names), spec, "name") for spec, names in homes.items()]


@dataclass(frozen=True)
class Alternating:
    """Each node a region of its own, neighbours on different engines."""

    engines: tuple[GraphCompiler, ...]
    """In the order of their turns; behind several, the last one has only nodes that no other takes."""
    first: int = 0
    """The number of the engine that begins."""

    def __str__(self) -> str:
        return f"alternating {','.join(engine.name for engine in self.engines)} from {self.first}"

    def run(self, function: Function, inputs: Sequence[Any]) -> list[Any]:
        plain = as_planned(function.replace(aliases=()))
        last_resort = len(self.engines) > 2
        program = make_alternating_program(plain, inputs, self.engines, self.first, last_resort=last_resort)
        return list(program.run(inputs))


def _run_module(function: Function, engines: Sequence[GraphCompiler], pins: Sequence[Pin], inputs: Sequence[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a region goes to the engine behind is what is being tried
        with make_module(function, engines, pins=tuple(pins)) as module:
            results = module(*inputs)
    return [results] if len(function.outputs) == 1 else list(results)
