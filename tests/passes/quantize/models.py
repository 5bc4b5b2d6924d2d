"""Small models to quantize, and tables with the extremes of their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xrt import passes
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.formats.calibration_table import CalibrationTable, ValueRange
from xrt.graph import DType, Function, Node, TensorType, hash_values
from xrt.module.programs import optimize
from xrt.passes.quantize import list_calibrated_values
from xrt.passes.quantize.form import prepare_for_quantization
from xrt.testing.corpus.entry import graph


def make_function(
    nodes: Sequence[Node], constants: Mapping[str, Any], shape: tuple[int | str, ...], *outputs: str, opset: int = 20
) -> Function:
    """Return a Function of one float32 input ``x``; the output is ``y`` where none is named."""
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    x, results = TensorType(DType.FLOAT32, shape), dict.fromkeys(outputs or ("y",))
    return passes.infer_shapes(graph({"x": x}, results, *nodes, constants=arrays, opset=opset))


def prepare(function: Function) -> Function:
    """Return a model in the form in which it is quantized."""
    return prepare_for_quantization(optimize(passes.infer_shapes(function), fold=True))


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def make_table(function: Function, *batches: Mapping[str, Any]) -> CalibrationTable:
    """Return the extremes of each value over the batches."""
    names, keys = list_calibrated_values(function), hash_values(function)
    constants = {name: constant.array for name, constant in function.constants.items()}
    inner = [name for name in names if name not in constants and name not in {value.name for value in function.inputs}]
    observed = function.replace(outputs=tuple(function.value(name) for name in inner), aliases=())
    ranges = {}
    for batch in batches:
        values = constants | dict(batch)
        values |= zip(inner, evaluate(observed, [batch[v.name] for v in function.inputs]), strict=True)
        for name in names:
            low, high = float(values[name].min()), float(values[name].max())
            low, high = (min(low, ranges[name].low), max(high, ranges[name].high)) if name in ranges else (low, high)
            ranges[name] = ValueRange(key=keys[name], low=low, high=high, least=low, most=high, name=name)
    return CalibrationTable(method="minmax", ranges=tuple(ranges.values()))


def count_ops(function: Function) -> dict[str, int]:
    """Return how many nodes there are of each operator."""
    return dict(Counter(node.op for node in function.nodes))
