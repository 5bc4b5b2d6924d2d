"""Whether an engine adds products of bytes in 32 bits on this processor, found by one trial with extreme values.

On x86 without VNNI, kernels for uint8 by int8 add two products in 16 bits, where 255 * 127 + 255 * 127 does not fit. Weights of 7
bits do. The trial is one product and one convolution; it takes some 10 ms and is done once per engine and process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.errors import XRTError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.verify.execution import run_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xrt.engines import GraphCompiler

__all__ = ["needs_reduced_range", "sums_bytes_exactly"]

_answers: dict[str, bool] = {}

CHANNELS = 16
INNER = 64


def needs_reduced_range(engines: Iterable[GraphCompiler]) -> bool:
    """Whether weights must be of 7 bits for the results of the engines that compute in integers to be right on this processor."""
    return not all(sums_bytes_exactly(engine) for engine in engines if engine.lower_precision("int8") is not None)


def sums_bytes_exactly(engine: GraphCompiler) -> bool:
    """Whether quantized products and convolutions of the largest numbers come out right on an engine.

    An engine that declines or fails computes none of them in integers, so the answer is yes.
    """
    if engine.spec not in _answers:
        _answers[engine.spec] = _try(engine)
    return _answers[engine.spec]


def _try(engine: GraphCompiler) -> bool:
    product, convolution = 255 * 127 * INNER, 255 * 127 * 9 * CHANNELS
    inputs = [np.full((4, INNER), 255, np.float32), np.full((1, CHANNELS, 8, 8), 255, np.float32)]
    try:
        sums, steps = run_alone(engine, _make_trial(product, convolution), inputs)
    except XRTError:
        return True
    return bool(np.abs(sums / product - 1).max() < 0.05 and np.abs(steps[0, 0, 4, 4] / convolution - 1) < 0.05)


def _make_trial(product: float, convolution: float) -> Function:
    """Make the Function: operands are pairs of QuantizeLinear and DequantizeLinear, as in any quantized model."""
    constants: dict[str, Any] = {
        "one": np.float32(1),
        "zero": np.uint8(0),
        "zeros": np.int8(0),
        "matrix": np.full((INNER, INNER), 127, np.int8),
        "kernel": np.full((CHANNELS, CHANNELS, 3, 3), 127, np.int8),
        "step": np.float32(convolution / 200),
    }
    nodes = [
        *(Node("QuantizeLinear", (name, "one", "zero"), (f"{name}_q",)) for name in ("a", "x")),
        *(Node("DequantizeLinear", (f"{name}_q", "one", "zero"), (f"{name}_d",)) for name in ("a", "x")),
        *(Node("DequantizeLinear", (name, "one", "zeros"), (f"{name}_d",)) for name in ("matrix", "kernel")),
        Node("MatMul", ("a_d", "matrix_d"), ("sums",)),
        Node("Conv", ("x_d", "kernel_d"), ("windows",)).with_attributes(pads=[1, 1, 1, 1]),
        Node("QuantizeLinear", ("windows", "step", "zero"), ("windows_q",)),
        Node("DequantizeLinear", ("windows_q", "step", "zero"), ("steps",)),
    ]
    inputs = Value("a", TensorType(DType.FLOAT32, (4, INNER))), Value("x", TensorType(DType.FLOAT32, (1, CHANNELS, 8, 8)))
    arrays = {name: Constant(np.asarray(array)) for name, array in constants.items()}
    return Function(inputs, (Value("sums"), Value("steps")), tuple(nodes), arrays, {"": 13}, name="byte_sums")
