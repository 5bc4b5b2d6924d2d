"""Symbolic values, and operators applied to them while tracing.

Applying an operator converts the operands, checks them against the schema, traces bodies, and records the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import Attribute, AttrKind
from xrt.graph.constants import Constant
from xrt.graph.function import Function
from xrt.graph.schemas import (
    DTYPE_ATTRIBUTES,
    Operator,
    bind_types,
    infer_output_types,
    join_types,
    parse_onnx_type,
    require_operator,
)
from xrt.graph.types import DType, SequenceType, Shape, TensorType, Value

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor
    from xrt.graph.node import Node
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


class Symbol:
    """A named value of a builder, with its type or None if the type is unknown."""

    __slots__ = ("builder", "name", "type")

    def __init__(self, builder: Builder, name: str, type_: Type | None) -> None:
        self.builder = builder
        self.name = name
        self.type = type_

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


def is_strong(value: object) -> bool:
    """Whether the value has a fixed element type: a tensor of a graph, a Constant or a NumPy value."""
    return isinstance(value, Symbol | Constant | np.ndarray | np.generic)


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
        return _apply(builder, operator, inputs, attributes, outputs, name)
    except ModelError as error:
        # An operator inside a body may have prefixed the error already.
        if str(error).startswith("xrt.ops."):
            raise
        raise ModelError(f"{title}: {error}").with_traceback(error.__traceback__) from error.__cause__


def _apply(
    builder: Builder,
    operator: Operator,
    inputs: Sequence[Operand | None],
    attributes: Mapping[str, Any],
    outputs: int | None,
    name: str | None,
) -> Tensor | tuple[Tensor, ...]:
    operands, attributes = _place_inputs(operator, inputs, attributes)
    if "num_outputs" in operator.attributes and outputs is not None and len(operands) == operator.min_inputs:
        attributes.setdefault("num_outputs", outputs)  # Split without sizes needs the count as an attribute too
    _check_attribute_names(operator, attributes)
    symbols, bound = _convert_operands(builder, operator, operands)
    bodies = CONTROL_FLOW[operator.name](builder, symbols, attributes) if operator.name in CONTROL_FLOW else None
    traced_functions = bodies.functions if bodies else {}
    node_attributes = _make_attributes(operator, {**attributes, **traced_functions})
    count = _count_outputs(operator, bodies, symbols, attributes, outputs, builder)
    # Names of outputs after the first end in a name of the schema, such as ``dropout_1_mask``, or in a number.
    labels = []
    for index in range(count):
        formal = operator.formal_output(index)
        labels.append(str(index + 1) if formal.is_variadic else formal.name.lower())
    node = builder.new_node(operator.name, symbols, count, node_attributes, domain=operator.domain, name=name, labels=labels)
    types = bodies.outputs if bodies else _infer_types(builder, operator, node, symbols, bound)
    results = builder.record(node, types)
    is_single = bodies.is_single if bodies else operator.max_outputs is not None and count == 1
    return results[0] if is_single and outputs is None else results


# ---------------------------------------------------------------------- inputs


def _place_inputs(
    operator: Operator, inputs: Sequence[Operand | None], attributes: Mapping[str, Any]
) -> tuple[list[Operand | None], dict[str, Any]]:
    """Insert the inputs that are passed by name at their indices; return all inputs and the remaining attributes."""
    operands = list(inputs)
    remaining = dict(attributes)
    for index, formal in enumerate(operator.inputs):
        if formal.name not in remaining:
            continue
        if index < len(operands):
            raise ModelError(f"input {formal.name!r} is passed twice: as input {index + 1} and by name")
        if formal.is_variadic:
            raise ModelError(f"input {formal.name!r} is any number of tensors; pass them by position, not by name")
        operands.extend([None] * (index - len(operands)))
        operands.append(remaining.pop(formal.name))
    # Drop trailing omitted inputs.
    while operands and operands[-1] is None and len(operands) > operator.min_inputs:
        operands.pop()
    return operands, remaining


def _convert_operands(
    builder: Builder, operator: Operator, operands: Sequence[Operand | None]
) -> tuple[list[Symbol | None], dict[str, str]]:
    """Convert the inputs to tensors of the graph; also return the types that are bound to type variables (see `bind_types`)."""
    _check_inputs(operator, operands)
    # Tensors first: they determine the types that Python numbers adopt.
    symbols: list[Symbol | None] = [builder.symbol(item) if is_strong(item) else None for item in operands]
    bound = bind_types(operator, [None if symbol is None else symbol.type for symbol in symbols])
    for index, item in enumerate(operands):
        if item is None or symbols[index] is not None:
            continue
        formal = operator.formal_input(index)
        if not is_weak(item):
            raise ModelError(f"input {formal.name!r} is a {type(item).__name__}, {item!r}; it must be a tensor")
        same_type_values = _select_same_type(operator, operands, index)
        symbols[index] = builder.symbol(make_weak_array(item, choose_weak_dtype(formal, bound, same_type_values)))
    return symbols, bind_types(operator, [None if symbol is None else symbol.type for symbol in symbols])


def _select_same_type(operator: Operator, operands: Sequence[Operand | None], index: int) -> list[Operand | None]:
    """Select the weak inputs that share the type variable of input ``index``, including that input."""
    formal = operator.formal_input(index)
    if formal.is_variadic and not formal.is_homogeneous:
        return [operands[index]]
    variables = [operator.formal_input(position).variable for position in range(len(operands))]
    return [item for item, variable in zip(operands, variables, strict=True) if is_weak(item) and variable == formal.variable]


def _check_inputs(operator: Operator, operands: Sequence[Operand | None]) -> None:
    if not operator.allows_inputs(len(operands)):
        names = []
        for formal in operator.inputs:
            variadic_name = f"*{formal.name}" if formal.is_variadic else formal.name
            names.append(f"[{formal.name}]" if formal.is_optional else variadic_name)
        raise ModelError(f"takes {operator.input_count} input(s): {', '.join(names) or 'none'}; got {len(operands)}")
    for index, item in enumerate(operands):
        formal = operator.formal_input(index)
        if item is None and not formal.is_optional:
            raise ModelError(f"input {formal.name!r} is required; got None")


# ---------------------------------------------------------------------- attributes


def _check_attribute_names(operator: Operator, attributes: Mapping[str, Any]) -> None:
    for name in attributes:
        if name not in operator.attributes:
            candidates = (*operator.attributes, *(formal.name for formal in operator.inputs))
            names = ", ".join(operator.attributes) or "none"
            raise ModelError(f"has no attribute {name!r}; its attributes are: {names}.{did_you_mean(name, candidates)}")
    missing = sorted(name for name in operator.required if attributes.get(name) is None)
    if missing:
        kind = operator.attributes[missing[0]].kind.name.lower()
        raise ModelError(f"needs the attribute {missing[0]!r} ({kind}); it is missing")


def _make_attributes(operator: Operator, attributes: Mapping[str, Any]) -> tuple[Attribute, ...]:
    """Convert keyword arguments to attributes, sorted by name; None omits an attribute."""
    node_attributes = []
    for name, value in sorted(attributes.items()):
        if value is not None:
            kind = operator.attributes[name].kind
            node_attributes.append(Attribute.create(name, _convert_value(name, value, kind), kind))
    return tuple(node_attributes)


def _convert_value(name: str, value: Any, kind: AttrKind) -> Any:
    """Convert a value for `Attribute.create`: an element type to its number in ONNX, a Python number or list to an array."""
    is_dtype = isinstance(value, DType | np.dtype | type) or (isinstance(value, str) and name in DTYPE_ATTRIBUTES)
    if kind is AttrKind.INT and is_dtype:
        return infer_operand_dtype(value).onnx
    if kind is AttrKind.TENSOR and is_weak(value):
        return make_weak_array(value, choose_natural_dtype(value))
    return value


# ---------------------------------------------------------------------- outputs


def _count_outputs(
    operator: Operator,
    bodies: TracedBodies | None,
    symbols: Sequence[Symbol | None],
    attributes: Mapping[str, Any],
    requested: int | None,
    builder: Builder,
) -> int:
    """Count the outputs of a node: the requested number, or the number that follows from bodies, attributes and inputs."""
    implied = len(bodies.outputs) if bodies else _infer_count(operator, symbols, attributes, builder)
    count: object = implied if requested is None else requested
    if count is None:
        raise ModelError("the number of its outputs does not follow from the arguments; pass outputs=")
    if not isinstance(count, int) or not operator.allows_outputs(count):
        raise ModelError(f"has {operator.output_count} outputs; got outputs={requested!r}")
    if bodies and count != implied:
        raise ModelError(f"got outputs={requested}, but the body has {implied}")
    return count


def _infer_count(
    operator: Operator, symbols: Sequence[Symbol | None], attributes: Mapping[str, Any], builder: Builder
) -> int | None:
    """Count the required outputs, or all outputs if none is required. None for a Split of an unknown number of parts."""
    if operator.max_outputs is not None:
        return sum(not formal.is_optional for formal in operator.outputs) or len(operator.outputs)
    if attributes.get("num_outputs") is not None:
        return int(attributes["num_outputs"])
    if attributes.get("split") is not None:  # Split before version 13
        return len(attributes["split"])
    # From version 13 on, Split reads the sizes from an input.
    sizes = symbols[1] if len(symbols) > 1 else None
    constant = None if sizes is None else builder.find_constant(sizes)
    return None if constant is None else constant.array.size


def _infer_types(
    builder: Builder, operator: Operator, node: Node, symbols: Sequence[Symbol | None], bound: Mapping[str, str]
) -> Sequence[Type | None]:
    """Infer the types of the outputs; an output whose type cannot be inferred gets the type that the schema declares."""
    declared = infer_output_types(operator, node, bound)
    if builder.inference is None:
        return declared
    inputs = [symbol for symbol in symbols if symbol is not None]
    input_types = {symbol.name: symbol.type for symbol in inputs if symbol.type is not None}
    constants = {symbol.name: constant for symbol in inputs if (constant := builder.find_constant(symbol)) is not None}
    try:
        inferred = builder.inference(node, input_types, constants, builder.opsets)
    except ModelError as error:
        shown = ", ".join("None" if s is None else str(s.value) for s in symbols)
        raise ModelError(f"{error} (its inputs are {shown or 'none'})") from error
    pairs = zip(inferred, declared, strict=True)
    return [declared_type if inferred_type is None else inferred_type for inferred_type, declared_type in pairs]


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
