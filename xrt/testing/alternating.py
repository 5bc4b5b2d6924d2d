"""Alternation: every node a region of its own, neighbours on different engines. There is no worse mixture.

The nodes are walked in topological order, and each has a *turn*: it is that of the engine after the one that has the node
that made the first of its inputs which any node made, round the list; a node that reads nothing of the kind begins with the
first engine of the round. An engine that declines a node hands the turn on to the next in the list, and so does one that
refuses the node at compile. So along every chain of nodes that all engines take, each value passes from one to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import CompileFailed, CompileRefused
from xrt.partition import ClusteringOptions, Pin, Plan, partition
from xrt.runtime import Program, Refusal, available_cores, compile_plan
from xrt.testing.running import fit_inputs_for

if TYPE_CHECKING:
    from xrt.graph import Function, Node

__all__ = ["Alternation", "make_alternating_program"]

Refused: TypeAlias = dict[tuple[str, int], str]
"""A node and the number of an engine that refused it at compile, to the reason."""


@dataclass
class Alternation:
    """Who has which node, in one round over a Function."""

    function: Function
    engines: Sequence[GraphCompiler]
    first: int = 0
    """The engine that begins."""
    refused: Refused = field(default_factory=dict)
    last_resort: bool = False
    """Whether the last engine of the list has no turn, and only nodes that no other takes."""

    def plan(self) -> Plan:
        """Return the plan of the round; raises CompileRefused for a node that no engine takes."""
        homes: dict[str, int] = {}
        for node in self.function.nodes:
            homes[node.name] = self._home(node, self._turn(node, homes))
        options = ClusteringOptions(maximum_nodes=1, pins=tuple(self._pins(homes)))
        return partition(self.function, self.engines, options, strict=True)

    def _turn(self, node: Node, homes: dict[str, int]) -> int:
        makers = (self.function.producer(name) for name in node.uses)
        maker = next((maker for maker in makers if maker is not None), None)
        return self.first if maker is None else (homes[maker.name] + 1) % (len(self.engines) - int(self.last_resort))

    def _home(self, node: Node, turn: int) -> int:
        """Return the first engine that takes the node, from the one whose turn it is."""
        reasons = []
        turns = len(self.engines) - int(self.last_resort)
        numbers = [(turn + step) % turns for step in range(turns)] + list(range(turns, len(self.engines)))
        for number in numbers:
            engine = self.engines[number]
            reason = self.refused.get((node.name, number)) or engine.why_not(node, self.function)
            if reason is None:
                return number
            reasons.append(f"{engine.spec}: {reason}")
        raise CompileRefused(f"{node.op}: {'; '.join(reasons)}")

    def _pins(self, homes: dict[str, int]) -> Iterator[Pin]:
        for number, engine in enumerate(self.engines):
            if names := tuple(name for name, home in homes.items() if home == number):
                yield Pin(names, engine.spec, "name")

    def note(self, refusal: Refusal) -> None:
        """Keep what an engine refused from it in the plans to come; raises the library's own failure."""
        if isinstance(refusal.error, CompileFailed):
            raise refusal.error
        number = [engine.spec for engine in self.engines].index(refusal.launch.engine)
        self.refused.update(((node, number), str(refusal.error)) for node in refusal.nodes)


def make_alternating_program(
    function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler], first: int = 0, *, last_resort: bool = False
) -> Program:
    """Return the compiled Program in which neighbouring nodes are on different engines.

    With ``last_resort`` the last engine has only nodes that no other takes.

    Raises CompileRefused for a node that no engine takes, CompileFailed where an engine's library fails.
    """
    round_, cache = (
        Alternation(fit_inputs_for(function, inputs, engines), engines, first, last_resort=last_resort),
        CompileCache(),
    )
    while True:
        context = CompileContext(threads=available_cores())
        made = compile_plan(round_.plan(), {engine.spec: engine for engine in engines}, context, cache)
        if isinstance(made, Program):
            return made
        for refusal in made:
            round_.note(refusal)
