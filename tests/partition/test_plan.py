"""The Plan as text and as a value, re-planning, and the errors of `partition`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.partition.drawn import chain, engine, function, node, palette, regions
from xrt.errors import OptionError, PlanError
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.partition import ClusteringOptions, partition

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


def test_plans_are_values() -> None:
    one, two = golden(), golden()
    assert one is not two
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != partition(chain("R"), palette())
    with pytest.raises(AttributeError):
        one.engines = ()


def test_a_refusal_at_compile_places_the_nodes_elsewhere() -> None:
    plan = partition(chain("RRB"), palette(), refused=[("n1", "red", "refused at compile: no such shape")])
    assert regions(plan) == {("red", frozenset({"n0"})), ("green", frozenset({"n1"})), ("all", frozenset({"n2"}))}
    assert str(plan.reasons[0]) == "'n1' (Red) is not on red: refused at compile: no such shape"


def test_a_refusal_by_the_last_engine() -> None:
    with pytest.raises(PlanError) as caught:
        partition(chain("RB"), palette(), refused=[("n1", "all", "refused at compile: too large")])
    assert str(caught.value) == (
        "no engine of the list (red, green, all) takes 1 of 2 nodes; list an engine that takes them:\n"
        "  'n1' (Blue): red: no kernel for Blue; green: no kernel for Blue; all: refused at compile: too large"
    )


def test_a_refusal_by_the_engine_that_a_pin_asks_for() -> None:
    with pytest.raises(PlanError) as caught:
        partition(
            chain("R"), palette(), ClusteringOptions(pins="Red=red"), refused=[("n0", "red", "refused at compile: too large")]
        )
    assert str(caught.value) == (
        "'Red=red' cannot be kept: no engine is left for 1 of 1 node; change the pin, or list an engine that takes them:\n"
        "  'n0' (Red): red: refused at compile: too large; green: pinned to red by 'Red=red'; all: pinned to red by 'Red=red'"
    )


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (("n0", "rad", "r"), "a refusal names engine 'rad', which is not in the list: red, green, all. Did you mean 'red'?"),
        (("n00", "red", "r"), "a refusal names node 'n00', which is not in function 'main'. Did you mean 'n0'?"),
    ],
)
def test_impossible_refusals(refused: tuple[str, str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        partition(chain("R"), palette(), refused=[refused])
    assert str(caught.value) == text


def test_strict_lists_every_node_that_nobody_takes() -> None:
    with pytest.raises(PlanError) as caught:
        partition(chain("RBGW"), palette()[:2], strict=True)
    assert str(caught.value) == (
        "no engine of the list (red, green) takes 2 of 4 nodes; list an engine that takes them, "
        "or leave out strict=True so that the reference engine may:\n"
        "  'n1' (Blue): red: no kernel for Blue; green: no kernel for Blue\n"
        "  'n3' (White): red: no kernel for White; green: no kernel for White"
    )


def test_the_reference_engine_is_no_advice_for_a_domain_that_onnx_does_not_describe() -> None:
    value = TensorType(DType.FLOAT32, (2,))
    node = Node("Twice", ("x",), ("y",), domain="my.domain", name="n0")
    custom = Function((Value("x", value),), (Value("y", value),), (node,), opsets={"my.domain": 1})
    with pytest.raises(PlanError) as caught:
        partition(custom, palette()[:1], strict=True)
    assert str(caught.value) == (
        "no engine of the list (red) takes 1 of 1 node; list an engine that takes them:\n"
        "  'n0' (my.domain.Twice): red: no kernel for my.domain.Twice"
    )


def test_a_long_list_of_nodes_that_nobody_takes_is_cut() -> None:
    with pytest.raises(PlanError) as caught:
        partition(chain("B" * 50), palette()[:2], strict=True)
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 30 more"


def test_strict_allows_every_engine_of_the_list() -> None:
    assert len(partition(chain("RB"), palette(), strict=True).launches) == 2


@pytest.mark.parametrize(
    ("engines", "implicit", "text"),
    [
        ([], None, "the list of engines is empty; list at least one"),
        (["red", "all", "red"], None, "engine 'red' stands twice in the list red, all, red; list each once"),
        (["red", "all"], "al", "implicit='al' is not in the list of engines: red, all. Did you mean 'all'?"),
    ],
)
def test_impossible_lists_of_engines(engines: list[str], implicit: str | None, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        partition(chain("R"), [engine(name) for name in engines], implicit=implicit)
    assert str(caught.value) == text
