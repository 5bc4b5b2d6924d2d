"""Hash Functions: equal for equal computations, regardless of the names of inner values.

The encoding is type-tagged instead of relying on ``==`` (in Python ``1 == True == 1.0``), and numbers values in definition
order, so names do not matter. `fingerprint` includes constants by content and is part of the signature. `shape_key`
includes constants by type, and small integers by value; cost tables use it to recognize equal work.
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


MAX_INDEX_ELEMENTS = 64
"""Integer constants of up to this many elements are shapes, axes or indices, so the shape key includes their values."""


def fingerprint(function: Function) -> str:
    """Compute the SHA-256 (hex) of operators, attributes, edges, types, opsets, aliases and the contents of constants."""
    return _hash_function(function, by_content=True)


def shape_key(function: Function) -> str:
    """Like `fingerprint`, but with only the types of large constants: blocks that differ only in weights have equal keys."""
    return _hash_function(function, by_content=False)


def hash_values(function: Function) -> dict[str, str]:
    """Map each value outside of bodies to a hash, 32 hex digits, of the operators and weights that compute it.

    The hash covers operators, attributes, weights by content, and the position and element type of inputs. It excludes names,
    extents and opset versions, so it survives renaming, other input sizes and version conversion. Linear.
    """
    encoder = _Encoder(by_content=True)
    elements = [v.type.dtype if isinstance(v.type, TensorType) else v.type for v in function.inputs]
    keys = {v.name: _hash_text(f"input {index} {elements[index]}") for index, v in enumerate(function.inputs)}
    keys |= {name: _hash_text(f"constant {constant.digest.hex()}") for name, constant in function.constants.items()}
    for node in function.nodes:
        value = node.attr("value") if node.op == "Constant" else None
        input_keys = [keys.get(name, name) for name in node.uses]
        # `uses` skips omitted inputs, so their positions are hashed too: Clip(x, "", max) is not Clip(x, max).
        omitted = [index for index, name in enumerate(node.inputs) if not name]
        attributes = b"".join(part for attribute in node.attributes for part in encoder.encode_attribute(attribute, {}))
        for index, name in enumerate(node.outputs):
            if isinstance(value, Constant):
                keys[name] = _hash_text(f"constant {value.digest.hex()}")
            elif name:
                keys[name] = _hash_text(f"{node.op} {input_keys} {omitted} {index} {hashlib.sha256(attributes).hexdigest()}")
    return keys


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _hash_function(function: Function, *, by_content: bool) -> str:
    return hashlib.sha256(b"".join(_Encoder(by_content).encode_function(function, {}))).hexdigest()


class _Encoder:
    """Encodes a Function as a stream of bytes; each item starts with its tag and length."""

    def __init__(self, by_content: bool) -> None:
        self.by_content = by_content
        self.dims: dict[str, int] = {}
        # By id(type), because hashing a type is slow. The type is stored too, so that its id is not reused.
        self._type_texts: dict[int, tuple[Type | None, str]] = {}

    def encode_function(self, function: Function, outer: dict[str, int]) -> Iterator[bytes]:
        """Yield the parts: opsets (O), inputs (I), nodes (N) with outputs (D) and their types (T), results (R), aliases (A)."""
        numbers = dict(outer)  # in a body, a captured value has the number that it has in the Function around it

        def number(name: str) -> int:
            return numbers.setdefault(name, len(numbers)) if name else -1

        # An imported domain without nodes does not change the computation.
        used = {node.domain for node in function.nodes}
        yield _encode_tagged("O", ",".join(f"{d}:{v}" for d, v in sorted(function.opsets.items()) if d in used))
        for value in function.inputs:
            number(value.name)
            yield _encode_tagged("I", self.encode_type(value.type))
        nodes = {node.name: index for index, node in enumerate(function.nodes)}
        for node in function.nodes:
            # Encode a constant at its first use, because the order of the dictionary must not matter.
            for name in node.uses:
                if name in function.constants and name not in numbers:
                    number(name)
                    yield self.encode_constant(function.constants[name])
            # Encode control edges by index, because names must not matter.
            after = sorted(nodes[name] for name in node.control)
            yield _encode_tagged("N", f"{node.op}|{node.device}|{after}|{[number(n) for n in node.inputs]}")
            for attribute in node.attributes:
                yield from self.encode_attribute(attribute, numbers)
            yield _encode_tagged("D", str([number(n) for n in node.outputs]))
            yield _encode_tagged("T", ";".join(self.encode_type(function.get_type(n)) for n in node.outputs if n))
        for value in function.outputs:
            if value.name in function.constants and value.name not in numbers:
                yield self.encode_constant(function.constants[value.name])
            yield _encode_tagged("R", f"{number(value.name)}{self.encode_type(value.type)}")
        yield _encode_tagged("A", str(sorted((number(i), number(o)) for i, o in function.aliases)))

    def encode_constant(self, constant: Constant) -> bytes:
        # The tags differ, so that a constant's content is never mistaken for its type.
        is_small = constant.dtype.is_integer and constant.array.size <= MAX_INDEX_ELEMENTS
        if self.by_content or is_small:
            return _encode_tagged("C", constant.digest.hex())
        return _encode_tagged("c", self.encode_type(constant.type))

    def encode_attribute(self, attribute: Attribute, numbers: dict[str, int]) -> Iterator[bytes]:
        yield _encode_tagged("a", f"{attribute.name}|{attribute.kind.name}")
        values = attribute.value if attribute.kind.is_list else (attribute.value,)
        types = set(map(type, values))
        if len(values) > 1 and len(types) == 1 and types <= _LIST_ENCODERS.keys():
            yield _LIST_ENCODERS[types.pop()](values).encode()  # tree ensembles have thousands of numbers
            return
        for value in values:
            if isinstance(value, Function):
                yield from self.encode_function(value, numbers)
            elif isinstance(value, Constant):
                yield self.encode_constant(value)
            elif isinstance(value, float):
                yield _encode_tagged("f", value.hex())
            elif isinstance(value, bytes):
                yield _encode_tagged("b", value.hex())
            elif isinstance(value, int | str):
                yield _encode_tagged(type(value).__name__, str(value))
            else:
                yield _encode_tagged("t", self.encode_type(value))

    def encode_type(self, type_: Type | None) -> str:
        if id(type_) not in self._type_texts:
            self._type_texts[id(type_)] = type_, self._encode_type_text(type_)
        _, text = self._type_texts[id(type_)]
        return text

    def _encode_type_text(self, type_: Type | None) -> str:
        if isinstance(type_, TensorType):
            if type_.shape is None:
                return f"{type_.dtype}[...]"
            return f"{type_.dtype}[{','.join(self.encode_dim(d) for d in type_.shape)}]"
        if isinstance(type_, SequenceType | OptionalType):
            return f"{type(type_).__name__}({self.encode_type(type_.element)})"
        if isinstance(type_, MapType):
            return f"map({type_.key},{self.encode_type(type_.value)})"
        return "?"

    def encode_dim(self, dim: Any) -> str:
        if isinstance(dim, str):
            # Symbolic extents are numbered like values, so their names do not matter.
            return f"s{self.dims.setdefault(dim, len(self.dims))}"
        return "?" if dim is None else str(dim)


# A faster `_encode_tagged` for lists of numbers, which must produce the same bytes.
_LIST_ENCODERS: dict[type, Callable[[Sequence[Any]], str]] = {
    int: lambda values: "".join([f"int{len(text)}:{text}" for text in map(str, values)]),
    float: lambda values: "".join([f"f{len(text)}:{text}" for text in map(float.hex, values)]),
}


def _encode_tagged(tag: str, text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return f"{tag}{len(raw)}:".encode() + raw
