"""Which elements of a wrong result a declared deviation explains, so that they are not counted against the engine.

Special values are looked for in inputs, constants and expected results, never in the results on trial: an engine that returns NaN
for ordinary numbers is wrong, whatever it declares. Type and shape are always required.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import tolerance_for
from xrt.engines.contract.graph_compiler import (
    Deviation,
    DeviationKind,
    find_special_values,
    list_deviations,
    mark_special_elements,
    name_likely_cause,
)
from xrt.errors import XRTError
from xrt.graph import TensorType
from xrt.passes import infer_shapes
from xrt.placement.reference import evaluate
from xrt.verify.execution import expose_all_values

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function, Node

__all__ = ["name_cause", "overlook_deviations"]


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
