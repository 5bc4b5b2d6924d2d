"""Every name is one object, whatever was imported before."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types

import pytest

from tests.house.public import modules


def hidden(parent: types.ModuleType, names: list[str]) -> list[str]:
    """Return the submodules, by full name, that something else of their package's hides."""
    found = [name for name in names if name.rpartition(".")[0] == parent.__name__]
    return [name for name in found if not isinstance(getattr(parent, name.rpartition(".")[2]), types.ModuleType)]


@pytest.mark.parametrize("name", [name for name in modules() if hasattr(importlib.import_module(name), "__path__")])
def test_no_package_hides_a_module_behind_another_object(name: str) -> None:
    for one in modules():
        importlib.import_module(one)
    assert hidden(importlib.import_module(name), modules()) == []


def test_a_hidden_module_is_caught() -> None:
    planted = types.ModuleType("planted")
    planted.run = lambda: None  # type: ignore[attr-defined]
    assert hidden(planted, ["planted.run"]) == ["planted.run"]


def test_a_public_name_is_the_same_object_before_and_after_every_import() -> None:
    """In a process of its own: a first look at each name, and one after every module was imported."""
    code = """
import importlib, json, sys, xrt
names = [name for name in xrt.__all__ if name != "__version__"]
first = {name: getattr(xrt, name) for name in names}
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
print(json.dumps([name for name in names if getattr(xrt, name) is not first[name]]))
"""
    for order in (modules(), modules()[::-1]):
        done = subprocess.run([sys.executable, "-c", code, json.dumps(order)], capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
