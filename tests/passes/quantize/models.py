"""Small models to quantize, and tables with the extremes of their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import xrt
from xrt import passes
from xrt.formats.calibration_table import CalibrationTable
from xrt.graph import DType, Function, Node, TensorType
from xrt.module.programs import optimize
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
    return xrt.calibrate(function, batches, engine="toy")


def count_ops(function: Function) -> dict[str, int]:
    """Return how many nodes there are of each operator."""
    return dict(Counter(node.op for node in function.nodes))
