"""What a schema of the ``onnx`` package says of an operator, as plain values that are quick to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnx import defs, helper

from xrt.errors import ModelError, did_you_mean
from xrt.graph.attributes import AttrKind
from xrt.graph.frozen_dict import FrozenDict
from xrt.graph.schemas import find_schema, latest_opset

__all__ = [
    "FormalAttribute",
    "FormalParameter",
    "Operator",
    "domain_title",
    "find_operator",
    "first_version",
    "latest_version",
    "operator_names",
    "require_operator",
    "why_deprecated",
    "why_unknown",
]

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
