"""Operators are described in `xrt.operators`: no other module lists them by name, beside the tables of an engine."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from onnx import defs

XRT = Path(__file__).parents[2] / "xrt"
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
        "engines/torch/inductor/support.py": 1,
        "engines/torch/kernels.py": 3,
        "engines/torch/support.py": 4,
        "engines/toy/device_executor.py": 4,
        "engines/toy/tape.py": 1,
        "engines/tvm/engine.py": 3,
        "engines/tvm/schedules.py": 1,
        "engines/xla/engine.py": 1,
        "engines/xla/kernels.py": 5,
        "engines/xla/support.py": 2,
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
        if len(found := names & OPERATORS) > MOST:
            yield found


def _is_fromkeys(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "fromkeys" and len(call.args) == 2


def count_lists(source: str) -> int:
    return sum(1 for _ in find_lists(ast.parse(source)))


def test_lists_of_operators_are_found() -> None:
    assert count_lists('X = {"Abs", "Add", "Mul", "Sub", "Div"}') == 1
    assert count_lists('X = frozenset("Abs Add Mul Sub Div".split())') == 1
    assert count_lists('X = ["Abs", "Add", "Mul", "Sub"]') == 0
    assert count_lists('X = {"Abs": f, "Add": f, "Mul": f, "Sub": f, "Div": f}') == 0
    assert count_lists('X = dict.fromkeys(("Abs", "Add", "Mul", "Sub", "Div"), f)') == 0


def test_no_module_lists_operators_anew() -> None:
    found: Counter[str] = Counter()
    for path in XRT.rglob("*.py"):
        name = path.relative_to(XRT).as_posix()
        if not name.startswith(EXEMPT) and path.name != "tables.py" and (count := count_lists(path.read_text("utf-8"))):
            found[name] = count
    assert found == LEFT, "derive the list from the traits of xrt.operators, or lower the number here"
