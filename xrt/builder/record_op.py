"""Symbolic values, operands, and the bodies of control flow; `apply` applies an operator to the active builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from xrt.errors import ModelError
from xrt.graph.constants import Constant
from xrt.graph.function import Function
from xrt.graph.schemas import join_types, parse_onnx_type, require_operator
from xrt.graph.types import DType, SequenceType, Shape, TensorType, Value

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph.schemas import FormalParameter
    from xrt.graph.types import Type


Number: TypeAlias = "bool | int | float | complex"
Operand: TypeAlias = "Tensor | Constant | np.ndarray[Any, Any] | np.generic | Number | str | list[Any] | tuple[Any, ...]"
DTypeLike: TypeAlias = "DType | np.dtype[Any] | type[Any] | str"

# A context variable, not a global: graphs may be traced in several threads or tasks at once.
recording: ContextVar[Builder | None] = ContextVar("recording", default=None)
"""The innermost active builder of this context."""


def get_builder(operation: str) -> Builder:
    """Return the active builder. If no graph is being traced, raise ModelError, which says that ``operation`` needs one."""
    builder = recording.get()
    if builder is None:
        raise ModelError(
            f"{operation} builds a graph, but no graph is being traced; call it inside xrt.Graph.build (or `with Builder():`), "
            f"and run the graph with xrt.XRTModule"
        )
    return builder


@dataclass(slots=True, eq=False, repr=False)
class Symbol:
    """A named value of a builder."""

    builder: Builder
    name: str
    type: Type | None
    """None if the type is unknown."""

    @property
    def value(self) -> Value:
        """The name and type as a Value."""
        return Value(self.name, self.type)

    @property
    def tensor_type(self) -> TensorType:
        """The type; raises ModelError if it is unknown or not a tensor."""
        if isinstance(self.type, TensorType):
            return self.type
        problem = "its type is not known" if self.type is None else f"it is a {self.type}"
        raise ModelError(f"value {self.name!r} is used as a tensor, but {problem}; apply operators of xrt.ops to it instead")

    @property
    def dtype(self) -> DType:
        """The element type; raises ModelError if the value is not known to be a tensor."""
        return self.tensor_type.dtype

    @property
    def shape(self) -> Shape:
        """The extents; raises ModelError if the rank is unknown."""
        shape = self.tensor_type.shape
        if shape is None:
            raise ModelError(
                f"the rank of {self.value} is not known while the graph is traced; xrt.ops.Shape computes it at run time"
            )
        return shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.value}>"


# ---------------------------------------------------------------------- operands


STRONG = (Symbol, Constant, np.ndarray, np.generic)
"""Classes of operands with a fixed element type."""


def is_weak(value: object) -> bool:
    """Whether the value adopts the element type of the other operands: a Python number, a str, or a list of them."""
    return not isinstance(value, np.generic) and isinstance(value, bool | int | float | complex | str | list | tuple)


def infer_operand_dtype(dtype: DTypeLike) -> DType:
    """Convert to a DType from a DType, its name (``"float32"``), a NumPy type, or a Python type such as ``int``."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in _TEXTS:
        return DType.parse(dtype)
    if dtype is str:
        return DType.STRING
    try:
        return DType.from_array(np.empty(0, np.dtype(dtype)))
    except TypeError:
        raise ModelError(f"{dtype!r} is no element type; pass an xrt DType, a NumPy dtype, or a name such as 'float32'") from None


_TEXTS = frozenset(d.text for d in DType)


def choose_natural_dtype(*values: Any) -> DType:
    """Choose the element type of Python numbers, strings and lists if no operand has a fixed type.

    This is STRING, or the first of bool, int64, float32 and complex64 that can represent all values: ONNX prefers float32 to
    NumPy's float64.
    """
    arrays = [_make_array(value) for value in values]
    # An empty list is most often a list of axes or sizes; NumPy would make it float64.
    kinds = ["i" if array.size == 0 else array.dtype.kind for array in arrays]
    if any(kind not in _KIND_RANKS for kind in kinds):
        return DType.STRING
    highest_rank = max(_KIND_RANKS[kind] for kind in kinds)
    return _NATURAL_DTYPES[highest_rank]


def choose_weak_dtype(formal: FormalParameter, bound: Mapping[str, str], values: Sequence[Any]) -> DType:
    """Choose the element type of Python numbers, strings and lists passed as inputs that must share one type.

    In order of preference: the type of other inputs with the same type variable (``bound``), the natural type if the operator
    allows it, and the first allowed type that can represent the values.
    """
    bound_type = parse_onnx_type(bound[formal.variable]) if formal.variable in bound else None
    if isinstance(bound_type, TensorType):
        return bound_type.dtype
    natural_type = choose_natural_dtype(*values)
    allowed = [t.dtype for t in map(parse_onnx_type, sorted(formal.types)) if isinstance(t, TensorType)]
    if natural_type in allowed or not allowed:
        return natural_type
    candidates = [d for d in (DType.INT64, DType.INT32, DType.FLOAT32, DType.FLOAT64, *allowed) if d in allowed]
    for candidate in candidates:
        if all(_can_represent(candidate, _make_array(value)) for value in values):
            return candidate
    return candidates[0]


_KIND_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
"""NumPy's kinds of types in order: a type can represent values of its own and of lower kinds."""
_NATURAL_DTYPES = (DType.BOOL, DType.INT64, DType.FLOAT32, DType.COMPLEX64)
"""The types of `choose_natural_dtype` by rank."""


def _can_represent(dtype: DType, array: np.ndarray[Any, Any]) -> bool:
    """Whether the type can represent values of the array's kind, regardless of their range: integers cannot represent floats."""
    if dtype is DType.STRING:
        return bool(array.dtype.kind == "U")
    if array.dtype.kind not in _KIND_RANKS:
        return False
    if dtype.is_integer or dtype.is_float:
        kind = "i" if dtype.is_integer else "f"  # NumPy's kind of bfloat16 and of narrow types is "V"
    else:
        kind = dtype.numpy.kind
    return array.size == 0 or _KIND_RANKS[array.dtype.kind] <= _KIND_RANKS[kind]


def make_weak_array(value: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Convert a weak value (see `is_weak`) to an array; raises ModelError if the type cannot represent it."""
    array = _make_array(value)
    if not _can_represent(dtype, array):
        raise ModelError(f"{value!r} cannot be a constant of {dtype}; convert the other tensor with .astype(...)")
    if dtype is DType.STRING:
        return array.astype(object)
    converted = array.astype(dtype.numpy)
    # Compare as Python integers, which do not wrap around.
    if dtype.is_integer and array.size and not bool((converted.astype(object) == array.astype(object)).all()):
        raise ModelError(f"{value!r} is out of the range of {dtype}; convert the other tensor with .astype(...)")
    return converted


def _make_array(value: Any) -> np.ndarray[Any, Any]:
    """Convert a Python number, string or list to an array; raises ModelError for ragged lists and lists of tensors."""
    if isinstance(value, list | tuple) and any(isinstance(item, Symbol) for item in value):
        raise ModelError(
            "a list of tensors of the graph is not an operand; pass the tensors one by one, such as xrt.ops.Concat(a, b, axis=0)"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ModelError(f"{value!r} is not a tensor: {error}") from error


def emit(op_type: str, *inputs: Operand | None, **attributes: Any) -> Tensor:
    """Apply an ai.onnx operator with one output."""
    return cast("Tensor", apply(op_type, inputs, attributes))


def apply(
    op_type: str,
    inputs: Sequence[Operand | None],
    attributes: Mapping[str, Any],
    *,
    domain: str = "",
    outputs: int | None = None,
    name: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Record a node and return its outputs: a tensor, or a tuple if there are several outputs or ``outputs`` is passed.

    ``attributes`` may also contain inputs, by their names in the schema. Raises ModelError if the arguments do not match the
    schema.
    """
    title = f"xrt.ops.{domain}.{op_type}" if domain else f"xrt.ops.{op_type}"
    builder = get_builder(title)
    operator = require_operator(op_type, builder.version(domain), domain)
    try:
        return builder.apply(operator, inputs, attributes, outputs, name)
    except ModelError as error:
        # An operator inside a body may have prefixed the error already.
        if str(error).startswith("xrt.ops."):
            raise
        raise ModelError(f"{title}: {error}").with_traceback(error.__traceback__) from error.__cause__


# ---------------------------------------------------------------------- bodies of control flow


@dataclass(frozen=True, slots=True)
class TracedBodies:
    """The bodies of one operator, and the types of the operator's outputs that follow from them."""

    functions: Mapping[str, Function]
    """The bodies by the name of their attribute."""
    outputs: tuple[Type | None, ...]
    is_single: bool
    """Whether the operator returns one tensor instead of a tuple."""


Body: TypeAlias = Callable[..., Any] | Function
Symbols: TypeAlias = Sequence[Symbol | None]


def _if(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    branches = {}
    are_single = []
    for name in ("then_branch", "else_branch"):
        function, is_single = builder.body(name, attributes[name], ())
        branches[name] = function
        are_single.append(is_single)
    outputs = _join_branches(branches["then_branch"].outputs, branches["else_branch"].outputs)
    return TracedBodies(branches, outputs, all(are_single))


def _join_branches(then: Sequence[Value], other: Sequence[Value]) -> tuple[Type | None, ...]:
    if len(then) != len(other):
        raise ModelError(f"then_branch has {len(then)} outputs and else_branch {len(other)}; both must have the same number")
    for index, (a, b) in enumerate(zip(then, other, strict=True)):
        _check_same("output", index, "then_branch", a.type, "else_branch", b.type)
    return tuple(join_types(a.type, b.type) for a, b in zip(then, other, strict=True))


def _check_same(kind: str, index: int, left: str, a: Type | None, right: str, b: Type | None) -> None:
    if a is not None and b is not None and join_types(a, b) is None:
        raise ModelError(f"{kind} {index + 1} is {a} in {left} and {b} in {right}; the element types must be the same")


def _loop(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    # Inputs: trip count, condition, carried values. Outputs of the body: condition, carried values, scan outputs.
    carried = [None if s is None else s.type for s in inputs[2:]]
    head = [("iteration", TensorType(DType.INT64, ())), ("condition", TensorType(DType.BOOL, ()))]
    function = _trace_until_stable(builder, attributes["body"], head, carried, tail=[], first=1)
    states, scans = _split_outputs(function, first=1, count=len(carried))
    # The number of iterations is known only at run time.
    outputs = (*(v.type for v in states), *(_insert_axis(v.type, length=None, axis=0) for v in scans))
    return TracedBodies({"body": function}, outputs, len(outputs) == 1)


def _scan(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    if builder.version("") < 9:
        raise ModelError("Scan needs opset 9 or newer: Scan of opset 8 works on batches. Raise the graph's opset")
    count = attributes["num_scan_inputs"]
    if not isinstance(count, int) or not 0 < count <= len(inputs):
        raise ModelError(f"num_scan_inputs must be 1 to {len(inputs)}, the number of its inputs; got {count!r}")
    # Inputs: carried values, scanned tensors. Outputs of the body: carried values, scan outputs.
    types = [None if s is None else s.type for s in inputs]
    carried = types[:-count]
    scanned = types[-count:]
    axes = attributes.get("scan_input_axes") or [0] * count
    rows = [("row", _remove_axis(t, axis)) for t, axis in zip(scanned, axes, strict=True)]
    function = _trace_until_stable(builder, attributes["body"], [], carried, tail=rows, first=0)
    states, scans = _split_outputs(function, first=0, count=len(carried))
    out_axes = attributes.get("scan_output_axes") or [0] * len(scans)
    first = scanned[0]
    length = first.shape[axes[0]] if isinstance(first, TensorType) and first.shape is not None else None
    # Scan stacks one row per step, so the length is that of the scanned inputs.
    stacks = (_insert_axis(v.type, length, axis) for v, axis in zip(scans, out_axes, strict=True))
    outputs = (*(v.type for v in states), *stacks)
    return TracedBodies({"body": function}, outputs, len(outputs) == 1)


def _sequence_map(builder: Builder, inputs: Symbols, attributes: Mapping[str, Any]) -> TracedBodies:
    types = [None if s is None else s.type for s in inputs]
    # Inputs that are not sequences are passed to each call unchanged.
    items = [("item", t.element if isinstance(t, SequenceType) else t) for t in types]
    function, single = builder.body("body", attributes["body"], items)
    outputs = tuple(None if v.type is None else SequenceType(v.type) for v in function.outputs)
    return TracedBodies({"body": function}, outputs, single)


# Each function traces the bodies of its operator; it raises ModelError if a body does not match the operator.
CONTROL_FLOW: Mapping[str, Callable[[Builder, Symbols, Mapping[str, Any]], TracedBodies]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}

Parameter: TypeAlias = "tuple[str, Type | None]"


def _trace_until_stable(
    builder: Builder, body: Body, head: Sequence[Parameter], carried: Sequence[Type | None], tail: Sequence[Parameter], first: int
) -> Function:
    """Trace the body, again if necessary, until each carried value has the same type as input and as output.

    An extent of a carried value may change between iterations. Each trace makes such extents unknown, so the loop ends. ``head``
    and ``tail`` are the parameters before and after the carried values, ``first`` is the index of the first carried output.
    """
    while True:
        mark = builder.names.mark()
        function, _ = builder.body("body", body, [*head, *(("carried", t) for t in carried), *tail])
        states, _ = _split_outputs(function, first, len(carried))
        for index, (before, after) in enumerate(zip(carried, states, strict=True)):
            _check_same("carried value", index, "the input", before, "the body's output", after.type)
        widened = [b if after.type is None else join_types(b, after.type) for b, after in zip(carried, states, strict=True)]
        # A Function cannot be traced again with wider types.
        if widened == list(carried) or isinstance(body, Function):
            return function
        # The discarded trace must not use up names.
        builder.names.rewind(mark)
        carried = widened


def _split_outputs(function: Function, first: int, count: int) -> tuple[Sequence[Value], Sequence[Value]]:
    """Split the outputs of a body, from index ``first`` on, into ``count`` carried values and the scan outputs."""
    if len(function.outputs) < first + count:
        condition = "the condition and " if first else ""
        output_count = len(function.outputs)
        raise ModelError(f"the body has {output_count} output(s); the first must be {condition}{count} carried value(s)")
    return function.outputs[first : first + count], function.outputs[first + count :]


def _insert_axis(type_: Type | None, length: Any, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    index = axis if axis >= 0 else axis + len(type_.shape) + 1
    return type_.with_shape((*type_.shape[:index], length, *type_.shape[index:]))


def _remove_axis(type_: Type | None, axis: int) -> Type | None:
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    if not -len(type_.shape) <= axis < len(type_.shape):
        raise ModelError(f"a scan input of rank {len(type_.shape)} has no axis {axis}")
    index = axis % len(type_.shape)
    return type_.with_shape((*type_.shape[:index], *type_.shape[index + 1 :]))
