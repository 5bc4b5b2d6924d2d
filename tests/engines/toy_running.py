"""Functions from names with blanks between them, and nodes run on the Python kernels of the toy engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.engines import written
from tests.engines.written import Array, over_arrays
from xrt.engines.toy import Toy
from xrt.graph import DType, Function, Node, TensorType, Value, latest_opset

ready, run = (partial(helper, Toy(native="off")) for helper in (written.compiled, written.run))


def function(inputs: str, outputs: str, *nodes: Node, opset: int | None = None, **more: Any) -> Function:
    """Return a Function whose inputs and outputs are of unknown types."""
    untyped = dict.fromkeys(inputs.split())
    return written.function(*nodes, inputs=untyped, outputs=outputs.split(), opset=opset or latest_opset(), **more)


def typed(name: str, array: Array) -> Value:
    return Value(name, TensorType(DType.from_array(array), array.shape))


def one(op: str, *inputs: Array | None, opset: int | None = None, outputs: int = 1, **attributes: Any) -> Any:
    """Run one node; None is a left-out input. Returns the output, or the list of several."""
    f = over_arrays(op, inputs, attributes, opset=opset or latest_opset(), n_outputs=outputs)
    results = run(f, *(x for x in inputs if x is not None))
    return results[0] if outputs == 1 else results


def same(actual: Any, expected: Any) -> None:
    """Demand equal dtype, shape and values, to float32's rounding: a sum is as inexact as its summands are large."""
    assert isinstance(actual, np.ndarray), type(actual)
    expected = np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.dtype.kind in "fc":
        largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * largest)
    else:
        np.testing.assert_array_equal(actual, expected)
