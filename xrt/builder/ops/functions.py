"""One Python function per operator, with name, signature and documentation from the schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from xrt.builder import DEFAULT_OPSET
from xrt.builder.record_op import apply
from xrt.errors import did_you_mean
from xrt.graph.schemas import (
    FormalAttribute,
    FormalParameter,
    Operator,
    find_operator,
    find_schema,
    format_domain,
    latest_version,
    list_operator_names,
)


@lru_cache(maxsize=8)
def list_names(domain: str) -> tuple[str, ...]:
    """Sorted names of the operators of a domain at its newest version."""
    version = latest_version(domain)
    operators = ((name, find_operator(name, version, domain)) for name in list_operator_names(domain))
    return tuple(name for name, operator in operators if operator is not None)


def find_newest_operator(name: str, domain: str) -> Operator | None:
    """Find the operator at the default opset, or at the newest opset if it was introduced later; None if unknown."""
    default = find_operator(name, DEFAULT_OPSET) if not domain else None
    return default or find_operator(name, latest_version(domain), domain)


@lru_cache(maxsize=512)
def find_function(module: str, domain: str, name: str) -> Callable[..., Any]:
    """Find the function of an operator; raises AttributeError with the closest name if there is no such operator."""
    operator = None if name.startswith("_") else find_newest_operator(name, domain)
    if operator is None:
        hint = did_you_mean(name, list_names(domain))
        raise AttributeError(f"{format_domain(domain)} has no operator {name!r}.{hint}", name=name)
    return _make_function(module, operator)


def _make_function(module: str, operator: Operator) -> Callable[..., Any]:
    """Make the Python function that records an operator."""
    op_type, domain = operator.name, operator.domain

    def function(*inputs: Any, outputs: int | None = None, name: str | None = None, **attributes: Any) -> Any:
        return apply(op_type, inputs, attributes, domain=domain, outputs=outputs, name=name)

    # help() and completion in notebooks read these.
    function.__name__ = function.__qualname__ = op_type
    function.__module__ = module
    function.__doc__ = _make_documentation(operator)
    function.__signature__ = inspect.Signature(list(list_parameters(operator)))  # type: ignore[attr-defined]  # what inspect reads
    return function


def list_parameters(operator: Operator) -> Iterator[inspect.Parameter]:
    """Yield the parameters of an operator's function: inputs, attributes, ``outputs`` if there can be several, and ``name``."""
    kind = inspect.Parameter
    variadic = [formal for formal in operator.inputs if formal.is_variadic]
    for formal in operator.inputs:
        if formal.is_variadic:
            yield kind(formal.name, kind.VAR_POSITIONAL)
        else:
            # Inputs before a variadic one cannot be passed by name in Python.
            position_kind = kind.POSITIONAL_ONLY if variadic else kind.POSITIONAL_OR_KEYWORD
            yield kind(formal.name, position_kind, default=None if formal.is_optional else kind.empty)
    for attribute in sorted(operator.attributes.values(), key=lambda a: not a.is_required):
        yield kind(
            attribute.name, kind.KEYWORD_ONLY, default=kind.empty if attribute.is_required else _shorten(attribute.default)
        )
    if operator.max_outputs != 1:
        yield kind("outputs", kind.KEYWORD_ONLY, default=None)
    yield kind("name", kind.KEYWORD_ONLY, default=None)


def _shorten(default: Any) -> Any:
    """Shorten a default for display: 1e-05 instead of the digits of the nearest float32."""
    return float(str(np.float32(default))) if isinstance(default, float) else default


def _make_documentation(operator: Operator) -> str:
    schema = find_schema(operator.name, operator.since_version, operator.domain)
    text = inspect.cleandoc(schema.doc) if schema is not None and schema.doc else ""
    parts = [f"{operator.title}, version {operator.since_version} of {format_domain(operator.domain)}.", text]
    parts += _format_section("Inputs", (_format_parameter(formal) for formal in operator.inputs))
    parts += _format_section("Attributes", (_format_attribute(attribute) for attribute in operator.attributes.values()))
    parts += _format_section("Outputs", (_format_parameter(formal) for formal in operator.outputs))
    return "\n\n".join(part for part in parts if part)


def _format_section(title: str, lines: Iterator[str]) -> list[str]:
    listed = "\n".join(f"    {line}" for line in lines)
    return [f"{title}:\n{listed}"] if listed else []


def _format_parameter(formal: FormalParameter) -> str:
    count = ", any number" if formal.is_variadic else ""
    return f"{formal.name} ({formal.variable}{', optional' if formal.is_optional else count})"


def _format_attribute(attribute: FormalAttribute) -> str:
    default = "required" if attribute.is_required else f"default {_shorten(attribute.default)!r}"
    return f"{attribute.name} ({attribute.kind.name.lower()}, {default})"
