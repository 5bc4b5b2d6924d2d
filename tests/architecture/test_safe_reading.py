"""Nothing in the package turns data into code: no pickle, no evaluation of text; and the checker sees what is planted."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.layers import last_name
from tests.architecture.public import ROOT, parse, walk

SOURCES = sorted(ROOT.rglob("*.py"))

PICKLES = frozenset({"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"})
"""Modules that make objects of bytes, and run what the bytes say."""
EVALUATORS = frozenset({"eval", "exec", "compile", "__import__"})
"""Built-in functions that make code of text. A method of such a name is something else."""
LOADERS = frozenset({"np.load", "numpy.load", "np.lib.format.read_array", "numpy.lib.format.read_array"})
SHELLS = frozenset({"os.system", "os.popen"})
PACKED = frozenset({"extract", "extractall", "unpack_archive"})
"""Methods that write what an archive holds to where the archive says."""
CALLED = EVALUATORS | PACKED | {name.rpartition(".")[2] for name in LOADERS | SHELLS}


def unsafe(tree: ast.AST) -> list[str]:
    """Return what a source does that would let data become code, or choose a path, with the line of each."""
    found = [(node.lineno, what) for node in walk(tree) for what in (*imports(node), *calls(node))]  # type: ignore[attr-defined]
    return [f"{line}: {what}" for line, what in sorted(found)]


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(alias.name for alias in node.names)]
    else:
        return []
    return [f"imports {name}" for name in names if name.partition(".")[0] in PICKLES]


def calls(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    name = ast.unparse(node.func) if last_name(node.func) in CALLED else ""
    if name in EVALUATORS | SHELLS or (name.rpartition(".")[2] in PACKED and "." in name):
        return [f"calls {name}"]
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if name in LOADERS and not is_constant(given.get("allow_pickle"), False):
        return [f"calls {name} without allow_pickle=False"]
    return ["calls with shell=True"] if is_constant(given.get("shell"), True) else []


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_data_becomes_code() -> None:
    found = {str(path.relative_to(ROOT)): unsafe(parse(path)) for path in SOURCES}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import pickle", "1: imports pickle"),
        ("def f():\n    from marshal import loads", "2: imports marshal"),
        ("import numpy.x as y, shelve as s", "1: imports shelve"),
        ("eval('1')", "1: calls eval"),
        ("exec(text)", "1: calls exec"),
        ("np.load(path)", "1: calls np.load without allow_pickle=False"),
        ("numpy.load(path, allow_pickle=True)", "1: calls numpy.load without allow_pickle=False"),
        ("archive.extractall(folder)", "1: calls archive.extractall"),
        ("subprocess.run(text, shell=True)", "1: calls with shell=True"),
    ],
)
def test_what_is_planted_is_seen(source: str, told: str) -> None:
    assert unsafe(ast.parse(source)) == [told]


def test_what_is_harmless_is_let_through() -> None:
    assert (
        unsafe(
            ast.parse("import numpy as np\nnp.load(p, allow_pickle=False)\nengine.compile(f)\nre.compile(x)\nast.literal_eval(x)")
        )
        == []
    )
