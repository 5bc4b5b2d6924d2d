"""A Function with padded dims gives, in front of its results, what it gives without padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.laws import bounded, living, on_toy
from xrt.comparison import BIT_EQUAL, compare_all, tolerance_for
from xrt.errors import XRTError
from xrt.graph import Function, TensorType, Value
from xrt.passes import infer_shapes
from xrt.passes.padding import pad_dims
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


def quarters(function: Function, seed: int, sizes: dict[str, int]) -> list[Any]:
    """Return inputs whose sums and products are exact."""
    values = make_random_inputs(function, seed, sizes)
    return [np.rint(value * 4) / value.dtype.type(4) if value.dtype.kind == "f" else value for value in values]
