"""The text form of Functions: `to_text` writes complete text, `parse` reads it to an equal Function.

`xrt.graph.printer` describes the syntax; ``#`` starts a comment. The grammar, with names quoted unless they are plain words:

    function  = "function" name "(" values ")" "->" "(" values ")" "{" statement... "}"
    values    = name ":" type, ...
    statement = "opset" domain number | "doc" string | "meta" string "=" string | "alias" input "=" output
              | "type" name ":" type | "const" name ":" type "=" content
              | outputs "=" [domain "::"] operator "(" inputs ")" ["{" attribute "=" value, ... "}"] ["@" name] ["on" string]
                ["after" names]
    type      = dtype "[" extent, ... "]" | dtype "[...]" | "seq(" type ")" | "optional(" type ")" | "map(" dtype "," type ")"
              | "?"
    content   = number | "[" number, ... "]" | "base64" string
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from xrt.errors import ModelError
from xrt.graph import (
    Attribute,
    AttrKind,
    Constant,
    Dim,
    DType,
    Function,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
)
from xrt.graph.function import pause_gc
from xrt.graph.printer import RESERVED, format_function, number_array

__all__ = ["DEPTH", "PLAIN_TYPE", "TextError", "Token", "Tokens", "TypeParser", "parse", "to_text"]

_TOKEN = re.compile(
    r"""
    (?: [ \t\r\n]+ | \#[^\n]* )*+          # spaces and comments
  (?:
    (?P<string> "[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*" )
  | (?P<number> [+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)? | -inf\b )
  | (?P<word> [A-Za-z_/][A-Za-z0-9_./]* )
  | (?P<mark> -> | :: | \.\.\. | [()\[\]{}=,:@?] )
  | (?P<end> \Z )
  | (?P<character> . )
  )
    """,
    re.VERBOSE | re.DOTALL,
)
SIZES = 1 << 63


class TextError(ModelError):
    """A syntax error; the message starts with the position."""


class Token(NamedTuple):
    """One token: its kind (``string``, ``number``, ``word``, ``mark``, or ``end``), text, and start offset."""

    kind: str
    text: str
    start: int

    @property
    def shown(self) -> str:
        if self.kind == "end":
            return "the end of the text"
        return repr(self.text if len(self.text) <= 40 else f"{self.text[:37]}...")


class Tokens:
    """A tokenizer with one token of lookahead, ``now``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.now = self._from(0)

    def _from(self, position: int) -> Token:
        """The first token at or after a position, skipping whitespace and comments."""
        match = _TOKEN.match(self.text, position)
        if match is None or match.lastgroup is None:
            raise AssertionError("every text matches one of the groups")
        start, end = match.span(match.lastgroup)
        token = Token(match.lastgroup, self.text[start:end], start)
        if token.kind == "character":
            self.fail("a name, a number, a string or a mark", token)
        return token

    def take(self) -> Token:
        """Consume and return the current token."""
        token = self.now
        self.now = self._from(token.start + len(token.text))
        return token

    def ahead(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match a pattern at the current token without consuming it."""
        return pattern.match(self.text, self.now.start)

    def skip(self, text: str) -> None:
        """Consume this text, which must start at the current token and end at a token boundary."""
        self.now = self._from(self.now.start + len(text))

    def takes(self, mark: str) -> bool:
        """Consume the current token if it is this mark or word; return whether it was."""
        if self.now.text != mark:
            return False
        self.take()
        return True

    def expect(self, mark: str) -> Token:
        """Consume this mark or word; raises ModelError if the current token differs."""
        if self.now.text != mark:
            self.fail(repr(mark))
        return self.take()

    def string(self, what: str, errors: str = "strict") -> str:
        """Consume a quoted string and return its value.

        ``errors`` is ``surrogateescape`` if the string may encode bytes that are not UTF-8.
        """
        if self.now.kind != "string":
            self.fail(f"{what} in double quotes")
        token = self.take()
        text = self._unescaped(token) if "\\" in token.text else token.text[1:-1]
        if not text.isascii():
            self._check_characters(text, token, errors)
        return text

    def _unescaped(self, token: Token) -> str:
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError as error:
            self.fail("a string with JSON's escapes", token, error)

    def _check_characters(self, text: str, token: Token, errors: str) -> None:
        """Reject lone surrogates, which can be neither written nor hashed."""
        try:
            text.encode("utf-8", errors)
        except UnicodeEncodeError as error:
            self.refuse(f"{token.shown} holds half of a character (a surrogate without its partner)", token, error)

    def integer(self, what: str) -> int:
        """Consume an integer; raises ModelError for anything else, and for more than 100 digits."""
        token = self.now
        if token.kind != "number" or not token.text.lstrip("+-").isdigit() or len(token.text) > 100:
            self.fail(what)
        return int(self.take().text)

    def size(self, what: str) -> int:
        """Consume an integer that fits into 64 bits, the range of extents and versions."""
        token = self.now
        number = self.integer(what)
        if not -SIZES <= number < SIZES:
            self.refuse(f"{what} must fit into 64 bits; found {token.shown}", token)
        return number

    def fail(self, expected: str, token: Token | None = None, cause: Exception | None = None) -> NoReturn:
        """Raise TextError with the expected and the actual token."""
        found = token or self.now
        self.refuse(f"expected {expected}; found {found.shown}", found, cause)

    def refuse(self, reason: str, token: Token, cause: Exception | None = None) -> NoReturn:
        """Raise TextError with the position of the token and the reason."""
        line = self.text.count("\n", 0, token.start) + 1
        column = token.start - self.text.rfind("\n", 0, token.start)
        raise TextError(f"line {line}, column {column}: {reason}") from cause


# Limits the nesting of bodies and types, since the parser is recursive.
DEPTH = 50
PLAIN_TYPE = r"[a-z][a-z0-9_]*\[[A-Za-z0-9_./,?]{0,100}\]"
"""A tensor type without spaces, quotes or comments, as the printer writes it."""
_PLAIN = re.compile(PLAIN_TYPE)
T = TypeVar("T")


class TypeParser:
    """Parses types, names and lists; one method per grammar rule."""

    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text)
        self.types: dict[str, TensorType] = {}

    # ------------------------------------------------------------------ types

    def type_or_unknown(self) -> Type | None:
        return None if self.tokens.takes("?") else self.type(0)

    def type(self, depth: int) -> Type:
        tokens, token = self.tokens, self.tokens.now
        if depth > DEPTH:
            tokens.refuse(f"types are nested more than {DEPTH} deep", token)
        plain = tokens.ahead(_PLAIN)
        if plain:
            return self.plain_type(plain[0])
        if token.kind != "word":
            tokens.fail("a type")
        word = tokens.take().text
        if word not in ("seq", "optional", "map"):
            return self.tensor_type(token)
        tokens.expect("(")
        if word == "map":
            key = self.dtype(tokens.take())
            tokens.expect(",")
        element = self.type(depth + 1)
        tokens.expect(")")
        return MapType(key, element) if word == "map" else SequenceType(element) if word == "seq" else OptionalType(element)

    def parse_declared_tensor(self) -> TensorType:
        """Parse a tensor type; equal text gives the same object."""
        plain = self.tokens.ahead(_PLAIN)
        return self.plain_type(plain[0]) if plain else self.tensor_type()

    def plain_type(self, plain: str) -> TensorType:
        """Parse the tensor type ``plain`` at the current position; equal types share one object."""
        if plain in self.types:
            self.tokens.skip(plain)
        else:
            self.types[plain] = self.tensor_type()
        return self.types[plain]

    def dtype(self, token: Token) -> DType:
        return self.check(token, lambda: DType.parse(token.text))

    def tensor_type(self, word: Token | None = None) -> TensorType:
        """Parse a tensor type; ``word`` is its element type if already consumed."""
        dtype = self.dtype(word or self.tokens.take())
        self.tokens.expect("[")
        if self.tokens.takes("..."):
            self.tokens.expect("]")
            return TensorType(dtype)
        return TensorType(dtype, tuple(self.parse_list("]", self.extent)))

    def extent(self) -> Dim:
        if self.tokens.takes("?"):
            return None
        if self.tokens.now.kind == "number":
            return self.tokens.size("an extent")
        return self.name("an extent: a number, a name or ?")

    # ------------------------------------------------------------------ names and lists

    def name(self, what: str) -> str:
        token = self.tokens.now
        if token.kind == "string":
            return self.tokens.string(what)
        if token.kind != "word" or token.text in RESERVED:
            self.tokens.fail(what)
        return self.tokens.take().text

    def name_or_blank(self, what: str) -> str:
        return "" if self.tokens.takes("_") else self.name(what)

    def parse_list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Parse comma-separated items up to the closing mark; a trailing comma is allowed."""
        items = []
        while not self.tokens.takes(end):
            items.append(item())
            if not self.tokens.takes(","):
                self.tokens.expect(end)
                break
        return items

    def check(self, token: Token, make: Callable[[], T]) -> T:
        """Call ``make``; its errors get the position of the token unless they already have one."""
        try:
            return make()
        except TextError:
            raise
        except (ModelError, ValueError, OverflowError) as error:
            self.tokens.refuse(str(error), token, error)


# Fast paths: most of a text matches one of these patterns, and one match replaces many tokens. A pattern contains only names,
# or repeats text that the grammar has already parsed, so the grammar alone decides what is valid.
_WORD = "[A-Za-z_/][A-Za-z0-9_./]*"
_PLAIN_START = re.compile(rf"({_WORD})(?:: ({PLAIN_TYPE}))? = ({_WORD})(?=\()")
_PLAIN_NAMES = re.compile(rf"\({_WORD}(?:, {_WORD})*\)")
_PLAIN_ATTRIBUTES = re.compile(r"\{[^{}\"#]{0,200}\}")


def parse(text: str) -> Function:
    """Parse a Function; raises ModelError with line and column if the text is invalid."""
    parser = _Parser(text)
    with pause_gc(text.count("\n")):
        function = parser.function(0)
    if parser.tokens.now.kind != "end":
        parser.tokens.fail("the end of the text after the function")
    return function


@dataclass(slots=True)
class _Draft:
    """The contents of a function being parsed."""

    doc: dict[str, str] = field(default_factory=dict)
    """Empty, or the description under ``doc``, so that `add` detects a duplicate."""
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
        """Fast path of `start`: one output with a known type or none, and an ai.onnx operator."""
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
        """Parse the outputs, domain and operator of a node."""
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
        """Parse names in parentheses; omitted inputs are empty."""
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
        """Parse attributes in braces."""
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
        """Parse the elements of a constant; raises ModelError if their number does not match the shape."""
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


def to_text(function_or_plan: Any) -> str:
    """Print a complete Function; for a Plan, its folded Function with the description of the plan as comments."""
    if isinstance(function_or_plan, Function):
        return format_function(function_or_plan, complete=True) + "\n"
    comments = "".join(f"# {line}\n" for line in str(function_or_plan).splitlines())
    return f"{comments}{format_function(function_or_plan.function, complete=True)}\n"
