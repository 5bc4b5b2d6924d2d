"""What is printed once although a plan has it many times."""

from __future__ import annotations

from tests.partition.drawn import chain, engine, palette
from xrt import XRTModule
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.module.explain import Explanation, RegionReport
from xrt.partition import Reason, partition
from xrt.partition.partitioner import MEASURED_REASON, plan_from_assignment
from xrt.partition.plan import group, group_reasons, list_some


def test_equal_things_stand_together_where_the_first_stood() -> None:
    assert [tuple(one) for one in group("abacab", str)] == [("a", "a", "a"), ("b",), ("c",), ("b",)]
    assert list_some(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"


def test_a_plan_prints_an_equal_reason_once_and_regions_of_the_same_operators_too() -> None:
    text = str(partition(chain("RGRGRGRG"), palette()[:2]))
    assert text[text.index("reasons:") :] == (
        "reasons: (node by node in plan.reasons)\n  4 nodes not on red: no kernel for Green (n1, n3, n5, n7)"
    )
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
    assert "(4; node by node in .reasons):" in told


def test_a_plan_by_measurement_has_one_line_for_all_nodes_and_engines() -> None:
    model = chain("B" * 20)
    homes = {node.name: "last" for node in model.nodes}
    plan = plan_from_assignment(model, [engine(name) for name in ("first", "second", "last")], homes)
    lines = str(plan).splitlines()
    assert f"  20 nodes not on first, second: {MEASURED_REASON} (n0, n1, n2, n3 and 16 more)" in lines
    assert len([reason for reason in plan.reasons if reason.text == MEASURED_REASON]) == 40, "the full listing is there"


def test_reasons_merge_only_where_nodes_and_text_are_equal() -> None:
    def reasons(engine: str, nodes: str, text: str) -> list[Reason]:
        return [Reason(node, "Relu", engine, text) for node in nodes]

    found = group_reasons([*reasons("a", "xyz", "slow"), *reasons("b", "xyz", "slow"), *reasons("c", "xy", "slow")])
    assert [(one.engines, one.nodes, one.summary) for one in found] == [
        (("a", "b"), "x, y, z", "3 nodes not on a, b: slow"),
        (("c",), "x", "1 node not on c: slow"),
        (("c",), "y", "1 node not on c: slow"),
    ]


def test_a_remark_that_many_regions_share_is_printed_once() -> None:
    remark = "NaN is not carried through Relu: something else may come out in its place"
    regions = [RegionReport(f"r{n}", "x", n, (("Relu", n),), ("a",), ("b",), 0, (remark,)) for n in range(4)]
    told = str(Explanation(("x",), None, tuple(regions), 1, ()))
    assert told.count(remark) == 1
    assert f"on x, 4 regions: {remark} (r0, r1, r2, r3)" in told.splitlines()
