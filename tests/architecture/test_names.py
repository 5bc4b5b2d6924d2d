"""Names: of packages and engines, and of operators in lists."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from onnx import defs

from tests.architecture.public import ROOT, modules, packages, parse, walk
from tests.architecture.test_layers import ENGINES, MODULES
from xrt.engines.contract import registry
from xrt.engines.contract.spec import parse_spec
from xrt.engines.toolkit.reference_evaluator import REFERENCE


def hidden(parent: types.ModuleType, names: Sequence[str]) -> list[str]:
    """Return the submodules, by full name, that something else of their package's hides."""
    results = [name for name in names if name.rpartition(".")[0] == parent.__name__]
    return [name for name in results if not isinstance(getattr(parent, name.rpartition(".")[2]), types.ModuleType)]


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
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.stdout.strip(), completed.returncode) == ("[]", 0), completed.stderr


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


SHIPPED = [
    name for name in registry.names() if registry.find_entry(name).module.startswith("xrt.") and name != parse_spec(REFERENCE)[0]
]
"""A plug-in that is installed here has words of its own, which XRT may use."""
WORDS = frozenset(
    word.lower()
    for declared in map(registry.find_declaration, SHIPPED)
    for word in (declared.name, *declared.libraries, *declared.aliases)
) - {name.split(".")[1] for name in MODULES if name.startswith("frontends.")}
"""Words that the core may not use. A library that models come from is known to the core, although an engine has its name too."""
DEFAULTS = ("cli.run", "module.engines")
"""Modules that say which engines serve where none is named."""


def find_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the engines and libraries that code depends on, with their lines.

    That is identifiers, and strings without a space: keys, defaults, names of distributions and variables. A text
    with spaces, such as a docstring, a message or a help, may show an engine as its example.
    """
    for node in walk(tree):
        for text in _list_texts(node):
            yield from ((getattr(node, "lineno", 0), word) for word in _find_words(text))


@cache
def _find_words(text: str) -> list[str]:
    parts = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower())
    return sorted({*parts, text.lower()} & WORDS)


def _list_texts(node: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(text)):
            return [] if re.search(r"\s", text) else [text]
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [part for item in names for part in item.name.split(".")]
    return []


def is_core(module: str) -> bool:
    return module.removeprefix("engines.").split(".")[0] not in ENGINES


def test_no_core_module_names_an_engine() -> None:
    assert {"ort", "tensorrt", "onnxruntime", "jax", "apache-tvm"} <= WORDS
    results = {name: list(find_names(parse(path))) for name, path in MODULES.items() if is_core(name)}
    assert {name: words for name, words in results.items() if words and name not in DEFAULTS} == {}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("_FIRST = ('ort', 'toy')", "ort"),
        ("def configure(*, shared_ort_pool=False): pass", "ort"),
        ("_POOLS = ('TVM_NUM_THREADS',)", "tvm"),
        ("versions('apache-tvm')", "apache-tvm"),
        ("class XlaPlan: pass", "xla"),
        ("if engine.name == f'iree{1}': pass", "iree"),
    ],
)
def test_a_planted_name_is_found(source: str, word: str) -> None:
    assert word in {item for _, item in find_names(ast.parse(source))}


OPERATORS = frozenset(schema.name for schema in defs.get_all_schemas_with_history())
MOST = 4
"""Names in one list that are no description of operators yet."""
EXEMPT = ("operators/", "testing/", "models/")
"""The description itself; generators, corpora and models, which choose operators to cover them."""
LEFT = Counter(
    {
        "engines/iree/engine.py": 1,
        "engines/native/fusion.py": 3,
        "engines/openvino/engine.py": 1,
        "engines/ort/engine.py": 1,
        "engines/tvm/engine.py": 3,
        "engines/tvm/schedules.py": 1,
        "engines/xla/engine.py": 1,
        "passes/gradient/preparation.py": 1,
        "passes/gradient/rules/recurrent.py": 1,
        "passes/padding/function.py": 1,
        "passes/quantize/static.py": 1,
    }
)
"""Lists left, by module. This may only shrink."""


def find_lists(tree: ast.Module) -> Iterator[set[str]]:
    """Yield the operators named by each literal set, list or tuple, or by one string.

    A mapping from operators to rules is no such list, `dict.fromkeys(operators, rule)` included.
    """
    keys = {id(call.args[0]) for call in ast.walk(tree) if isinstance(call, ast.Call) and _is_fromkeys(call)}
    for node in ast.walk(tree):
        if id(node) in keys:
            continue
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            parts = [item.value if isinstance(item, ast.Starred) else item for item in node.elts]
            names = {part.value for part in parts if isinstance(part, ast.Constant)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            names = set(re.split(r"[\s,.:]+", node.value))
        else:
            continue
        if len(result := names & OPERATORS) > MOST:
            yield result


def _is_fromkeys(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "fromkeys" and len(call.args) == 2


def test_no_module_lists_operators_anew() -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for path in MODULES.values() if path.name != "tables.py"}
    lists = {name: sum(1 for _ in find_lists(parse(path))) for name, path in paths.items() if not name.startswith(EXEMPT)}
    assert Counter(lists) == LEFT, "derive the list from the traits of xrt.operators, or lower the number here"
