"""Judge whether results are correct: by tolerance, then by ties of stepping operators, then against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt import passes
from xrt.comparison import Ambiguity, Comparison, IndexAmbiguity, StepAmbiguity, Tolerance, compare, tolerance_for
from xrt.errors import XRTError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.graph.attributes import Attribute, AttrKind
from xrt.verify.execution import Run, Stopped, expose_inner_values

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.engines.contract.options import Precision


Array = np.ndarray[Any, Any]
ERROR_FACTOR = 10.0
"""An engine's result is a rounding difference if its error against float64 is at most this many times the float32 reference's."""
MIN_ROW_ELEMENTS = 16
"""With at least this many elements along the last axis, the reference's error is taken per row."""
_NARROW = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")
_NARROW_NUMBERS = {1: 11, 10: 11, 16: 11}
"""ONNX's codes of float32, float16 and bfloat16 to that of float64."""


class Float64Reference:
    """Results of a Function in float64, computed on first use."""

    def __init__(self, function: Function, inputs: Sequence[Any], run: Run) -> None:
        self._function, self._inputs, self._run = function, inputs, run

    @cached_property
    def outputs(self) -> list[Any] | None:
        """The outputs computed in float64; None if the reference cannot compute the Function in float64."""
        try:
            wide = passes.infer_shapes(widen(self._function))
            return list(self._run(wide, [_widen_value(value) for value in self._inputs]))
        except (XRTError, TypeError, ValueError, NotImplementedError):  # a kernel may lack float64
            return None

    def explains(self, results: Sequence[Any], expected: Sequence[Any], tolerances: Sequence[Tolerance]) -> bool:
        """Whether the error of each result is at most its tolerance, or `ERROR_FACTOR` times that of the expected result."""
        if self.outputs is None or len(results) != len(expected):
            return False
        return all(map(_is_near, results, expected, self.outputs, tolerances))


def widen(function: Function) -> Function:
    """Replace narrower float types in a Function by float64; of the declared types only those of inputs remain."""
    return function.replace(
        inputs=tuple(_widen_declaration(value) for value in function.inputs),
        outputs=tuple(Value(value.name) for value in function.outputs),
        nodes=tuple(_widen_node(node) for node in function.nodes),
        constants={name: Constant(_widen_value(constant.array)) for name, constant in function.constants.items()},
        types={},
        aliases=(),
    )


def _widen_declaration(value: Value) -> Value:
    if isinstance(value.type, TensorType) and value.type.dtype in _NARROW:
        return Value(value.name, TensorType(DType.FLOAT64, value.type.shape))
    return value


def _widen_node(node: Node) -> Node:
    attributes = tuple(_widen_attribute(attribute) for attribute in node.attributes)
    return replace(node, attributes=attributes).map_bodies(widen)


def _widen_attribute(attribute: Attribute) -> Attribute:
    if attribute.kind is AttrKind.TENSOR:
        return Attribute(attribute.name, attribute.kind, Constant(_widen_value(attribute.value.array)))
    if attribute.kind is AttrKind.INT and attribute.name in _TYPE_ATTRIBUTES:
        return Attribute(attribute.name, attribute.kind, _NARROW_NUMBERS.get(attribute.value, attribute.value))
    return attribute


def _widen_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_widen_value(item) for item in value]
    is_narrow = isinstance(value, np.ndarray) and value.dtype.kind not in "OUST" and DType.of(value) in _NARROW
    return value.astype(np.float64) if is_narrow else value


def _is_near(actual: Any, expected: Any, exact: Any, tolerance: Tolerance) -> bool:
    if expected is None:  # an optional without a value
        return actual is None
    if isinstance(expected, list):
        same = isinstance(actual, list) and isinstance(exact, list) and len(actual) == len(expected) == len(exact)
        return same and all(_is_near(a, b, c, tolerance) for a, b, c in zip(actual, expected, exact, strict=True))
    if isinstance(expected, dict):
        same = isinstance(actual, dict) and isinstance(exact, dict) and actual.keys() == expected.keys() == exact.keys()
        return same and all(
            _is_near(np.asarray(actual[k]), np.asarray(expected[k]), np.asarray(exact[k]), tolerance) for k in expected
        )
    if not isinstance(actual, np.ndarray) or actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if expected.dtype.kind in "OUST":
        return bool(np.array_equal(actual, expected))
    if expected.shape != exact.shape:
        return False
    return _is_array_near(actual.astype(np.float64), expected.astype(np.float64), exact.astype(np.float64), tolerance)


def _is_array_near(actual: Array, expected: Array, exact: Array, tolerance: Tolerance) -> bool:
    with np.errstate(invalid="ignore"):
        error, reference_error = np.abs(actual - exact), np.abs(expected - exact)
    is_number = np.isfinite(error) & np.isfinite(reference_error)
    # Infinities and NaN have no distance; they must match.
    is_same = (actual == expected) | (actual == exact) | (np.isnan(actual) & (np.isnan(expected) | np.isnan(exact)))
    reference_error = np.where(is_number, reference_error, 0.0)
    # Per row, so that one row with cancellation does not loosen the bound of others. Not for short rows, whose reference may be
    # exact by chance.
    is_row = actual.ndim > 1 and actual.shape[-1] >= MIN_ROW_ELEMENTS
    allowed = ERROR_FACTOR * (reference_error.max(-1, keepdims=True) if is_row else reference_error.max(initial=0.0))
    return bool((is_same | (is_number & (error <= np.maximum(allowed, tolerance.compute_bound(exact))))).all())


FindTies: TypeAlias = Callable[[Node, Mapping[str, Array]], Ambiguity | None]
"""Called with a node and the values that it reads, by name; returns the ties of its output, or None if there are none."""


def find_ambiguity(function: Function, inputs: Sequence[Any], run: Run) -> list[Ambiguity | None]:
    """Find the ties of each output; None for an output without ties.

    Only direct outputs of stepping operators (rounding, comparison, ArgMax, ...) admit ties: after further computation a tie is
    indistinguishable from an error. ``run`` is the reference.
    """
    producers = {v.name: function.producer(v.name) for v in function.outputs}
    stepping = {name: node for name, node in producers.items() if node is not None and node.op in _TIES_BY_OPERATOR}
    if not stepping:
        return [None] * len(function.outputs)
    read = list(dict.fromkeys(name for node in stepping.values() for name in node.uses))
    values = dict(zip(read, run(expose_inner_values(function, read), inputs), strict=True))
    ambiguities = {
        name: _TIES_BY_OPERATOR[node.op](node, values) for name, node in stepping.items() if _is_step(node, name, values)
    }
    return [ambiguities.get(value.name) for value in function.outputs]


def _is_step(node: Node, output: str, values: Mapping[str, Array]) -> bool:
    """Whether an output is a step function of floats; the values of a TopK and the scale of a quantization are not."""
    output_index = {"TopK": 1, "DynamicQuantizeLinear": 0}.get(node.op)
    return values[node.inputs[0]].dtype.kind == "f" and (output_index is None or output == node.outputs[output_index])


def _find_rounding_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "halves")


def _find_cast_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """Ties of a cast from float to integer; None for other casts, which are not step functions."""
    to_integer = node.attr("to") in _INTEGERS
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "integers") if to_integer else None


def _find_truncation_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "integers")


def _find_threshold_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_threshold(values[node.inputs[0]], values[node.inputs[1]])


def _find_index_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    read = values[node.inputs[0]]
    axis = int(node.attr("axis", -1 if node.op == "TopK" else 0))
    return IndexAmbiguity(read, axis % read.ndim)


def _find_quantization_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """Ties of a quantization: a quotient halfway between two integers may round to either. None for scales per block."""
    x = values[node.inputs[0]].astype(np.float64)
    if node.op == "DynamicQuantizeLinear":
        return StepAmbiguity.from_rounding(x * 255 / ((x.max(initial=0) - x.min(initial=0)) or 255), "halves")
    scale = values[node.inputs[1]].astype(np.float64)
    # A scale per channel broadcasts along the quantized axis.
    if scale.ndim == 1 and scale.size > 1:
        shape = [1] * x.ndim
        shape[node.attr("axis", 1)] = -1
        scale = scale.reshape(shape)
    has_blocks = scale.ndim == x.ndim > 1 and scale.size > 1 and bool(node.attr("block_size", 0))
    return None if has_blocks else StepAmbiguity.from_rounding(x / scale, "halves")


_INTEGERS = (2, 3, 4, 5, 6, 7, 12, 13)
"""ONNX's codes of the integer types."""
_TIES_BY_OPERATOR: dict[str, FindTies] = {
    "Round": _find_rounding_ties,
    "Floor": _find_truncation_ties,
    "Ceil": _find_truncation_ties,
    "Cast": _find_cast_ties,
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _find_quantization_ties),
    **dict.fromkeys(("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"), _find_threshold_ties),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), _find_index_ties),
}
_LOWERED = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""Precision to the type whose tolerance applies. int8 calibration is about as coarse as bfloat16."""
_BY_SPEC: tuple[Precision, ...] = ("bf16", "fp16")


def is_lowered(precision: str) -> bool:
    """Whether results of this precision are compared with a larger tolerance than those of fp32."""
    return precision in _LOWERED


def find_precision(engine: GraphCompiler, context: CompileContext) -> Precision:
    """Find the precision in which the engine computes float32, from its spec or the options; may query its library."""
    for precision in _BY_SPEC:
        lower = engine.lower_precision(precision)
        if lower is not None and lower.spec == engine.spec:
            return precision
    allowed = context.options.precision
    return allowed if allowed in _BY_SPEC and engine.unsupported_options(context) is None else "fp32"


def compare_at_precision(function: Function, results: Sequence[Any], expected: Sequence[Any], precision: str) -> tuple[str, str]:
    """Compare results of a lower precision; return (first error, ""), or ("", loss of accuracy) if there is no error."""
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected", ""
    comparisons = [
        compare(result, reference, find_tolerance(reference, precision), name=value.name)
        for value, result, reference in zip(function.outputs, results, expected, strict=True)
    ]
    wrong = next((comparison.message for comparison in comparisons if not comparison), "")
    return wrong, "" if wrong else _describe_loss(comparisons)


def find_tolerance(expected: Any, precision: str) -> Tolerance | None:
    """Find the tolerance of a network's output that is computed in this precision; None for the default of `compare`."""
    is_array = isinstance(expected, np.ndarray)
    if is_lowered(precision) and not (is_array and not DType.of(expected).is_float):
        return tolerance_for(DType.parse(_LOWERED[precision]).numpy, "network")
    return tolerance_for(expected.dtype, "network") if is_array else None


def _describe_loss(comparisons: Sequence[Comparison]) -> str:
    absolute = max((comparison.absolute for comparison in comparisons), default=0.0)
    relative = max((comparison.relative for comparison in comparisons), default=0.0)
    return f"off by {absolute:.2g} at most ({relative:.2g} of a number)"


class Verdict(StrEnum):
    """The outcome of comparing results with the reference's."""

    AGREES = "agrees"
    DECLINED = "declined"
    """The engine does not support the Function, so there are no results to compare."""
    ROUNDING = "rounding"
    """The difference exceeds the tolerance, but not ten times the reference's own error against float64."""
    DISAGREES = "disagrees"


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """A verdict with its explanation."""

    verdict: Verdict
    message: str = ""


def judge_outputs(
    function: Function,
    inputs: Sequence[Any],
    results: Sequence[Any],
    expected: Sequence[Any],
    run: Run,
    precision: str = "fp32",
) -> CheckVerdict:
    """Judge results against the expected ones, which the reference ``run`` computed.

    If they differ beyond the tolerance of a network, the reference runs again: for the inputs of stepping operators, to find
    ties, then in float64, against which results may have ten times the error of the expected results. Results in a lower
    ``precision`` are compared with its tolerance, and the message states the loss.
    """
    if is_lowered(precision):
        wrong, loss = compare_at_precision(function, results, expected, precision)
        return CheckVerdict(Verdict.DISAGREES, wrong) if wrong else CheckVerdict(Verdict.AGREES, f"in {precision}, {loss}")
    return OutputJudge(function, inputs, run).judge(results, expected)


class OutputJudge:
    """Judges results of one Function on one set of inputs like `judge_outputs`, and caches the reference's results."""

    def __init__(
        self,
        function: Function,
        inputs: Sequence[Any],
        run: Run,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """``run`` is the reference. After ``is_stopped`` returns True, Stopped is raised instead of computing more."""
        self.function, self.inputs = function, inputs
        self._reference, self._is_stopped = run, is_stopped
        self._exact = Float64Reference(function, inputs, self._run)

    def judge(self, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        differing = self._find_diff_beyond_ties(results, expected)
        if not differing:
            return CheckVerdict(Verdict.AGREES)
        # Beyond the tolerance: decide by the reference in float64.
        names = [value.name for value in self.function.outputs]
        tolerances = [find_output_tolerance(self.function, *pair) for pair in zip(names, expected, strict=True)]
        if self._exact.explains(results, expected, tolerances):
            return CheckVerdict(Verdict.ROUNDING, differing)
        return CheckVerdict(Verdict.DISAGREES, differing)

    def _find_diff_beyond_ties(self, results: Sequence[Any], expected: Sequence[Any]) -> str:
        """Describe the first difference beyond the tolerance; empty if all such differences are ties."""
        differing = _find_diff(self.function, results, expected, [None] * len(expected))
        return differing if differing and _find_diff(self.function, results, expected, self._ambiguity) else ""

    @cached_property
    def _ambiguity(self) -> list[Ambiguity | None]:
        return find_ambiguity(self.function, self.inputs, self._run)

    def _run(self, function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if self._is_stopped():
            raise Stopped("nobody waits for the verdict")
        return self._reference(function, inputs)


def _find_diff(function: Function, results: Sequence[Any], expected: Sequence[Any], ties: Sequence[Ambiguity | None]) -> str:
    """Describe the first output that differs; empty if all agree."""
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected"
    for value, result, reference, tie in zip(function.outputs, results, expected, ties, strict=True):
        if not (
            diff := compare(result, reference, find_output_tolerance(function, value.name, reference), ties=tie, name=value.name)
        ):
            return diff.message
    return ""


def find_output_tolerance(function: Function, output: str, expected: Any) -> Tolerance:
    """Choose the tolerance of an output: the ``"network"`` tolerance of the narrowest float type among the values it depends on.

    Engines may keep more precision than a narrow type has (TVM fuses a cast to bfloat16 and back into nothing), and a float64 is
    no more accurate than the float32 it was cast from.
    """
    kinds = [kind for kind in _NARROWEST_FIRST if kind in _collect_upstream_types(function, output)]
    dtype = kinds[0].numpy if kinds and _holds_float(expected) else getattr(expected, "dtype", "float32")
    return tolerance_for(dtype, "network")


def _holds_float(value: Any) -> bool:
    """Whether a value is a float tensor, or a list or map that contains floats."""
    if isinstance(value, list | dict):
        return any(map(_holds_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) or (isinstance(value, np.ndarray) and DType.of(value).is_float)


_NARROWEST_FIRST = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
_COARSENESS = {2: DType.FLOAT16, 3: DType.BFLOAT16, 4: DType.BFLOAT16}
"""Accuracy level of MatMulNBits to a type with about the rounding error of its activations; level 4 rounds them to 8 bits."""


def _collect_upstream_types(function: Function, output: str) -> set[DType]:
    """Collect the element types of all values that the output depends on, including the types of casts and roundings."""
    dtypes: set[DType | None] = set()
    seen, remaining = {""}, [output]
    while remaining:
        name = remaining.pop()
        if name in seen:
            continue
        seen.add(name)
        dtypes.add(getattr(function.get_type(name), "dtype", None))
        if (node := function.producer(name)) is not None:
            dtypes |= {DType.from_onnx(node.attr("to"))} if node.op_type == "Cast" else set()
            dtypes.add(_COARSENESS.get(node.attr("accuracy_level", 0)) if node.op_type == "MatMulNBits" else None)
            remaining += node.uses
    return {dtype for dtype in dtypes if dtype is not None}
