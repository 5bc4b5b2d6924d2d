"""Nine functions in ten are short, none is long, and modules can be read in one go; every public name says what it is."""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict

import pytest

from tests.house.public import ROOT, modules
from tests.house.rooms import room_of
from tests.house.sizes import Length, functions, sources

SHORT, LONGEST, MODULE = 20, 60, 400


def lengths() -> dict[str, list[Length]]:
    rooms: dict[str, list[Length]] = defaultdict(list)
    for path in sources(ROOT):
        name = str(path.relative_to(ROOT))
        rooms[room_of(name.removesuffix(".py").replace("/", "."))] += functions(path.read_text(encoding="utf-8"), name)
    return rooms


LENGTHS = lengths()


@pytest.mark.parametrize("room", sorted(LENGTHS))
def test_nine_functions_in_ten_are_short(room: str) -> None:
    long = [length for length in LENGTHS[room] if length.lines > SHORT]
    assert len(long) <= len(LENGTHS[room]) / 10, f"too many functions over {SHORT} lines: {', '.join(map(str, long))}"


@pytest.mark.parametrize("room", sorted(LENGTHS))
def test_no_function_is_long(room: str) -> None:
    assert [str(length) for length in LENGTHS[room] if length.lines > LONGEST] == []


def test_modules_can_be_read_in_one_go() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(ROOT)}
    assert {name: count for name, count in lines.items() if count > MODULE} == {}


def test_a_length_is_counted_without_docstring_and_decorators() -> None:
    source = '@cache\ndef f():\n    """One.\n\n    Two.\n    """\n    def g(): return 1\n    return g\n'
    assert [str(length) for length in functions(source, "m")] == ["m:2 f (3 lines)", "m:7 g (1 lines)"]


@pytest.mark.parametrize("name", modules())
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    public = {word: getattr(module, word) for word in getattr(module, "__all__", ())}
    called = {word: value for word, value in public.items() if inspect.isroutine(value) or inspect.isclass(value)}
    assert [word for word, value in called.items() if not (value.__doc__ or "").strip()] == []


@pytest.mark.parametrize("name", modules())
def test_what_a_module_calls_public_looks_public(name: str) -> None:
    module = importlib.import_module(name)
    assert [word for word in getattr(module, "__all__", ()) if word.startswith("_") and word != "__version__"] == []
