"""How tests run a Function on engines: a strict module, every node on another engine, and judged by declared deviations.

A program alternates if every node is a region of its own, with neighbours on different engines; there is no worse mixture. The
nodes are walked in topological order, and each has a *turn*: it is that of the engine after the one that has the node that made
the first of its inputs which any node made, round the list; a node that reads nothing of the kind begins with the first engine of
the round. An engine that declines a node hands the turn on to the next in the list, and so does one that refuses the node at
compile. So along every chain of nodes that all engines take, each value passes from one to another.

Declared deviations are looked for in inputs, constants and expected results, never in the results on trial: an engine that
returns NaN for ordinary numbers is wrong, whatever it declares. Type and shape are always required.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.cache import CompileCache
from xrt.comparison import tolerance_for
from xrt.engines import CompileContext, GraphCompiler
from xrt.engines.contract.graph_compiler import (
    Deviation,
    DeviationKind,
    find_special_values,
    list_deviations,
    mark_special_elements,
    name_likely_cause,
)
from xrt.errors import CompileFailed, CompileRefused, XRTError
from xrt.graph import TensorType
from xrt.module import XRTModule
from xrt.module.specialization import optimize
from xrt.partition import ClusteringOptions, Pin, Plan, partition
from xrt.passes import infer_shapes
from xrt.placement.reference import evaluate
from xrt.runtime import Program, Refusal, available_cores, compile_plan
from xrt.verify.execution import expose_all_values, fit_inputs
from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function, Node


def make_module(function: Function, engines: Sequence[GraphCompiler | str], **options: Any) -> XRTModule:
    """Return a strict module with a cache of its own that folds no constants.

    Folding is left out because the reference engine would then answer in place of those that are to be proved.
    """
    settings: dict[str, Any] = {"strict": True, "fold_constants": False, "cache": CompileCache()} | options
    return XRTModule(function, list(engines), **settings)


def isolate_engines(engines: Iterable[GraphCompiler]) -> list[GraphCompiler]:
    """Let engines compile and run in worker processes, one for each: a crash is then an error like any other.

    Raises OptionError for one that no other process can import.
    """
    return [_SharedWorker(engine, WorkerLimits(), runs=True) for engine in engines]


class _SharedWorker(IsolatedEngine):
    """An isolated engine whose worker serves one module after another, and ends with this object."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.close = lambda: None  # type: ignore[assignment]  # modules end the workers of their engines


def as_planned(function: Function) -> Function:
    """Return the function, types inferred, as a module of `make_module` plans it; pins may name the nodes that it has then."""
    return optimize(infer_shapes(function), fold=False)


def fit_inputs_for(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Function:
    """Return the function with types inferred, and with the inputs' shapes where one of the engines wants them fixed."""
    whole = infer_shapes(function)
    wants_shapes = [engine for engine in engines if engine.why_not_dynamic(whole) is not None]
    return fit_inputs(function, inputs, (*wants_shapes, *engines)[0])


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
        program = compile_plan(round_.plan(), {engine.spec: engine for engine in engines}, context, cache)
        if isinstance(program, Program):
            return program
        for refusal in program:
            round_.note(refusal)


def overlook_deviations(
    results: Sequence[Any],
    function: Function,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    engines: Iterable[GraphCompiler],
    inner: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Return the results with the expected element in place of each one that a declared deviation of the engines explains.

    Where a special value reaches a node for which that kind is declared, every element behind the node is explained; elsewhere an
    element is explained if its expected value is special and a node before it deviates so. ``inner`` has inner values; None lets
    the reference compute them. A result of another type or shape is returned as it is.
    """
    function = infer_shapes(function)
    declared = [one for engine in engines for one in list_deviations(engine.implementation, function)]
    if not declared or len(results) != len(expected):
        return list(results)
    values = {name: constant.array for name, constant in function.constants.items()}
    values |= _evaluate_inner_values(function, inputs) if inner is None else inner
    values |= {value.name: array for value, array in zip(function.inputs, inputs, strict=True)}
    values |= {value.name: array for value, array in zip(function.outputs, expected, strict=True)}
    reached, kinds = _trace(function, values, declared)
    pairs = zip(function.outputs, results, expected, strict=True)
    return [_overlook(mine, theirs, value.name in reached, kinds[value.name]) for value, mine, theirs in pairs]


def _evaluate_inner_values(function: Function, inputs: Sequence[Any]) -> dict[str, Any]:
    """Compute the inner values on the reference engine; empty if it cannot run the Function."""
    exposed = expose_all_values(function)
    try:
        results = evaluate(exposed, copy.deepcopy(list(inputs)))
    except XRTError:
        return {}
    return {value.name: result for value, result in zip(exposed.outputs, results, strict=True)}


def name_cause(engines: Iterable[GraphCompiler], function: Function, values: Iterable[Any]) -> str:
    """Name the deviations that explain a difference, with values of the Function as the reference computes them."""
    known = [*values, *(constant.array for constant in function.constants.values())]
    causes = (name_likely_cause(engine.implementation, function, known) for engine in engines)
    return next(filter(None, causes), "likely a known deviation")


def _trace(
    function: Function, values: Mapping[str, Any], declared: Sequence[Deviation]
) -> tuple[set[str], Mapping[str, set[DeviationKind]]]:
    """Return the values that a special value has reached through a node that deviates on it, and the kinds on which nodes before
    each value deviate.
    """
    special = {name: _find_kinds([value]) for name, value in values.items()}
    reached: set[str] = set()
    deviating: dict[str, set[DeviationKind]] = defaultdict(set)
    for node in function.nodes:
        operators = {node.op_type, *(inner.op_type for body in node.bodies for _, inner in body.walk())}
        covered = {one.kind for one in declared if not one.operators or operators.intersection(one.operators)}
        read = {kind for name in node.uses for kind in special.get(name, set()) if not _is_argument(node, name, function)}
        read |= _find_kinds(c.array for body in node.bodies for c in body.constants.values())
        is_reached = bool(covered & read) or not reached.isdisjoint(node.uses)
        is_reached |= any(special.get(name, set()) & deviating[name] for name in node.uses)
        for name in node.defines:
            deviating[name] = covered.union(*(deviating[used] for used in node.uses))
            if is_reached:
                reached.add(name)
    return reached, deviating


def _find_kinds(values: Iterable[Any]) -> set[DeviationKind]:
    found = find_special_values(values)
    return found | {"float16"} if "infinity" in found else found  # it may have overflowed in a narrower type


def _is_argument(node: Node, name: str, function: Function) -> bool:
    """Whether a node reads the value to know what to do, as Slice reads its ends and Resize the scales that it leaves empty.

    The largest integer as an end, or an empty list of sizes, is no special value of the data.
    """
    if name not in node.inputs[1:] or name == node.inputs[0]:
        return False
    types = [function.get_type(one) for one in (name, node.inputs[0], *node.defines)]
    kinds = [type_.dtype if isinstance(type_, TensorType) else None for type_ in types]
    is_empty = isinstance(types[0], TensorType) and types[0].shape == (0,)
    return is_empty or (None not in kinds and kinds[0] not in kinds[1:])


def _overlook(mine: Any, theirs: Any, everywhere: bool, kinds: set[DeviationKind]) -> Any:
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [_overlook(a, b, everywhere, kinds) for a, b in zip(mine, theirs, strict=True)]
    if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
        return mine
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return mine
    if everywhere:
        return theirs
    marks = mark_special_elements(theirs)
    explained = [mask for kind, mask in marks.items() if kind in kinds]
    if "float16" in kinds and "infinity" in marks:  # it neither overflows nor is rounded on the way
        bound = tolerance_for("bfloat16").compute_bound(theirs.astype(np.float64))
        with np.errstate(invalid="ignore"):
            explained += [marks["infinity"], np.abs(mine.astype(np.float64) - theirs.astype(np.float64)) <= bound]
    return np.where(np.logical_or.reduce(explained), theirs, mine) if explained else mine
