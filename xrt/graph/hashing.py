"""What a Function computes, as a hash: equal for equal computations whatever their inner values are called.

The encoding is type-tagged, never ``==`` (on Python ``1 == True == 1.0``), and numbers values in the order in which the
Function defines them, so names do not enter. Two uses: the full fingerprint (constants by content) is an ingredient
of the signature; the shape key (constants by type only, small integers by value) names equal work in cost tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xrt.graph.constants import Constant
from xrt.graph.function import Function
from xrt.graph.types import MapType, OptionalType, SequenceType, TensorType, Type

if TYPE_CHECKING:
    from xrt.graph.attributes import Attribute

__all__ = ["fingerprint", "hash_values", "shape_key"]

SMALL = 64
"""Integer constants of at most this many elements are shapes, axes and indices: the shape key takes them by value."""


def fingerprint(function: Function) -> str:
    """Return the SHA-256 (hex) over operators, attributes, edges, types, opsets, aliases and the constants' content."""
    return _digest(function, by_content=True)


def shape_key(function: Function) -> str:
    """Return the same without the constants' bytes: equal for blocks that differ only in their weights."""
    return _digest(function, by_content=False)


def hash_values(function: Function) -> dict[str, str]:
    """Return for each value of the Function, bodies apart, a hash over all that computes it; 32 hex digits.

    It covers operators, attributes, weights by content and the places of the inputs with their element types. Names, extents and
    versions of opsets do not enter, so it outlasts a renaming, other sizes and a conversion. Linear.
    """
    encoder = _Encoder(by_content=True)
    keys = {value.name: _short(f"input {place} {_element_type(value.type)}") for place, value in enumerate(function.inputs)}
    keys |= {name: _short(f"constant {constant.digest.hex()}") for name, constant in function.constants.items()}
    for node in function.nodes:
        value = node.attr("value") if node.op == "Constant" else None
        read = [keys.get(name, name) for name in node.uses]
        left_out = [place for place, name in enumerate(node.inputs) if not name]
        attributes = b"".join(part for attribute in node.attributes for part in encoder.attribute(attribute, {}))
        for place, name in enumerate(node.outputs):
            if isinstance(value, Constant):
                keys[name] = _short(f"constant {value.digest.hex()}")
            elif name:
                keys[name] = _short(f"{node.op} {read} {left_out} {place} {hashlib.sha256(attributes).hexdigest()}")
    return keys


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _element_type(type_: Type | None) -> str:
    return str(type_.dtype) if isinstance(type_, TensorType) else str(type_)


def _digest(function: Function, *, by_content: bool) -> str:
    return hashlib.sha256(b"".join(_Encoder(by_content).function(function, {}))).hexdigest()


class _Encoder:
    """Walks a Function and yields bytes, each prefixed with its tag and length."""

    def __init__(self, by_content: bool) -> None:
        self.by_content = by_content
        self.dims: dict[str, int] = {}
        self._texts: dict[int, tuple[Type | None, str]] = {}
        """Of types that have been met, by identity; each is kept, so that no other gets its identity."""

    def function(self, function: Function, outer: dict[str, int]) -> Iterator[bytes]:
        numbers = dict(outer)

        def number(name: str) -> int:
            return numbers.setdefault(name, len(numbers)) if name else -1

        yield _tagged("O", ",".join(f"{d}:{v}" for d, v in sorted(self._opsets(function).items())))
        for value in function.inputs:
            number(value.name)
            yield _tagged("I", self.type(value.type))
        nodes = {node.name: index for index, node in enumerate(function.nodes)}
        for node in function.nodes:
            for name in node.uses:
                if name in function.constants and name not in numbers:
                    number(name)
                    yield self.constant(function.constants[name])
            after = sorted(nodes[name] for name in node.control)
            yield _tagged("N", f"{node.op}|{node.device}|{after}|{[number(n) for n in node.inputs]}")
            for attribute in node.attributes:
                yield from self.attribute(attribute, numbers)
            yield _tagged("D", str([number(n) for n in node.outputs]))
            yield _tagged("T", ";".join(self.type(function.get_type(n)) for n in node.outputs if n))
        for value in function.outputs:
            if value.name in function.constants and value.name not in numbers:
                yield self.constant(function.constants[value.name])
            yield _tagged("R", f"{number(value.name)}{self.type(value.type)}")
        yield _tagged("A", str(sorted((number(i), number(o)) for i, o in function.aliases)))

    @staticmethod
    def _opsets(function: Function) -> dict[str, int]:
        used = {node.domain for node in function.nodes}
        return {d: v for d, v in function.opsets.items() if d in used}

    def constant(self, constant: Constant) -> bytes:
        small = constant.dtype.is_integer and constant.array.size <= SMALL
        if self.by_content or small:
            return _tagged("C", constant.digest.hex())
        return _tagged("c", self.type(constant.type))

    def attribute(self, attribute: Attribute, numbers: dict[str, int]) -> Iterator[bytes]:
        yield _tagged("a", f"{attribute.name}|{attribute.kind.name}")
        values = attribute.value if attribute.kind.is_list else (attribute.value,)
        if len(values) > 1 and (spell := _SPELLED.get(type(values[0]))) and len(set(map(type, values))) == 1:
            yield spell(values).encode()  # the trees of a forest have thousands
            return
        for value in values:
            if isinstance(value, Function):
                yield from self.function(value, numbers)
            elif isinstance(value, Constant):
                yield self.constant(value)
            elif isinstance(value, float):
                yield _tagged("f", value.hex())
            elif isinstance(value, bytes):
                yield _tagged("b", value.hex())
            elif isinstance(value, int | str):
                yield _tagged(type(value).__name__, str(value))
            else:
                yield _tagged("t", self.type(value))

    def type(self, type_: Type | None) -> str:
        known = self._texts.get(id(type_))
        if known is None:
            known = self._texts[id(type_)] = type_, self._text(type_)
        return known[1]

    def _text(self, type_: Type | None) -> str:
        if isinstance(type_, TensorType):
            if type_.shape is None:
                return f"{type_.dtype}[...]"
            return f"{type_.dtype}[{','.join(self.dim(d) for d in type_.shape)}]"
        if isinstance(type_, SequenceType | OptionalType):
            return f"{type(type_).__name__}({self.type(type_.element)})"
        if isinstance(type_, MapType):
            return f"map({type_.key},{self.type(type_.value)})"
        return "?"

    def dim(self, dim: Any) -> str:
        if isinstance(dim, str):
            return f"s{self.dims.setdefault(dim, len(self.dims))}"
        return "?" if dim is None else str(dim)


_SPELLED: dict[type, Callable[[Sequence[Any]], str]] = {
    int: lambda values: "".join([f"int{len(text)}:{text}" for text in map(str, values)]),
    float: lambda values: "".join([f"f{len(text)}:{text}" for text in map(float.hex, values)]),
}
"""What `_tagged` makes of each number of a list."""


def _tagged(tag: str, text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return f"{tag}{len(raw)}:".encode() + raw
