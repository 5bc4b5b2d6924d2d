"""Operator schemas of the ``onnx`` package, type inference from schemas, and relations between types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import AttrKind, FrozenDict
from xrt.graph.constants import Constant
from xrt.graph.node import Node
from xrt.graph.types import DType, OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from onnx import defs

    from xrt.graph.function import Function


_VERSION_LIMIT = 1 << 31
"""`onnx` accepts versions as 32-bit integers; a model may contain larger numbers."""


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str = "") -> defs.OpSchema | None:
    """The schema of an operator at an opset version; None if the domain or the operator is unknown."""
    from onnx import defs  # onnx takes 0.05 s to import, which a start from the cache or a bundle saves

    if abs(version) >= _VERSION_LIMIT:
        return None
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def since_version(node: Node, function: Function) -> int | None:
    """The version that introduced the current semantics of the node's operator; None if unknown."""
    version = function.opsets.get(node.domain)
    schema = None if version is None else find_schema(node.op_type, version, node.domain)
    return None if schema is None else schema.since_version


@lru_cache(maxsize=1)
def latest_opset() -> int:
    """The newest ai.onnx version of the installed ``onnx``."""
    from onnx import defs

    return int(defs.onnx_opset_version())


UNBOUNDED = 2**31 - 1
"""The number by which schemas say that the number of inputs or outputs is unlimited."""


class FormalParameter:
    """One declared input or output of an operator."""

    def __init__(self, parameter: defs.OpSchema.FormalParameter) -> None:
        self.name = parameter.name
        self.types = frozenset(parameter.types)
        """Allowed types in ONNX's spelling: ``tensor(float)``, ``seq(tensor(int64))``."""
        self.variable = parameter.type_str
        """The type variable (``T``), or a concrete type in ONNX's spelling."""
        self.is_optional = parameter.option.name == "Optional"
        self.is_variadic = parameter.option.name == "Variadic"
        self.is_homogeneous = parameter.is_homogeneous
        """Whether all values of a variadic parameter have the same type."""


# ONNX's names of attribute types that AttrKind names differently.
_KINDS = {
    "TYPE_PROTO": AttrKind.TYPE,
    "TYPE_PROTOS": AttrKind.TYPES,
    "SPARSE_TENSOR": AttrKind.TENSOR,
    "SPARSE_TENSORS": AttrKind.TENSORS,
}


class FormalAttribute:
    """One declared attribute of an operator."""

    def __init__(self, name: str, formal: defs.OpSchema.Attribute) -> None:
        self.name = name
        self.kind = _KINDS.get(formal.type.name) or AttrKind[formal.type.name]
        """The attribute's kind. TENSOR for sparse tensors, because they become dense when a model is read."""
        self.is_required = formal.required
        self.default = _read_default(formal)
        """Default value; None if the schema has none."""


def _read_default(formal: defs.OpSchema.Attribute) -> Any:
    """Convert the default of a schema, an ONNX message, to a plain value."""
    from onnx import helper

    if not formal.default_value.name:
        return None
    value = helper.get_attribute_value(formal.default_value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return tuple(value) if isinstance(value, list) else value


class Operator:
    """An operator at one version of its semantics."""

    def __init__(self, schema: defs.OpSchema) -> None:
        self.name = schema.name
        self.domain = schema.domain
        self.since_version = schema.since_version
        self.is_deprecated = schema.deprecated
        self.inputs = tuple(map(FormalParameter, schema.inputs))
        self.outputs = tuple(map(FormalParameter, schema.outputs))
        attributes = {name: FormalAttribute(name, formal) for name, formal in sorted(schema.attributes.items())}
        self.attributes = FrozenDict(attributes)
        self.required = frozenset(name for name, formal in attributes.items() if formal.is_required)
        self.min_inputs = schema.min_input
        self.max_inputs = None if schema.max_input >= UNBOUNDED else schema.max_input
        """Maximum number of inputs; None if unlimited, as for Concat."""
        self.min_outputs = schema.min_output
        self.max_outputs = None if schema.max_output >= UNBOUNDED else schema.max_output

    @property
    def title(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def formal_input(self, index: int) -> FormalParameter:
        """The declaration of input ``index``. The last declaration, if variadic, is for all further inputs too."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def formal_output(self, index: int) -> FormalParameter:
        return self.outputs[min(index, len(self.outputs) - 1)]

    def allows_inputs(self, count: int) -> bool:
        return count >= self.min_inputs and (self.max_inputs is None or count <= self.max_inputs)

    def allows_outputs(self, count: int) -> bool:
        return count >= self.min_outputs and (self.max_outputs is None or count <= self.max_outputs)

    @property
    def input_count(self) -> str:
        """The allowed number of inputs in words: ``2``, ``1 to 3``, ``at least 1``."""
        return _format_range(self.min_inputs, self.max_inputs)

    @property
    def output_count(self) -> str:
        return _format_range(self.min_outputs, self.max_outputs)


def _format_range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


@lru_cache(maxsize=4096)
def find_operator(op_type: str, version: int, domain: str = "") -> Operator | None:
    """The operator at an opset version; None if the domain or the operator is unknown."""
    schema = find_schema(op_type, version, domain)
    return None if schema is None else Operator(schema)


def require_operator(op_type: str, version: int, domain: str = "") -> Operator:
    """The operator at an opset version; raises ModelError with the reason if it is unknown or deprecated."""
    operator = find_operator(op_type, version, domain)
    if operator is None:
        raise ModelError(why_unknown(op_type, version, domain))
    if operator.is_deprecated:
        raise ModelError(why_deprecated(operator, version))
    return operator


def why_deprecated(operator: Operator, version: int) -> str:
    """Explain that an operator is deprecated, and what to use instead."""
    return (
        f"{operator.title} is deprecated since opset {operator.since_version} of {format_domain(operator.domain)} and cannot "
        f"be used at opset {version}; use its successor, or an older opset"
    )


def why_unknown(op_type: str, version: int, domain: str) -> str:
    """Explain why an operator is unknown: a later opset introduced it, or its name is misspelled."""
    title = format_domain(domain)
    if op_type in list_operator_names(domain):
        first = _load_history()[domain][op_type][0]
        return f"{op_type} came with opset {first} of {title}; the graph is at opset {version}"
    return f"{op_type} is not an operator of {title} at opset {version}.{did_you_mean(op_type, list_operator_names(domain))}"


@lru_cache(maxsize=1)
def _load_history() -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Load the versions of all operators in ``onnx``, oldest first, by domain and name."""
    from onnx import defs

    history: dict[str, dict[str, tuple[int, ...]]] = {}
    for schema in defs.get_all_schemas_with_history():
        versions = history.setdefault(schema.domain, {})
        versions[schema.name] = tuple(sorted((*versions.get(schema.name, ()), schema.since_version)))
    return history


def list_operator_names(domain: str = "") -> tuple[str, ...]:
    """Sorted names of all operators that ever existed in a domain."""
    return tuple(sorted(_load_history().get(domain, ())))


def latest_version(domain: str = "") -> int:
    """The newest version of a domain in the installed ``onnx``; 0 for an unknown domain."""
    from onnx import defs

    if not domain:
        return latest_opset()
    if domain == defs.ONNX_ML_DOMAIN:
        return int(defs.onnx_ml_opset_version())
    return max((versions[-1] for versions in _load_history().get(domain, {}).values()), default=0)


def format_domain(domain: str) -> str:
    """The display name of a domain: the empty string is ai.onnx."""
    return domain or "ai.onnx"


Inference: TypeAlias = Callable[[Node, Mapping[str, Type], Mapping[str, Constant], Mapping[str, int]], Sequence[Type | None]]
"""Infers the output types of a node. The arguments are the node, the input types, the constant inputs and the opsets.

The type of an output is None if unknown. Raises ModelError if the inputs contradict the operator.
"""
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that select the element type of the output."""
_ONNX = {d: {"float32": "float", "float64": "double"}.get(d.text, d.text) for d in DType}
_FROM_ONNX = {text: d for d, text in _ONNX.items()}


def format_onnx_type(type_: Type) -> str | None:
    """Format a type as operator schemas do (``tensor(float)``); None for maps, which have several spellings."""
    if isinstance(type_, TensorType):
        return f"tensor({_ONNX[type_.dtype]})"
    if isinstance(type_, SequenceType | OptionalType):
        inner = format_onnx_type(type_.element)
        if inner is not None:
            return f"seq({inner})" if isinstance(type_, SequenceType) else f"optional({inner})"
    return None


def parse_onnx_type(text: str) -> Type | None:
    """Parse a schema's spelling to a type without extents; None for maps and sparse tensors."""
    head, _, rest = text.partition("(")
    element_text = rest[:-1]
    if head == "tensor":
        return TensorType(_FROM_ONNX[element_text]) if element_text in _FROM_ONNX else None
    element = parse_onnx_type(element_text) if head in ("seq", "optional") else None
    if element is None:
        return None
    return SequenceType(element) if head == "seq" else OptionalType(element)


def bind_types(operator: Operator, types: Sequence[Type | None], names: Sequence[str] = ()) -> dict[str, str]:
    """Map the type variables of an operator (``T``) to the actual input types in ONNX's spelling (``tensor(float)``).

    Raises ModelError if an input type is not allowed, or if two inputs that share a type variable differ. ``names`` are the names
    of the values for the error.
    """
    bound: dict[str, tuple[int, str]] = {}
    for index, type_ in enumerate(types):
        # Unknown types and maps are not checked.
        spelling = format_onnx_type(type_) if type_ is not None else None
        if spelling is None:
            continue
        formal = operator.formal_input(index)
        if spelling not in formal.types:
            raise ModelError(
                f"takes no {spelling} as input {formal.name!r} at version {operator.since_version}; "
                f"it takes {_list_types(formal.types)}"
            )
        # For example, the carried values of Loop each have their own type.
        if formal.is_variadic and not formal.is_homogeneous:
            continue
        first, earlier = bound.setdefault(formal.variable, (index, spelling))
        if earlier != spelling:
            needed = f"needs inputs {operator.formal_input(first).name!r} and {formal.name!r} of the same type"
            if names:
                raise ModelError(f"{needed}; {names[first]!r} is {earlier} and {names[index]!r} is {spelling}")
            raise ModelError(f"{needed}; got {earlier} and {spelling}; convert one with .astype(...)")
    return {variable: spelling for variable, (_, spelling) in bound.items()}


def _list_types(types: frozenset[str]) -> str:
    sorted_types = sorted(types)
    more = f" and {len(sorted_types) - 12} more" if len(sorted_types) > 12 else ""
    return ", ".join(sorted_types[:12]) + more


def infer_output_types(operator: Operator, node: Node, bound: Mapping[str, str]) -> tuple[Type | None, ...]:
    """Infer the output types that follow from the schema and the bound types, without extents; None for other outputs."""
    return tuple(_infer_output_type(operator, index, node, bound) for index in range(len(node.outputs)))


def _infer_output_type(operator: Operator, index: int, node: Node, bound: Mapping[str, str]) -> Type | None:
    formal = operator.formal_output(index)
    if formal.variable in bound:
        return parse_onnx_type(bound[formal.variable])
    if len(formal.types) == 1:
        return parse_onnx_type(next(iter(formal.types)))
    dtype = _find_selected_dtype(operator, node)
    return None if dtype is None else TensorType(dtype)


def _find_selected_dtype(operator: Operator, node: Node) -> DType | None:
    """Find the element type that an attribute selects: ``to`` of Cast, ``dtype`` of RandomNormal, ``value`` of Constant."""
    for name in DTYPE_ATTRIBUTES:
        number = node.attr(name) or getattr(operator.attributes.get(name), "default", None)
        if number:  # 0 is TensorProto.UNDEFINED: the attribute selects no type
            return DType.from_onnx(number)
    value = node.attr("value")
    if isinstance(value, Constant):
        return value.dtype
    # Without the attribute, ConstantOfShape makes float32 zeros; its schema does not have this default.
    return DType.FLOAT32 if operator.name == "ConstantOfShape" else None


def join_types(a: Type | None, b: Type | None) -> Type | None:
    """Compute the common supertype of two types: extents that differ become unknown. None if the types are incompatible."""
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype is b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype)
        return TensorType(a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        element = join_types(a.element, b.element)
        return None if element is None else SequenceType(element)
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):  # the supertype is optional if one of the types is
        element = join_types(_unwrap_optional(a), _unwrap_optional(b))
        return None if element is None else OptionalType(element)
    return a if a == b else None


def _unwrap_optional(type_: Type | None) -> Type | None:
    return type_.element if isinstance(type_, OptionalType) else type_
