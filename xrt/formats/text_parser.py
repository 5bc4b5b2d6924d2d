"""The parser of the text form: recursive descent, one method per rule of the grammar that `xrt.formats.text` shows.

A text may come from anywhere: how deep things may be nested is bounded, and no size that it announces is allocated before
that much content has been read.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xrt.formats.text_types import DEPTH, PLAIN_TYPE, TypeParser
from xrt.graph import (
    Attribute,
    AttrKind,
    Constant,
    DType,
    Function,
    Node,
    TensorType,
    Type,
    Value,
)
from xrt.graph.gc_pause import pause_gc
from xrt.graph.printer import RESERVED, number_array

if TYPE_CHECKING:
    from xrt.formats.tokens import Token

__all__ = ["parse"]

# What most of a text is made of, each taken at one look where it would be many tokens. It is nothing but names, or recurs and
# was read token by token the first time; so it is the grammar that decides what it means, and whether it is right.
_WORD = "[A-Za-z_/][A-Za-z0-9_./]*"
_PLAIN_START = re.compile(rf"({_WORD})(?:: ({PLAIN_TYPE}))? = ({_WORD})(?=\()")
_PLAIN_NAMES = re.compile(rf"\({_WORD}(?:, {_WORD})*\)")
_PLAIN_ATTRIBUTES = re.compile(r"\{[^{}\"#]{0,200}\}")

T = TypeVar("T")


def parse(text: str) -> Function:
    """Return the Function that a text describes; raises ModelError with line and column where it describes none."""
    parser = _Parser(text)
    with pause_gc(text.count("\n")):
        function = parser.function(0)
    if parser.tokens.now.kind != "end":
        parser.tokens.fail("the end of the text after the function")
    return function


@dataclass(slots=True)
class _Draft:
    """What the statements of a function have said so far."""

    doc: dict[str, str] = field(default_factory=dict)
    """Nothing, or the description under ``doc``."""
    opsets: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    aliases: list[tuple[str, str]] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


class _Parser(TypeParser):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.attributes: dict[str, tuple[Attribute, ...]] = {}

    # ------------------------------------------------------------------ functions

    def function(self, depth: int) -> Function:
        tokens = self.tokens
        start = tokens.expect("function")
        if depth > DEPTH:
            tokens.refuse(f"functions are nested more than {DEPTH} deep", start)
        name = self.name("the function's name")
        inputs = self.values()
        tokens.expect("->")
        outputs = self.values()
        draft = _Draft()
        tokens.expect("{")
        while not tokens.takes("}"):
            self.statement(draft, depth)
        return self.check(start, lambda: _function(name, inputs, outputs, draft))

    def values(self) -> list[Value]:
        self.tokens.expect("(")
        return self.parse_list(")", self.value)

    def value(self) -> Value:
        name = self.name_or_blank("a value's name")
        self.tokens.expect(":")
        return Value(name, self.type_or_unknown())

    def statement(self, draft: _Draft, depth: int) -> None:
        word = self.tokens.now
        declaration = _DECLARATIONS.get(word.text) if word.kind == "word" else None
        if declaration is None:
            draft.nodes.append(self.node(draft, depth))
        else:
            self.tokens.take()
            declaration(self, draft)

    # ------------------------------------------------------------------ declarations

    def doc(self, draft: _Draft) -> None:
        token = self.tokens.now
        self.add(draft.doc, "doc", self.tokens.string("the description"), token)

    def opset(self, draft: _Draft) -> None:
        token = self.tokens.now
        name = self.name("a domain")
        domain = "" if token.kind == "word" and name == "ai.onnx" else name
        self.add(draft.opsets, domain, self.tokens.size("the version of the domain"), token)

    def meta(self, draft: _Draft) -> None:
        token = self.tokens.now
        key = self.tokens.string("the key")
        self.tokens.expect("=")
        self.add(draft.metadata, key, self.tokens.string("the text"), token)

    def alias(self, draft: _Draft) -> None:
        target = self.name("an input")
        self.tokens.expect("=")
        draft.aliases.append((target, self.name("an output")))

    def type_of(self, draft: _Draft) -> None:
        token = self.tokens.now
        name = self.name("a value")
        self.tokens.expect(":")
        self.add(draft.types, name, self.type(0), token)

    def const(self, draft: _Draft) -> None:
        token = self.tokens.now
        name = self.name("the constant's name")
        self.tokens.expect(":")
        type_ = self.parse_declared_tensor()
        self.tokens.expect("=")
        self.add(draft.constants, name, self.content(type_), token)

    def add(self, mapping: dict[str, T], key: str, value: T, token: Token) -> None:
        if key in mapping:
            self.tokens.refuse(f"{token.shown} stands here a second time", token)
        mapping[key] = value

    # ------------------------------------------------------------------ nodes

    def node(self, draft: _Draft, depth: int) -> Node:
        tokens = self.tokens
        outputs, domain, op_type = self.plain_start(draft) or self.start(draft)
        inputs = self.inputs()
        attributes = self.block(depth) if tokens.now.text == "{" else ()
        name = self.name("the node's name") if tokens.takes("@") else next(filter(None, outputs), "")
        device = tokens.string("a device") if tokens.takes("on") else ""
        control = self.control() if tokens.takes("after") else ()
        return Node(op_type, inputs, outputs, attributes, domain, name, control, device)

    def plain_start(self, draft: _Draft) -> tuple[tuple[str, ...], str, str] | None:
        """Return what `start` does where it is one output, of a type met before or of none, and an operator of ai.onnx."""
        match = self.tokens.ahead(_PLAIN_START)
        if match is None:
            return None
        name, type_, op_type = match.groups()
        if name in RESERVED or op_type in RESERVED or (type_ is not None and type_ not in self.types):
            return None
        if type_ is not None:
            self.add(draft.types, name, self.types[type_], self.tokens.now)
        self.tokens.skip(match[0])
        return (name,), "", op_type

    def start(self, draft: _Draft) -> tuple[tuple[str, ...], str, str]:
        """Return a node's outputs, domain and operator."""
        tokens = self.tokens
        outputs: list[str] = []
        if tokens.takes("("):
            tokens.expect(")")
        else:
            outputs.append(self.output(draft))
            while tokens.takes(","):
                outputs.append(self.output(draft))
        tokens.expect("=")
        op_type, domain = self.name("an operator"), ""
        if tokens.takes("::"):
            op_type, domain = self.name("an operator"), op_type
        return tuple(outputs), domain, op_type

    def output(self, draft: _Draft) -> str:
        token = self.tokens.now
        name = self.name_or_blank(f"a statement ({', '.join(sorted(_DECLARATIONS))}), or the outputs of a node, or '}}'")
        if self.tokens.takes(":"):
            self.add(draft.types, name, self.type(0), token)
        return name

    def inputs(self) -> tuple[str, ...]:
        """Return the names in parentheses, the left-out ones empty."""
        plain = self.tokens.ahead(_PLAIN_NAMES)
        names = plain[0][1:-1].split(", ") if plain else ["_"]
        if plain and RESERVED.isdisjoint(names):
            self.tokens.skip(plain[0])
            return tuple(names)
        self.tokens.expect("(")
        return tuple(self.parse_list(")", lambda: self.name_or_blank("an input")))

    def control(self) -> tuple[str, ...]:
        names = [self.name("a node's name")]
        while self.tokens.takes(","):
            names.append(self.name("a node's name"))
        return tuple(names)

    # ------------------------------------------------------------------ attributes

    def block(self, depth: int) -> tuple[Attribute, ...]:
        """Return the attributes in braces."""
        plain = self.tokens.ahead(_PLAIN_ATTRIBUTES)
        if plain and plain[0] in self.attributes:
            self.tokens.skip(plain[0])
            return self.attributes[plain[0]]
        self.tokens.expect("{")
        attributes = tuple(self.parse_list("}", lambda: self.attribute(depth)))
        if plain:
            self.attributes[plain[0]] = attributes
        return attributes

    def attribute(self, depth: int) -> Attribute:
        token = self.tokens.now
        name = self.name("an attribute")
        self.tokens.expect("=")
        kind, value = self.attribute_value(depth)
        return self.check(token, lambda: Attribute.of(name, value, kind))

    def attribute_value(self, depth: int) -> tuple[AttrKind, Any]:
        tokens = self.tokens
        if tokens.now.kind == "word" and tokens.now.text in _EMPTY:
            kind = _EMPTY[tokens.take().text]
            tokens.expect("[")
            tokens.expect("]")
            return kind, ()
        if not tokens.takes("["):
            return self.item(depth)
        start = tokens.now
        items = self.parse_list("]", lambda: self.item(depth))
        kinds = {kind for kind, _ in items}
        if len(kinds) != 1:
            mixed = ", ".join(sorted(kind.name.lower() for kind in kinds))
            reason = (
                f"a list holds {mixed}; its items must be of one kind"
                if kinds
                else f"an empty list needs its kind, as in {'ints []'!r}"
            )
            tokens.refuse(reason, start)
        return _AS_LIST[kinds.pop()], [value for _, value in items]

    def item(self, depth: int) -> tuple[AttrKind, Any]:
        tokens, token = self.tokens, self.tokens.now
        if token.kind == "string":
            return AttrKind.STRING, tokens.string("a string")
        if token.kind == "number" or token.text in ("inf", "nan"):
            return self.number()
        if token.text == "function":
            return AttrKind.GRAPH, self.function(depth + 1)
        if tokens.takes("bytes"):
            return AttrKind.STRING, self.check(tokens.now, lambda: bytes.fromhex(tokens.string("bytes in hex")))
        if tokens.takes("tensor"):
            return AttrKind.TENSOR, self.content(self.tensor_type())
        if tokens.takes("type"):
            return AttrKind.TYPE, self.type(0)
        return tokens.fail("a number, a string, bytes, tensor, type, function, or a list of one of these")

    def number(self) -> tuple[AttrKind, int | float]:
        token = self.tokens.now
        if token.text.lstrip("+-").isdigit():
            return AttrKind.INT, self.tokens.size("a whole number of at most 100 digits")
        return AttrKind.FLOAT, self.check(token, lambda: float(number_array([self.tokens.take().text], DType.FLOAT32)[0]))

    # ------------------------------------------------------------------ constants

    def content(self, type_: TensorType) -> Constant:
        start = self.tokens.now
        shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int) and dim >= 0)
        if len(shape) != type_.rank:
            self.tokens.refuse(f"a constant needs a shape of numbers; its type is {type_}", start)
        return self.check(start, lambda: Constant(self.row(type_.dtype, shape).reshape(shape)))

    def row(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Return as many elements as the shape has; raises ModelError where there are more or fewer."""
        tokens, start = self.tokens, self.tokens.now
        if tokens.takes("sha256"):
            tokens.refuse(
                "the constant is given by its digest only: this text is a summary; to_text writes a complete one", start
            )
        if tokens.takes("base64"):
            return self.packed(dtype, shape, start)
        texts = self.parse_list("]", lambda: self.element(dtype)) if tokens.takes("[") else [self.element(dtype)]
        if len(texts) != math.prod(shape):
            tokens.refuse(f"a constant of shape {list(shape)} has {math.prod(shape)} elements; {len(texts)} are given", start)
        if dtype is DType.STRING:
            return np.asarray(texts, object)
        return number_array(texts, dtype)

    def element(self, dtype: DType) -> str:
        if dtype is DType.STRING:
            return self.tokens.string("an element", "surrogateescape")
        token = self.tokens.now
        if token.kind not in ("number", "word") or len(token.text) > 100:
            self.tokens.fail(f"a number of {dtype}")
        return self.tokens.take().text

    def packed(self, dtype: DType, shape: tuple[int, ...], start: Token) -> np.ndarray[Any, Any]:
        raw = base64.b64decode(self.tokens.string("the bytes"), validate=True)
        if dtype is DType.STRING:
            self.tokens.refuse("strings are listed one by one, not as base64", start)
        wanted = math.prod(shape) * dtype.numpy.itemsize
        if len(raw) != wanted:
            self.tokens.refuse(f"a constant of {dtype} and shape {list(shape)} has {wanted} bytes; {len(raw)} are given", start)
        if dtype is DType.BOOL and max(raw, default=0) > 1:
            self.tokens.refuse("a byte of a bool constant is neither 0 nor 1", start)
        return np.frombuffer(raw, dtype.numpy)


def _function(name: str, inputs: list[Value], outputs: list[Value], draft: _Draft) -> Function:
    return Function(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        nodes=tuple(draft.nodes),
        constants=draft.constants,
        opsets=draft.opsets,
        aliases=tuple(draft.aliases),
        types=draft.types,
        name=name,
        doc=draft.doc.get("doc", ""),
        metadata=draft.metadata,
    )


_DECLARATIONS: dict[str, Callable[[_Parser, _Draft], None]] = {
    "alias": _Parser.alias,
    "const": _Parser.const,
    "doc": _Parser.doc,
    "meta": _Parser.meta,
    "opset": _Parser.opset,
    "type": _Parser.type_of,
}
_AS_LIST = {kind.element: kind for kind in AttrKind if kind.is_list}
_EMPTY = {kind.name.lower(): kind for kind in AttrKind if kind.is_list}
