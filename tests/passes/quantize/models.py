"""Small models to quantize, and tables with the extremes of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xrt import passes
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, hash_values
from xrt.module.programs import optimize
from xrt.passes.quantize import list_calibrated_values
from xrt.passes.quantize.form import prepare_for_quantization


def make_function(
    nodes: list[Node], constants: Mapping[str, Any], shape: tuple[int, ...], *outputs: str, opset: int = 20
) -> Function:
    """Return a Function of one float32 input ``x``; the output is ``y`` where none is named."""
    inputs = (Value("x", TensorType(DType.FLOAT32, shape)),)
    values = tuple(Value(name) for name in outputs or ("y",))
    weights = {name: Constant(np.asarray(array)) for name, array in constants.items()}
    return passes.infer_shapes(Function(inputs, values, tuple(nodes), weights, {"": opset}))


def prepare(function: Function) -> Function:
    """Return a model in the form in which it is quantized."""
    return prepare_for_quantization(optimize(passes.infer_shapes(function), fold=True))


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def make_table(function: Function, *batches: Mapping[str, Any]) -> CalibrationTable:
    """Return the extremes of each value over the batches."""
    names, keys = list_calibrated_values(function), hash_values(function)
    results = {value.name for value in function.inputs} | set(function.constants)
    inner = [name for name in names if name not in results]
    observed = function.replace(outputs=tuple(function.value(name) for name in inner))
    ranges = {}
    for batch in batches:
        values = dict(zip(inner, evaluate(observed, [batch[v.name] for v in function.inputs]), strict=True)) | dict(batch)
        for name in names:
            low, high = float(values[name].min()), float(values[name].max())
            low, high = (min(low, ranges[name].low), max(high, ranges[name].high)) if name in ranges else (low, high)
            ranges[name] = ValueRange(key=keys[name], low=low, high=high, least=low, most=high, name=name)
    return CalibrationTable(method="minmax", ranges=tuple(ranges.values()))


def count_ops(function: Function) -> dict[str, int]:
    """Return how many nodes there are of each operator."""
    results: dict[str, int] = {}
    for node in function.nodes:
        results[node.op] = results.get(node.op, 0) + 1
    return results
