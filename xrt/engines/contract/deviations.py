"""Deviations: where an engine's library differs from the reference on NaN, infinities and other special values.

XRT neither tests nor works around them operator by operator. It declares them, so that a user whose model depends on such values
can read which engine to use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from xrt.graph import DType, TensorType

if TYPE_CHECKING:
    from xrt.engines.contract.graph_compiler import GraphCompiler
    from xrt.graph import Function

__all__ = ["DEVIATIONS", "Deviation", "DeviationKind", "find_special_values", "list_deviations", "name_likely_cause"]

EXACT_IN_FLOAT32 = 1 << 24
"""The largest magnitude up to which float32 holds every integer."""

DeviationKind: TypeAlias = Literal["nan", "infinity", "denormal", "integer", "float16", "empty"]
"""The special values on which an engine may differ from the reference."""

DEVIATIONS: Mapping[DeviationKind, str] = {
    "nan": "a NaN may come out as a number, or a number as NaN",
    "infinity": "an infinity may come out as a number or NaN",
    "denormal": "numbers below the smallest normal one may count as zero",
    "integer": "integers beyond 32 bits may wrap around, and those beyond 24 bits be rounded to float32",
    "float16": "intermediate results are kept in float32: they do not overflow and are not rounded",
    "empty": "the result of a tensor without elements may be another one",
}
"""The effect of each kind."""


class Deviation(NamedTuple):
    """A difference from the reference on special values that an engine declares instead of working around it."""

    kind: DeviationKind
    operators: tuple[str, ...] = ()
    """The operators concerned; empty for all."""

    def __str__(self) -> str:
        return f"{DEVIATIONS[self.kind]} ({', '.join(self.operators) or 'all operators'})"


_DEVIATING_TYPES: Mapping[DeviationKind, frozenset[DType]] = {
    "integer": frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}),
    "float16": frozenset({DType.FLOAT16, DType.BFLOAT16}),
}


def list_deviations(engine: type[GraphCompiler], function: Function) -> list[Deviation]:
    """List the deviations of the engine that apply to the Function: those of its operators and element types."""
    used = {node.op_type for _, node in function.walk() if not node.domain}
    types = {t.dtype for holder, _ in function.walk() for t in holder.types.values() if isinstance(t, TensorType)}
    types |= {v.type.dtype for v in (*function.inputs, *function.outputs) if isinstance(v.type, TensorType)}
    found = []
    for kind, operators in engine.deviations:
        concerned = tuple(sorted(used & set(operators)))
        if (concerned or not operators) and (kind not in _DEVIATING_TYPES or types & _DEVIATING_TYPES[kind]):
            found.append(Deviation(kind, concerned))
    return found


_limits: Callable[[Any], Any] = ml_dtypes.finfo


def find_special_values(values: Iterable[Any]) -> set[DeviationKind]:
    """Find the kinds of special values that arrays, or lists of them, hold."""
    found: set[DeviationKind] = set()
    for value in values:
        if isinstance(value, list):
            found |= find_special_values(value)
        elif isinstance(value, np.ndarray):
            found |= set(_kinds_of(value))
    return found


def _kinds_of(array: np.ndarray[Any, Any]) -> Iterator[DeviationKind]:
    if not array.size:
        yield "empty"
    elif array.dtype.kind in "iu":
        if array.dtype.itemsize >= 4 and not -EXACT_IN_FLOAT32 <= int(array.min()) <= int(array.max()) <= EXACT_IN_FLOAT32:
            yield "integer"
    elif array.dtype.kind in "fV" and DType.of(array).is_float:
        smallest = float(_limits(array.dtype).smallest_normal)
        wide = np.abs(array.astype(np.float64))
        finite = np.isfinite(wide)
        if np.isnan(wide).any():
            yield "nan"
        if np.isinf(wide).any():
            yield "infinity"
        if (finite & (wide > 0) & (wide < smallest)).any():
            yield "denormal"
        if array.dtype.itemsize == 2 and not finite.all():
            yield "float16"


def name_likely_cause(engine: type[GraphCompiler], function: Function, values: Iterable[Any]) -> str:
    """Name the deviations that special values among these make the likely cause of a difference; empty if there are none."""
    kinds = find_special_values(values)
    if "infinity" in kinds:
        kinds.add("float16")  # where the Function has such values, they may have overflowed
    if not kinds:
        return ""
    from xrt.passes import infer_shapes  # only where something differs

    found = [one for one in list_deviations(engine, infer_shapes(function)) if one.kind in kinds]
    return f"likely a known deviation of engine {engine.name!r}: {'; '.join(map(str, found))}" if found else ""
