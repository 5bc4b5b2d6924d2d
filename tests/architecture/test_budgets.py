"""Nine functions in ten are short, none is long, and modules can be read in one go; every public name says what it is."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tests.architecture.layers import package_of
from tests.architecture.public import ROOT, files, modules, parse, read
from tests.architecture.sizes import Length, functions

SHORT, MODULE = 20, 400
FAR = 3
"""A function is far over the size of its neighbours when it is this many times as long as nine in ten of its package."""
NEIGHBOURS = 10
"""A package of fewer functions is measured by the whole package."""


@cache
def lengths() -> dict[str, list[Length]]:
    """Return how long the functions of each package are."""
    packages: dict[str, list[Length]] = defaultdict(list)
    for path in files().values():
        packages[_package(path)] += functions(parse(path), str(path.relative_to(ROOT)))
    return packages


def _package(path: Path) -> str:
    return package_of(str(path.relative_to(ROOT)).removesuffix(".py").replace("/", "."))


PACKAGES = sorted(set(map(_package, files().values())))


@pytest.mark.parametrize("package", PACKAGES)
def test_nine_functions_in_ten_are_short(package: str) -> None:
    long = [length for length in lengths()[package] if length.lines > SHORT]
    assert len(long) <= len(lengths()[package]) / 10, f"too many functions over {SHORT} lines: {', '.join(map(str, long))}"


def usual(lengths: list[Length]) -> int:
    """Return how long nine in ten of the functions are at most."""
    ordered = sorted(length.lines for length in lengths)
    return ordered[9 * len(ordered) // 10]


@cache
def usual_everywhere() -> int:
    return usual([length for package in lengths().values() for length in package])


def giants(lengths: list[Length]) -> list[str]:
    """Return the functions that are far over the size of their neighbours."""
    most = FAR * (usual(lengths) if len(lengths) >= NEIGHBOURS else usual_everywhere())
    return [f"{length}, more than {most}" for length in lengths if length.lines > most]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_far_over_the_size_of_its_neighbours(package: str) -> None:
    assert giants(lengths()[package]) == []


def test_a_giant_among_short_ones_is_caught() -> None:
    package = [Length(f"m:{i} f", lines) for i, lines in enumerate([3] * 18 + [5, 15])]
    assert giants(package) == []
    assert giants([*package, Length("m:99 g", 19)]) == ["m:99 g (19 lines), more than 15"]
    assert giants([Length("n:1 alone", FAR * usual_everywhere())]) == []


def test_modules_can_be_read_in_one_go() -> None:
    lines = {str(path.relative_to(ROOT)): len(read(path).splitlines()) for path in files().values()}
    assert {name: count for name, count in lines.items() if count > MODULE} == {}


def test_a_length_is_counted_without_docstring_and_decorators() -> None:
    source = '@cache\ndef f():\n    """One.\n\n    Two.\n    """\n    def g(): return 1\n    return g\n'
    assert [str(length) for length in functions(ast.parse(source), "m")] == ["m:2 f (3 lines)", "m:7 g (1 lines)"]


@pytest.mark.parametrize("name", modules())
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert undocumented(module) == []


def undocumented(module: ModuleType) -> list[str]:
    """Return the functions and classes that a module calls public and does not say a word about."""
    public = {word: getattr(module, word) for word in getattr(module, "__all__", ())}
    called = {word: value for word, value in public.items() if inspect.isroutine(value) or inspect.isclass(value)}
    return [word for word, value in called.items() if not (value.__doc__ or "").strip()]


def test_a_public_name_without_a_word_is_caught() -> None:
    module = ModuleType("planted")
    exec("__all__ = ['f', 'G', 'h']\ndef f(): pass\nclass G: pass\ndef h(): 'Says.'\ndef own(): pass", module.__dict__)
    assert undocumented(module) == ["f", "G"]


@pytest.mark.parametrize("name", modules())
def test_what_a_module_calls_public_looks_public(name: str) -> None:
    module = importlib.import_module(name)
    assert [word for word in getattr(module, "__all__", ()) if word.startswith("_") and word != "__version__"] == []
