"""Judge whether results are correct: by tolerance, by ties of step functions, and against the reference in float64."""

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
"""A difference counts as rounding if the error against float64 is at most this many times that of the float32 reference."""
MIN_ROW_ELEMENTS = 16
"""The error of the reference is computed per row if rows, along the last axis, have at least this many elements."""
_NARROW_TYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""Float types that float64 is wider than."""
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")
"""Integer attributes of ONNX operators that hold the code of an element type."""
_WIDENED_CODES = {dtype.onnx: DType.FLOAT64.onnx for dtype in _NARROW_TYPES}
"""Maps ONNX's codes of narrow float types to the code of float64."""


def widen(function: Function) -> Function:
    """Replace narrower float types in a Function by float64. Declared types are dropped, except those of inputs."""
    return function.replace(
        inputs=tuple(_widen_input(value) for value in function.inputs),
        outputs=tuple(Value(value.name) for value in function.outputs),
        nodes=tuple(
            replace(node, attributes=tuple(map(_widen_attribute, node.attributes))).map_bodies(widen) for node in function.nodes
        ),
        constants={name: Constant(_widen_value(constant.array)) for name, constant in function.constants.items()},
        types={},
        aliases=(),
    )


def _widen_input(value: Value) -> Value:
    if isinstance(value.type, TensorType) and value.type.dtype in _NARROW_TYPES:
        return Value(value.name, TensorType(DType.FLOAT64, value.type.shape))
    return value


def _widen_attribute(attribute: Attribute) -> Attribute:
    if attribute.kind is AttrKind.TENSOR:
        return Attribute(attribute.name, attribute.kind, Constant(_widen_value(attribute.value.array)))
    if attribute.kind is AttrKind.INT and attribute.name in _TYPE_ATTRIBUTES:
        return Attribute(attribute.name, attribute.kind, _WIDENED_CODES.get(attribute.value, attribute.value))
    return attribute


def _widen_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_widen_value(item) for item in value]
    is_narrow = isinstance(value, np.ndarray) and value.dtype.kind not in "OUST" and DType.from_array(value) in _NARROW_TYPES
    return value.astype(np.float64) if is_narrow else value


def _is_near(actual: Any, expected: Any, exact: Any, tolerance: Tolerance) -> bool:
    """Whether a result is as near to the float64 result ``exact`` as `OutputJudge._is_rounding` requires."""
    if expected is None:  # an optional without a value
        return actual is None
    if isinstance(expected, list):
        if not isinstance(actual, list) or not isinstance(exact, list) or not len(actual) == len(expected) == len(exact):
            return False
        return all(_is_near(a, b, c, tolerance) for a, b, c in zip(actual, expected, exact, strict=True))
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or not isinstance(exact, dict) or not actual.keys() == expected.keys() == exact.keys():
            return False
        arrays = ([np.asarray(values[key]) for values in (actual, expected, exact)] for key in expected)
        return all(_is_near(a, b, c, tolerance) for a, b, c in arrays)
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
    has_distance = np.isfinite(error) & np.isfinite(reference_error)
    # Infinities and NaN have no distance. They must be equal.
    is_equal = (actual == expected) | (actual == exact) | (np.isnan(actual) & (np.isnan(expected) | np.isnan(exact)))
    reference_error = np.where(has_distance, reference_error, 0.0)
    # Per row, so that one row with cancellation does not loosen the bound of others. But in a short row the reference may be
    # exact by chance.
    if actual.ndim > 1 and actual.shape[-1] >= MIN_ROW_ELEMENTS:
        max_error = reference_error.max(-1, keepdims=True)
    else:
        max_error = reference_error.max(initial=0.0)
    bound = np.maximum(ERROR_FACTOR * max_error, tolerance.compute_bound(exact))
    return bool((is_equal | (has_distance & (error <= bound))).all())


FindTies: TypeAlias = Callable[[Node, Mapping[str, Array]], Ambiguity | None]
"""Finds the ties of a node's output from the values that the node reads, by name; None if there are no ties."""


def find_ambiguities(function: Function, inputs: Sequence[Any], run: Run) -> list[Ambiguity | None]:
    """Find the ties of each output; None for an output without ties. ``run`` is the reference.

    A step function (rounding, comparison, ArgMax, ...) has a tie where a rounding error of its input moves the output by a step.
    Only outputs that an operator computes directly have ties: after further operators a tie looks like an error.
    """
    stepping_nodes = {}
    for value in function.outputs:
        node = function.producer(value.name)
        if node is not None and node.op in _TIES_BY_OPERATOR:
            stepping_nodes[value.name] = node
    if not stepping_nodes:
        return [None] * len(function.outputs)
    read = list(dict.fromkeys(name for node in stepping_nodes.values() for name in node.uses))
    values = dict(zip(read, run(expose_inner_values(function, read), inputs), strict=True))
    ambiguities = {}
    for name, node in stepping_nodes.items():
        # The values of a TopK and the scale of a quantization are outputs too, but not step functions.
        stepping_output = {"TopK": 1, "DynamicQuantizeLinear": 0}.get(node.op)
        is_step = stepping_output is None or name == node.outputs[stepping_output]
        if is_step and values[node.inputs[0]].dtype.kind == "f":
            ambiguities[name] = _TIES_BY_OPERATOR[node.op](node, values)
    return [ambiguities.get(value.name) for value in function.outputs]


def _find_rounding_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """Find the ties of Round (at halves), of Floor and Ceil, and of a cast from float to integer (at integers)."""
    if node.op == "Cast" and not DType.from_onnx(node.attr("to")).is_integer:
        return None  # not a step function
    return StepAmbiguity.from_rounding(values[node.inputs[0]], "halves" if node.op == "Round" else "integers")


def _find_threshold_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    return StepAmbiguity.from_threshold(values[node.inputs[0]], values[node.inputs[1]])


def _find_index_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    x = values[node.inputs[0]]
    axis = int(node.attr("axis", -1 if node.op == "TopK" else 0))
    return IndexAmbiguity(x, axis % x.ndim)


def _find_quantization_ties(node: Node, values: Mapping[str, Array]) -> Ambiguity | None:
    """Find the ties of a quantization, which rounds x / scale. None for scales per block."""
    x = values[node.inputs[0]].astype(np.float64)
    if node.op == "DynamicQuantizeLinear":
        value_range = x.max(initial=0) - x.min(initial=0)
        return StepAmbiguity.from_rounding(x * 255 / (value_range or 255), "halves")  # zeros are zeros at any scale
    scale = values[node.inputs[1]].astype(np.float64)
    # A scale per channel broadcasts along the quantized axis.
    if scale.ndim == 1 and scale.size > 1:
        shape = [1] * x.ndim
        shape[node.attr("axis", 1)] = -1
        scale = scale.reshape(shape)
    has_blocks = scale.ndim == x.ndim > 1 and scale.size > 1 and bool(node.attr("block_size", 0))
    return None if has_blocks else StepAmbiguity.from_rounding(x / scale, "halves")


_TIES_BY_OPERATOR: dict[str, FindTies] = {
    **dict.fromkeys(("Round", "Floor", "Ceil", "Cast"), _find_rounding_ties),
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), _find_quantization_ties),
    **dict.fromkeys(("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"), _find_threshold_ties),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), _find_index_ties),
}
_TOLERANCE_TYPES = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""Maps a reduced precision to the type whose tolerance applies. int8 with calibrated ranges is about as coarse as bfloat16."""
COARSEST_FIRST: tuple[Precision, ...] = ("bf16", "fp16")
"""Reduced precisions of float computations, with decreasing tolerance."""


def is_reduced_precision(precision: str) -> bool:
    """Whether results of this precision are compared with a larger tolerance than results in fp32."""
    return precision in _TOLERANCE_TYPES


def find_precision(engine: GraphCompiler, context: CompileContext) -> Precision:
    """Find the precision in which the engine computes float32, from its spec or the options. May query the engine's library."""
    for precision in COARSEST_FIRST:
        reduced_engine = engine.with_precision(precision)
        if reduced_engine is not None and reduced_engine.spec == engine.spec:
            return precision
    allowed = context.options.precision
    return allowed if allowed in COARSEST_FIRST and engine.unsupported_options(context) is None else "fp32"


def compare_at_precision(function: Function, results: Sequence[Any], expected: Sequence[Any], precision: str) -> tuple[str, str]:
    """Compare results of reduced precision; return a description of the first wrong output, and the loss of accuracy.

    The description is empty if no output is wrong. The loss is empty otherwise.
    """
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected", ""
    comparisons = [
        compare(result, reference, find_tolerance(reference, precision), name=value.name)
        for value, result, reference in zip(function.outputs, results, expected, strict=True)
    ]
    wrong = next((comparison.message for comparison in comparisons if not comparison), "")
    return wrong, "" if wrong else _describe_loss(comparisons)


def find_tolerance(expected: Any, precision: str) -> Tolerance | None:
    """Find the tolerance of a network's output in this precision; None for the default of `compare`."""
    is_array = isinstance(expected, np.ndarray)
    may_have_floats = not is_array or DType.from_array(expected).is_float  # a list or map may contain them
    if is_reduced_precision(precision) and may_have_floats:
        return tolerance_for(DType.parse(_TOLERANCE_TYPES[precision]).numpy, "network")
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
    function: Function, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any], run: Run, precision: str = "fp32"
) -> CheckVerdict:
    """Judge results against the expected results, which the reference ``run`` computed.

    If a difference exceeds the tolerance of a network, the reference runs again: to find ties, and in float64, against which the
    results may have `ERROR_FACTOR` times the error of the expected results. Results in reduced ``precision`` are only compared
    with its tolerance, and the message states the loss of accuracy.
    """
    if is_reduced_precision(precision):
        wrong, loss = compare_at_precision(function, results, expected, precision)
        return CheckVerdict(Verdict.DISAGREES, wrong) if wrong else CheckVerdict(Verdict.AGREES, f"in {precision}, {loss}")
    return OutputJudge(function, inputs, run).judge(results, expected)


class OutputJudge:
    """Judges results of a Function on the same inputs, as `judge_outputs` does. The reference runs once for all of them."""

    def __init__(
        self, function: Function, inputs: Sequence[Any], run: Run, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """``run`` is the reference. Once ``is_stopped`` returns True, `judge` raises Stopped instead of running the reference."""
        self.function, self.inputs = function, inputs
        self._reference, self._is_stopped = run, is_stopped

    def judge(self, results: Sequence[Any], expected: Sequence[Any]) -> CheckVerdict:
        difference = _find_difference(self.function, results, expected, [None] * len(expected))
        # Ties are only searched if there is a difference, because the reference has to run for them.
        if not difference or not _find_difference(self.function, results, expected, self._ambiguities):
            return CheckVerdict(Verdict.AGREES)
        if len(results) == len(expected) and self._is_rounding(results, expected):
            return CheckVerdict(Verdict.ROUNDING, difference)
        return CheckVerdict(Verdict.DISAGREES, difference)

    def _is_rounding(self, results: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Whether each result's error against float64 is within the tolerance, or `ERROR_FACTOR` times the expected result's."""
        if self._float64_outputs is None:
            return False
        names = [value.name for value in self.function.outputs]
        tolerances = [find_output_tolerance(self.function, *pair) for pair in zip(names, expected, strict=True)]
        return all(map(_is_near, results, expected, self._float64_outputs, tolerances))

    @cached_property
    def _float64_outputs(self) -> list[Any] | None:
        """The outputs computed in float64; None if the reference cannot compute the Function in float64."""
        try:
            widened = passes.infer_shapes(widen(self.function))
            return list(self._run(widened, [_widen_value(value) for value in self.inputs]))
        except (XRTError, TypeError, ValueError, NotImplementedError):  # a kernel may lack float64
            return None

    @cached_property
    def _ambiguities(self) -> list[Ambiguity | None]:
        return find_ambiguities(self.function, self.inputs, self._run)

    def _run(self, function: Function, inputs: Sequence[Any]) -> Sequence[Any]:
        if self._is_stopped():
            raise Stopped("the caller no longer needs the verdict")
        return self._reference(function, inputs)


def _find_difference(
    function: Function, results: Sequence[Any], expected: Sequence[Any], ambiguities: Sequence[Ambiguity | None]
) -> str:
    """Describe the first output that differs beyond its tolerance and its ties; empty if all agree."""
    if len(results) != len(expected):
        return f"there are {len(results)} outputs; {len(expected)} were expected"
    for value, result, reference, ties in zip(function.outputs, results, expected, ambiguities, strict=True):
        tolerance = find_output_tolerance(function, value.name, reference)
        comparison = compare(result, reference, tolerance, ties=ties, name=value.name)
        if not comparison:
            return comparison.message
    return ""


def find_output_tolerance(function: Function, output: str, expected: Any) -> Tolerance:
    """Choose the tolerance of an output: the ``"network"`` tolerance of the narrowest float type among the values it depends on.

    A float64 is no more accurate than the float32 it was cast from. And engines may keep more precision than a narrow type has:
    TVM removes a cast to bfloat16 and back.
    """
    upstream_types = _collect_upstream_types(function, output)
    narrowest = next((dtype for dtype in _NARROWEST_FIRST if dtype in upstream_types), None)
    if narrowest is not None and _has_floats(expected):
        return tolerance_for(narrowest.numpy, "network")
    return tolerance_for(getattr(expected, "dtype", "float32"), "network")


def _has_floats(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_floats, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) or (isinstance(value, np.ndarray) and DType.from_array(value).is_float)


_NARROWEST_FIRST = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
_ACCURACY_LEVEL_TYPES = {2: DType.FLOAT16, 3: DType.BFLOAT16, 4: DType.BFLOAT16}
"""Maps an accuracy level of MatMulNBits to a type with about the rounding error of its activations. Level 4 rounds to 8 bits."""


def _collect_upstream_types(function: Function, output: str) -> set[DType]:
    """Collect the element types of all values that the output depends on, including the types of casts and roundings."""
    dtypes: set[DType | None] = set()
    seen = {""}  # the name of an input that is left out
    remaining = [output]
    while remaining:
        name = remaining.pop()
        if name in seen:
            continue
        seen.add(name)
        dtypes.add(getattr(function.get_type(name), "dtype", None))
        if (node := function.producer(name)) is None:
            continue
        if node.op_type == "Cast":
            dtypes.add(DType.from_onnx(node.attr("to")))
        elif node.op_type == "MatMulNBits":
            dtypes.add(_ACCURACY_LEVEL_TYPES.get(node.attr("accuracy_level", 0)))
        remaining += node.uses
    return {dtype for dtype in dtypes if dtype is not None}
