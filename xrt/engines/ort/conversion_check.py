"""Whether ONNX Runtime opens a session over one node: its own answer, where its list of kernels is not the whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from xrt.engines.ort.export import export_model
from xrt.engines.ort.session import why_not_opened
from xrt.graph import Constant, Function, Node, OptionalType, SequenceType, TensorType, Type, Value

__all__ = ["check_conversion"]

REMEMBERED = 4096
"""Nodes that differ in more than their shapes, whose answers are kept."""
SMALL = 64
"""Elements up to which a constant is an axis, a shape or a scale, rather than a weight."""


class SessionQuery:
    """A one-node Function, equal to another that computes the same: the key under which an answer is kept."""

    __slots__ = ("function",)

    def __init__(self, function: Function) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionQuery) and self.function.fingerprint == other.function.fingerprint

    def __hash__(self) -> int:
        return hash(self.function.fingerprint)


def check_conversion(
    node: Node, function: Function, type_of: Callable[[str], Type | None], providers: tuple[str, ...]
) -> str | None:
    """Return why the library refuses the node as a Function of its own; None when it opens a session over it.

    Costs the opening of a session, a millisecond or so, for the first node of a kind.
    """
    read = dict.fromkeys(node.uses)
    constants = {name: function.constants[name] for name in read if _is_small(function.constants.get(name))}
    inputs = tuple(Value(name, _known_any_size(type_of(name))) for name in read if name not in constants)
    outputs = tuple(Value(name, _known_any_size(type_of(name))) for name in node.defines)
    alone = Function(inputs, outputs, (replace(node, control=()),), constants, function.opsets)
    return _answer(SessionQuery(alone), providers)


def _is_small(constant: Constant | None) -> bool:
    """Whether a constant may decide the answer; the bytes of a large one would only make every node a kind of its own."""
    return constant is not None and constant.array.size <= SMALL


@lru_cache(maxsize=REMEMBERED)
def _answer(kind: SessionQuery, providers: tuple[str, ...]) -> str | None:
    try:
        handed = export_model(kind.function)
    except ValueError as error:  # a ModelError, or a name that is not text
        return str(error)
    return why_not_opened(handed, providers)


def _known_any_size(type_: Type | None) -> Type | None:
    return None if type_ is None else _any_size(type_)


def _any_size(type_: Type) -> Type:
    """Return the type with its extents left open, so that nodes which differ in them alone are one kind."""
    if isinstance(type_, TensorType):
        return type_ if type_.shape is None else type_.with_shape((None,) * len(type_.shape))
    if isinstance(type_, SequenceType):
        return SequenceType(_any_size(type_.element))
    if isinstance(type_, OptionalType):
        return OptionalType(_any_size(type_.element))
    return type_
