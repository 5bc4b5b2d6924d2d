"""The reference engine: it folds constants and computes expected results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from xrt.engines import CompileContext, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.toolkit import reference_evaluator
from xrt.engines.toolkit.reference_evaluator import REFERENCE, get_reference_engine
from xrt.errors import XRTError

if TYPE_CHECKING:
    from xrt.graph import Function, Node
    from xrt.verify import WitnessedReference, Witnesses
    from xrt.worker.isolated_engine import IsolatedEngine

__all__ = ["LEAST_PATIENCE", "REFERENCE", "Bench", "evaluate", "is_borrowed"]


def evaluate(function: Function, inputs: Sequence[Any], threads: int = 1) -> list[Any]:
    """Return the outputs of a Function from its inputs, both in its order; raises CompileRefused where there is no kernel.

    A product with packed weights (MatMulNBits) is computed as one of floats.
    """
    if any(node.op_type == "MatMulNBits" for node in function.nodes):
        from xrt.passes.quantize.unpacking import unpack_weights  # for those alone who have some

        function = unpack_weights(function)
    return reference_evaluator.evaluate(function, inputs, threads=threads)


def is_borrowed(node: Node, function: Function) -> bool:
    """Whether the reference engine computes the node with code of another project."""
    return get_reference_engine().borrows(node, function)


# ---------------------------------------------------------------------- witnesses

LIMIT = 30.0
"""Seconds that a witness may take for a compile or a run of one node."""
LEAST_PATIENCE = 2.0
"""Seconds that a witness has in any case for a piece on which an engine and the reference differ."""


@dataclass(eq=False)
class Bench:
    """The engines that are installed, as witnesses where one differs from the reference: each in a process of its own."""

    threads: int
    seconds: float = LIMIT
    """What each may take for a compile or a run."""
    _made: dict[str, IsolatedEngine | None] = field(default_factory=dict)

    def witnesses(self) -> Witnesses:
        """Return those that may be asked; no process is started before one is."""
        from xrt.verify import Witnesses

        return Witnesses(self._engines, is_borrowed, CompileContext(threads=self.threads), get_reference_engine().name)

    def reference(self) -> WitnessedReference:
        """Return the reference, with those to be asked where an engine differs from it."""
        from xrt.verify import WitnessedReference

        return WitnessedReference(partial(evaluate, threads=self.threads), self.witnesses())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _engines(self) -> Iterator[GraphCompiler]:
        for name in registry.names():
            if name not in self._made:
                self._made[name] = _isolated(name, self.seconds)
            if (engine := self._made[name]) is not None:
                yield engine

    def close(self) -> None:
        """End the processes."""
        made, self._made = self._made, {}
        for engine in made.values():
            if engine is not None:
                engine.close()


def _isolated(name: str, seconds: float) -> IsolatedEngine | None:
    """Return an engine behind a worker; None where it cannot serve on the host, or not there."""
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

    try:
        engine = registry.create(name)
        return IsolatedEngine(engine, WorkerLimits(seconds=seconds), runs=True) if "cpu" in engine.devices else None
    except XRTError:
        return None
