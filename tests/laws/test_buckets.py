"""A Function with padded dims gives, in front of its results, what it gives without padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from tests.laws.laws import bounded, living, on_toy
from xrt.comparison import BIT_EQUAL, Tolerance, compare_all
from xrt.errors import XRTError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.module.sizes import round_up
from xrt.passes import infer_shapes
from xrt.passes.padding import PaddedFunction, pad_dims
from xrt.testing.strategies import Form, make_random_inputs

OPEN = Form(aliases=False, symbolic=False, empty=False)
NAMES = {3: "N", 2: "M"}


@st.composite
def opened(draw: st.DrawFn, form: Form = OPEN) -> Function:
    """Return a strategy for Functions with named extents of inputs."""
    function = draw(living(form))
    inputs = []
    for value in function.inputs:
        shape = tuple(NAMES[d] if d in NAMES and draw(st.integers(0, 2)) else d for d in value.type.shape)
        inputs.append(Value(value.name, TensorType(value.type.dtype, shape)))
    outputs = tuple(Value(value.name) for value in function.outputs)
    return infer_shapes(function.replace(inputs=tuple(inputs), outputs=outputs, types={}))


def test_sums_that_are_exact_are_equal_to_the_last_bit() -> None:
    """Sums of small integers are exact in any order: products and masks give the same bits."""
    nodes = (
        Node("MatMul", ("x", "weight"), ("wide",)),
        Node("Transpose", ("wide",), ("turned",)).with_attributes(perm=[1, 0]),
        Node("MatMul", ("turned", "wide"), ("square",)),
        Node("ReduceSum", ("wide", "axes"), ("sum",)).with_attributes(keepdims=0),
        Node("Add", ("square", "sum"), ("y",)),
    )
    rng = np.random.default_rng(5)
    constants = {"weight": Constant(rng.integers(-9, 9, (33, 17)).astype("float32")), "axes": Constant(np.array([0]))}
    x = Value("x", TensorType(DType.FLOAT32, ("N", 33)))
    function = infer_shapes(Function((x,), (Value("y"),), nodes, constants, opsets={"": 20}))
    padded = pad_dims(function)
    assert padded.fed == ("N",)
    for size in range(1, 70, 4):
        values = [rng.integers(-9, 9, (size, 33)).astype("float32")]
        found = run_padded(function, padded, values, {"N": size}, {"N": round_up(size)})
        assert compare_all(found, on_toy(function, values), BIT_EQUAL)


def quarters(function: Function, seed: int, sizes: dict[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact."""
    values = make_random_inputs(function, seed, sizes)
    return [np.rint(value * 4) / value.dtype.type(4) if value.dtype.kind == "f" else value for value in values]


def run_padded(
    function: Function, padded: PaddedFunction, values: list[Any], sizes: dict[str, int], larger: dict[str, int]
) -> Any:
    """Return what the padded form gives, cut."""
    whole = {name: larger[name] if name in padded.dims else size for name, size in sizes.items()}
    given = []
    for value, declared in zip(values, function.inputs, strict=True):
        filled = np.zeros([whole.get(d, d) for d in declared.type.shape], value.dtype)
        filled[tuple(map(slice, value.shape))] = value
        given.append(filled)
    fed = [np.array(sizes[name], np.int64) for name in padded.fed]
    return padded.cut(on_toy(padded.function, [*given, *fed]), sizes, whole)


def close_for(function: Function, padded: PaddedFunction) -> Tolerance:
    """Return how close results must be: to the last bit, where padding changes the order of no sum.

    A mask adds zeros to a sum, and NumPy's library for products adds up in another order for another number of rows.
    """
    adds_otherwise = padded.fed or any(node.op_type in ("Conv", "Gemm", "MatMul") for node in function.nodes)
    return Tolerance(rtol=1e-5, atol=1e-6, peak=1e-6) if adds_otherwise else BIT_EQUAL


@pytest.mark.slow
@bounded
@given(function=opened(), n=st.integers(1, 6), m=st.integers(1, 6), more=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_padded_begins_with_exact(function, n, m, more):
    padded = pad_dims(function)
    assume(padded.dims)
    for sizes in ({"N": 3, "M": 2}, {"N": n, "M": m}):
        larger = {name: size + extra for (name, size), extra in zip(sizes.items(), more, strict=True)}
        values = quarters(function, 11, sizes)
        try:
            expected = on_toy(function, values)
        except XRTError:
            continue  # a size that the model cannot have
        if padded.allows(sizes, sizes) and padded.allows(sizes, larger):
            found = compare_all(run_padded(function, padded, values, sizes, larger), expected, close_for(function, padded))
            assert found, found.message
