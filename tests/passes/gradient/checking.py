"""Gradients compared with central differences in float64 on toy's Python kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import xrt
from tests.engines.toy_running import ready
from xrt.builder import DEFAULT_OPSET
from xrt.builder.tracing import trace
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import Function, TensorType
from xrt.graph.verify import verify, verify_types
from xrt.passes import infer_shapes

Array = np.ndarray[Any, Any]
STEP = 1e-5
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Case:
    """An expression with example inputs; those of float64 are differentiated."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[Array, ...]
    second: bool = True
    """Whether the gradient has a gradient too that is checked."""
    opset: int = DEFAULT_OPSET

    def __str__(self) -> str:
        return self.name


def make_function(build: Callable[..., Any], inputs: Sequence[Any], opset: int = DEFAULT_OPSET) -> Function:
    """Return the Function of an expression for inputs of those types."""
    return trace(build, *inputs, inference=infer_node_types, opsets=opset)


def run(function: Function, inputs: Sequence[Array]) -> list[Array]:
    return [np.asarray(value) for value in ready(infer_shapes(function)).run(inputs)]


def list_floats(function: Function, outputs: bool = False, dtype: str = "float64") -> list[str]:
    """Return the names of the inputs, or the outputs, of a type."""
    values = infer_shapes(function).outputs if outputs else function.inputs
    return [v.name for v in values if isinstance(v.type, TensorType) and v.type.dtype.text == dtype]


def assert_gradient(
    function: Function,
    inputs: Sequence[Array],
    *,
    second: bool = False,
    seed: int = 0,
    dtype: str = "float64",
    step: float = STEP,
    tolerance: float = TOLERANCE,
    same: float = 1e-12,
) -> None:
    """Compare the gradient of each input with central differences, along a random direction and with random seeds.

    With ``second`` the gradient is a function like another, and its own gradient is compared likewise. ``same`` says how near the
    Function's own outputs are to what they were.
    """
    draw = np.random.default_rng(seed)
    of, wanted = list_floats(function, outputs=True, dtype=dtype), list_floats(function, dtype=dtype)
    differentiated = xrt.gradient(function, of=of, with_respect_to=wanted, seeds=True)
    verify(differentiated)
    verify_types(infer_shapes(differentiated))
    names = [value.name for value in function.outputs]
    plain = run(function, inputs)
    seeds = [draw.standard_normal(plain[names.index(name)].shape).astype(dtype) for name in of]
    result = run(differentiated, [*inputs, *seeds])
    for before, after in zip(plain, result, strict=False):
        np.testing.assert_allclose(after, before, rtol=same, atol=same, err_msg="the outputs themselves have changed")
    executable = ready(infer_shapes(function))
    for name, gradient in zip(wanted, result[len(names) :], strict=True):
        place = [value.name for value in function.inputs].index(name)
        assert gradient.shape == inputs[place].shape, f"the gradient of {name} has another shape"
        assert gradient.dtype == inputs[place].dtype
        direction = draw.standard_normal(inputs[place].shape).astype(dtype)
        values = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[place] = inputs[place] + np.asarray(sign * step, dtype) * direction
            results = [np.asarray(value) for value in executable.run(moved)]
            values.append(sum(float(np.sum(s * results[names.index(n)])) for n, s in zip(of, seeds, strict=True)))
        expected = (values[0] - values[1]) / (2 * step)
        actual = float(np.sum(gradient * direction))
        assert abs(actual - expected) <= tolerance * max(1.0, abs(expected)), (
            f"{name}: {actual} by rule, {expected} by differences"
        )
    if second:
        graph = differentiated.replace(outputs=differentiated.outputs[len(names) :])
        assert_gradient(graph, [*inputs, *seeds], seed=seed + 1, dtype=dtype, step=step, tolerance=tolerance, same=same)
