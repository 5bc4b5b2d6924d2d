"""The declared deviations of an engine that apply to a Function, and those that explain a difference on given values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from xrt.engines.contract.graph_compiler import Deviation, DeviationKind, GraphCompiler
from xrt.graph import DType, Function, TensorType

EXACT_IN_FLOAT32 = 1 << 24
"""float32 represents all integers up to this magnitude exactly."""
_DEVIATING_TYPES: Mapping[DeviationKind, frozenset[DType]] = {
    "integer": frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}),
    "float16": frozenset({DType.FLOAT16, DType.BFLOAT16}),
}


def list_deviations(engine: type[GraphCompiler], function: Function) -> list[Deviation]:
    """List the deviations that an engine declares for operators and element types of the Function."""
    used = {node.op_type for _, node in function.walk() if not node.domain}
    types = {t.dtype for holder, _ in function.walk() for t in holder.types.values() if isinstance(t, TensorType)}
    types |= {v.type.dtype for v in (*function.inputs, *function.outputs) if isinstance(v.type, TensorType)}
    deviations = []
    for kind, operators in engine.deviations:
        affected = tuple(sorted(used & set(operators)))
        has_operator = bool(affected) or not operators  # without operators it applies to all
        has_type = kind not in _DEVIATING_TYPES or bool(types & _DEVIATING_TYPES[kind])
        if has_operator and has_type:
            deviations.append(Deviation(kind, affected))
    return deviations


# NumPy's finfo lacks bfloat16 and float8.
_limits: Callable[[Any], Any] = ml_dtypes.finfo


def find_special_values(values: Iterable[Any]) -> set[DeviationKind]:
    """Find the kinds of deviations that these arrays, or lists of arrays, can cause: by special elements, or by having none."""
    kinds: set[DeviationKind] = set()
    for value in values:
        if isinstance(value, list):
            kinds |= find_special_values(value)
        elif isinstance(value, np.ndarray) and not value.size:
            kinds.add("empty")
        elif isinstance(value, np.ndarray):
            kinds |= {kind for kind, mask in mark_special_elements(value).items() if mask.any()}
    return kinds


def mark_special_elements(array: np.ndarray[Any, Any]) -> dict[DeviationKind, np.ndarray[Any, Any]]:
    """Mark the special elements of an array: a boolean mask for each kind of deviation that they can cause."""
    if array.dtype.kind in "iu" and array.dtype.itemsize >= 4:
        return {"integer": (array < -EXACT_IN_FLOAT32) | (array > EXACT_IN_FLOAT32)}
    if array.dtype.kind not in "fV" or not DType.from_array(array).is_float:
        return {}
    wide = np.abs(array.astype(np.float64))
    nan, infinite = np.isnan(wide), np.isinf(wide)
    denormal = (wide > 0) & (wide < float(_limits(array.dtype).smallest_normal))
    # float64 represents every narrower float exactly, subnormals included.
    marks: dict[DeviationKind, np.ndarray[Any, Any]] = {"nan": nan, "infinity": infinite, "denormal": denormal}
    # A 16-bit infinity or NaN may come from an overflow that float32 intermediates avoid.
    if array.dtype.itemsize == 2:
        marks["float16"] = nan | infinite
    return marks


def name_likely_cause(engine: type[GraphCompiler], function: Function, values: Iterable[Any]) -> str:
    """Describe the engine's deviations that may explain a difference on these values; empty if there are none."""
    kinds = find_special_values(values)
    if "infinity" in kinds:
        kinds.add("float16")  # an infinity may be an overflow in float16
    if not kinds:
        return ""
    from xrt.passes import infer_shapes  # imported only on a difference

    deviations = [deviation for deviation in list_deviations(engine, infer_shapes(function)) if deviation.kind in kinds]
    return f"likely a known deviation of engine {engine.name!r}: {'; '.join(map(str, deviations))}" if deviations else ""
