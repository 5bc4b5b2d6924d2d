"""Find the smallest part of a Function on which an engine differs from the reference.

The reference computes all values first, so that any set of nodes can run as a Function. Delta debugging shrinks the set: halves
first, then finer parts and their complements, until no node can be removed (Zeller and Hildebrandt, Simplifying and Isolating
Failure-Inducing Input, IEEE Transactions on Software Engineering 28(2), 2002). A wrong kernel ends as one node, a wrong fusion as
the fused nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.engines import CompileContext, GraphCompiler
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, Node, TensorType, Type, Value
from xrt.runtime import available_cores, on_device
from xrt.runtime.inputs import copy_values
from xrt.verify.comparison import Verdict, find_precision, judge_outputs
from xrt.verify.execution import Run, compile_alone, expose_all_values, find_region
from xrt.verify.regions import Progress, ignore_progress

if TYPE_CHECKING:
    from xrt.partition import Plan


Difference: TypeAlias = Callable[[Function, Sequence[Any], Sequence[Any]], str | None]
"""Describes the difference of a part, given its inputs and the reference's outputs; None if there is none."""


@dataclass(frozen=True, eq=False)
class FailingSubgraph:
    """A minimal Function on which an engine differs."""

    engine: str
    """The engine's spec, or the name of another tested implementation."""
    function: Function
    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]
    message: str
    runs: int
    """Number of Functions compiled and run during the search."""

    def __str__(self) -> str:
        nodes = ", ".join(f"{node.name!r} ({node.op})" for node in self.function.nodes)
        count = len(self.function.nodes)
        return f"{self.engine} differs on {count} node{'s' * (count != 1)}: {nodes}: {self.message}"


def bisect(
    function: Function,
    engine: GraphCompiler,
    inputs: Sequence[Any],
    reference: Run,
    context: CompileContext | None = None,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Find the smallest part of the Function on which the engine differs from the reference or raises; None if it agrees.

    No single node of the result can be removed. Parts that the engine declines count as correct. ``progress`` is called after
    each run with the number of runs and the node count of the smallest part so far. Takes about ``log2(n)`` compiles if one of n
    nodes is wrong, up to ``n * n`` if many are wrong only together.
    """
    precision = find_precision(engine, context or CompileContext())

    def run(part: Function, arguments: Sequence[Any]) -> list[Any]:
        executable = compile_alone(engine, part, arguments, context)
        try:
            return list(executable.run(copy_values(list(arguments))))
        finally:
            executable.close()

    def differ(part: Function, arguments: Sequence[Any], expected: Sequence[Any]) -> str | None:
        try:
            results = run(part, arguments)
        except CompileRefused:
            return None
        except Exception as error:  # noqa: BLE001  # any other error counts as a difference
            return f"{type(error).__name__}: {error}"
        judgement = judge_outputs(part, arguments, results, expected, reference, precision)
        return judgement.message if judgement.verdict is Verdict.DISAGREES else None

    return bisect_difference(engine.spec, function, inputs, reference, differ, progress=progress)


def bisect_difference(
    name: str,
    function: Function,
    inputs: Sequence[Any],
    reference: Run,
    differ: Difference,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Find the smallest part of the Function for which ``differ`` returns a message, as `bisect` does for an engine.

    ``name`` describes the tested implementation, in place of an engine's spec.
    """
    plain = function.replace(aliases=())
    everything = expose_all_values(plain)
    values = {name: constant.array for name, constant in plain.constants.items()}
    values.update((value.name, array) for value, array in zip(plain.inputs, inputs, strict=True))
    values.update(zip((v.name for v in everything.outputs), reference(everything, list(inputs)), strict=True))
    search = _Search(name, plain, differ, values, progress)
    if search.difference(plain) is None:
        search.opens = True  # an error inside may not reach the outputs
        if search.difference(everything) is None:
            return None
    return search.culprit(search.with_one_output(search.part(search.minimize(plain.nodes))))


def bisect_plan(
    plan: Plan,
    engines: Mapping[str, GraphCompiler],
    inputs: Sequence[Any],
    reference: Run,
    context: CompileContext | None = None,
    *,
    progress: Progress = ignore_progress,
) -> FailingSubgraph | None:
    """Bisect the first region of a plan that differs from the reference; None if none does.

    Each region gets inputs that the reference computed. ``engines`` maps specs to engines; the rest is as in `bisect`.
    """
    values = {name: constant.array for name, constant in plan.function.constants.items()}
    values.update((value.name, array) for value, array in zip(plan.function.inputs, inputs, strict=True))
    for launch in plan.launches:
        arguments = [values[name] for name in launch.inputs]
        where = on_device(plan.get_device(launch), context or CompileContext(threads=available_cores()))
        engine = engines[launch.engine]
        if (failure := bisect(launch.function, engine, arguments, reference, where, progress=progress)) is not None:
            return failure
        # This region is correct: the next one gets the reference's results.
        results = reference(launch.function.replace(aliases=()), copy_values(list(arguments)))
        values.update(zip(launch.outputs, results, strict=True))
    return None


@dataclass
class _Search:
    name: str
    function: Function
    differ: Difference
    values: Mapping[str, Any]
    """Every value as computed by the reference."""
    progress: Progress
    opens: bool = False
    """Whether all values of a part are outputs, not only those read outside."""
    runs: int = 0
    seen: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Whether the nodes with these names differ."""

    def part(self, nodes: Sequence[Node]) -> Function:
        """The nodes as a Function with input types taken from the reference's values."""
        part = find_region(self.function, nodes)
        part = expose_all_values(part) if self.opens else part
        return part.replace(inputs=tuple(Value(v.name, _infer_type(self.values[v.name], v.type)) for v in part.inputs))

    def differs(self, nodes: Sequence[Node]) -> bool:
        """Whether these nodes differ given correct inputs. Cached."""
        # Delta debugging often tries the same set again.
        key = tuple(node.name for node in nodes)
        if key not in self.seen:
            self.seen[key] = self.difference(self.part(nodes)) is not None
            self.progress(self.runs, min((len(k) for k, bad in self.seen.items() if bad), default=len(self.function.nodes)))
        return self.seen[key]

    def difference(self, part: Function) -> str | None:
        """The difference on a part; None if it agrees or is declined."""
        self.runs += 1
        arguments = [self.values[value.name] for value in part.inputs]
        expected = [self.values[value.name] for value in part.outputs]
        return self.differ(part, arguments, expected)

    def minimize(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Minimize the nodes so that removing any one makes the difference disappear."""
        pieces = 2
        while len(nodes) > 1:
            edges = [len(nodes) * i // pieces for i in range(pieces + 1)]
            parts = [nodes[a:b] for a, b in pairwise(edges)]
            smaller = next((part for part in parts if self.differs(part)), None)
            # A part alone still differs: continue with it at the coarsest granularity.
            if smaller is not None:
                nodes, pieces = smaller, 2
                continue
            # With two pieces the complements are the parts themselves.
            rests = ([node for other in parts if other is not part for node in other] for part in parts if pieces > 2)
            rest = next((rest for rest in rests if self.differs(rest)), None)
            if rest is not None:
                nodes, pieces = rest, pieces - 1
            elif pieces == len(nodes):
                break
            else:
                pieces = min(2 * pieces, len(nodes))
        return nodes

    def with_one_output(self, part: Function) -> Function:
        """The part with only its first differing output; unchanged if none differs in isolation."""
        for value in part.outputs:
            alone = part.replace(outputs=(value,))
            if self.difference(alone) is not None:
                return alone
        return part

    def culprit(self, part: Function) -> FailingSubgraph:
        arguments = tuple(self.values[value.name] for value in part.inputs)
        expected = tuple(self.values[value.name] for value in part.outputs)
        return FailingSubgraph(self.name, part, arguments, expected, self.difference(part) or "", self.runs)


def _infer_type(value: Any, declared: Type | None) -> Type | None:
    return TensorType(DType.of(value), value.shape) if isinstance(value, np.ndarray) else declared
