"""Rows of what a library gets wrong."""

from __future__ import annotations

import pytest

from tests.engines.openvino_running import function, node, tensor
from xrt.engines.toolkit.known_issues import KnownIssue, Test, always, attribute_is, match_known_issue
from xrt.graph import Function, Node

LRN = node("LRN", "x", "y", size=3)


def reason(applies: Test, *ops: str) -> str | None:
    f = function({"x": tensor(1, 2, 3, 3)}, {"y": None}, [LRN])
    return match_known_issue([KnownIssue(ops, applies, "is wrong", ()), KnownIssue(("LRN",), always, "is wrong too", ())], LRN, f)


@pytest.mark.parametrize(
    ("applies", "text"),
    [(attribute_is("size", 3), "is wrong"), (attribute_is("size", 5), "is wrong too"), (attribute_is("bias", 1, 1), "is wrong")],
    ids=["it is", "it is not", "by default"],
)
def test_the_first_that_applies_gives_its_reason(applies: Test, text: str) -> None:
    assert reason(applies, "Relu", "LRN") == text
    assert reason(applies, "Relu") == "is wrong too"


def test_a_node_that_breaks_the_rules_falls_under_none() -> None:
    def third_input(node: Node, function: Function) -> bool:
        return bool(node.inputs[2])

    assert reason(third_input, "LRN") == "is wrong too"
