"""Contents of computed shapes, followed element by element, and the types and constants that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import parser

from tests.passes.quantize.models import count_ops
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.onnx import load
from xrt.graph import Constant, DType, Function, TensorType
from xrt.module.programs import optimize
from xrt.passes import drop_dead_nodes, fold_constants, infer_shapes, shape_inference
from xrt.passes.contents import PROPAGATED, Contents, propagate
from xrt.passes.extents import Extent
from xrt.testing.corpus.entry import graph, node
from xrt.testing.strategies import functions, make_random_inputs


def read(text: str, opset: int = 18) -> Function:
    return load(parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}'))


def ops(function: Function) -> list[str]:
    return [node.op for node in function.nodes]


SLICES = (
    "s{i} = Shape({x}) d{i} = Gather(s{i}, one) e{i} = Sub(d{i}, one) u{i} = Unsqueeze(e{i}, zero) "
    "h{i} = Slice({x}, zero, u{i}, axis)"
)
"""Cut off the last column: the bound is computed from the shape."""
PADS = (
    "s{i} = Shape({x}) d{i} = Slice(s{i}, axis, two) m{i} = Mod(d{i}, two) e{i} = Add(m{i}, axis) "
    "p{i} = Concat<axis = 0>(zero, zero, zero, e{i}) h{i} = Pad({x}, p{i})"
)
"""Pad to an even number of columns and one more."""
RESHAPES = (
    "s{i} = Shape({x}) b{i}, d{i} = Split<num_outputs = 2>(s{i}) e{i} = Div(d{i}, two) "
    "p{i} = Concat<axis = 0>(b{i}, e{i}, rest) q{i} = Reshape({x}, p{i}) "
    "g{i} = Concat<axis = 0>(b{i}, rest) h{i} = Reshape(q{i}, g{i})"
)
"""Fold the columns in two and back, the number of rows taken from the shape."""
EXPANDS = (
    "s{i} = Shape({x}) d{i} = Equal(s{i}, rest) e{i} = ConstantOfShape<value = int64[1] {{1}}>(two) "
    "p{i} = Where(d{i}, e{i}, s{i}) h{i} = Expand({x}, p{i})"
)
"""As exporters write expand(-1, ...): ones where the target says -1, which no extent is."""


def chain(block: str, count: int, rows: int | str, columns: int) -> Function:
    """Return so many blocks in a row, with a Relu behind each."""
    values = ["x", *(f"r{i}" for i in range(count))]
    nodes = " ".join(f"{block.format(i=i, x=values[i])} r{i} = Relu(h{i})" for i in range(count))
    constants = "int64 one = {1}, int64[1] zero = {0}, int64[1] axis = {1}, int64[1] two = {2}, int64[1] rest = {-1}"
    return read(f"(float[{rows},{columns}] x) => ({values[-1]}) <{constants}> {{ {nodes} }}")


BLOCKS = {
    "slice": (SLICES, {"Slice": 20, "Relu": 20}, 30),
    "pad": (PADS, {"Pad": 20, "Relu": 20}, 89),
    "reshape": (RESHAPES, {"Reshape": 40, "Relu": 20}, 50),
    "expand": (EXPANDS, {"Expand": 20, "Relu": 20}, 50),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_chain_of_blocks_is_resolved_in_one_walk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, expected, columns = BLOCKS[name]
    results: list[str] = []
    whole, single = shape_inference.infer_types, shape_inference.infer_node_types
    monkeypatch.setattr(shape_inference, "infer_types", lambda *given: results.append("all") or whole(*given))
    monkeypatch.setattr(shape_inference, "infer_node_types", lambda node, *given: results.append("one") or single(node, *given))
    for count in (20, 40):
        results.clear()
        simple = optimize(infer_shapes(chain(block, count, 2, 50)), fold=True)
        assert results.count("all") <= 4  # whatever the length
        assert results.count("one") <= 8 * count
        assert count_ops(simple) == {op: times * count // 20 for op, times in expected.items()}
    simple = optimize(infer_shapes(chain(block, 20, 2, 50)), fold=True)
    assert str(simple.outputs[0].type) == f"float32[2,{columns}]"


@pytest.mark.parametrize("name", BLOCKS)
def test_a_chain_of_blocks_with_a_named_extent(name: str) -> None:
    block, expected, columns = BLOCKS[name]
    simple = optimize(infer_shapes(chain(block, 20, "N", 50)), fold=True)
    assert str(simple.outputs[0].type) == f"float32[N,{columns}]"
    saved = count_ops(simple)
    assert {op: saved[op] for op in expected} == expected
    if name in ("slice", "pad"):  # what is computed of the known extent alone is constant
        assert saved == expected
    x = np.random.default_rng(0).standard_normal((3, 50), dtype=np.float32)
    function = chain(block, 20, "N", 50)
    np.testing.assert_array_equal(evaluate(simple, [x])[0], evaluate(infer_shapes(function), [x])[0])


ROWS = "s = Shape(x)  b = Gather(s, zero)  "
"""The first extent of x, in b."""

SHAPES = {
    "Reshape with a rest that cannot be known": ("x, k", ROWS + "t = Concat<axis=0>(b, k, rest)  y = Reshape(x, t)", "N,?,?"),
    "Reshape with a rest": ("x", ROWS + "t = Concat<axis=0>(b, two, rest)  y = Reshape(x, t)", "N,2,12"),
    "Reshape to a moved extent, which may be 0": (
        "w",
        "s = Shape(w)  n = Gather(s, one)  t = Concat<axis=0>(n, rest)  y = Reshape(w, t)",
        "N,?",  # (1, 0) for N = 0: an extent of 0 copies the one at its place
    ),
    "Reshape to an unknown extent": ("x, k", "t = Concat<axis=0>(k, two)  y = Reshape(x, t)", "?,2"),
    "Slice of one axis by a bound of the run": ("x, k", "y = Slice(x, zero, k, two)", "N,4,?"),
    "Slice of all of a named extent": ("x", ROWS + "y = Slice(x, zero, b, zero)", "N,4,6"),
    "Slice by axes of the run": ("x, k", "y = Slice(x, zero, two, k)", "?,?,?"),
    "Pad by amounts of the run": ("x, k", "p = Concat<axis=0>(zero, k, zero, zero, zero, two)  y = Pad(x, p)", "N,?,8"),
    "Pad of axes": ("x", "p = Concat<axis=0>(two, zero)  y = Pad(x, p, , two)", "N,4,8"),
    "Expand": ("x, z", ROWS + "t = Concat<axis=0>(two, b, four)  y = Expand(z, t)", "2,N,4"),
    "Tile": ("x, k", "t = Concat<axis=0>(one, k, two)  y = Tile(x, t)", "N,?,12"),
    "ConstantOfShape": ("x, k", "s = Shape(x)  t = Concat<axis=0>(s, k)  y = ConstantOfShape(t)", "N,4,6,?"),
    "Range to a named extent": ("x", "s = Shape(x)  n = Gather(s, first)  y = Range(first, n, step)", "N"),
    "Range to a tensor of one element": ("x, k", "y = Range(first, four, step)", "4"),
    "Resize by scales": ("q", "r = Constant<value = float[4] {1, 1, 2, 2}>()  y = Resize(q, , r)", "N,4,12,12"),
    "Resize to sizes": ("x", "s = Shape<end=2>(x)  t = Concat<axis=0>(s, two)  y = Resize(x, , , t)", "N,4,2"),
}
INPUTS = {"w": "float[1,N,6] w", "q": "float[N,4,6,6] q", "x": "float[N,4,6] x", "k": "int64[1] k", "z": "float[1,4] z"}
CONSTANTS = ", ".join(f"int64[1] {name} = {{{n}}}" for name, n in {"zero": 0, "one": 1, "two": 2, "four": 4, "rest": -1}.items())


@pytest.mark.parametrize(("inputs", "text", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_follow(inputs: str, text: str, expected: str) -> None:
    data = ", ".join(INPUTS[name] for name in inputs.split(", "))
    function = read(f"({data}) => (y) <{CONSTANTS}, int64 first = {{0}}, int64 step = {{1}}> {{ {text} }}")
    (output,) = infer_shapes(function).outputs
    assert str(output.type).partition("[")[2] == expected + "]"


def test_what_comes_from_outside_of_a_body_is_known_inside() -> None:
    text = """(bool p, float[3,4] x) => (y) <int64[1] rest = {-1}> {
        s = Shape(x)
        y = If(p) <then_branch = t () => (a) { n = ReduceProd<keepdims=1>(s)  a = Reshape(x, n) },
                   else_branch = e () => (b) { b = Reshape(x, rest) }>
    }"""
    simple = optimize(infer_shapes(read(text)), fold=True)
    assert [ops(body) for body in simple.nodes[0].bodies] == [["Reshape"], ["Reshape"]]
    assert str(simple.outputs[0].type) == "float32[12]"


def test_an_if_that_is_decided_by_a_shape_is_inlined_on_the_way() -> None:
    text = """(float[N,1,4] x) => (y) <int64 one = {1}, int64[1] axis = {1}> {
        s = Shape(x)  n = Gather(s, one)  p = Equal(n, one)
        y = If(p) <then_branch = t () => (a) { a = Squeeze(x, axis) }, else_branch = e () => (b) { b = Identity(x) }>
    }"""
    simple = optimize(infer_shapes(read(text)), fold=True)
    assert ops(simple) == ["Squeeze"]
    assert str(simple.outputs[0].type) == "float32[N,4]"


def test_equal_names_are_no_reason_to_take_a_number_for_known() -> None:
    """A declared name is a claim: here both are called N and differ at run time."""
    text = (
        "(float[N] x, float[M] z) => (int64[1] y) <float[N] a> { a = Compress(z, c)  s = Shape(x)  t = Shape(a)  y = Sub(s, t) }"
    )
    function = read(text.replace("float[M] z", "float[M] z, bool[M] c"))
    simple = optimize(infer_shapes(function), fold=True)
    x, z, c = np.zeros(2, np.float32), np.zeros(5, np.float32), np.array([1, 1, 1, 1, 0], bool)
    assert evaluate(simple, [x, z, c])[0].tolist() == [-2]


def test_a_node_of_a_control_edge_is_followed_and_stays() -> None:
    nodes = node("Shape", "x", "s", name="first"), node("ConstantOfShape", "s", "y", control=("first",))
    inferred = infer_shapes(graph({"x": "float32[2,3]"}, {"y": None}, *nodes))
    assert str(inferred.outputs[0].type) == "float32[2,3]"
    assert ops(fold_constants(inferred, evaluate)) == ["Shape", "ConstantOfShape"]


A, B, FLAGS = np.array([[3, -2], [0, 7]]), np.array([[2, 2], [5, -3]]), np.array([[True, False], [False, True]])


def case(op: str, *inputs: Any, opset: int = 18, outputs: int = 1, **attributes: Any) -> Any:
    return pytest.param(op, inputs, attributes, opset, outputs, id=f"{op}-{len(inputs)}-{attributes}-{opset}")


I = np.array  # noqa: E741
BINARY_INTEGERS = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
UNARY_INTEGERS = ("Neg", "Abs", "Identity", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin", "Transpose", "Size", "Shape")
REALS = np.array([1.5, -1.5, 2.0], np.float32)
CASES = [
    *(case(op, A, B) for op in BINARY_INTEGERS),
    *(case(op, A.astype(np.float32), B.astype(np.float32)) for op in ("Add", "Sub", "Mul", "Div")),
    *(case(op, A) for op in UNARY_INTEGERS),
    *(case("Min", A, B, np.array(1)), case("Mod", A, B), case("Mod", A, B, fmod=1), case("Add", A, np.array(3))),
    *(case("Not", FLAGS), *(case(op, FLAGS, np.array([True, False])) for op in ("And", "Or"))),
    case("Where", FLAGS, A, np.array(9)),
    *(case(op, REALS) for op in ("Floor", "Ceil")),
    *(case("Cast", A, to=to) for to in (1, 6, 7, 9, 11)),
    *(case("Cast", np.array([1.9, -1.9], np.float32), to=7), case("Cast", np.array([1 << 40]), to=6)),
    case("Shape", A, start=-1),
    case("Gather", A, np.array(-1)),
    case("Gather", A, np.array([[0, 1]]), axis=1),
    case("Gather", np.array([4, 5]), np.array(1)),
    case("Slice", A, I([0]), I([1])),
    case("Slice", A, I([-1]), I([-(1 << 62)]), I([1]), I([-1])),
    case("Slice", A, I([5]), I([9]), I([0])),
    case("Slice", A, I([-5]), I([-(1 << 63)]), I([0]), I([-1])),
    case("Slice", A, opset=9, starts=[0, 1], ends=[1, 2], axes=[1, 0]),
    *(case("Squeeze", A[:1], I([0])), case("Squeeze", A[:1, :1]), case("Squeeze", A[:1], opset=11, axes=[0])),
    *(case("Unsqueeze", A, I([0, -1])), case("Unsqueeze", A, opset=11, axes=[1])),
    *(case("Reshape", A, I([0, -1])), case("Reshape", A, I([4])), case("Expand", A[:1], I([2, 1])), case("Tile", A, I([1, 3]))),
    case("ConstantOfShape", I([2, 3]), value=I([7])),
    case("Transpose", np.arange(6).reshape(1, 2, 3), perm=[2, 0, 1]),
    *(case("Concat", A, B, axis=1), case("Concat", A[0], B[0], A[1], axis=-1)),
    case("Split", np.arange(5), outputs=2, num_outputs=2),
    case("Split", np.arange(5), I([2, 3]), outputs=2),
    case("Split", np.arange(6), opset=11, outputs=2, split=[2, 4]),
    *(case("ReduceProd", A, I([1]), keepdims=0), case("ReduceProd", A, opset=13, axes=[0])),
    *(case("ReduceSum", A, noop_with_empty_axes=1), case("ReduceSum", A, I([0]))),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "opset", "outputs"), CASES)
def test_what_is_known_is_what_the_reference_computes(op: str, inputs: Any, attributes: Any, opset: int, outputs: int) -> None:
    arrays = {f"i{k}": array for k, array in enumerate(inputs)}
    results = [f"o{k}" for k in range(outputs)]
    single = node(op, " ".join(arrays), " ".join(results), **attributes)
    constants = [Constant(array) for array in inputs]
    result = propagate(single, [Contents.of(constant) for constant in constants], [constant.type for constant in constants])
    function = infer_shapes(graph({}, dict.fromkeys(results), single, constants=arrays, opset=opset))
    assert result is not None
    for contents, expected in zip(result, evaluate(function, []), strict=True):
        constant = contents.to_constant()
        assert constant.array.dtype == expected.dtype
        np.testing.assert_array_equal(constant.array, expected)


def test_every_rule_has_a_case() -> None:
    assert {item.values[0] for item in CASES} == PROPAGATED


N, Q = Extent.of("N"), None  # an extent, and nothing known
PARTLY: list[tuple[str, list[Any], list[Any]]] = [
    ("Add", [[N, 0, Q], [0, N, 0]], [N, N, Q]),
    ("Add", [[N, N], [1, N]], [N + 1, Q]),
    ("Sub", [[N, N, 5], [0, N, N]], [N, Q, 5 - N]),
    ("Mul", [[N, 1, N], [1, N, 0]], [N, N, 0]),
    ("Div", [[N, N, 4, N * 4], [1, 2, 0, 2]], [N, Q, Q, N * 2]),
    ("Max", [[N, N, -1], [0, 1, N]], [N, Q, N]),
    ("Min", [[N, N], [0, 1]], [0, Q]),
    ("Equal", [[N, N, -1, N], [-1, 1, N, N]], [False, Q, False, Q]),
    ("Less", [[N, -1, N, 0], [0, N, 1, N]], [False, True, Q, Q]),
    ("LessOrEqual", [[N, 0, N], [-1, N, 0]], [False, True, Q]),
    ("Greater", [[0, N], [N, -1]], [False, True]),
    ("GreaterOrEqual", [[-1, N], [N, 0]], [False, True]),
]


@pytest.mark.parametrize(("op", "inputs", "expected"), PARTLY, ids=lambda value: value if isinstance(value, str) else "")
def test_names_and_unknown_elements(op: str, inputs: list[Any], expected: list[Any]) -> None:
    contents = [Contents(DType.INT64, np.array(elements, object)) for elements in inputs]
    type_ = TensorType(DType.INT64, (len(expected),))
    result = propagate(node(op, "a b", "c"), contents, [type_, type_])
    assert result[0].elements.tolist() == expected


@pytest.mark.slow
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_integer_arithmetic_is_the_references(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"]))
    numbers = st.lists(st.one_of(st.integers(-9, 9), st.integers(-(2**63), 2**63 - 1)), min_size=3, max_size=3)
    a, b = (np.array(data.draw(numbers), np.int64) for _ in "ab")
    constants, single = [Constant(a), Constant(b)], node(op, "a b", "c")
    result = propagate(single, [Contents.of(c) for c in constants], [c.type for c in constants])
    if result is None or result[0] is None:
        assert op in ("Div", "Mod")
        assert not b.all()
        return
    function = infer_shapes(graph({}, {"c": None}, single, constants={"a": a, "b": b}))
    np.testing.assert_array_equal(result[0].elements.astype(np.int64), evaluate(function, [])[0])


@pytest.mark.slow
@given(functions())
@settings(max_examples=60, deadline=None)
def test_simplified_functions_compute_the_same_bits(function: Function) -> None:
    simple = optimize(infer_shapes(function), fold=True)
    inputs = list(make_random_inputs(function, 0))
    before = evaluate(drop_dead_nodes(infer_shapes(function)), [np.copy(x) for x in inputs])
    for actual, expected in zip(evaluate(simple, inputs), before, strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert optimize(infer_shapes(simple), fold=True) == simple
