"""Every name is one object, whatever was imported before; functions are verbs, and a class name stands for one class."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.architecture.public import files, modules, packages, parse, walk


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


def test_public_names_exist_and_are_documented() -> None:
    loaded = {name: importlib.import_module(name) for name in modules()}
    assert [name for name, module in loaded.items() if not module.__doc__] == []
    assert {name: words for name, module in loaded.items() if (words := undocumented(module))} == {}


def undocumented(module: types.ModuleType) -> list[str]:
    """Return the functions and classes that a module calls public and does not say a word about."""
    public = {word: getattr(module, word) for word in getattr(module, "__all__", ())}
    called = {word: value for word, value in public.items() if inspect.isroutine(value) or inspect.isclass(value)}
    return [word for word, value in called.items() if not (value.__doc__ or "").strip()]


def test_a_public_name_without_a_word_is_caught() -> None:
    module = types.ModuleType("planted")
    exec("__all__ = ['f', 'G', 'h']\ndef f(): pass\nclass G: pass\ndef h(): 'Says.'\ndef own(): pass", module.__dict__)
    assert undocumented(module) == ["f", "G"]


def test_what_a_module_calls_public_looks_public() -> None:
    public = [word for name in modules() for word in getattr(importlib.import_module(name), "__all__", ())]
    assert [word for word in public if word.startswith("_") and word != "__version__"] == []


# ---------------------------------------------------------------------- the names themselves

NOUN_PHRASES = frozenset(
    {
        "missing_features",  # of a GraphCompiler: an attribute that an engine may compute
        "unsupported_options",
        "supporting_engines",
        "supported_form",
        "shared_pool_size",
        # a lock that is made again in a child: it wraps its argument
    }
)
"""Public functions whose first word is a participle that belongs to the noun after it. The list may only shrink."""
NAMED_BY_ONNX = (
    "xrt.engines.kernels.",
    "xrt.engines.toy.kernels.",
    "xrt.engines.xla.kernels.",
    "xrt.engines.torch.kernels.",
    "xrt.testing.generators.",
    "xrt.frontends.torch.rules.",
)
"""Modules whose functions are called as the operators are that they compute, make or lower."""
_PARTICIPLE = re.compile(r"(?!(?:bring|string|embed|feed|need|speed)(?:_|$))[a-z]+(?:ed|ing)(?:_|$)")


def no_verbs(tree: ast.AST) -> list[str]:
    """Return the public functions and methods that begin with a participle, or end in ``_of``; properties are nouns."""
    found = []
    for scope in (node for node in walk(tree) if isinstance(node, ast.Module | ast.ClassDef)):
        if isinstance(scope, ast.ClassDef) and scope.name.startswith("_"):
            continue
        for node in scope.body:
            if (
                isinstance(node, ast.FunctionDef)
                and not node.name.startswith("_")
                and not any(map(_is_noun, node.decorator_list))
            ):
                found += [node.name] * bool(node.name.endswith("_of") or _PARTICIPLE.match(node.name))
    return found


def _is_noun(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] in ("property", "cached_property", "setter", "fixture")


def test_public_functions_are_verbs() -> None:
    found = {name: set(no_verbs(parse(path))) - NOUN_PHRASES for name, path in files().items()}
    assert {name: words for name, words in found.items() if words and not name.startswith(NAMED_BY_ONNX)} == {}


def test_a_function_that_is_no_verb_is_caught() -> None:
    planted = (
        "def loaded(): ...\ndef bytes_of(): ...\nclass A:\n    def packing(self): ...\n    @property\n    def saved(self): ...\n"
    )
    assert no_verbs(ast.parse(planted)) == ["loaded", "bytes_of", "packing"]
    assert no_verbs(ast.parse("def load(): ...\ndef _named(): ...\nclass _B:\n    def tried(self): ...")) == []


def test_the_list_of_exceptions_only_shrinks() -> None:
    used = {name for path in files().values() for name in no_verbs(parse(path))}
    assert used >= NOUN_PHRASES


def repeated() -> dict[str, list[str]]:
    """Return the public classes that several modules define, with these modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, path in files().items():
        for node in walk(parse(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def test_no_two_classes_have_one_name() -> None:
    assert repeated() == {}
