"""An engine as text: ``tvm{opt_level=2, mcpu=x86-64-v3}``.

The name of the engine, and in braces the fields that differ from their defaults, sorted: equal engines have equal
specs, and `build` makes the same engine of one. An entry of a mapping is spelled ``field.key=value``; several values
stand in parentheses; text in quotes where a comma, a space or a bracket would mislead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from xrt.engines.contract.graph_compiler import GraphCompiler
from xrt.engines.contract.option_values import field_types, is_mapping, read_pairs, read_value, split, unquote, write_value
from xrt.errors import OptionError, did_you_mean
from xrt.graph import FrozenDict

__all__ = ["build", "format_spec", "parse_spec", "split_specs"]

E = TypeVar("E", bound=GraphCompiler)
_SPEC = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:\{(?P<fields>.*)\})?\s*", re.DOTALL)


def split_specs(text: str) -> list[str]:
    """Return the specs of a list written on one line; raises OptionError for a list with an empty place.

    >>> split_specs("tvm{opt_level=2, mcpu=x86-64-v3}, ort")
    ['tvm{opt_level=2, mcpu=x86-64-v3}', 'ort']
    """
    specs = split(text)
    if not specs or not all(specs):
        raise OptionError(f"the engine list {text!r} has an empty place; write it like 'tvm,ort'")
    return specs


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Return the engine's name and the text of each field as it is written, quotes included.

    Raises OptionError when the text is not a spec, or gives a field twice.

    >>> parse_spec("ort{config.session.x=1, providers=(A, B)}")
    ('ort', {'config.session.x': '1', 'providers': '(A, B)'})
    """
    try:
        match = _SPEC.fullmatch(text)
        if match is None:
            raise OptionError("expected a name, and braces around its options")
        return match["name"], read_pairs(match["fields"] or "")
    except OptionError as error:
        several = _split_valid_specs(text)
        if several:
            raise OptionError(f"{text!r} names {len(several)} engines, and one is due; pass a list: {several!r}") from None
        raise OptionError(f"{text!r} is not an engine's spec: {error}. A spec reads like 'tvm{{opt_level=2}}'") from None


def _split_valid_specs(text: str) -> list[str]:
    """Return the specs of a list with commas; empty unless there are several and each reads as a spec."""
    try:
        parts = split(text)
    except OptionError:
        return []
    return parts if len(parts) > 1 and all(_SPEC.fullmatch(part) for part in parts) else []


# ---------------------------------------------------------------------- text to engine


def build(cls: type[E], fields: Mapping[str, str]) -> E:
    """Return the engine whose fields have those texts, as `parse_spec` gives them; the other fields keep their defaults.

    Raises OptionError, naming the nearest field, for one that the engine does not have; and for text that the field's
    type does not admit.
    """
    known = field_types(cls)
    values: dict[str, Any] = {}
    for key, raw in fields.items():
        with _naming(cls, key):
            field, dot, entry = key.partition(".")
            hint = _hint(cls, field, known)
            if not dot:
                values[field] = read_value(raw, hint)
            elif is_mapping(hint):
                values[field] = FrozenDict({**values.get(field, {}), unquote(entry): read_value(raw, get_args(hint)[1])})
            else:
                raise OptionError(f"{field!r} is not a mapping, so {entry!r} names nothing in it")
    return cls(**values)


def _hint(cls: type[GraphCompiler], field: str, known: Mapping[str, Any]) -> Any:
    if field not in known:
        has = f"its options are {', '.join(sorted(known))}" if known else "it has no options"
        raise OptionError(f"there is no such option; {has}.{did_you_mean(field, known)}")
    return known[field]


@contextlib.contextmanager
def _naming(cls: type[GraphCompiler], key: str) -> Iterator[None]:
    """Say in an OptionError which option of which engine it is about."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"option {key!r} of engine {cls.name!r}: {error}") from None


# ---------------------------------------------------------------------- engine to text


def format_spec(engine: GraphCompiler) -> str:
    """Return the engine as text: its name, and in braces the fields that differ from their defaults, sorted.

    ``build(type(engine), parse_spec(spec_of(engine))[1]) == engine``. Raises OptionError when a field holds a value that
    is not of its type.
    """
    cls = type(engine)
    hints = field_types(cls)
    shown: list[str] = []
    for field in sorted(dataclasses.fields(engine), key=lambda f: f.name):  # type: ignore[arg-type]  # every engine is a dataclass
        if field.name not in hints or _is_default(field, getattr(engine, field.name)):
            continue
        with _naming(cls, field.name):
            spelled = _spelled(field.name, getattr(engine, field.name), hints[field.name])
            if spelled != _default(field, hints[field.name]):
                shown += spelled
    return f"{cls.name}{{{', '.join(shown)}}}" if shown else cls.name


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a value is its field's default for certain: the same object, or a container that prints the same."""
    if value is field.default:
        return True
    return field.default_factory is not dataclasses.MISSING and repr(value) == repr(field.default_factory())


def _default(field: dataclasses.Field[Any], hint: Any) -> list[str] | None:
    if field.default_factory is not dataclasses.MISSING:
        return _spelled(field.name, field.default_factory(), hint)
    return None if field.default is dataclasses.MISSING else _spelled(field.name, field.default, hint)


def _spelled(name: str, value: Any, hint: Any) -> list[str]:
    """Return ``name=value``; for a mapping, each entry as ``name.key=value``."""
    raw = write_value(value, hint)
    if not (is_mapping(hint) and value):
        return [f"{name}={raw}"]
    return [f"{name}.{key}={text}" for key, text in read_pairs(raw[1:-1]).items()]
