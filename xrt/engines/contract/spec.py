"""The text form of an engine and its options: ``tvm{opt_level=2, mcpu=x86-64-v3}``.

A spec is the name of the engine and, in braces, the fields that differ from their defaults, sorted by name. Equal engines have
equal specs, and `build` turns a parsed spec back into an equal engine. An entry of a mapping is written ``field.key=value``, a
tuple in parentheses, and text in quotes if it contains a comma, a space or a bracket.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from xrt.engines.contract.graph_compiler import GraphCompiler
from xrt.errors import OptionError, did_you_mean
from xrt.graph import FrozenDict

_UNQUOTED = re.compile(r"[\w.+\-/:@*]+", re.ASCII)
MAX_QUOTED_LENGTH = 200
"""Error messages truncate a longer text to this number of characters."""
# A quoted text, or one character outside quotes. Brackets and separators inside quotes are part of the text.
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"]""", re.DOTALL)
_PAIRS = {")": "(", "}": "{", "]": "["}


def split(text: str, separator: str = ",", limit: int | None = None) -> list[str]:
    """Split text at separators outside quotes and brackets, and strip the parts. An empty text has no parts.

    ``limit`` is the maximum number of splits. Raises OptionError if a quote or bracket is not closed.

    >>> split("a=1, b=(2, 3), c='x, y'")
    ['a=1', 'b=(2, 3)', "c='x, y'"]
    """
    parts: list[str] = []
    start = position = 0  # of the current part, and of the next token
    open_brackets = ""
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise OptionError(f"the quote at {text[position:]!r} has no end")
        if token[0] in "({[":
            open_brackets += token[0]
        elif token[0] in ")}]":
            if not open_brackets.endswith(_PAIRS[token[0]]):
                raise OptionError(f"{token[0]!r} in {text!r} has no opening bracket")
            open_brackets = open_brackets[:-1]
        elif token[0] == separator and not open_brackets and len(parts) != limit:
            parts.append(text[start:position].strip())
            start = token.end()
        position = token.end()
    if open_brackets:
        raise OptionError(f"{open_brackets[-1]!r} in {text!r} is not closed")
    return [*parts, text[start:].strip()] if text.strip() else []


@lru_cache(maxsize=128)
def field_types(cls: type) -> Mapping[str, Any]:
    """Find the type of each constructor argument of a dataclass by name.

    Raises OptionError if an annotation uses a name that its module does not define.
    """
    hints: dict[str, Any] = {}
    try:
        # Fields of a derived class override those of its bases.
        for owner in reversed(cls.__mro__):
            hints.update(_resolve_types(owner))
    except NameError as error:
        raise OptionError(
            f"the fields of {cls.__qualname__} cannot be read: {error}; annotate them with names of the module"
        ) from error
    return FrozenDict((field.name, hints[field.name]) for field in dataclasses.fields(cls) if field.init)


def _resolve_types(owner: type) -> dict[str, Any]:
    """Resolve the annotations of the fields that a class declares itself."""
    if not dataclasses.is_dataclass(owner):
        return {}
    names = {field.name for field in dataclasses.fields(owner)}
    annotations = {name: text for name, text in vars(owner).get("__annotations__", {}).items() if name in names}
    # A class with these annotations only, because others may use names that exist for type checkers only.
    fields_only = type(owner.__name__, (), {"__annotations__": annotations, "__module__": owner.__module__})
    return typing.get_type_hints(fields_only)


def is_mapping(hint: Any) -> bool:
    """Whether the type is a mapping with text keys. A spec has an entry ``field.key=value`` for each key of such a field."""
    return get_origin(hint) in (Mapping, dict, FrozenDict) and get_args(hint)[0] is str


def is_bounded(hint: Any) -> bool:
    """Whether the type allows only numbers, booleans, None and `Literal` values, so no arbitrary text."""
    if get_origin(hint) in (Union, types.UnionType, tuple):
        return all(argument is Ellipsis or is_bounded(argument) for argument in get_args(hint))
    return get_origin(hint) is Literal or hint in (type(None), bool, int, float)


def quote_if_needed(text: str) -> str:
    """Quote the text unless it has only letters, digits and a few other characters without a meaning in specs."""
    return text if _UNQUOTED.fullmatch(text) else ascii(text)


def unquote(raw: str) -> str:
    """Remove the quotes and escapes of a quoted text; other text is unchanged. Raises OptionError for an invalid escape."""
    if raw[:1] not in ("'", '"'):
        return raw
    try:
        return str(ast.literal_eval(raw))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        shown = raw if len(raw) < MAX_QUOTED_LENGTH else f"{raw[:MAX_QUOTED_LENGTH]}..."
        raise OptionError(f"{shown} is not a quoted text: {error}") from error


def read_value(raw: str, hint: Any) -> Any:
    """Parse text as a value of the type ``hint``. Raises OptionError if it is not a value of that type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_union(raw, hint)
    if origin is Literal:
        return _read_literal(raw, inner)
    if origin is tuple:
        return _read_tuple(raw, inner)
    if is_mapping(hint):
        return _read_mapping(raw, inner[1])
    if hint not in _SCALARS:
        raise OptionError(f"type {_format_type(hint)} cannot be written in a spec; create the engine in Python instead")
    parse, description = _SCALARS[hint]
    try:
        return parse(raw)
    except OptionError:  # a subclass of ValueError, with a better message
        raise
    except (ValueError, KeyError):
        raise OptionError(f"expected {description}; got {raw!r}") from None


_SCALARS: dict[Any, tuple[Callable[[str], Any], str]] = {
    type(None): (lambda raw: {"none": None}[raw.lower()], "none"),
    bool: (lambda raw: {"true": True, "false": False}[raw.lower()], "true or false"),
    int: (lambda raw: int(raw, 0), "a whole number"),
    float: (float, "a number"),
    str: (unquote, "a text"),
    Path: (lambda raw: Path(unquote(raw)), "a path"),
}
"""For each scalar type, the function that parses it, and a description of the type for errors."""


def _read_union(raw: str, hint: Any) -> Any:
    members = get_args(hint)
    # In this order, so that ``3`` is an int rather than a float or a text. Every text is a valid str, so str is last.
    scalars = [kind for kind in (type(None), bool, int, float) if kind in members]
    composites = [member for member in members if member not in (*scalars, str)]
    texts = [str] if str in members else []
    for member in (*scalars, *composites, *texts):
        with contextlib.suppress(OptionError):
            return read_value(raw, member)
    raise OptionError(f"expected {_format_type(hint)}; got {raw!r}")


def _read_literal(raw: str, allowed: tuple[Any, ...]) -> Any:
    for value in allowed:
        # Compare the text as it is too, because a literal may be a number.
        if raw == str(value) or unquote(raw) == value:
            return value
    raise OptionError(f"expected one of {', '.join(map(str, allowed))}; got {raw!r}")


def _read_tuple(raw: str, inner: tuple[Any, ...]) -> tuple[Any, ...]:
    """Parse ``(a, b)`` or ``[a, b]``; a single element needs no brackets."""
    parts = split(raw[1:-1]) if raw[:1] in ("(", "[") else [raw]
    if parts and parts[-1] == "":  # ``(a,)``
        parts.pop()
    if len(inner) == 2 and inner[1] is Ellipsis:  # a tuple of any length
        inner = (inner[0],) * len(parts)
    if len(parts) != len(inner):
        raise OptionError(f"expected {len(inner)} elements; got {raw!r}")
    return tuple(read_value(part, hint) for part, hint in zip(parts, inner, strict=True))


def _read_mapping(raw: str, hint: Any) -> FrozenDict[str, Any]:
    """Parse ``{key=value, key=value}``."""
    if raw[:1] != "{":
        raise OptionError(f"expected {{key=value, ...}}; got {raw!r}")
    return FrozenDict({unquote(key): read_value(text, hint) for key, text in read_pairs(raw[1:-1]).items()})


def read_pairs(text: str) -> dict[str, str]:
    """Split ``key=value, key=value`` into a dict; raises OptionError if a side is missing or a key is repeated."""
    pairs: dict[str, str] = {}
    for part in split(text):
        key_and_value = split(part, "=", limit=1)
        # The value may contain equal signs, because the number of splits is limited.
        if len(key_and_value) != 2 or not all(key_and_value):
            raise OptionError(f"expected option=value; got {part!r}")
        key, value = key_and_value
        if key in pairs:
            raise OptionError(f"{key!r} is set twice")
        pairs[key] = value
    return pairs


def write_value(value: Any, hint: Any) -> str:
    """Format a value so that `read_value` parses it. Raises OptionError if it is not of the type ``hint``."""
    # Try without quotes first. They are necessary if the text would be parsed as another type, such as "3" for int | str.
    for quoted in (False, True):
        try:
            parsed = read_value(_format_value(value, quoted), hint)
        except OptionError:
            continue
        # This comparison also detects values of the wrong type, such as 1 for a bool.
        if parsed == value:
            return _format_value(parsed, quoted)
    raise OptionError(f"expected {_format_type(hint)}; got {value!r}")


def _format_value(value: Any, quoted: bool) -> str:
    """Format a value as spec text. With ``quoted`` all texts are quoted, else only where the syntax needs quotes."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, str | Path):
        return ascii(str(value)) if quoted else quote_if_needed(str(value))
    if isinstance(value, tuple):
        return f"({', '.join(_format_value(item, quoted) for item in value)})"
    if isinstance(value, Mapping):
        entries = [f"{quote_if_needed(key)}={_format_value(value[key], quoted)}" for key in sorted(value)]
        return f"{{{', '.join(entries)}}}"
    return repr(value)


def _format_type(hint: Any) -> str:
    bare = isinstance(hint, type) and not get_args(hint)
    return hint.__name__ if bare else str(hint).replace("typing.", "")


E = TypeVar("E", bound=GraphCompiler)
_SPEC = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:\{(?P<fields>.*)\})?\s*", re.DOTALL)


def split_specs(text: str) -> list[str]:
    """Split a comma-separated list of specs; raises OptionError for an empty element.

    >>> split_specs("tvm{opt_level=2, mcpu=x86-64-v3}, ort")
    ['tvm{opt_level=2, mcpu=x86-64-v3}', 'ort']
    """
    specs = split(text)
    if not specs or not all(specs):
        raise OptionError(f"the engine list {text!r} has an empty element; write it like 'tvm,ort'")
    return specs


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split a spec into the name of the engine and the text of each field, including quotes.

    Raises OptionError if the text is not a spec, or sets a field twice.

    >>> parse_spec("ort{config.session.x=1, providers=(A, B)}")
    ('ort', {'config.session.x': '1', 'providers': '(A, B)'})
    """
    try:
        match = _SPEC.fullmatch(text)
        if match is None:
            raise OptionError("expected a name, and braces around its options")
        return match["name"], read_pairs(match["fields"] or "")
    except OptionError as error:
        specs: list[str] = []
        with contextlib.suppress(OptionError):
            specs = split(text)
        # A frequent mistake is a comma-separated list in place of a Python list.
        if len(specs) > 1 and all(map(_SPEC.fullmatch, specs)):
            raise OptionError(f"{text!r} names {len(specs)} engines, and one is expected; pass a list: {specs!r}") from None
        raise OptionError(f"{text!r} is not an engine's spec: {error}. A spec reads like 'tvm{{opt_level=2}}'") from None


def build(cls: type[E], fields: Mapping[str, str]) -> E:
    """Create an engine from the texts of its fields, which `parse_spec` returns. Other fields have their defaults.

    Raises OptionError for an unknown field, with the most similar name, and for text that is not a value of the field's type.
    """
    hints = field_types(cls)
    values: dict[str, Any] = {}
    for key, raw in fields.items():
        with _prefix_error(cls, key):
            field, dot, entry = key.partition(".")
            if field not in hints:
                options = f"its options are {', '.join(sorted(hints))}" if hints else "it has no options"
                raise OptionError(f"there is no such option; {options}.{did_you_mean(field, hints)}")
            hint = hints[field]
            if not dot:
                values[field] = read_value(raw, hint)
            elif is_mapping(hint):
                values[field] = FrozenDict({**values.get(field, {}), unquote(entry): read_value(raw, get_args(hint)[1])})
            else:
                raise OptionError(f"{field!r} is not a mapping, so it has no entry {entry!r}")
    return cls(**values)


@contextlib.contextmanager
def _prefix_error(cls: type[GraphCompiler], key: str) -> Iterator[None]:
    """Add the names of the option and the engine to the message of an OptionError in the block."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"option {key!r} of engine {cls.name!r}: {error}") from None


def format_spec(engine: GraphCompiler) -> str:
    """Format an engine as its name, with the fields that differ from their defaults in braces, sorted by name.

    The result can be parsed: ``build(type(engine), parse_spec(format_spec(engine))[1]) == engine``. Raises OptionError if the
    value of a field is not of its type.
    """
    cls = type(engine)
    hints = field_types(cls)
    options: list[str] = []
    for field in sorted(dataclasses.fields(engine), key=lambda f: f.name):  # type: ignore[arg-type]  # every engine is a dataclass
        name = field.name
        if name not in hints:  # not an argument of the constructor
            continue
        value = getattr(engine, name)
        default = _get_default(field)
        # Compare before formatting, because a spec cannot express every default.
        if value is default or repr(value) == repr(default):
            continue
        with _prefix_error(cls, name):
            raw = write_value(value, hints[name])
            # Equal values may differ in type: 1 is the default 1.0 of a float, but True is not the default 1 of an int | bool.
            if value == default and raw == write_value(default, hints[name]):
                continue
        if is_mapping(hints[name]) and value:
            options += [f"{name}.{key}={text}" for key, text in read_pairs(raw[1:-1]).items()]
        else:
            options.append(f"{name}={raw}")
    return f"{cls.name}{{{', '.join(options)}}}" if options else cls.name


def _get_default(field: dataclasses.Field[Any]) -> Any:
    """Get the default of a field; `dataclasses.MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _format_default(default: Any) -> str:
    if default is dataclasses.MISSING:
        return "required"
    if default == FrozenDict():
        return "{}"
    return f"{type(default).__name__}()" if dataclasses.is_dataclass(default) else repr(default)


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """The documentation of an option."""

    name: str
    type: str
    """The annotation as written."""
    default: str
    """The repr of the default; ``required`` if there is none."""
    meaning: str
    """The docstring of the field, on one line; empty if there is none."""


def list_options(cls: type) -> tuple[OptionEntry, ...]:
    """List the constructor arguments of a dataclass, in order of declaration.

    Types and docstrings are read from the source code of the class and its bases. Without source code, docstrings are empty.
    """
    declared: dict[str, tuple[str, str]] = {}
    for base in reversed(cls.__mro__):
        declared.update(_read_fields(base))
    options = []
    for field in dataclasses.fields(cls):
        if field.init:
            annotation, docstring = declared.get(field.name, (str(field.type), ""))
            options.append(OptionEntry(field.name, annotation, _format_default(_get_default(field)), docstring))
    return tuple(options)


def _read_fields(cls: type) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (name, (annotation, docstring)) for each field in the source code of the class."""
    if not dataclasses.is_dataclass(cls):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # created at run time, or shipped without source
        return
    body = getattr(tree.body[0], "body", [])
    for statement, next_statement in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            docstring = ""
            match next_statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    docstring = " ".join(text.split())
            yield statement.target.id, (ast.unparse(statement.annotation), docstring)
