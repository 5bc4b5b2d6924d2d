"""Which results of a graph with special numbers are open: ONNX does not define them, or an engine declares that it loses them.

Generated graphs have many operators, so what is open at one node reaches the outputs behind it. Each value is in one of three
states. It is *exact*, or it is *partly open*: where it or what is due is not finite, any number is right. Or it is *open*:
nothing of it is compared. Denormal numbers that an engine counts as zero are followed in a second run of the reference with
zeros for them; a result may be that of either run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.comparison import tolerance_for
from xrt.graph import DType, Function, Node
from xrt.testing.special_inputs import Kind, has_denormals, with_zeros_for_denormals
from xrt.testing.spikes import COMBINING, WEIGHTED
from xrt.verify.execution import Run, expose_all_values, run_regions

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler

__all__ = ["Losses", "admit_open_results"]

Array: TypeAlias = np.ndarray[Any, Any]

HUGE = 1e-3
"""Share of the largest number of a type from which on sums may overflow or not."""


class ResultState(IntEnum):
    """How much of a value is defined."""

    EXACT = 0
    PARTLY_OPEN = 1
    OPEN = 2


@dataclass(frozen=True)
class Losses:
    """What the engines of a way declare."""

    operators: Mapping[Kind, frozenset[str]]
    """Operators whose result is open when they read such a number."""
    flushing: frozenset[str]
    """Types whose denormal numbers may count as zero."""

    @classmethod
    def of_engines(cls, engines: Iterable[GraphCompiler]) -> Losses:
        """Return what any of the engines declares."""
        kinds = [engine.implementation for engine in engines]
        nan = {op for kind in kinds for op in (*kind.loses_nan, *kind.spreads_nan)}
        infinity = {op for kind in kinds for op in kind.loses_infinity}
        flushing = frozenset(dtype for kind in kinds for dtype in kind.flushes_denormals)
        return cls({"nan": frozenset(nan), "infinity": frozenset(infinity)}, flushing)


def admit_open_results(
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], losses: Losses, run: Run
) -> list[Any]:
    """Return the results with the expected ones wherever they are open; ``run`` is the reference."""
    plain = function.replace(aliases=())
    if len(results) != len(expected):
        return list(results)
    with np.errstate(all="ignore"):
        worlds = [_all_values(plain, inputs, run)]
        flushed = _flushed(plain, inputs, run, losses.flushing, worlds[0])
        if flushed is not None:
            worlds.append(flushed)
        states = _states(plain, worlds, losses)
        admitted = []
        for value, mine, theirs in zip(plain.outputs, results, expected, strict=True):
            kept = mine if flushed is None else _admit_flushed(mine, theirs, flushed[value.name])
            admitted.append(_admit(states.get(value.name, ResultState.EXACT), kept, theirs))
    return admitted


def _all_values(function: Function, inputs: Sequence[Any], run: Run) -> dict[str, Any]:
    values: dict[str, Any] = {name: constant.array for name, constant in function.constants.items()}
    values.update((value.name, given) for value, given in zip(function.inputs, inputs, strict=True))
    opened = expose_all_values(function)
    values.update(zip((value.name for value in opened.outputs), run(opened, inputs), strict=True))
    return values


def _flushed(
    function: Function, inputs: Sequence[Any], run: Run, types: frozenset[str], values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return all values with zeros for the denormal numbers of those types; None where there are none."""
    if not types or not any(has_denormals(array, types) for value in values.values() for array in _arrays(value)):
        return None
    opened = expose_all_values(function)
    constants = {name: with_zeros_for_denormals(constant.array, types) for name, constant in function.constants.items()}
    given = [with_zeros_for_denormals(value, types) for value in inputs]

    def run_flushing(piece: Function, read: Sequence[Any]) -> list[Any]:
        return [with_zeros_for_denormals(result, types) for result in run(piece, read)]

    made = run_regions(opened, range(len(opened.nodes)), given, run_flushing)
    pairs = zip((value.name for value in opened.outputs), made, strict=True)
    return {**constants, **{v.name: x for v, x in zip(function.inputs, given, strict=True)}, **dict(pairs)}


# ---------------------------------------------------------------------- states of values


def _states(function: Function, worlds: Sequence[Mapping[str, Any]], losses: Losses) -> dict[str, ResultState]:
    """Return the states of those values that are not exact."""
    states: dict[str, ResultState] = {}
    for node in function.nodes:
        state = max((states.get(name, ResultState.EXACT) for name in node.uses), default=ResultState.EXACT)
        for world in worlds:
            state = max(state, _state_behind(node, world, losses))
        if state is ResultState.EXACT:
            continue
        for name in node.outputs:
            is_float = all(array.dtype.kind in "fV" for array in _arrays(worlds[0].get(name)))
            states[name] = state if is_float and node.op != "TopK" else ResultState.OPEN
    return states


def _state_behind(node: Node, values: Mapping[str, Any], losses: Losses) -> ResultState:
    """Return the state of what the node computes of exact values."""
    arrays = [array for name in node.uses for array in _arrays(values.get(name)) if DType.of(array).is_float]
    kinds = {kind for array in arrays for kind in _kinds(array)}
    inner = tuple(_with_bodies(node))
    operators = {one.op for one in inner}
    if any(losses.operators[kind] & operators for kind in ("nan", "infinity") if kind in kinds):
        return ResultState.OPEN
    if any(_is_undefined(one, kinds, arrays) for one in inner):
        return ResultState.OPEN
    reads_much = {"infinity", "huge"} & kinds and COMBINING & operators
    return ResultState.PARTLY_OPEN if reads_much or ({"nan", "infinity"} & kinds and WEIGHTED & operators) else ResultState.EXACT


_WITHOUT_NAN = frozenset(["ArgMax", "ArgMin", "TopK", "QuantizeLinear", "DynamicQuantizeLinear", "NonMaxSuppression", "Unique"])
"""Operators of which ONNX does not say what they make of NaN."""
_PLACES = frozenset(["GridSample", "RoiAlign"])
"""Operators that read at places which are numbers of an input."""
_INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 12, 13))
"""ONNX's numbers of the integer types of 8 bits and more."""
_LEAST = 127.0
"""What every integer type holds."""


def _is_undefined(node: Node, kinds: set[str], arrays: Sequence[Array]) -> bool:
    if node.op == "Cast" and node.attr("to") in _INTEGERS:
        return any((~(np.abs(array.astype(np.float64)) <= _LEAST)).any() for array in arrays)
    if node.op in _PLACES:
        return bool({"nan", "infinity"} & kinds)
    return node.op in _WITHOUT_NAN and "nan" in kinds


def _kinds(array: Array) -> Iterator[str]:
    wide = array.astype(np.float64)
    if np.isnan(wide).any():
        yield "nan"
    if np.isinf(wide).any():
        yield "infinity"
    if array.dtype.kind == "f" and (np.abs(wide[np.isfinite(wide)]) > HUGE * float(np.finfo(array.dtype).max)).any():
        yield "huge"


def _with_bodies(node: Node) -> Iterator[Node]:
    yield node
    for body in node.bodies:
        for inner in body.nodes:
            yield from _with_bodies(inner)


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _arrays(item)


# ---------------------------------------------------------------------- results

_Admit: TypeAlias = Callable[[Any, Any], Any]


def _admit(state: ResultState, mine: Any, theirs: Any) -> Any:
    """Return the result with what is expected wherever it is open."""
    if state is ResultState.EXACT:
        return mine
    if state is ResultState.OPEN:
        return theirs
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return [_admit(state, *pair) for pair in zip(mine, theirs, strict=True)]
    if not _are_alike(mine, theirs):
        return mine
    return np.where(np.isfinite(mine) & np.isfinite(theirs), mine, theirs)


def _admit_flushed(mine: Any, theirs: Any, flushed: Any) -> Any:
    """Return the result with what is expected wherever it is that of the run with zeros for denormal numbers."""
    if isinstance(mine, list) and isinstance(flushed, list) and len(mine) == len(flushed) == len(theirs):
        return [_admit_flushed(*three) for three in zip(mine, theirs, flushed, strict=True)]
    if not _are_alike(mine, flushed):
        return mine
    if mine.dtype.kind in "fV":
        tolerance = tolerance_for(mine.dtype, "network")
        wide, due = mine.astype(np.float64), flushed.astype(np.float64)
        same = (wide == due) | (np.isnan(wide) & np.isnan(due)) | (np.abs(wide - due) <= tolerance.compute_bound(due))
    else:
        same = mine == flushed
    if not _are_alike(mine, theirs):  # how many elements there are depends on which numbers are zero
        return theirs if bool(same.all()) else mine
    return np.where(same, theirs, mine)


def _are_alike(mine: Any, theirs: Any) -> bool:
    are_arrays = isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray)
    return are_arrays and mine.dtype == theirs.dtype and mine.shape == theirs.shape
