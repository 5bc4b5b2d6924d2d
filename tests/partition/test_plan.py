"""The Plan as text, as bytes and as a value, what is printed once, re-planning, and the errors of `partition`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.exact_errors import raises_exactly
from tests.module.test_faults import chain as operator_chain
from tests.partition.drawn import chain, engine, function, node, palette, regions
from xrt import XRTModule
from xrt.engines import create
from xrt.errors import BundleError, OptionError, PlanError
from xrt.formats.protobuf import read_plan, write_plan
from xrt.graph import Function
from xrt.models import load_light
from xrt.module.explain import Explanation, RegionReport
from xrt.partition import ClusteringOptions, Plan, partition
from xrt.partition.partitioner import MEASURED_REASON, plan_from_assignment
from xrt.testing.corpus import entry
from xrt.testing.corpus.entry import body, graph

GOLDEN = """\
plan: 5 nodes in 3 regions on red, green, all (fallback)
options: pin 'Blue!=red'
xrt_red_0 on red (cuda:1): 3 nodes
  nodes:  a (Red), b (Red), c (Red)
  in:     x: float32[4]
  out:    b: float32[4], c: float32[4]
  writes: b into x
xrt_green_1 on green: 1 node
  nodes:  d (Green)
  in:     b: float32[4]
  out:    nothing
xrt_all_2 on all: 1 node
  nodes:  e (Blue)
  in:     c: float32[4]
  out:    e: float32[4]
  after:  xrt_green_1
copy x: float32[4] from cpu to cuda:1 for xrt_red_0
copy b: float32[4] from cuda:1 to cpu for xrt_green_1
copy c: float32[4] from cuda:1 to cpu for xrt_all_2
reasons:
  'd' (Green) is not on red: no kernel for Green
  'e' (Blue) is not on red: kept from red by 'Blue!=red'
  'e' (Blue) is not on green: no kernel for Blue"""


def golden() -> Any:
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Red", "a", "b", name="b", device="cuda:1"),
        node("Red", "b", "c", name="c"),
        node("Green", "b", "d", name="d"),
        node("Blue", "c", "e", name="e", control=("d",)),
    ]
    graph = function(nodes, "b e", aliases=(("x", "b"),))
    return partition(graph, palette(), ClusteringOptions(pins="Blue!=red"), implicit="all")


def test_a_plan_as_text() -> None:
    assert str(golden()) == GOLDEN


def test_a_refusal_at_compile_places_the_nodes_elsewhere() -> None:
    plan = partition(chain("RRB"), palette(), refused=[("n1", "red", "refused at compile: no such shape")])
    assert regions(plan) == {("red", frozenset({"n0"})), ("green", frozenset({"n1"})), ("all", frozenset({"n2"}))}
    assert str(plan.reasons[0]) == "'n1' (Red) is not on red: refused at compile: no such shape"


def test_a_refusal_by_the_last_engine() -> None:
    with raises_exactly(
        PlanError,
        "no engine of the list (red, green, all) takes 1 of 2 nodes; list an engine that takes them:\n"
        "  'n1' (Blue): red: no kernel for Blue; green: no kernel for Blue; all: refused at compile: too large",
    ):
        partition(chain("RB"), palette(), refused=[("n1", "all", "refused at compile: too large")])


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (("n0", "rad", "r"), "a refusal names engine 'rad', which is not in the list: red, green, all. Did you mean 'red'?"),
        (("n00", "red", "r"), "a refusal names node 'n00', which is not in function 'main'. Did you mean 'n0'?"),
    ],
)
def test_impossible_refusals(refused: tuple[str, str, str], text: str) -> None:
    with raises_exactly(OptionError, text):
        partition(chain("R"), palette(), refused=[refused])


def test_strict_lists_every_node_that_nobody_takes() -> None:
    with raises_exactly(
        PlanError,
        "no engine of the list (red, green) takes 2 of 4 nodes; list an engine that takes them, "
        "or leave out strict=True so that the reference engine may:\n"
        "  'n1' (Blue): red: no kernel for Blue; green: no kernel for Blue\n"
        "  'n3' (White): red: no kernel for White; green: no kernel for White",
    ):
        partition(chain("RBGW"), palette()[:2], strict=True)


def test_the_reference_engine_is_no_advice_for_a_domain_that_onnx_does_not_describe() -> None:
    custom = graph({"x": "float32[2]"}, {"y": "float32[2]"}, entry.node("Twice", "x", "y", domain="my.domain", name="n0"))
    with raises_exactly(
        PlanError,
        "no engine of the list (red) takes 1 of 1 node; list an engine that takes them:\n"
        "  'n0' (my.domain.Twice): red: no kernel for my.domain.Twice",
    ):
        partition(custom.replace(opsets={"my.domain": 1}), palette()[:1], strict=True)


def test_a_long_list_of_nodes_that_nobody_takes_is_cut() -> None:
    with pytest.raises(PlanError) as caught:
        partition(chain("B" * 50), palette()[:2], strict=True)
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 30 more"


@pytest.mark.parametrize(
    ("engines", "implicit", "text"),
    [
        ([], None, "the list of engines is empty; list at least one"),
        (["red", "all", "red"], None, "engine 'red' is listed twice in red, all, red; list each engine once"),
        (["red", "all"], "al", "implicit='al' is not in the list of engines: red, all. Did you mean 'all'?"),
    ],
)
def test_impossible_lists_of_engines(engines: list[str], implicit: str | None, text: str) -> None:
    with raises_exactly(OptionError, text):
        partition(chain("R"), [engine(name) for name in engines], implicit=implicit)


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
    text = str(XRTModule(operator_chain(*["Relu", "Sin"] * 4), engine="ort", pins=["Sin=toy"]).explain())
    assert "  4 nodes not on ort: pinned to toy by 'Sin=toy' (n1, n3, n5, n7)\n" in f"{text}\n"
    assert "on toy: the same operators as xrt_toy_1" in text
    assert "(4; node by node in .reasons):" in text


def test_a_plan_by_measurement_has_one_line_for_all_nodes_and_engines() -> None:
    model = chain("B" * 20)
    homes = {node.name: "last" for node in model.nodes}
    plan = plan_from_assignment(model, [engine(name) for name in ("first", "second", "last")], homes)
    lines = str(plan).splitlines()
    assert f"  20 nodes not on first, second: {MEASURED_REASON} (n0, n1, n2, n3 and 16 more)" in lines
    assert len([reason for reason in plan.reasons if reason.text == MEASURED_REASON]) == 40, "the full listing is there"


def test_a_remark_that_many_regions_share_is_printed_once() -> None:
    remark = "NaN is not carried through Relu: something else may come out in its place"
    regions = [RegionReport(f"r{n}", "x", n, (("Relu", n),), ("a",), ("b",), 0, (remark,)) for n in range(4)]
    text = str(Explanation(("x",), None, tuple(regions), 1, ()))
    assert text.count(remark) == 1
    assert f"on x, 4 regions: {remark} (r0, r1, r2, r3)" in text.splitlines()


def sample() -> Function:
    """Control edges, a device, a body that captures, and an alias."""
    then, other = (body({}, {name: "float32[2]"}, entry.node(op, "t", name)) for op, name in (("Neg", "u"), ("Abs", "v")))
    nodes = (
        replace(entry.node("Mul", "x x", "t", name="first"), device="cpu"),
        entry.node("Add", "t x", "s", name="second", control=("first",)),
        entry.node("If", "c", "y", name="third", then_branch=then, else_branch=other),
    )
    ends = {"x": "float32[2]", "c": "bool[]"}, {"y": "float32[2]", "s": "float32[2]"}
    return graph(*ends, *nodes, aliases=(("x", "s"),)).replace(metadata={"k": "v"})


def plans() -> list[Plan]:
    toy, ort = create("toy"), create("ort{config.session.intra_op.allow_spinning=0}")
    options = ClusteringOptions(maximum_nodes=4, pins=("Conv=ort", "name:n1*!=toy"))
    return [
        partition(sample(), [toy]),
        partition(sample(), [ort, toy], ClusteringOptions(maximum_nodes=1, pins=("Mul|If=toy",)), implicit="toy"),
        partition(load_light("squeezenet"), [create("ort"), toy], options),
    ]


PLANS = plans()


@pytest.mark.parametrize("plan", PLANS, ids=["one", "two", "squeezenet"])
def test_a_plan_comes_back_equal(plan: Plan) -> None:
    again = Plan.from_bytes(plan.to_bytes())
    assert again == plan
    assert again.to_bytes() == plan.to_bytes()


def message(plan: Plan) -> dict[str, object]:
    return read_plan(plan.to_bytes())


def test_a_launch_that_is_lost_is_reported() -> None:
    data = write_plan({**message(PLANS[1]), "launches": ()})
    count = len(PLANS[1].launches)
    with raises_exactly(BundleError, f"the Plan is damaged: it has {count} launch nodes and no launch for 'xrt_toy_0'"):
        Plan.from_bytes(data)


def test_an_option_that_cannot_be_is_reported() -> None:
    options = {"minimum_nodes": 5, "maximum_nodes": 2, "pins": ()}
    data = write_plan({**message(replace(PLANS[0])), "options": options})
    with pytest.raises(BundleError, match=r"^the Plan is damaged: minimum_nodes=5 is more than maximum_nodes=2"):
        Plan.from_bytes(data)
