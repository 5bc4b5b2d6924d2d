"""Run Functions on engines for tests: in a strict module, or alternating between engines; and account for declared deviations.

In an alternating program, every node is a separate region, and neighbours run on different engines. Nodes are assigned in
topological order. If a node reads a computed value, it is assigned to the engine after that of the node that computes the first
such value, and otherwise to the engine `first`. After the last engine of the list comes the first. If an engine declines the node
or refuses it at compile, the next engine is tried.

Special values (NaN, infinity and others) for declared deviations are looked up in inputs, constants and expected results, never
in the results under test: NaN for ordinary numbers is wrong, even with a declared deviation. Types and shapes must always match.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.cache import CompileCache
from xrt.comparison import tolerance_for
from xrt.engines import CompileContext, GraphCompiler
from xrt.engines.contract.graph_compiler import Deviation, DeviationKind
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import CompileFailed, CompileRefused, XRTError
from xrt.graph import FrozenDict, TensorType
from xrt.module import XRTModule
from xrt.module.programs import optimize
from xrt.partition import ClusteringOptions, Pin, Plan, partition
from xrt.passes import infer_shapes
from xrt.runtime import Program, compile_plan, count_available_cores
from xrt.verify.deviations import find_special_values, list_deviations, mark_special_elements, name_likely_cause
from xrt.verify.execution import expose_all_values, fit_inputs
from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

if TYPE_CHECKING:
    from xrt.graph import Function, Node


def make_module(function: Function, engines: Sequence[GraphCompiler | str], **options: Any) -> XRTModule:
    """Make a strict module with a new cache, without constant folding, by which the reference engine would compute constants."""
    settings: dict[str, Any] = {"strict": True, "fold_constants": False, "cache": CompileCache()} | options
    return XRTModule(function, list(engines), **settings)


def run_outputs(results: Any, function: Function) -> list[Any]:
    """Convert the results of a module to a list. A module with one output returns it without a tuple."""
    return [results] if len(function.outputs) == 1 else list(results)


def isolate_engines(engines: Iterable[GraphCompiler]) -> list[GraphCompiler]:
    """Wrap each engine to compile and run in a worker process, so that a crash becomes an exception.

    Raises OptionError for an engine that another process cannot import.
    """
    return [_SharedWorker(engine, WorkerLimits(), runs=True) for engine in engines]


class _SharedWorker(IsolatedEngine):
    """An isolated engine whose worker several modules use one after another. It ends when this object is deleted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Starting a worker imports the engine's library, which takes longer than most cases.
        self.close = lambda: None  # type: ignore[assignment]  # closing a module would end the worker


def as_planned(function: Function) -> Function:
    """Infer types and optimize without folding, as a module of `make_module` does before it plans: pins must name these nodes."""
    return optimize(infer_shapes(function), fold=False)


def fit_inputs_for(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Function:
    """Infer types. If an engine does not support the dynamic shapes, replace them by the shapes of the inputs."""
    typed = infer_shapes(function)
    static_engine = next((engine for engine in engines if engine.why_not_dynamic(typed) is not None), engines[0])
    return fit_inputs(function, inputs, static_engine)


def alternate_engines(
    function: Function,
    engines: Sequence[GraphCompiler],
    first: int = 0,
    *,
    last_resort: bool = False,
    refused: Mapping[tuple[str, str], str] = FrozenDict(),
) -> Plan:
    """Partition a Function so that neighbouring nodes run on different engines, each node in its own region.

    ``first`` is the index of the engine to start with. With ``last_resort``, the last engine does not alternate, and only gets
    nodes that no other engine supports. ``refused`` maps (node, engine) to the reason of a refusal at compile. Raises
    CompileRefused for a node that no engine supports.
    """
    # Only the engines with an index below ``count`` alternate.
    count = len(engines) - int(last_resort)
    engine_indices: dict[str, int] = {}
    for node in function.nodes:
        # Start after the engine of the first producer, so that neighbours run on different engines.
        producers = (function.producer(name) for name in node.uses)
        producer = next((producer for producer in producers if producer is not None), None)
        start = first if producer is None else engine_indices[producer.name] + 1
        if start >= count:
            start = 0
        reasons = []
        # The alternating engines from ``start`` around to it, then the last resort.
        for index in [*range(start, count), *range(start), *range(count, len(engines))]:
            engine = engines[index]
            reason = refused.get((node.name, engine.spec)) or engine.why_not(node, function)
            if reason is None:
                engine_indices[node.name] = index
                break
            reasons.append(f"{engine.spec}: {reason}")
        else:
            raise CompileRefused(f"{node.op}: {'; '.join(reasons)}")
    return partition(function, engines, ClusteringOptions(maximum_nodes=1, pins=pin_nodes(engines, engine_indices)), strict=True)


def pin_nodes(engines: Sequence[GraphCompiler], engine_indices: Mapping[str, int]) -> tuple[Pin, ...]:
    """Make pins that assign nodes to engines; ``engine_indices`` maps node names to indices of ``engines``."""
    by_engine = [tuple(name for name, assigned in engine_indices.items() if assigned == index) for index in range(len(engines))]
    return tuple(Pin(names, engine.spec, "name") for names, engine in zip(by_engine, engines, strict=True) if names)


def make_alternating_program(
    function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler], first: int = 0, *, last_resort: bool = False
) -> Program:
    """Compile the plan of `alternate_engines`; if an engine refuses a node at compile, assign the node to another one.

    Raises CompileRefused for a node that no engine supports, CompileFailed if an engine's library fails.
    """
    fixed, cache = fit_inputs_for(function, inputs, engines), CompileCache()
    context, by_spec = CompileContext(threads=count_available_cores()), {engine.spec: engine for engine in engines}
    refused: dict[tuple[str, str], str] = {}
    # Each round excludes at least one node from one engine, so the loop ends.
    while True:
        plan = alternate_engines(fixed, engines, first, last_resort=last_resort, refused=refused)
        program = compile_plan(plan, by_spec, context, cache)
        if isinstance(program, Program):
            return program
        for refusal in program:
            if isinstance(refusal.error, CompileFailed):
                raise refusal.error
            refused.update({(node, refusal.launch.engine): str(refusal.error) for node in refusal.nodes})


def overlook_deviations(
    results: Sequence[Any],
    function: Function,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    engines: Iterable[GraphCompiler],
    inner: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Copy ``results``, with expected values in place of the elements that a declared deviation of the engines explains.

    A deviation declares that an operator may handle a kind of special values (NaN, infinity, ...) differently. Two rules:

    1. If a node reads a special value, and the node or a node upstream of the value has a deviation for its kind, everything
       downstream of the node is replaced.
    2. Otherwise an element is replaced if its expected value is special, and a node upstream has a deviation for its kind.

    ``inner`` maps names to inner values; None computes them on the reference engine. Results of a wrong type or shape are
    returned unchanged.
    """
    function = infer_shapes(function)
    declared = [deviation for engine in engines for deviation in list_deviations(engine.implementation, function)]
    if not declared or len(results) != len(expected):
        return list(results)
    # Later lines replace earlier ones: expected outputs take precedence over values computed again.
    values = {name: constant.array for name, constant in function.constants.items()}
    values |= _evaluate_inner_values(function, inputs) if inner is None else inner
    values |= {value.name: array for value, array in zip(function.inputs, inputs, strict=True)}
    values |= {value.name: array for value, array in zip(function.outputs, expected, strict=True)}
    reached, kinds = _trace_deviations(function, values, declared)
    pairs = zip(function.outputs, results, expected, strict=True)
    return [_replace_explained(result, reference, value.name in reached, kinds[value.name]) for value, result, reference in pairs]


def _evaluate_inner_values(function: Function, inputs: Sequence[Any]) -> dict[str, Any]:
    """Compute the inner values on the reference engine; empty if it raises an XRTError."""
    exposed = expose_all_values(function)
    try:
        results = evaluate(exposed, copy.deepcopy(list(inputs)))
    except XRTError:
        return {}
    return {value.name: result for value, result in zip(exposed.outputs, results, strict=True)}


def name_cause(engines: Iterable[GraphCompiler], function: Function, values: Iterable[Any]) -> str:
    """Name the declared deviation that likely explains a difference, given reference values of the Function."""
    reference_values = [*values, *(constant.array for constant in function.constants.values())]
    causes = (name_likely_cause(engine.implementation, function, reference_values) for engine in engines)
    return next(filter(None, causes), "likely a known deviation")


def _trace_deviations(
    function: Function, values: Mapping[str, Any], declared: Sequence[Deviation]
) -> tuple[set[str], Mapping[str, set[DeviationKind]]]:
    """Apply rule 1 of `overlook_deviations`: return the names of the values that it replaces.

    Also return for each value the kinds of deviations of the nodes upstream, which rule 2 needs.
    """
    special = {name: _find_kinds([value]) for name, value in values.items()}
    reached: set[str] = set()
    deviating: dict[str, set[DeviationKind]] = defaultdict(set)
    for node in function.nodes:
        operators = {node.op_type, *(inner.op_type for body in node.bodies for _, inner in body.walk())}
        # A deviation without operators holds for every operator.
        covered = {d.kind for d in declared if not d.operators or operators.intersection(d.operators)}
        # The kinds of special values that the node reads as data, also from the constants of its bodies.
        read_kinds = {kind for name in node.uses for kind in special.get(name, set()) if not _is_argument(node, name, function)}
        read_kinds |= _find_kinds(c.array for body in node.bodies for c in body.constants.values())
        # The node deviates for a kind that it reads, or is downstream of such a node, or a node upstream deviates for the kind.
        is_reached = bool(covered & read_kinds) or not reached.isdisjoint(node.uses)
        is_reached |= any(special.get(name, set()) & deviating[name] for name in node.uses)
        for name in node.defined_names:
            deviating[name] = covered.union(*(deviating[used] for used in node.uses))
            if is_reached:
                reached.add(name)
    return reached, deviating


def _find_kinds(values: Iterable[Any]) -> set[DeviationKind]:
    kinds = find_special_values(values)
    return kinds | {"float16"} if "infinity" in kinds else kinds  # may be an overflow in float16


def _is_argument(node: Node, name: str, function: Function) -> bool:
    """Whether the value is a parameter of the node rather than data, such as the ends of a Slice or empty scales of a Resize.

    In parameters, the largest integer and arrays without elements are usual, so they do not count as special values. A parameter
    is an operand after the first that is empty, or whose dtype neither the first operand nor a result has.
    """
    if name not in node.inputs[1:] or name == node.inputs[0]:
        return False
    types = [function.get_type(operand) for operand in (name, node.inputs[0], *node.defined_names)]
    dtypes = [type_.dtype if isinstance(type_, TensorType) else None for type_ in types]
    is_empty = isinstance(types[0], TensorType) and types[0].shape == (0,)
    return is_empty or (None not in dtypes and dtypes[0] not in dtypes[1:])


def _replace_explained(result: Any, reference: Any, everywhere: bool, kinds: set[DeviationKind]) -> Any:
    """Replace elements of a result by the reference: all if ``everywhere``, else those whose reference is of ``kinds``."""
    if isinstance(result, list) and isinstance(reference, list) and len(result) == len(reference):
        return [_replace_explained(a, b, everywhere, kinds) for a, b in zip(result, reference, strict=True)]
    if not isinstance(result, np.ndarray) or not isinstance(reference, np.ndarray):
        return result
    if result.dtype != reference.dtype or result.shape != reference.shape:
        return result
    if everywhere:
        return reference
    marks = mark_special_elements(reference)
    explained = [mask for kind, mask in marks.items() if kind in kinds]
    if "float16" in kinds and "infinity" in marks:  # the engine skips a cast to float16: no overflow, no rounding
        bound = tolerance_for("bfloat16").compute_bound(reference.astype(np.float64))
        with np.errstate(invalid="ignore"):
            explained += [marks["infinity"], np.abs(result.astype(np.float64) - reference.astype(np.float64)) <= bound]
    return np.where(np.logical_or.reduce(explained), reference, result) if explained else result
