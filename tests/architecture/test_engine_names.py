"""The core names no engine but the reference: what it knows of an engine, the engine declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.layers import ENGINES
from tests.architecture.public import parse, walk
from tests.architecture.test_layers import MODULES
from xrt.engines.contract import registry
from xrt.engines.contract.spec import parse_spec
from xrt.engines.toolkit.reference_evaluator import REFERENCE

SHIPPED = [
    name for name in registry.names() if registry.find_entry_module(name).startswith("xrt.") and name != parse_spec(REFERENCE)[0]
]
"""A plug-in that is installed here has words of its own, which XRT may use."""
WORDS = frozenset(
    word.lower()
    for declared in map(registry.find_declaration, SHIPPED)
    for word in (declared.name, *declared.libraries, *declared.aliases)
) - {name.split(".")[1] for name in MODULES if name.startswith("frontends.")}
"""Words that the core may not use. A library that models come from is known to the core, although an engine has its name too."""

DEFAULTS = ("cli.quantize", "module.programs")
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
            return [part for one in names for part in one.name.split(".")]
    return []


def is_core(module: str) -> bool:
    return module.removeprefix("engines.").split(".")[0] not in ENGINES


def test_the_words_come_from_the_declarations() -> None:
    assert {"ort", "tvm", "openvino", "xla", "iree", "tensorrt", "onnxruntime", "jax", "apache-tvm"} <= WORDS
    assert parse_spec(REFERENCE)[0] not in WORDS


def test_no_core_module_names_an_engine() -> None:
    found = {name: list(find_names(parse(path))) for name, path in MODULES.items() if is_core(name)}
    assert {name: words for name, words in found.items() if words and name not in DEFAULTS} == {}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("_FIRST = ('ort', 'toy')", "ort"),
        ("KNOWN = {'openvino': 2}", "openvino"),
        ("def configure(*, shared_ort_pool=False): pass", "ort"),
        ("_POOLS = ('TVM_NUM_THREADS',)", "tvm"),
        ("versions('apache-tvm')", "apache-tvm"),
        ("from importlib import metadata\nmetadata.version('jax')", "jax"),
        ("option('--devices', default='ort=cuda')", "ort"),
        ("class XlaPlan: pass", "xla"),
        ("if engine.name == f'iree{1}': pass", "iree"),
    ],
)
def test_a_planted_name_is_found(source: str, word: str) -> None:
    assert word in {found for _, found in find_names(ast.parse(source))}


def test_an_example_in_a_text_is_none() -> None:
    assert (
        list(find_names(ast.parse('"""Pins read like ``Conv=ort``."""\nraise OptionError("write it like \'tvm,ort\'")\nsort(x)')))
        == []
    )
