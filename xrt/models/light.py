"""The light models of the ``onnx`` package, and random weights for them: in the files, all elements of a weight are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx import load
from xrt.graph import Constant, DType, Function, Node
from xrt.models.layer_builder import Array


@dataclass(frozen=True, slots=True)
class ActivationStatistics:
    """Expected mean and variance of a value's elements if the model's inputs are normally distributed."""

    mean: float
    variance: float

    @property
    def square(self) -> float:
        return self.mean**2 + self.variance


UNIT_STATISTICS = ActivationStatistics(0.0, 1.0)


def propagate_statistics(node: Node, statistics: Mapping[str, ActivationStatistics]) -> ActivationStatistics:
    """Estimate the mean and variance of a node's outputs. An operator without a rule keeps those of its first input."""
    inputs = [statistics[name] for name in node.uses if name in statistics]
    # The weights of these operators are drawn for outputs of mean 0 and variance 1.
    if not inputs or node.op_type in ("BatchNormalization", "Conv", "Gemm", "MatMul"):
        return UNIT_STATISTICS
    return _RULES[node.op_type](inputs) if node.op_type in _RULES else inputs[0]


def _rectify(inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Compute mean and variance of max(x, 0) for a normally distributed x."""
    mean = inputs[0].mean
    deviation = math.sqrt(inputs[0].variance) or 1e-6  # not 0, because z divides by it
    z = mean / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    above = (1 + math.erf(z / math.sqrt(2))) / 2
    new_mean = mean * above + deviation * density
    square = inputs[0].square * above + mean * deviation * density
    return ActivationStatistics(new_mean, square - new_mean**2)


def _pool_maximum(inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Estimate mean and variance of the maximum of a window, whose elements are correlated."""
    # The factors need not be exact: they only keep activations of deep networks in range.
    deviation = math.sqrt(inputs[0].variance)
    return ActivationStatistics(inputs[0].mean + 0.8 * deviation, 0.7 * inputs[0].variance)


def _add(inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Compute mean and variance of a sum of independent values."""
    return ActivationStatistics(sum(m.mean for m in inputs), sum(m.variance for m in inputs))


def _concatenate(inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Estimate mean and variance over all parts of a concatenation, as if they had equal sizes."""
    mean = sum(m.mean for m in inputs) / len(inputs)
    return ActivationStatistics(mean, sum(m.square for m in inputs) / len(inputs) - mean**2)


_RULES: dict[str, Callable[[Sequence[ActivationStatistics]], ActivationStatistics]] = {
    "Add": _add,
    "Concat": _concatenate,
    "MaxPool": _pool_maximum,
    "Relu": _rectify,
    "Sum": _add,
}
WeightMaker: TypeAlias = Callable[[np.random.Generator, tuple[int, ...], ActivationStatistics, Node], Array]
"""Draws a weight of the given shape for the given node, whose data input has the given statistics."""


def fill_random_weights(function: Function, seed: int = 0) -> Function:
    """Replace the float32 weights by random ones; the same seed and Function give the same bytes.

    A weight is a constant or a ``ConstantOfShape`` of a constant shape, which an operator in `_WEIGHT_MAKERS` reads, possibly
    after a Reshape. Scalars and all other values are unchanged.
    """
    weights = {name: Constant(array) for name, array in _draw_weights(function, np.random.default_rng(seed))}
    nodes = tuple(node for node in function.nodes if node.outputs[0] not in weights)
    # Drop the shapes that only the replaced ConstantOfShape nodes read.
    used = {name for node in nodes for name in node.uses} | {value.name for value in function.outputs}
    constants = {**function.constants, **weights}
    return function.replace(nodes=nodes, constants={name: c for name, c in constants.items() if name in used})


def _draw_weights(function: Function, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Yield the name and the new array of each weight, in the order of the nodes: a weight is scaled for its node's input."""
    weights = _find_weights(function)
    statistics = {value.name: UNIT_STATISTICS for value in function.inputs}
    drawn_names: set[str] = set()
    for node in function.nodes:
        if node.outputs[0] in weights:  # the node only makes or reshapes a weight
            continue
        # The first input that is not a weight: weights have no statistics.
        input_statistics = next((statistics[name] for name in node.inputs if name in statistics), UNIT_STATISTICS)
        for slot, name in enumerate(node.inputs):
            maker = _WEIGHT_MAKERS.get((node.op_type, slot))
            if maker is None or name not in weights:
                continue
            source, shape = weights[name]
            if source not in drawn_names:  # a shared weight is drawn once, for its first reader
                drawn_names.add(source)
                yield source, maker(rng, shape, input_statistics, node)
        statistics.update(dict.fromkeys(node.defined_names, propagate_statistics(node, statistics)))


def _find_weights(function: Function) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Map each value that may be a weight to the value to replace and its shape. The two names differ for a reshaped weight."""
    weights = {
        name: (name, constant.shape)
        for name, constant in function.constants.items()
        if constant.dtype is DType.FLOAT32 and constant.array.size > 1
    }
    for node in function.nodes:
        is_filled = node.op_type == "ConstantOfShape" and node.inputs[0] in function.constants
        # Without ``value``, the fill is zero in float32.
        if is_filled and ((fill := node.attr("value")) is None or fill.dtype is DType.FLOAT32):
            weights[node.outputs[0]] = node.outputs[0], tuple(map(int, function.constants[node.inputs[0]].array))
        elif node.op_type in ("Unsqueeze", "Reshape", "Identity") and node.inputs[0] in weights:
            weights[node.outputs[0]] = weights[node.inputs[0]]
    return weights


def _draw_product_weights(
    rng: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node
) -> Array:
    """Draw the weights of a Conv, Gemm or MatMul, scaled for outputs of unit variance."""
    if node.op_type == "Conv":
        fan_in = math.prod(shape[1:])
    else:
        rows, columns = shape[-2:]
        fan_in = columns if node.attr("transB", 0) else rows
    return _draw_normal(rng, shape, 0.0, 1 / math.sqrt(max(1.0, fan_in * statistics.square)))


def _draw_near_zero(rng: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return _draw_normal(rng, shape, 0.0, 0.1)


def _draw_mean(rng: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return _draw_normal(rng, shape, statistics.mean, 0.1 * math.sqrt(statistics.variance))


# Near the variance of the input, as in a trained batch normalization. `_draw_mean` is near its mean.
def _draw_variance(rng: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return _draw_near_one(rng, shape, statistics, node) * np.float32(statistics.variance)


def _draw_near_one(rng: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return rng.random(shape, dtype=np.float32) * np.float32(0.4) + np.float32(0.8)


def _draw_normal(rng: np.random.Generator, shape: tuple[int, ...], mean: float, deviation: float) -> Array:
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


_WEIGHT_MAKERS: dict[tuple[str, int], WeightMaker] = {
    ("Conv", 1): _draw_product_weights,
    ("Gemm", 1): _draw_product_weights,
    ("MatMul", 1): _draw_product_weights,
    ("Conv", 2): _draw_near_zero,
    ("Gemm", 2): _draw_near_zero,
    ("BatchNormalization", 1): _draw_near_one,
    ("BatchNormalization", 2): _draw_near_zero,
    ("BatchNormalization", 3): _draw_mean,
    ("BatchNormalization", 4): _draw_variance,
    ("Mul", 1): _draw_near_one,
    ("Add", 1): _draw_near_zero,
}
"""How to draw a weight, by the operator that reads it and the index among its inputs."""


def light_models() -> tuple[str, ...]:
    """List the names of the light models in the installed ``onnx`` package, sorted."""
    return tuple(sorted(path.stem.removeprefix("light_") for path in _find_folder().glob("light_*.onnx")))


def load_light(name: str, seed: int = 0) -> Function:
    """Load a light model with random weights; the same seed gives the same bytes.

    The weights take as much memory as in the original model: 575 MB for vgg19. Raises ModelError for an unknown name.
    """
    models = light_models()
    if name not in models:
        raise ModelError(f"there is no light model {name!r}.{did_you_mean(name, models)} There are: {', '.join(models)}")
    return fill_random_weights(load(_find_folder() / f"light_{name}.onnx"), seed)


def _find_folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
