"""No package grows, no module uses the private names of another, and no class is cut in two by inheritance."""

from __future__ import annotations

import ast

from tools.budgets import Budgets, count_private_uses, find_single_bases, measure


def test_nothing_is_over_its_budget() -> None:
    assert Budgets.read().find_excess(measure()) == [], "see tools/budgets.py"


def test_a_package_that_grows_or_comes_is_named() -> None:
    limits = Budgets({"xrt/graph": 10, "xrt/gone": 5}, {"xrt/graph": 2, "xrt/gone": 1}, {}, frozenset())
    result = Budgets({"xrt/graph": 9, "xrt/new": 3}, {"xrt/graph": 3, "xrt/new": 1}, {"_held": 1}, frozenset({"Half"}))
    assert limits.find_excess(result) == [
        "xrt/new: 3 lines, the budget is 0",
        "xrt/graph: 3 modules, the budget is 2",
        "xrt/new: 1 modules, the budget is 0",
        "_held is used 1 times outside of its module, 0 allowed",
        "class Half exists only to be a base of one other class",
    ]
    lowered = limits.lowered_to(result)
    assert lowered == Budgets({"xrt/graph": 9}, {"xrt/graph": 2}, {}, frozenset())


def parse(**sources: str) -> dict[str, ast.Module]:
    return {name: ast.parse(source) for name, source in sources.items()}


def test_a_private_name_of_another_module_is_counted() -> None:
    source = (
        "class A:\n    def __init__(self):\n        self._held = 1\n    def equals(self, other):\n        return other._held\n"
    )
    assert count_private_uses(parse(a=source, b="def f(a): return a._held, a._replace()\n")) == {"_held": 1}
    assert count_private_uses(parse(a="def _f(): ...", b="from xrt.a import _f\n")) == {"_f": 1}


def test_a_class_that_is_only_a_base_of_one_other_is_found() -> None:
    half = "class Half: ...\n"
    assert find_single_bases(parse(a=half, b="from a import Half\nclass Whole(Half): ...\n")) == {"Half"}
    assert not find_single_bases(parse(a=half, b="class Whole(Half): ...\ndef f(x: Half): ...\n"))
    assert not find_single_bases(parse(a=half, b="class Whole(Half): ...\nclass Other(Half): ...\n"))
