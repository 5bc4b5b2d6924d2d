"""Types while a graph is traced: which an operator's schema admits, and which it gives.

The schemas bind types by variables (``T``): inputs that share one have the same type, and an output has the type of the
inputs that share its variable. That much is known without running ONNX's shape inference, which is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xrt.errors import ModelError
from xrt.graph.constants import Constant
from xrt.graph.dtypes import DType
from xrt.graph.node import Node
from xrt.graph.types import Dim, OptionalType, SequenceType, Shape, TensorType, Type

if TYPE_CHECKING:
    from xrt.graph.op_schema import Operator

__all__ = [
    "DTYPE_ATTRIBUTES",
    "Inference",
    "bind",
    "infer_output_types",
    "join_types",
    "may_equal",
    "onnx_spelling",
    "parse_onnx_spelling",
    "refine_types",
]

Inference: TypeAlias = Callable[[Node, Mapping[str, Type], Mapping[str, Constant], Mapping[str, int]], Sequence[Type | None]]
"""Says the types of a node's outputs, from the types of its inputs, those of them that are constants, and the opsets.

None where it cannot say; raises ModelError where the inputs contradict the operator.
"""

DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""The attributes that choose the element type of the output."""

_ONNX = {d: {"float32": "float", "float64": "double"}.get(d.text, d.text) for d in DType}
_FROM_ONNX = {text: d for d, text in _ONNX.items()}


def onnx_spelling(type_: Type) -> str | None:
    """Return the type as operator schemas spell it (``tensor(float)``); None for a map, which they spell in several ways."""
    if isinstance(type_, TensorType):
        return f"tensor({_ONNX[type_.dtype]})"
    if isinstance(type_, SequenceType | OptionalType):
        inner = onnx_spelling(type_.element)
        return inner and f"{'seq' if isinstance(type_, SequenceType) else 'optional'}({inner})"
    return None


def parse_onnx_spelling(text: str) -> Type | None:
    """Return the type, without extents, that a schema spells so; None for maps and sparse tensors."""
    head, _, rest = text.partition("(")
    inside = rest[:-1]
    if head == "tensor":
        return TensorType(_FROM_ONNX[inside]) if inside in _FROM_ONNX else None
    element = parse_onnx_spelling(inside) if head in ("seq", "optional") else None
    if element is None:
        return None
    return SequenceType(element) if head == "seq" else OptionalType(element)


def bind(operator: Operator, types: Sequence[Type | None], names: Sequence[str] = ()) -> dict[str, str]:
    """Return what the actual input types bind the operator's type variables to.

    Raises ModelError where an input's type is not admitted, or two inputs that must agree do not; with the names of the values,
    where they are given.
    """
    bound: dict[str, tuple[int, str]] = {}
    for index, type_ in enumerate(types):
        spelled = onnx_spelling(type_) if type_ is not None else None
        if spelled is None:
            continue
        formal = operator.formal_input(index)
        if spelled not in formal.types:
            raise ModelError(
                f"takes no {spelled} as input {formal.name!r} at version {operator.since_version}; "
                f"it takes {_listed(formal.types)}"
            )
        if formal.is_variadic and not formal.is_homogeneous:
            continue
        first, earlier = bound.setdefault(formal.variable, (index, spelled))
        if earlier != spelled:
            needed = f"needs inputs {operator.formal_input(first).name!r} and {formal.name!r} of the same type"
            if names:
                raise ModelError(f"{needed}; {names[first]!r} is {earlier} and {names[index]!r} is {spelled}")
            raise ModelError(f"{needed}; got {earlier} and {spelled}; convert one with .astype(...)")
    return {variable: spelled for variable, (_, spelled) in bound.items()}


def _listed(types: frozenset[str]) -> str:
    shown = sorted(types)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def infer_output_types(operator: Operator, node: Node, bound: Mapping[str, str]) -> tuple[Type | None, ...]:
    """Return the types of the node's outputs, without extents, as far as the schema alone tells them."""
    return tuple(_declared_output(operator, index, node, bound) for index in range(len(node.outputs)))


def _declared_output(operator: Operator, index: int, node: Node, bound: Mapping[str, str]) -> Type | None:
    formal = operator.formal_output(index)
    if formal.variable in bound:
        return parse_onnx_spelling(bound[formal.variable])
    if len(formal.types) == 1:
        return parse_onnx_spelling(next(iter(formal.types)))
    dtype = _chosen_dtype(operator, node)
    return None if dtype is None else TensorType(dtype)


def _chosen_dtype(operator: Operator, node: Node) -> DType | None:
    """Return the element type that an attribute chooses: ``to`` of Cast, ``dtype`` of RandomNormal, ``value`` of Constant."""
    for name in DTYPE_ATTRIBUTES:
        number = node.attr(name) or getattr(operator.attributes.get(name), "default", None)
        if number:
            return DType.from_onnx(number)
    value = node.attr("value")
    if isinstance(value, Constant):
        return value.dtype
    return DType.FLOAT32 if operator.name == "ConstantOfShape" else None


def join_types(a: Type | None, b: Type | None) -> Type | None:
    """Return the type of a value that may have either: extents that differ are not known; None where the types differ."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is b.dtype:
        return TensorType(a.dtype, _joined_shape(a.shape, b.shape))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        element = join_types(a.element, b.element)
        return None if element is None else SequenceType(element)
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):  # what may be absent on one side may be absent
        element = join_types(_present(a), _present(b))
        return None if element is None else OptionalType(element)
    return a if a == b else None


def _present(type_: Type | None) -> Type | None:
    return type_.element if isinstance(type_, OptionalType) else type_


def _joined_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(_joined_dim(x, y) for x, y in zip(a, b, strict=True))


def _joined_dim(a: Dim, b: Dim) -> Dim:
    return a if a == b and type(a) is type(b) else None


def may_equal(a: Type, b: Type) -> bool:
    """Whether values of the two types can be equal at run time: same kind and element type, no two extents that differ."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.dtype is not b.dtype or a.shape is None or b.shape is None:
        return a.dtype is b.dtype
    return len(a.shape) == len(b.shape) and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a.shape, b.shape, strict=True)
    )


def refine_types(inferred: Type | None, declared: Type | None) -> Type | None:
    """Return the better known of the two: what was inferred, unless nothing was."""
    return declared if inferred is None else inferred
