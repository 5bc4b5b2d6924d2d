"""The text form of Functions, DOT, and dumps of stages. `to_text` writes text that `parse` reads to an equal Function.

`xrt.graph.printer` describes the syntax. ``#`` starts a comment. In the grammar, a name is quoted unless it is a plain word:

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
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from xrt.errors import ModelError
from xrt.formats.output import replace_file
from xrt.graph import Attribute, AttrKind, Constant, Function, Node, Value
from xrt.graph.function import pause_gc
from xrt.graph.printer import KEYWORDS, format_function, parse_numbers
from xrt.graph.types import Dim, DType, MapType, OptionalType, SequenceType, TensorType, Type

__all__ = ["TextError", "dump_stages", "parse", "parse_type", "to_dot", "to_text"]

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
MAX_DEPTH = 50
"""Limit on the nesting of bodies and types: the parser is recursive."""
_STATEMENTS = ("alias", "const", "doc", "meta", "opset", "type")
_LIST_KINDS = {kind.element: kind for kind in AttrKind if kind.is_list}
"""Kind of an element to kind of the list, for example FLOAT to FLOATS."""
_LIST_KEYWORDS = {kind.name.lower(): kind for kind in AttrKind if kind.is_list}
"""An empty list is written with the kind, as in ``ints []``."""
T = TypeVar("T")


class TextError(ModelError):
    """A syntax error; the message starts with the position."""


class Token(NamedTuple):
    """A token; ``kind`` is ``string``, ``number``, ``word``, ``mark`` or ``end``, ``start`` is the offset in the text."""

    kind: str
    text: str
    start: int

    @property
    def description(self) -> str:
        """The token, quoted and abbreviated for errors."""
        if self.kind == "end":
            return "the end of the text"
        return repr(self.text if len(self.text) <= 40 else f"{self.text[:37]}...")


def parse(text: str) -> Function:
    """Parse a Function; raises ModelError with line and column if the text is invalid."""
    parser = _Parser(text)
    with pause_gc(text.count("\n")):
        function = parser.parse_function(0)
    if parser.current.kind != "end":
        parser.fail("the end of the text after the function")
    return function


def parse_type(text: str) -> Type:
    return _Parser(text).parse_type(0)


def to_text(function_or_plan: Any) -> str:
    """Convert a Function to text that `parse` accepts; a Plan becomes its folded Function, with its description as comments."""
    if isinstance(function_or_plan, Function):
        return format_function(function_or_plan, complete=True) + "\n"
    comments = "".join(f"# {line}\n" for line in str(function_or_plan).splitlines())
    return f"{comments}{format_function(function_or_plan.function, complete=True)}\n"


@dataclass(slots=True)
class _Draft:
    """The contents of a function that is being parsed."""

    doc: dict[str, str] = field(default_factory=dict)
    """The doc string, under the key ``doc``: a dictionary, so that `add_unique` detects a duplicate."""
    opsets: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    aliases: list[tuple[str, str]] = field(default_factory=list)
    types: dict[str, Type] = field(default_factory=dict)
    constants: dict[str, Constant] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


class _Parser:
    """A recursive descent parser, one token ahead (``current``). ``expected`` describes the required token in an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.current = self.scan(0)

    def scan(self, position: int) -> Token:
        """Match the first token at or after a position, skipping whitespace and comments."""
        match = _TOKEN.match(self.text, position)
        # The group "character" matches any character, and "end" the end.
        assert match is not None
        assert match.lastgroup is not None
        token = Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
        if token.kind == "character":
            self.fail("a name, a number, a string or a mark", token)
        return token

    def advance(self) -> Token:
        token = self.current
        self.current = self.scan(token.start + len(token.text))
        return token

    def accept(self, mark: str) -> bool:
        """Consume the current token and return True if it is this mark or word; otherwise return False."""
        if self.current.text != mark:
            return False
        self.advance()
        return True

    def expect(self, mark: str) -> Token:
        if self.current.text != mark:
            self.fail(repr(mark))
        return self.advance()

    def fail(self, expected: str, token: Token | None = None, cause: Exception | None = None) -> NoReturn:
        """Raise TextError: "expected ...; found ...", with the position of ``token`` (by default, of the current token)."""
        token = token or self.current
        self.fail_with(f"expected {expected}; found {token.description}", token, cause)

    def fail_with(self, reason: str, token: Token, cause: Exception | None = None) -> NoReturn:
        line = self.text.count("\n", 0, token.start) + 1
        column = token.start - self.text.rfind("\n", 0, token.start)
        raise TextError(f"line {line}, column {column}: {reason}") from cause

    def build(self, token: Token, make: Callable[[], T]) -> T:
        """Call ``make``; errors in it become TextErrors with the position of ``token``."""
        try:
            return make()
        except TextError:
            raise
        except (ModelError, ValueError, OverflowError) as error:
            self.fail_with(str(error), token, error)

    def parse_string(self, expected: str, errors: str = "strict") -> str:
        """Parse a quoted string; with ``errors="surrogateescape"`` it may encode bytes that are not UTF-8."""
        if self.current.kind != "string":
            self.fail(f"{expected} in double quotes")
        token = self.advance()
        try:
            text = str(json.loads(token.text))
            text.encode("utf-8", errors)  # a lone surrogate can be neither written nor hashed
        except json.JSONDecodeError as error:
            self.fail("a string with JSON's escapes", token, error)
        except UnicodeEncodeError as error:
            self.fail_with(f"{token.description} holds half of a character (a surrogate without its partner)", token, error)
        return text

    def parse_size(self, expected: str) -> int:
        """Parse an extent, a version or another integer, which must fit into 64 bits."""
        token = self.current
        # Python raises ValueError for integers of thousands of digits.
        if token.kind != "number" or not token.text.lstrip("+-").isdigit() or len(token.text) > 100:
            self.fail(expected)
        number = int(self.advance().text)
        if not -(1 << 63) <= number < 1 << 63:
            self.fail_with(f"{expected} must fit into 64 bits; found {token.description}", token)
        return number

    def parse_name(self, expected: str) -> str:
        if self.current.kind == "string":
            return self.parse_string(expected)
        # A keyword would be ambiguous here; the printer quotes names that equal one.
        if self.current.kind != "word" or self.current.text in KEYWORDS:
            self.fail(expected)
        return self.advance().text

    def parse_name_or_blank(self, expected: str) -> str:
        return "" if self.accept("_") else self.parse_name(expected)

    def parse_items(self, end: str, item: Callable[[], T]) -> list[T]:
        """Parse comma-separated items up to the closing mark; a trailing comma is allowed."""
        items = []
        while not self.accept(end):
            items.append(item())
            if not self.accept(","):
                self.expect(end)
                break
        return items

    def parse_type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            self.fail_with(f"types are nested more than {MAX_DEPTH} deep", self.current)
        if self.current.kind != "word":
            self.fail("a type")
        kind = self.current.text
        if kind not in ("seq", "optional", "map"):
            return self.parse_tensor_type()
        self.advance()
        self.expect("(")
        if kind == "map":
            key = self.parse_dtype()
            self.expect(",")
        element = self.parse_type(depth + 1)
        self.expect(")")
        if kind == "map":
            return MapType(key, element)
        return SequenceType(element) if kind == "seq" else OptionalType(element)

    def parse_dtype(self) -> DType:
        token = self.advance()
        return self.build(token, lambda: DType.parse(token.text))

    def parse_tensor_type(self) -> TensorType:
        dtype = self.parse_dtype()
        self.expect("[")
        if self.accept("..."):
            self.expect("]")
            return TensorType(dtype)
        return TensorType(dtype, tuple(self.parse_items("]", self.parse_extent)))

    def parse_extent(self) -> Dim:
        if self.accept("?"):
            return None
        if self.current.kind == "number":
            return self.parse_size("an extent")
        return self.parse_name("an extent: a number, a name or ?")

    def parse_function(self, depth: int) -> Function:
        start = self.expect("function")
        if depth > MAX_DEPTH:
            self.fail_with(f"functions are nested more than {MAX_DEPTH} deep", start)
        name = self.parse_name("the function's name")
        inputs = self.parse_values()
        self.expect("->")
        outputs = self.parse_values()
        self.expect("{")
        draft = _Draft()
        while not self.accept("}"):
            if self.current.kind == "word" and self.current.text in _STATEMENTS:
                self.parse_declaration(self.advance().text, draft)
            else:
                draft.nodes.append(self.parse_node(draft, depth))
        # The constructor of Function checks its rules; an error gets the position of the keyword "function".
        return self.build(
            start,
            lambda: Function(
                inputs=inputs,
                outputs=outputs,
                nodes=tuple(draft.nodes),
                constants=draft.constants,
                opsets=draft.opsets,
                aliases=tuple(draft.aliases),
                types=draft.types,
                name=name,
                doc=draft.doc.get("doc", ""),
                metadata=draft.metadata,
            ),
        )

    def parse_values(self) -> tuple[Value, ...]:
        self.expect("(")
        return tuple(self.parse_items(")", self.parse_value))

    def parse_value(self) -> Value:
        name = self.parse_name_or_blank("a value's name")
        self.expect(":")
        return Value(name, None if self.accept("?") else self.parse_type(0))

    def parse_declaration(self, kind: str, draft: _Draft) -> None:
        token = self.current
        if kind == "doc":
            self.add_unique(draft.doc, "doc", self.parse_string("the description"), token)
        elif kind == "opset":
            name = self.parse_name("a domain")
            # The word is ONNX's default domain; a domain that is really named "ai.onnx" is quoted.
            domain = "" if token.kind == "word" and name == "ai.onnx" else name
            self.add_unique(draft.opsets, domain, self.parse_size("the version of the domain"), token)
        elif kind == "meta":
            key = self.parse_string("the key")
            self.expect("=")
            self.add_unique(draft.metadata, key, self.parse_string("the text"), token)
        elif kind == "alias":
            target = self.parse_name("an input")
            self.expect("=")
            draft.aliases.append((target, self.parse_name("an output")))
        elif kind == "type":
            name = self.parse_name("a value")
            self.expect(":")
            self.add_unique(draft.types, name, self.parse_type(0), token)
        else:
            name = self.parse_name("the constant's name")
            self.expect(":")
            type_ = self.parse_tensor_type()
            self.expect("=")
            self.add_unique(draft.constants, name, self.parse_content(type_), token)

    def add_unique(self, mapping: dict[str, T], key: str, value: T, token: Token) -> None:
        if key in mapping:
            self.fail_with(f"{token.description} is defined twice", token)
        mapping[key] = value

    def parse_node(self, draft: _Draft, depth: int) -> Node:
        """Parse ``outputs = domain::operator(inputs) {attributes} @name on device after nodes``."""
        outputs: list[str] = []
        if self.accept("("):
            self.expect(")")
        else:
            outputs.append(self.parse_output(draft))
            while self.accept(","):
                outputs.append(self.parse_output(draft))
        self.expect("=")
        op_type, domain = self.parse_name("an operator"), ""
        if self.accept("::"):
            domain, op_type = op_type, self.parse_name("an operator")  # the first name was the domain
        self.expect("(")
        inputs = self.parse_items(")", lambda: self.parse_name_or_blank("an input"))
        attributes = self.parse_items("}", lambda: self.parse_attribute(depth)) if self.accept("{") else []
        # By default, a node has the name of its first output that is not omitted.
        name = self.parse_name("the node's name") if self.accept("@") else next(filter(None, outputs), "")
        device = self.parse_string("a device") if self.accept("on") else ""
        control = []
        if self.accept("after"):
            control.append(self.parse_name("a node's name"))
            while self.accept(","):
                control.append(self.parse_name("a node's name"))
        return Node(op_type, tuple(inputs), tuple(outputs), tuple(attributes), domain, name, tuple(control), device)

    def parse_output(self, draft: _Draft) -> str:
        token = self.current
        name = self.parse_name_or_blank(f"a statement ({', '.join(_STATEMENTS)}), or the outputs of a node, or '}}'")
        if self.accept(":"):
            self.add_unique(draft.types, name, self.parse_type(0), token)
        return name

    def parse_attribute(self, depth: int) -> Attribute:
        token = self.current
        name = self.parse_name("an attribute")
        self.expect("=")
        kind, value = self.parse_attribute_value(depth)
        return self.build(token, lambda: Attribute.create(name, value, kind))

    def parse_attribute_value(self, depth: int) -> tuple[AttrKind, Any]:
        """Parse an item, a list of items in brackets, or an empty list with its kind, such as ``ints []``."""
        if self.current.kind == "word" and self.current.text in _LIST_KEYWORDS:
            kind = _LIST_KEYWORDS[self.advance().text]
            self.expect("[")
            self.expect("]")
            return kind, ()
        if not self.accept("["):
            return self.parse_item(depth)
        start = self.current
        items = self.parse_items("]", lambda: self.parse_item(depth))
        kinds = {kind for kind, _ in items}
        if not kinds:
            self.fail_with(f"an empty list needs its kind, as in {'ints []'!r}", start)
        if len(kinds) > 1:
            names = ", ".join(sorted(kind.name.lower() for kind in kinds))
            self.fail_with(f"a list holds {names}; its items must be of one kind", start)
        return _LIST_KINDS[kinds.pop()], [value for _, value in items]

    def parse_item(self, depth: int) -> tuple[AttrKind, Any]:
        """Parse a value that is not a list. Its first token determines its kind."""
        token = self.current
        if token.kind == "string":
            return AttrKind.STRING, self.parse_string("a string")
        if token.kind == "number" and token.text.lstrip("+-").isdigit():
            return AttrKind.INT, self.parse_size("a whole number of at most 100 digits")
        if token.kind == "number" or token.text in ("inf", "nan"):
            return AttrKind.FLOAT, self.build(token, lambda: float(parse_numbers([self.advance().text], DType.FLOAT32)[0]))
        if token.text == "function":
            return AttrKind.GRAPH, self.parse_function(depth + 1)
        if self.accept("bytes"):
            return AttrKind.STRING, self.build(self.current, lambda: bytes.fromhex(self.parse_string("bytes in hex")))
        if self.accept("tensor"):
            return AttrKind.TENSOR, self.parse_content(self.parse_tensor_type())
        if self.accept("type"):
            return AttrKind.TYPE, self.parse_type(0)
        return self.fail("a number, a string, bytes, tensor, type, function, or a list of one of these")

    def parse_content(self, type_: TensorType) -> Constant:
        start = self.current
        shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int) and dim >= 0)
        if len(shape) != type_.rank:
            self.fail_with(f"a constant needs a shape of numbers; its type is {type_}", start)
        return self.build(start, lambda: Constant(self.parse_elements(type_.dtype, shape, start).reshape(shape)))

    def parse_elements(self, dtype: DType, shape: tuple[int, ...], start: Token) -> np.ndarray[Any, Any]:
        """Parse the elements of a constant: base64, a list in brackets, or a single element. Return them in one dimension."""
        if self.accept("sha256"):
            reason = "the constant is given by its digest only: this text is a summary; to_text writes a complete one"
            self.fail_with(reason, start)
        if self.accept("base64"):
            return self.parse_base64(dtype, shape, start)
        literals = self.parse_items("]", lambda: self.parse_element(dtype)) if self.accept("[") else [self.parse_element(dtype)]
        if len(literals) != (count := math.prod(shape)):
            self.fail_with(f"a constant of shape {list(shape)} has {count} elements; {len(literals)} are given", start)
        return np.asarray(literals, object) if dtype is DType.STRING else parse_numbers(literals, dtype)

    def parse_base64(self, dtype: DType, shape: tuple[int, ...], start: Token) -> np.ndarray[Any, Any]:
        raw = base64.b64decode(self.parse_string("the bytes"), validate=True)
        if dtype is DType.STRING:
            self.fail_with("strings are listed one by one, not as base64", start)
        size = math.prod(shape) * dtype.numpy.itemsize
        if len(raw) != size:
            self.fail_with(f"a constant of {dtype} and shape {list(shape)} has {size} bytes; {len(raw)} are given", start)
        if dtype is DType.BOOL and max(raw, default=0) > 1:
            self.fail_with("a byte of a bool constant is neither 0 nor 1", start)
        return np.frombuffer(raw, dtype.numpy)

    def parse_element(self, dtype: DType) -> str:
        if dtype is DType.STRING:
            return self.parse_string("an element", "surrogateescape")
        if self.current.kind not in ("number", "word") or len(self.current.text) > 100:
            self.fail(f"a number of {dtype}")
        return self.advance().text


MAX_ATTRIBUTE_LENGTH = 60
"""DOT output abbreviates attributes with more characters."""


def to_dot(function: Function) -> str:
    """Convert to the DOT language: operators as boxes, inputs and outputs as ellipses, values as edges.

    Boxes list constants, attributes and the names of bodies. Edges of captured values are dashed, control edges are dotted. The
    output is deterministic.
    """
    return "\n".join(["digraph {", *(f"  {line}" for line in _list_dot_statements(function)), "}"]) + "\n"


def _list_dot_statements(function: Function) -> Iterator[str]:
    yield f"label={_quote([function.name])}; labelloc=t"
    yield "node [shape=box, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10]"
    numbers = itertools.count()
    ellipses: dict[tuple[str, str], str] = {}
    for kind, values in (("input", function.inputs), ("output", function.outputs)):
        for value in dict.fromkeys(values):
            ellipse = ellipses[kind, value.name] = f"{kind}{next(numbers)}"
            constant = "constant" if value.name in function.constants else ""
            yield f"{ellipse} [shape=ellipse, label={_quote([value.name, str(value.type or ''), constant])}]"
    boxes = {node.name: f"node{index}" for index, node in enumerate(function.nodes)}
    for node in function.nodes:
        yield f"{boxes[node.name]} [label={_quote(_list_node_lines(node, function))}]"
    # Constants are listed in the boxes that read them, so no edge starts at a constant.
    sources = {value.name: ellipses["input", value.name] for value in function.inputs}
    sources |= {name: boxes[node.name] for node in function.nodes for name in node.defined_names}

    def draw_edge(name: str, target: str, style: str = "") -> str:
        return f"{sources[name]} -> {target} [label={_quote([name, str(function.get_type(name) or '')])}{style}]"

    for node in function.nodes:
        # `uses` lists the inputs, then the captures.
        input_count = len(node.uses) - len(node.captures)
        for slot, name in enumerate(node.uses):
            if name in sources:
                yield draw_edge(name, boxes[node.name], "" if slot < input_count else ", style=dashed")
        for predecessor in node.control:
            yield f'{boxes[predecessor]} -> {boxes[node.name]} [label="", style=dotted]'
    for value in function.outputs:
        if value.name in sources:
            yield draw_edge(value.name, ellipses["output", value.name])


def _list_node_lines(node: Node, function: Function) -> Iterator[str]:
    yield node.op
    yield node.name
    for name in dict.fromkeys(node.uses):
        if name in function.constants:
            yield f"{name}: {function.constants[name].type}"
    for attribute in node.attributes:
        yield f"{attribute.name}={_describe_attribute(attribute)}"
    if node.device:
        yield f"on {node.device}"


def _describe_attribute(attribute: Attribute) -> str:
    if attribute.kind in (AttrKind.GRAPH, AttrKind.GRAPHS):
        return ", ".join(f"{body.name} ({len(body.nodes)} nodes)" for body in attribute.bodies())
    text = str(list(attribute.value)) if attribute.kind.is_list else str(attribute.value)
    return text if len(text) <= MAX_ATTRIBUTE_LENGTH else f"{text[: MAX_ATTRIBUTE_LENGTH - 1]}…"


def _quote(lines: Iterable[str]) -> str:
    """Format lines, except empty ones, as a quoted DOT string, escaping quotes and backslashes."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for line in lines if line)
    return '"' + "\\n".join(escaped) + '"'


def dump_stages(stages: Mapping[str, Function], directory: Path) -> None:
    """Write each Function as ``<stage>.txt``, ``.dot`` and, if ONNX can express it, ``.onnx``. Creates the directory.

    The text abbreviates large constants; the ONNX file contains them.
    """
    from xrt.formats.onnx import save  # imports onnx, which the text form does not need

    directory.mkdir(parents=True, exist_ok=True)
    for stage, function in stages.items():
        stem = directory / re.sub(r"[^\w.-]", "_", stage)
        _write_text(stem.with_name(stem.name + ".txt"), str(function))
        _write_text(stem.with_name(stem.name + ".dot"), to_dot(function))
        try:
            save(function, stem.with_name(stem.name + ".onnx"))
        except ModelError as error:
            # The directory shows why a file is missing: for example, ONNX cannot express opaque operators.
            _write_text(stem.with_name(stem.name + ".onnx.why-not"), f"{error}\n")


def _write_text(path: Path, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    replace_file(path, lambda file: file.write(data))
