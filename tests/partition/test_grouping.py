"""What is printed once although a plan has it many times."""

from __future__ import annotations

from tests.partition.drawn import chain, palette
from xrt import XRTModule
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.partition import partition
from xrt.partition.grouping import group, list_some


def test_equal_things_stand_together_where_the_first_stood() -> None:
    assert [tuple(one) for one in group("abacab", str)] == [("a", "a", "a"), ("b",), ("c",), ("b",)]
    assert list_some(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"


def test_a_plan_prints_an_equal_reason_once_and_regions_of_the_same_operators_too() -> None:
    text = str(partition(chain("RGRGRGRG"), palette()[:2]))
    assert text[text.index("reasons:") :] == "reasons:\n  4 nodes are not on red: no kernel for Green (n1, n3, n5, n7)"
    assert "xrt_red_2, xrt_red_4, xrt_red_6 on red: the same operators as xrt_red_0\n" in text
    assert text.count("  nodes: ") == 2


def test_reasons_that_differ_or_are_two_keep_a_line_each() -> None:
    text = str(partition(chain("RGRGB"), palette()))
    assert text.count("no kernel for Green") == 2


def test_an_explanation_groups_them_too() -> None:
    value = TensorType(DType.FLOAT32, (2, 3))
    nodes = [Node(op, (f"v{n}",), (f"v{n + 1}",), name=f"n{n}") for n, op in enumerate(["Relu", "Sin"] * 4)]
    model = Function((Value("v0", value),), (Value("v8", value),), tuple(nodes), opsets={"": 20})
    told = str(XRTModule(model, engine="ort", pins=["Sin=toy"]).explain())
    assert "  4 nodes not on ort: pinned to toy by 'Sin=toy' (n1, n3, n5, n7)\n" in f"{told}\n"
    assert "on toy: the same operators as xrt_toy_1" in told
