"""Test with extreme values whether an engine adds products of bytes in 32 bits on this processor.

On x86 without VNNI, kernels for uint8 by int8 add two products in 16 bits. The sum 255 * 127 + 255 * 127 overflows these; with
weights of 7 bits no sum does. Products and convolutions are tried separately, since an engine may support only one of the two. A
trial takes some 10 ms per engine and process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from xrt.errors import CompileRefused
from xrt.graph import Constant, DType, Function, Node, TensorType, Value
from xrt.verify.execution import run_alone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xrt.engines import GraphCompiler


Array: TypeAlias = "np.ndarray[Any, Any]"

_results: dict[str, bool] = {}
"""Results by engine spec, for this process."""
CHANNELS = 16
INNER_DIM = 64


def needs_reduced_range(engines: Iterable[GraphCompiler]) -> bool:
    """Whether quantized weights must have 7 bits, because integer kernels of an engine overflow on this processor."""
    return not all(sums_bytes_exactly(engine) for engine in engines if engine.with_precision("int8") is not None)


def sums_bytes_exactly(engine: GraphCompiler) -> bool:
    """Whether an engine computes quantized products and convolutions of the largest bytes correctly. Measured once per process.

    An unsupported operator counts as correct, since another engine computes it. False if a trial fails.
    """
    if engine.spec not in _results:
        try:
            is_exact = _is_exact(engine, *_make_product()) and _is_exact(engine, *_make_convolution())
        except Exception:  # noqa: BLE001  # a library may raise anything
            is_exact = False
        _results[engine.spec] = is_exact
    return _results[engine.spec]


def _is_exact(engine: GraphCompiler, function: Function, values: Array, expected: float) -> bool:
    """Run a trial on these inputs, and compare all results with one expected number. True if the engine refuses it."""
    try:
        (result,) = run_alone(engine, function, [values])
    except CompileRefused:
        return True
    # The center of a convolution, because zeros of the padding reduce the sums at the edges.
    center = result[0, 0, 4, 4] if result.ndim == 4 else result
    return bool(np.abs(center / expected - 1).max() < 0.05)


def _make_product() -> tuple[Function, Array, float]:
    weights, shape = np.full((INNER_DIM, INNER_DIM), 127, np.int8), (4, INNER_DIM)
    function = _make_trial(weights, (Node("MatMul", ("x_d", "w_d"), ("y",)),), shape)
    return function, np.full(shape, 255, np.float32), 255 * 127 * INNER_DIM


def _make_convolution() -> tuple[Function, Array, float]:
    expected = 255 * 127 * 9 * CHANNELS
    nodes = (
        Node("Conv", ("x_d", "w_d"), ("windows",)).with_attributes(pads=[1, 1, 1, 1]),
        Node("QuantizeLinear", ("windows", "step", "zero"), ("windows_q",)),
        Node("DequantizeLinear", ("windows_q", "step", "zero"), ("y",)),
    )
    shape = (1, CHANNELS, 8, 8)
    weights = np.full((CHANNELS, CHANNELS, 3, 3), 127, np.int8)
    function = _make_trial(weights, nodes, shape, step=np.float32(expected / 200))  # the sum is 200 of at most 255 steps
    return function, np.full(shape, 255, np.float32), expected


def _make_trial(weights: Array, nodes: tuple[Node, ...], shape: tuple[int, ...], **more: Any) -> Function:
    """Build a Function whose operands ``x_d`` and ``w_d`` are quantized and dequantized, as in a quantized model."""
    arrays = {"one": np.float32(1), "zero": np.uint8(0), "zeros": np.int8(0), "w": weights, **more}
    operands = (
        Node("QuantizeLinear", ("x", "one", "zero"), ("x_q",)),
        Node("DequantizeLinear", ("x_q", "one", "zero"), ("x_d",)),
        Node("DequantizeLinear", ("w", "one", "zeros"), ("w_d",)),
    )
    constants = {name: Constant(np.asarray(array)) for name, array in arrays.items()}
    inputs = (Value("x", TensorType(DType.FLOAT32, shape)),)
    return Function(inputs, (Value("y"),), (*operands, *nodes), constants, {"": 13}, name="byte_sums")
