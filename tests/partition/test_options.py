"""Options and pins: what they mean, what is said of impossible ones; and what engines are asked, how often."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.exact_errors import raises_exactly
from tests.partition.drawn import F32, chain, engine, function, node, palette, regions
from xrt.engines import GraphCompiler
from xrt.errors import OptionError, PlanError
from xrt.graph import Attribute, AttrKind, Constant, DType, Function, Node, TensorType, Value, read_attributes
from xrt.partition import ClusteringOptions, Pin, SupportMatrix, partition
from xrt.partition.support_matrix import DeviceMap

HELP = "a pin reads like 'Conv|Gemm=ort' (force), 'Softmax!=tvm' (forbid) or 'name:/layer1/*=ort' (by node name)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"minimum_nodes": 0}, "minimum_nodes must be a positive integer; got 0"),
        ({"minimum_nodes": True}, "minimum_nodes must be a positive integer; got True"),
        ({"minimum_nodes": None}, "minimum_nodes must be a positive integer; got None"),
        ({"maximum_nodes": -1}, "maximum_nodes must be a positive integer or None; got -1"),
        ({"maximum_nodes": "3"}, "maximum_nodes must be a positive integer or None; got '3'"),
        ({"minimum_nodes": 5, "maximum_nodes": 4}, "minimum_nodes=5 is more than maximum_nodes=4; no cluster satisfies both"),
        ({"pins": 3}, "pins must be a list of pins or of their text; got 3"),
        ({"pins": [3]}, f"a pin is a Pin or its text; got int 3; {HELP}"),
    ],
)
def test_impossible_options(options: dict[str, Any], text: str) -> None:
    with raises_exactly(OptionError, text):
        ClusteringOptions(**options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Conv", f"'Conv' is not a pin; {HELP}"),
        ("=ort", f"'=ort' is not a pin; {HELP}"),
        ("Conv=", f"'Conv=' is not a pin; {HELP}"),
        ("Conv|=ort", f"the pin to 'ort' has no pattern for the operator; {HELP}"),
        ("name:=ort", f"the pin to 'ort' has no pattern for the name; {HELP}"),
        ("!Softmax=tvm", f"'!Softmax' is not an operator (letters, digits, '.', '*' and '?'); {HELP}"),
        ("/conv/1=tvm", f"'/conv/1' is not an operator (letters, digits, '.', '*' and '?'); {HELP}"),
    ],
)
def test_impossible_pins(text: str, message: str) -> None:
    with raises_exactly(OptionError, message):
        Pin.parse(text)
    with pytest.raises(OptionError, match=r"^a pin matches by 'operator' or 'name'; got 'type'$"):
        Pin(("Conv",), "ort", "type")  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("Conv|Gemm|MatMul=ort", Pin(("Conv", "Gemm", "MatMul"), "ort")),
        ("Softmax != tvm", Pin(("Softmax",), "tvm", forbid=True)),
        ("name:/layer1/*=ort", Pin(("/layer1/*",), "ort", "name")),
        ("name:a=b=ort", Pin(("a=b",), "ort", "name")),
        ("com.microsoft.*=ort{threads=2}", Pin(("com.microsoft.*",), "ort{threads=2}")),
        ("Conv=ort{a=1, b=(2, 3)}", Pin(("Conv",), "ort{a=1, b=(2, 3)}")),
    ],
)
def test_pins_as_text(text: str, pin: Pin) -> None:
    assert Pin.parse(text) == pin
    assert Pin.parse(str(pin)) == pin
    assert ClusteringOptions(pins=(text,)).pins == ClusteringOptions(pins=pin).pins == ClusteringOptions(pins=text).pins == (pin,)
    assert str(ClusteringOptions(2, 9, (text,))) == f"minimum_nodes=2, maximum_nodes=9, pin '{pin}'"


def test_patterns_match_the_whole_and_take_brackets_as_they_are() -> None:
    name = "/layer[0]/conv"
    assert Pin(("C?nv",), "a").matches("Conv")
    assert not Pin(("Con",), "a").matches("Conv")
    assert Pin(("Gemm", "/layer[0]/*"), "a", "name").matches(name)
    assert not Pin(("/layer0/*",), "a", "name").matches(name)
    fused = Node("Fused", (), ("y",), domain="com.microsoft", name="f")
    assert Pin(("com.microsoft.*",), "a").get_subject(fused) == "com.microsoft.Fused"
    assert Pin(("f",), "a", "name").get_subject(fused) == "f"


@pytest.mark.parametrize("patterns", [("Conv",), ("Con?",), ("C*", "*v"), ("Gemm", "Conv"), ("Softmax",), ("*",), ("conv",)])
def test_matching_is_matches_for_many(patterns: tuple[str, ...]) -> None:
    pin, subjects = Pin(patterns, "a"), ["Conv", "Gemm", "ConvTranspose", "Mul"]
    assert set(pin.find_matches(subjects)) == {subject for subject in subjects if pin.matches(subject)}


# ------------------------------------------------------------------ pins at work


PINNED, NO_GREEN, NO_BLUE = "pinned to green by 'Red=green'", "no kernel for Green", "no kernel for Blue"
AT_WORK: dict[str, tuple[str, dict[str, Any], list[tuple[str, str]], list[str]]] = {
    "a forcing pin leaves no other engine": (
        "RRGR", {"pins": "Red=green"}, [("green", "n0 n1 n2 n3")], [PINNED, PINNED, NO_GREEN, PINNED]
    ),
    "a forbidding pin leaves the others": (
        "RG", {"pins": ["Red!=red", "name:n1!=green"]}, [("green", "n0"), ("all", "n1")],
        ["kept from red by 'Red!=red'", NO_GREEN, "kept from green by 'name:n1!=green'"],
    ),
    "the last forcing pin holds": (
        "RRR", {"pins": ["*=all", "name:n1=green"]}, [("all", "n0"), ("green", "n1"), ("all", "n2")],
        [*["pinned to all by '*=all'"] * 2, "pinned to green by 'name:n1=green'", *["pinned to all by '*=all'"] * 2],
    ),
    "a small cluster goes to the next engine": (
        "GRG", {"minimum_nodes": 2}, [("green", "n0 n1 n2")],
        [NO_GREEN, "its cluster of 1 node is smaller than minimum_nodes=2", NO_GREEN],
    ),
    "a small cluster stays where no further engine takes it": (
        "B", {"minimum_nodes": 5}, [("all", "n0")], [NO_BLUE, NO_BLUE]
    ),
    "a dissolved cluster may dissolve again": (
        "BRB", {"minimum_nodes": 3}, [("all", "n0 n1 n2")],
        [NO_BLUE, NO_BLUE, *["its cluster of 1 node is smaller than minimum_nodes=3"] * 2, NO_BLUE, NO_BLUE],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_WORK)
def test_pins_and_sizes_decide_and_say_so(case: str) -> None:
    letters, options, expected, reasons = AT_WORK[case]
    plan = partition(chain(letters), palette(), ClusteringOptions(**options))
    assert regions(plan) == {(name, frozenset(nodes.split())) for name, nodes in expected}
    assert [reason.text for reason in plan.reasons] == reasons
    assert all(str(r).startswith(f"'{r.node}' ({r.op}) is not on {r.engine}: ") for r in plan.reasons)


def test_a_pin_by_spec_and_one_by_name_of_two_engines() -> None:
    engines = [engine("red", "Red", spec="red{level=1}"), engine("red", "Red", spec="red{level=2}"), engine("all")]
    assert regions(partition(chain("R"), engines, ClusteringOptions(pins="Red=red{level=2}"))) == {
        ("red{level=2}", frozenset({"n0"}))
    }
    assert regions(partition(chain("R"), engines, ClusteringOptions(pins="Red=red"))) == {("red{level=1}", frozenset({"n0"}))}
    assert regions(partition(chain("R"), engines, ClusteringOptions(pins="Red!=red"))) == {("all", frozenset({"n0"}))}


CANNOT_HOLD = [
    ("Red=gren", OptionError,
     "pin 'Red=gren' names engine 'gren', which is not in the list: all, green, red. Did you mean 'green'?"),
    ("name:n00=red", PlanError, "pin 'name:n00=red' matches no node of function 'main'. Did you mean 'n0'?"),
    ("Red2d=red", PlanError, "pin 'Red2d=red' matches no node of function 'main'. Did you mean 'Red'?"),
    (["Green=red", "Red=red"], PlanError, (
        "'Green=red' cannot be satisfied: no engine is left for 1 of 2 nodes; change the pin, or list an engine that takes "
        "them:\n  'n1' (Green): red: no kernel for Green; green: pinned to red by 'Green=red'; all: pinned to red by "
        "'Green=red'")),
]  # fmt: skip


@pytest.mark.parametrize(("pins", "kind", "text"), CANNOT_HOLD)
def test_a_pin_that_cannot_hold(pins: Any, kind: type[Exception], text: str) -> None:
    with raises_exactly(kind, text):
        partition(chain("RG"), palette(), ClusteringOptions(pins=pins))


# ------------------------------------------------------------------ sizes at work


def test_large_clusters_are_cut_evenly() -> None:
    plan = partition(chain("RRRRRRR"), palette(), ClusteringOptions(maximum_nodes=3))
    assert [len(launch.nodes) for launch in plan.launches] == [2, 2, 3]


def test_siblings_share_a_region() -> None:
    wide = function([node("Red", "x", f"v{i}", name=f"n{i}") for i in range(5)], "v0 v1 v2 v3 v4")
    assert len(partition(wide, palette()).launches) == 1


def test_a_region_may_wait_for_more_than_its_first_nodes_need() -> None:
    """The red node d needs nothing; in one region with c it waits for the blue b."""
    nodes = [
        node("Red", "x", "a", name="a"),
        node("Blue", "a", "b", name="b"),
        node("Red", "b", "c", name="c"),
        node("Red", "y", "d", name="d"),
        node("Red", "c d", "e", name="e"),
    ]
    graph = function(nodes, "e", "x y")
    assert regions(partition(graph, palette())) == {("red", frozenset("a")), ("all", frozenset("b")), ("red", frozenset("cde"))}


def asked_about(graph: Function) -> list[str]:
    curious = engine("curious")
    SupportMatrix.of(graph, [curious], DeviceMap())
    return type(curious).asked  # type: ignore[attr-defined, no-any-return]  # the mock's own list


def pair(**change: Any) -> Function:
    """Return two nodes that differ in names alone, and then in the given fields of the second."""
    first = node("Red", "x y", "a", name="first")
    second = replace(node("Red", "y x", "b", name="second"), **change)
    return function([first, second], "a b", "x y", constants={"c": Constant(np.zeros(4, np.float32))})


def test_nodes_that_differ_in_names_alone_are_asked_about_once() -> None:
    assert asked_about(pair()) == ["first"]
    assert asked_about(chain("RRGRG")) == ["n0", "n2"]


@pytest.mark.parametrize(
    "change",
    [
        {"op_type": "Green"},
        {"domain": "com.microsoft"},
        {"device": "cuda:1"},
        {"inputs": ("x", "x")},
        {"inputs": ("x", "")},
        {"inputs": ("x",)},
        {"inputs": ("x", "c")},
        {"outputs": ("b", "d")},
        {"attributes": read_attributes({"axis": 1})},
    ],
    ids=str,
)
def test_nodes_that_an_engine_can_tell_apart_are_asked_about_each(change: dict[str, Any]) -> None:
    assert asked_about(pair(**change)) == ["first", "second"]


@pytest.mark.parametrize(("one", "two"), [(1, 1.0), (0.0, -0.0), ("1", 1), ([1], [1.0])], ids=repr)
def test_attributes_that_only_python_takes_for_equal_are_asked_about_each(one: Any, two: Any) -> None:
    graph = pair(attributes=read_attributes({"k": two}))
    first = replace(graph.node("first"), attributes=read_attributes({"k": one}))
    assert asked_about(graph.replace(nodes=(first, graph.node("second")))) == ["first", "second"]


def looping(name: str) -> Node:
    body = Function((), (Value("b"),), (node("Inner", "x", "b"),), opsets={"": 20})
    return node("Red", "x", name, name=name, attributes=(Attribute("body", AttrKind.GRAPH, body),))


def reds(*reads_and_makes: str) -> list[Node]:
    """Return nodes of one operator, named by the first value that they make."""
    pairs = (text.split(" -> ") for text in reads_and_makes)
    return [node("Red", reads, makes, name=makes.partition(" ")[0]) for reads, makes in pairs]


WEIGHTS = {"c": Constant(np.zeros(4, np.float32)), "d": Constant(np.ones(4, np.float32))}
HALF = (Value("x", F32), Value("z", TensorType(DType.FLOAT16, (4,))))
DISTINGUISHED: dict[str, tuple[Function, list[str]]] = {
    "types": (Function(HALF, (Value("a"), Value("b")), tuple(reds("x -> a", "z -> b")), opsets={"": 20}), ["a", "b"]),
    "constants, not shared ones": (function(reds("c -> p", "d -> q", "c -> r"), "p q r", constants=WEIGHTS), ["p", "q"]),
    "bodies": (function([looping("p"), looping("q")], "p q"), ["p", "q"]),
    "outputs without readers": (
        function([*reds("x -> a b", "x -> c d", "x -> e f"), node("Green", "d", "g", name="g")], "a c e g"),
        ["a", "c", "g"],
    ),
}


@pytest.mark.parametrize(("graph", "asked"), DISTINGUISHED.values(), ids=DISTINGUISHED)
def test_what_nodes_read_hold_and_give_is_distinguished(graph: Function, asked: list[str]) -> None:
    assert asked_about(graph) == asked


def test_what_is_made_of_constants_is_distinguished_by_how_it_is_made() -> None:
    """An engine may find the value through the node: of a Constant, the Shape of a static value, or what is made of these."""
    nodes = [
        node("Constant", "", "p", name="p", attributes=read_attributes({"value": np.zeros(4, np.float32)})),
        node("Constant", "", "q", name="q", attributes=read_attributes({"value": np.ones(4, np.float32)})),
        node("Identity", "q", "r", name="r"),
        node("Shape", "x", "s", name="s"),
        *(node("Red", f"x {item}", f"y{i}", name=f"reads {item}") for i, item in enumerate("xpqqrs")),
    ]
    requests = asked_about(function(nodes, "y0 y1 y2 y3 y4 y5"))
    assert sorted(requests) == ["p", "q", "r", "reads p", "reads q", "reads r", "reads s", "reads x", "s"]


def broken(answer: Any) -> GraphCompiler:
    """Return an engine that answers so, or raises the answer, when it is asked whether it supports a node."""
    result = engine("broken", devices=("cpu",))
    type(result).why_not = Mock(side_effect=answer) if isinstance(answer, Exception) else Mock(return_value=answer)  # type: ignore[method-assign]
    return result


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KeyError("k"), "engine 'broken' failed when queried: KeyError: 'k'"),
        (RecursionError("deep"), "engine 'broken' failed when queried: RecursionError: deep"),
        ("", "engine 'broken' returned '' when queried, which is neither a reason nor None"),
        (True, "engine 'broken' returned True when queried, which is neither a reason nor None"),
    ],
    ids=repr,
)
def test_an_engine_that_misbehaves_declines(answer: Any, reason: str) -> None:
    plan = partition(chain("R"), [broken(answer), engine("all")])
    assert [(r.engine, r.text) for r in plan.reasons] == [("broken", reason)]


def test_an_engine_is_not_asked_about_a_device_that_it_does_not_run_on() -> None:
    """Nodes without a device run where the module does."""
    elsewhere = function([node("Red", "x", "y", name="n", device="cuda:1")], "y")
    for graph, device, name in ((elsewhere, "cpu", "cuda:1"), (chain("R"), "cuda", "cuda")):
        plan = partition(graph, [broken(ValueError("asked")), engine("all")], device_map=DeviceMap(device))
        assert [r.text for r in plan.reasons] == [f"the node runs on {name}; engine 'broken' runs on cpu"]
    with pytest.raises(PlanError, match=r"broken: the node runs on cuda; engine 'broken' runs on cpu"):
        partition(chain("R"), [broken(None)], device_map=DeviceMap("cuda"))
