"""Chains as optimizers have them, of products, sums and differences: the bits of NumPy, in place too."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import xrt
from tests.engines.native_running import kernel_of, on_native, on_python
from xrt import training
from xrt.builder.tensor import Tensor
from xrt.engines.native.fusion import fuse_elementwise
from xrt.engines.native.tape import NativeTape, PreparedKernel
from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes

SIZE = 300
"""More than two tiles of the widest variant, and a part of one."""


def numbers(count: int, shape: tuple[int, ...], dtype: DType) -> list[Any]:
    draw = np.random.default_rng(count)
    return [draw.standard_normal(shape).astype(dtype.numpy) for _ in range(count)]


def chain(lines: str, outputs: str, dtype: DType = DType.FLOAT32) -> Function:
    """Return a Function of four vectors ``a`` to ``d`` and two scalars ``s`` and ``t``, one node per `result = operator x y`."""
    nodes = []
    for line in filter(None, map(str.strip, lines.split(";"))):
        result, _, op, *given = line.split()
        nodes.append(Node(op, tuple(given), (result,), name=result))
    vectors = [Value(name, TensorType(dtype, (SIZE,))) for name in "abcd"]
    scalars = [Value(name, TensorType(dtype, ())) for name in "st"]
    return infer_shapes(Function((*vectors, *scalars), tuple(map(Value, outputs.split())), tuple(nodes), opsets={"": 20}))


def inputs(dtype: DType = DType.FLOAT32) -> list[Any]:
    """Return what a chain reads; the third vector and the scalars are positive."""
    a, b, c, d = numbers(4, (SIZE,), dtype)
    return [a, b, np.abs(c), d, *(np.asarray(np.abs(x)) for x in numbers(2, (), dtype))]


ADAM = (
    "p = Mul a s; q = Mul b t; first = Add p q; u = Mul c s; v = Mul b b; w = Mul v t; second = Add u w; r = Sqrt second;"
    "e = Mul r s; f = Add e t; ratio = Div first f; x = Mul t ratio; next = Sub d x"
)
DECAYED = ADAM.replace("next = Sub d x", "y = Mul d s; next = Sub y x")
TWICE = "p = Mul a s; m = Add p b; q = Mul m t; n = Sub c q; r = Mul m m; y = Add r n; z = Mul d s; o = Sub z y"
SUMS = "p = Mul s a; x = Sub p b; q = Mul b t; y = Sub x q; r = Mul d t; u = Mul c t; v = Add r u; z = Add v y"
CHAINS = {
    "adam": (ADAM, "first second next"),
    "adam, decayed": (DECAYED, "next first second"),
    "values read twice": (TWICE, "m n o"),
    "sums": (SUMS, "x y z"),
}


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_any_output_may_lie_where_any_input_does(name: str, dtype: DType) -> None:
    function = chain(*CHAINS[name], dtype)
    with np.errstate(all="ignore"):
        expected = on_python(function, inputs(dtype))
    (node,) = (fused := fuse_elementwise(function)).nodes
    types = {value.name: value.type for value in function.inputs if isinstance(value.type, TensorType)}
    tape = NativeTape(
        types, [value.name for value in fused.outputs], [PreparedKernel(kernel_of(node, fused), node, fused)], {}, 1
    )
    for places in permutations(range(4), 3):
        given = [x.copy() for x in inputs(dtype)]
        tape.run(given, [given[place] for place in places])
        for place, right in zip(places, expected, strict=True):
            np.testing.assert_array_equal(given[place], right, err_msg=f"outputs over inputs {places}")
    for found, right in zip(tape.run(inputs(dtype)), expected, strict=True):
        np.testing.assert_array_equal(found, right)


@st.composite
def chains(draw: st.DrawFn) -> Function:
    """Draw products, sums and differences of vectors and scalars, most of which make one chain."""
    names, lines = ["a", "b", "c", "d"], []
    for i in range(draw(st.integers(2, 16))):
        op = draw(st.sampled_from(["Mul", "Add", "Sub", "Mul", "Sqrt", "Div"]))
        x, y = draw(st.sampled_from(names[-5:])), draw(st.sampled_from([*names, "s", "t", "s", "t"]))
        given = x if op == "Sqrt" else draw(st.sampled_from([f"{x} {y}", f"{y} {x}"]))
        lines.append(f"v{i} = {op} {given}")
        names.append(f"v{i}")
    outputs = draw(st.lists(st.sampled_from(names[4:]), min_size=1, max_size=4, unique=True))
    return chain(";".join(lines), " ".join(outputs), draw(st.sampled_from([DType.FLOAT32, DType.FLOAT64, DType.FLOAT16])))


@pytest.mark.slow
@given(chains())
@settings(max_examples=120, deadline=None)
def test_each_operator_rounds(function: Function) -> None:
    type_ = function.inputs[0].type
    assert isinstance(type_, TensorType)
    given_ = inputs(type_.dtype)
    with np.errstate(all="ignore"):
        expected = on_python(function, given_)
    for actual, right in zip(on_native(function, given_), expected, strict=True):
        np.testing.assert_array_equal(actual, right)


class Scaled(training.Adam):
    """Adam of a gradient that is scaled first, as clipping does."""

    def update(
        self, at: training.StepContext, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return super().update(at, parameter, gradient * at.rate_for(parameter), slots)


SHAPES = {"w": (SIZE,), "v": (2, SIZE)}
OPTIMIZERS = (
    training.Adam(),
    training.Adam(weight_decay=0.01),
    training.AdamW(),
    Scaled(),
    training.SGD(),
    training.SGD(weight_decay=0.1),
    training.SGD(momentum=0.9),
    training.SGD(momentum=0.9, nesterov=True),
    training.Adagrad(rate_decay=0.1),
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_updates_have_the_bits_of_numpy(optimizer: training.Optimizer) -> None:
    types = {name: TensorType(DType.FLOAT32, shape) for name, shape in SHAPES.items()}
    update = training.update(types, optimizer=optimizer)
    draw = np.random.default_rng(0)
    gradients: list[dict[str, Any]] = [
        {f"{name}_gradient": draw.standard_normal(SHAPES[name], "float32") for name in SHAPES} for _ in range(4)
    ]
    states = []
    for engine in ("toy", "toy{native=off}"):
        with xrt.XRTModule(update, engine) as module:
            session = module.new_session()
            for one in gradients:
                session(**one, learning_rate=np.float32(0.01))
            states.append({name: np.array(session.state[name]) for name in session.state})
    assert len(states[0]) > 2
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)
