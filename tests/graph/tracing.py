"""What the tests of the builder share: trace a callable, and compute what was traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

from xrt import builder
from xrt.formats import onnx
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, TensorType
from xrt.graph.verify import verify

F32 = TensorType(DType.FLOAT32, (2, 3))


def trace(build: Callable[..., Any], *inputs: Any, **options: Any) -> Function:
    """Return the function that a callable describes, checked against the rules."""
    function = builder.trace(build, *inputs, inference=infer_node_types, **options)
    verify(function)
    return function


def compute(function: Function, *arrays: Any) -> list[Any]:
    """Return what ONNX's reference makes of the inputs."""
    names = [value.name for value in function.inputs]
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(onnx.to_model(function)).run(None, dict(zip(names, arrays, strict=True))))


def compute_by_ort(function: Function, *arrays: Any) -> list[Any]:
    """Return what ONNX Runtime makes of the inputs; ONNX's reference has gaps in Loop and Scan."""
    session = onnxruntime.InferenceSession(onnx.to_model(function).SerializeToString())
    return list(session.run(None, {value.name: array for value, array in zip(function.inputs, arrays, strict=True)}))


def run(build: Callable[..., Any], *arrays: Any, by: Callable[..., list[Any]] = compute, **options: Any) -> list[Any]:
    """Trace a callable for such arrays and compute it on them; the types it infers must be those that come out."""
    function = trace(build, *arrays, **options)
    results = by(function, *arrays)
    for value, result in zip(function.outputs, results, strict=True):
        assert isinstance(value.type, TensorType)
        assert DType.from_array(np.asarray(result)) is value.type.dtype, value
        table = value.type.shape
        assert table is None or len(table) == np.ndim(result), value
        assert table is None or all(a == b or not isinstance(a, int) for a, b in zip(table, np.shape(result), strict=True)), value
    return results
