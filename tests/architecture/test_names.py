"""Every public name is one object, whatever was imported before, and is documented."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import types
from collections.abc import Sequence

import pytest

from tests.architecture.public import modules, packages


def hidden(parent: types.ModuleType, names: Sequence[str]) -> list[str]:
    """Return the submodules, by full name, that something else of their package's hides."""
    found = [name for name in names if name.rpartition(".")[0] == parent.__name__]
    return [name for name in found if not isinstance(getattr(parent, name.rpartition(".")[2]), types.ModuleType)]


def test_no_package_hides_a_module_behind_another_object() -> None:
    for name in modules():
        importlib.import_module(name)
    assert [module for name in packages() for module in hidden(importlib.import_module(name), modules())] == []


def test_a_hidden_module_is_caught() -> None:
    planted = types.ModuleType("planted")
    planted.run = lambda: None  # type: ignore[attr-defined]
    assert hidden(planted, ["planted.run"]) == ["planted.run"]


@pytest.mark.slow
def test_a_public_name_is_the_same_object_before_and_after_every_import() -> None:
    """In a process of its own: a first look at each name, and one after every module was imported, the last one first."""
    code = """
import importlib, json, sys, xrt
names = [name for name in xrt.__all__ if name != "__version__"]
first = {name: getattr(xrt, name) for name in names}
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
print(json.dumps([name for name in names if getattr(xrt, name) is not first[name]]))
"""
    command = [sys.executable, "-c", code, json.dumps(modules()[::-1])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_public_names_exist_and_are_documented() -> None:
    loaded = {name: importlib.import_module(name) for name in modules()}
    assert [name for name, module in loaded.items() if not module.__doc__] == []
    assert {name: words for name in packages() if (words := undocumented(loaded[name]))} == {}


def undocumented(module: types.ModuleType) -> list[str]:
    """The public functions and classes of a package without a docstring; a decorator that a call returned is neither."""
    public = {word: getattr(module, word) for word in getattr(module, "__all__", ())}
    called = {word: value for word, value in public.items() if inspect.isroutine(value) or inspect.isclass(value)}
    called = {word: value for word, value in called.items() if "<locals>" not in value.__qualname__}
    return [word for word, value in called.items() if not (value.__doc__ or "").strip()]


def test_a_public_name_without_a_word_is_caught() -> None:
    module = types.ModuleType("planted")
    exec("__all__ = ['f', 'G', 'h']\ndef f(): pass\nclass G: pass\ndef h(): 'Says.'\ndef own(): pass", module.__dict__)
    assert undocumented(module) == ["f", "G"]


def test_public_names_have_no_underscore() -> None:
    public = [word for name in packages() for word in getattr(importlib.import_module(name), "__all__", ())]
    assert [word for word in public if word.startswith("_") and word != "__version__"] == []
