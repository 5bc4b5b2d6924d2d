"""Native elementwise chains: which nodes are folded, and every operator, type, shape and broadcast against toy's Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from tests.engines import native_running
from tests.engines.native_running import SPECIAL, on_native, on_python, ulps
from tests.engines.written import Array, over_arrays
from xrt.engines.native.fusion import DOMAIN, ELEMENTWISE, MAX_CHAIN_NODES, OPCODE_RULES, fuse_elementwise
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, find_schema
from xrt.passes import infer_shapes
from xrt.testing.corpus.entry import node, tensor

BFLOAT16: Any = ml_dtypes.bfloat16
CURVES = ("Celu", "Elu", "Erf", "Exp", "Gelu", "Log", "Mish", "Selu", "Sigmoid", "Softplus", "Swish", "Tanh")
WITH_ATTRIBUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", {}),
    ("LeakyRelu", {"alpha": 0.1}),
    ("Shrink", {"bias": 0.5, "lambd": 1.0}),
    ("ThresholdedRelu", {"alpha": 0.7}),
    ("Celu", {"alpha": 1.5}),
    ("Elu", {"alpha": 1.5}),
    ("Selu", {"alpha": 1.5, "gamma": 2.0}),
    ("Swish", {"alpha": 0.7}),
    ("Gelu", {"approximate": "tanh"}),
    *(("IsInf", {"detect_positive": positive, "detect_negative": 1 - positive}) for positive in (0, 1)),
)
INEXACT = {*CURVES, *(op for op, _ in WITH_ATTRIBUTES)}
numbers = partial(native_running.numbers, special=True)


def check(op: str, *inputs: Array, attributes: dict[str, Any] | None = None, opset: int = 24, most: float = 0.0) -> None:
    """Compare one operator; ``most`` are the units in the last place that a float result may be off."""
    function = over_arrays(op, inputs, attributes, opset=opset)
    (expected,), (actual,) = on_python(function, inputs), on_native(function, inputs)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
    elif expected.dtype in (np.float32, np.float64):
        # Where a Gelu takes one from one, what is left is the rounding of both.
        with np.errstate(invalid="ignore"):
            near = np.abs(actual - expected) <= 1e-6 if op == "Gelu" else np.False_
        assert (near | (ulps(actual, expected) <= most)).all()
    else:
        np.testing.assert_allclose(
            actual.astype("f4"), expected.astype("f4"), rtol=2.0**-7 if expected.dtype == BFLOAT16 else 2e-3, atol=1e-4
        )


APART = ("Cast", "Clip", "Pow", "Where")
"""Operators with tests of their own."""


def list_operators() -> Iterator[tuple[str, DType, dict[str, Any]]]:
    for op, rule in OPCODE_RULES.items():
        yield from ((op, dtype, {}) for dtype in sorted(rule.dtypes, key=str) if op not in APART)
    for op, attributes in WITH_ATTRIBUTES:
        yield from ((op, dtype, attributes) for dtype in (DType.FLOAT32, DType.FLOAT64) if dtype in OPCODE_RULES[op].dtypes)


@pytest.mark.parametrize(("op", "dtype", "attributes"), list(list_operators()))
def test_operators(op: str, dtype: DType, attributes: dict[str, Any]) -> None:
    is_special, most = op != "Celu" and (not attributes or op == "IsInf"), 64.0 if op in INEXACT else 0.0
    schema = find_schema(op, 24)
    assert schema is not None
    x, *shapes = (5, 77), (5, 77), (77,), (1,), ()
    for shape in shapes if schema.max_input > 1 else shapes[:1]:
        operands = [numbers(x, dtype.numpy, special=is_special), np.asarray(numbers(shape, dtype.numpy, seed=1))]
        check(op, *operands[: schema.max_input], attributes=attributes, most=most)


def test_integers_divide_as_numpy_does() -> None:
    least = np.iinfo(np.int32).min
    a = np.array([7, -7, 7, -7, least, least, 5, 0], np.int32)
    b = np.array([2, 2, -2, -2, -1, 1, 0, 0], np.int32)
    check("Div", a, b)
    check("Div", a.astype(np.int64), b.astype(np.int64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, bool])
def test_where(dtype: Any) -> None:
    condition = numbers((5, 77), bool, seed=2)
    full, scalar = numbers((5, 77), dtype), np.asarray(numbers((), dtype, seed=1))
    for yes, no in [(full, numbers((77,), dtype, seed=1)), (full, scalar), (scalar, full), (scalar, scalar)]:
        check("Where", condition, yes, no)
    check("Where", numbers((5, 1), bool), full, scalar)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64])
def test_clip(dtype: Any) -> None:
    x, low, high = numbers((5, 77), dtype), np.asarray(-1, dtype), np.asarray(2, dtype)
    check("Clip", x, low, high)
    check("Clip", x, high, low)
    check("Clip", x, low)
    if dtype is np.float32:
        check("Clip", x, attributes={"min": -1.0, "max": 2.0}, opset=10)
        check("Clip", x, attributes={"max": 2.0}, opset=10)


CAST_FROM = [np.float32, np.float64, np.float16, BFLOAT16, np.int32, np.int64, bool, np.uint8, np.int8]
CAST_TO = [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.INT32, DType.INT64, DType.BOOL]


@pytest.mark.parametrize("to", CAST_TO, ids=str)
@pytest.mark.parametrize("dtype", CAST_FROM, ids=lambda dtype: np.dtype(dtype).name)
def test_cast(dtype: Any, to: DType) -> None:
    x = numbers((5, 77), dtype, special=False)
    function = over_arrays("Cast", [x], {"to": to.onnx})
    if fuse_elementwise(function).nodes[0].op_type == "Cast":
        assert to in (DType.FLOAT16, DType.BFLOAT16, DType.BOOL)
    else:
        check("Cast", x, attributes={"to": to.onnx})


def test_narrow_floats_are_rounded_to_the_nearest() -> None:
    x = np.array(
        [65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 2.9e-8, 3.1e-8, 1e-7, 6.1e-5, 2049, 2051, np.inf, np.nan, -0.0, 3e38],
        np.float32,
    )
    for to in (DType.FLOAT16, DType.BFLOAT16):
        function = over_arrays("Cast", [x], {"to": to.onnx})
        with np.errstate(over="ignore"):
            (actual,), expected = on_native(function, [x]), x.astype(to.numpy)
        np.testing.assert_array_equal(actual.view(np.uint16)[~np.isnan(x)], expected.view(np.uint16)[~np.isnan(x)])
        assert np.isnan(actual.astype(np.float32)[np.isnan(x)]).all()


def test_every_half_is_read_as_numpy_reads_it() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    (wide,) = on_native(over_arrays("Cast", [halves], {"to": DType.FLOAT32.onnx}), [halves])
    np.testing.assert_array_equal(wide, halves.astype(np.float32))


def test_powers() -> None:
    bases, exponents = np.meshgrid(
        np.float32([*SPECIAL, 2, -2, 3, 1e-3, 0.99, 1.01]), np.float32([*SPECIAL, 2, 3, -3, 7, 0.25, 1e4, 1e10, -1e10])
    )
    check("Pow", np.ascontiguousarray(bases), np.ascontiguousarray(exponents), most=2.0)
    x = np.abs(numbers((50, 50), special=False)) + np.float32(1e-3)
    check("Pow", x, numbers((50, 50), seed=1, special=False), most=2.0)
    check("Pow", x, np.float32(2.0).reshape(()), most=1.0)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (127,), (128,), (129,), (2, 3, 4, 5, 6, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, bool])
def test_shapes(shape: tuple[int, ...], dtype: Any) -> None:
    op = "And" if dtype is bool else "Add"
    check(op, numbers(shape, dtype), numbers(shape, dtype, seed=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_that_is_not_aligned(dtype: Any) -> None:
    raw = np.zeros(8 * 500 + 1, np.uint8)
    x = raw[np.dtype(dtype).itemsize // 4 : -8][: 400 * np.dtype(dtype).itemsize].view(dtype)
    x[:] = numbers((400,), dtype)
    check("Mul", x[3:], x[:-3])


@st.composite
def broadcasts(draw: st.DrawFn) -> list[Array]:
    """Draw two or three arrays that broadcast together."""
    shape = tuple(draw(st.lists(st.integers(0, 40) if draw(st.booleans()) else st.integers(1, 6), max_size=4)))
    arrays = []
    for seed in range(draw(st.integers(2, 3))):
        smaller = tuple(draw(st.sampled_from([extent, extent, 1])) for extent in shape)
        arrays.append(numbers(smaller[draw(st.integers(0, len(smaller))) :] if seed else shape, seed=seed))
    return arrays


@pytest.mark.slow
@given(broadcasts())
@settings(max_examples=150, deadline=None)
def test_broadcasts(arrays: list[Array]) -> None:
    check("Sum", *arrays)


SQUARE, ROW, ONE = tensor("float32[4,4]"), tensor("float32[4]"), tensor("float32[1]")


def graph(
    *nodes: Node, outputs: str, opset: int = 20, inputs: Mapping[str, TensorType] | None = None, **constants: Any
) -> Function:
    """Return a typed Function over squares of float32."""
    values = tuple(Value(name, type_) for name, type_ in (inputs or {"x": SQUARE}).items())
    held = {name: Constant(np.asarray(array, np.float32)) for name, array in constants.items()}
    return infer_shapes(Function(values, tuple(map(Value, outputs.split())), nodes, held, {"": opset}))


def members(function: Function) -> list[list[str]]:
    """Return the names of each chain's nodes."""
    return [sorted(n.attr("nodes")) for n in fuse_elementwise(function).nodes if (n.domain, n.op_type) == (DOMAIN, ELEMENTWISE)]


def test_a_path_that_leaves_and_comes_back_splits_a_chain() -> None:
    function = graph(node("Exp", "x", "a"), node("MatMul", "a a", "b"), node("Add", "a b", "c"), outputs="c")
    assert members(function) == [["a"], ["c"]]


def test_what_is_left_alone() -> None:
    alone = graph(node("Softmax", "x", "a"), outputs="a")
    assert fuse_elementwise(alone) is alone
    old = graph(node("Add", "x x", "a"), outputs="a", opset=6)
    assert fuse_elementwise(old) is old
    refused = graph(node("Exp", "x", "a"), outputs="a")
    assert fuse_elementwise(refused, lambda n: False) is refused
    controlled = refused.replace(nodes=(*refused.nodes, node("Neg", "x", "z", control=("a",))))
    assert fuse_elementwise(controlled) is controlled
    elsewhere = graph(Node("Exp", ("x",), ("a",), device="cuda:0"), outputs="a")
    assert fuse_elementwise(elsewhere) is elsewhere


def test_long_chains_are_cut() -> None:
    names = ["x", *(f"v{i}" for i in range(3 * MAX_CHAIN_NODES + 5))]
    function = graph(*(node("Neg", a, b) for a, b in pairwise(names)), outputs=names[-1])
    assert [len(chain) for chain in members(function)] == [MAX_CHAIN_NODES, MAX_CHAIN_NODES, MAX_CHAIN_NODES, 5]
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(on_native(function, [x])[0], -x)


@st.composite
def mixed_graphs(draw: st.DrawFn) -> Function:
    """Draw a graph of elementwise nodes, some over booleans and float64, with transposes between them."""
    names, nodes = ["x", "y", "row", "one"], []
    for i in range(draw(st.integers(1, 18))):
        a, b, c = draw(st.sampled_from(names[-6:] if i else names[:1])), *(draw(st.sampled_from(names)) for _ in range(2))
        op = draw(st.sampled_from(["Neg", "Relu", "Add", "Sub", "Mul", "Max", "Transpose", "Where", "Cast"]))
        if op == "Where":
            nodes += [node("Less", f"{a} {b}", f"b{i}"), node("Where", f"b{i} {c} {a}", f"v{i}")]
        elif op == "Cast":
            nodes += [node("Cast", a, f"c{i}", to=DType.FLOAT64.onnx), node("Cast", f"c{i}", f"v{i}", to=DType.FLOAT32.onnx)]
        else:
            nodes.append(node(op, a if op in ("Neg", "Relu", "Transpose") else f"{a} {b}", f"v{i}"))
        names.append(f"v{i}")
    outputs = draw(st.lists(st.sampled_from(names[4:]), min_size=1, max_size=3, unique=True))
    return graph(*nodes, outputs=" ".join(outputs), inputs={"x": SQUARE, "y": SQUARE, "row": ROW, "one": ONE})


@pytest.mark.slow
@given(mixed_graphs())
@settings(max_examples=200, deadline=None)
def test_chains_are_convex_and_compute_what_their_nodes_do(function: Function) -> None:
    """A Function cannot hold a cycle, so that it can be built shows that no chain waits for itself."""
    inputs = [numbers(value.type.shape, seed=k, special=False) for k, value in enumerate(function.inputs)]
    for actual, expected in zip(on_native(function, inputs), on_python(function, inputs), strict=True):
        np.testing.assert_array_equal(actual, expected)
    after = fuse_elementwise(function)
    folded = sum(len(n.attr("nodes")) for n in after.nodes if n.domain == DOMAIN)
    assert folded == sum(n.op_type != "Transpose" for n in function.nodes)
