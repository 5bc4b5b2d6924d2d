"""The operator schemas of the ``onnx`` package: the only part of it that the graph reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import defs, helper

from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import AttrKind, FrozenDict
from xrt.graph.constants import Constant
from xrt.graph.node import Node
from xrt.graph.types import Dim, DType, OptionalType, SequenceType, Shape, TensorType, Type

if TYPE_CHECKING:
    from xrt.graph.function import Function

__all__ = [
    "DTYPE_ATTRIBUTES",
    "FormalAttribute",
    "FormalParameter",
    "Inference",
    "Operator",
    "bind",
    "domain_title",
    "find_operator",
    "find_schema",
    "first_version",
    "infer_output_types",
    "is_deterministic",
    "is_training",
    "join_types",
    "latest_opset",
    "latest_version",
    "may_equal",
    "onnx_spelling",
    "operator_names",
    "parse_onnx_spelling",
    "refine_types",
    "require_operator",
    "since_version",
    "why_deprecated",
    "why_unknown",
]

_VERSIONS = 1 << 31
"""Where the versions end that ``onnx`` can be asked about; models may say larger ones."""


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str = "") -> defs.OpSchema | None:
    """Return the operator's schema in force at an opset version, None where the domain or the operator is unknown."""
    if abs(version) >= _VERSIONS:
        return None
    try:
        return defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None


def since_version(node: Node, function: Function) -> int | None:
    """Return the version at which the node's operator took its present meaning; None where it is unknown."""
    version = function.opsets.get(node.domain)
    schema = None if version is None else find_schema(node.op_type, version, node.domain)
    return None if schema is None else schema.since_version


@lru_cache(maxsize=1)
def latest_opset() -> int:
    """Return the newest version of ai.onnx that the installed ``onnx`` knows."""
    return int(defs.onnx_opset_version())


_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})


def is_deterministic(node: Node, function: Function) -> bool:
    """Whether the node gives the same outputs whenever it is given the same inputs.

    It is false for random operators, Dropout in training mode, operators of domains that ``onnx`` does not describe, and nodes
    whose bodies contain such a node. These are never folded into constants, merged or shared.
    """
    if since_version(node, function) is None or node.op_type in _RANDOM:
        return False
    if node.op_type == "Dropout" and is_training(node, function):
        return False
    return all(is_deterministic(inner, body) for body in node.bodies for inner in body.nodes)


def is_training(node: Node, function: Function) -> bool:
    """Whether the node is the training form of its operator; a Dropout whose flag is not a constant counts as one."""
    if node.op == "Dropout" and function.opsets.get("", 7) < 7:
        return not node.attr("is_test", 0)
    if node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]:
        flag = function.constants.get(node.inputs[2])
        return flag is None or bool(flag.array)
    return node.op_type == "BatchNormalization" and node.attr("training_mode", 0) == 1


UNBOUNDED = 2**31 - 1
"""How a schema writes that there is no upper limit to inputs or outputs."""


@dataclass(frozen=True, slots=True)
class FormalParameter:
    """One input or output as the operator declares it."""

    name: str
    types: frozenset[str]
    """The types it may have, as ONNX spells them: ``tensor(float)``, ``seq(tensor(int64))``."""
    variable: str
    """The type variable (``T``) that its type is bound to; a type where it is fixed."""
    is_optional: bool
    is_variadic: bool
    is_homogeneous: bool
    """For a variadic one: whether all its values share one type."""


@dataclass(frozen=True, slots=True)
class FormalAttribute:
    """One attribute as the operator declares it."""

    name: str
    kind: AttrKind
    """Sparse tensors are dense here, so their kind is TENSOR."""
    is_required: bool
    default: Any
    """None where the operator gives none."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator at one version of its meaning."""

    name: str
    domain: str
    since_version: int
    is_deprecated: bool
    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]
    attributes: Mapping[str, FormalAttribute]
    required: frozenset[str]
    """Names of the attributes that must be given."""
    min_inputs: int
    max_inputs: int | None
    """None where there is no limit, as for Concat."""
    min_outputs: int
    max_outputs: int | None

    @property
    def title(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def formal_input(self, index: int) -> FormalParameter:
        """Return the formal input for the actual input at an index (a variadic one takes all the rest)."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def formal_output(self, index: int) -> FormalParameter:
        return self.outputs[min(index, len(self.outputs) - 1)]

    def allows_inputs(self, count: int) -> bool:
        return count >= self.min_inputs and (self.max_inputs is None or count <= self.max_inputs)

    def allows_outputs(self, count: int) -> bool:
        return count >= self.min_outputs and (self.max_outputs is None or count <= self.max_outputs)

    @property
    def input_count(self) -> str:
        """How many inputs it takes, in words: ``2``, ``1 to 3``, ``at least 1``."""
        return _span(self.min_inputs, self.max_inputs)

    @property
    def output_count(self) -> str:
        return _span(self.min_outputs, self.max_outputs)


def _span(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"


@lru_cache(maxsize=4096)
def find_operator(op_type: str, version: int, domain: str = "") -> Operator | None:
    """Return the operator in force at an opset version, None where the domain or the operator is unknown."""
    schema = find_schema(op_type, version, domain)
    return None if schema is None else _read(schema)


def require_operator(op_type: str, version: int, domain: str = "") -> Operator:
    """Return the operator in force at an opset version; raises ModelError that says why there is none."""
    operator = find_operator(op_type, version, domain)
    if operator is None:
        raise ModelError(why_unknown(op_type, version, domain))
    if operator.is_deprecated:
        raise ModelError(why_deprecated(operator, version))
    return operator


def why_deprecated(operator: Operator, version: int) -> str:
    """Return that the operator is deprecated at an opset version, and since when."""
    return (
        f"{operator.title} is deprecated since opset {operator.since_version} of {domain_title(operator.domain)} and cannot "
        f"be used at opset {version}; use its successor, or an older opset"
    )


def why_unknown(op_type: str, version: int, domain: str) -> str:
    """Return why a known domain has no such operator at an opset: too new, or not there at all, with the nearest name."""
    title = domain_title(domain)
    if op_type in operator_names(domain):
        return f"{op_type} came with opset {first_version(op_type, domain)} of {title}; the graph is at opset {version}"
    return f"{op_type} is not an operator of {title} at opset {version}.{did_you_mean(op_type, operator_names(domain))}"


@lru_cache(maxsize=1)
def _history() -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Return the versions of every operator that ``onnx`` knows, by domain and name."""
    history: dict[str, dict[str, tuple[int, ...]]] = {}
    for schema in defs.get_all_schemas_with_history():
        versions = history.setdefault(schema.domain, {})
        versions[schema.name] = (*versions.get(schema.name, ()), schema.since_version)
    return history


def operator_names(domain: str = "") -> tuple[str, ...]:
    """Return the names of every operator that a domain has ever had, sorted."""
    return tuple(sorted(_history().get(domain, ())))


def first_version(op_type: str, domain: str = "") -> int:
    """Return the opset version with which the operator came; raises KeyError where there is none."""
    return min(_history()[domain][op_type])


def latest_version(domain: str = "") -> int:
    """Return the newest version of a domain that the installed ``onnx`` knows, 0 for a domain it does not know."""
    if not domain:
        return latest_opset()
    return int(defs.onnx_ml_opset_version()) if domain == defs.ONNX_ML_DOMAIN else _latest_versions().get(domain, 0)


@lru_cache(maxsize=1)
def _latest_versions() -> Mapping[str, int]:
    """Return the newest version of every domain; the history of all operators takes ten times as long to read."""
    newest: dict[str, int] = {}
    for schema in defs.get_all_schemas():
        newest[schema.domain] = max(newest.get(schema.domain, 0), schema.since_version)
    return newest


def domain_title(domain: str) -> str:
    """Return the domain as a person calls it: the empty string is ai.onnx."""
    return domain or "ai.onnx"


def _read(schema: defs.OpSchema) -> Operator:
    attributes = {name: _attribute(name, formal) for name, formal in sorted(schema.attributes.items())}
    return Operator(
        name=schema.name,
        domain=schema.domain,
        since_version=schema.since_version,
        is_deprecated=schema.deprecated,
        inputs=tuple(_formal(parameter) for parameter in schema.inputs),
        outputs=tuple(_formal(parameter) for parameter in schema.outputs),
        attributes=FrozenDict(attributes),
        required=frozenset(name for name, formal in attributes.items() if formal.is_required),
        min_inputs=schema.min_input,
        max_inputs=_limit(schema.max_input),
        min_outputs=schema.min_output,
        max_outputs=_limit(schema.max_output),
    )


def _limit(count: int) -> int | None:
    return None if count >= UNBOUNDED else count


def _formal(parameter: defs.OpSchema.FormalParameter) -> FormalParameter:
    option = defs.OpSchema.FormalParameterOption
    return FormalParameter(
        name=parameter.name,
        types=frozenset(parameter.types),
        variable=parameter.type_str,
        is_optional=parameter.option == option.Optional,
        is_variadic=parameter.option == option.Variadic,
        is_homogeneous=parameter.is_homogeneous,
    )


_KINDS = {
    "TYPE_PROTO": AttrKind.TYPE,
    "TYPE_PROTOS": AttrKind.TYPES,
    "SPARSE_TENSOR": AttrKind.TENSOR,
    "SPARSE_TENSORS": AttrKind.TENSORS,
}


def _attribute(name: str, formal: defs.OpSchema.Attribute) -> FormalAttribute:
    word = formal.type.name
    kind = _KINDS.get(word) or AttrKind[word]
    return FormalAttribute(name, kind, formal.required, _default(formal))


def _default(formal: defs.OpSchema.Attribute) -> Any:
    """Return the schema's default as a plain value; the schema itself holds it as ONNX's message."""
    if not formal.default_value.name:
        return None
    value = helper.get_attribute_value(formal.default_value)
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return tuple(value) if isinstance(value, list) else value


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
