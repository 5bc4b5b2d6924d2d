"""The light models of the ``onnx`` package: real architectures whose weights are constant fills, and random weights for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from xrt.errors import ModelError, did_you_mean
from xrt.formats.onnx import load
from xrt.graph import Constant, DType, Function, Node


@dataclass(frozen=True, slots=True)
class ActivationStatistics:
    """Expected mean and variance of a value's elements if the model's inputs are normally distributed."""

    mean: float
    variance: float

    @property
    def square(self) -> float:
        """Mean square of the elements."""
        return self.mean**2 + self.variance


UNIT = ActivationStatistics(0.0, 1.0)


def propagate_statistics(node: Node, statistics: Mapping[str, ActivationStatistics]) -> ActivationStatistics:
    """Estimate the mean and variance of a node's outputs. Without a rule for its operator, they are those of its first input."""
    inputs = [statistics[name] for name in node.uses if name in statistics]
    rule = _RULES.get(node.op_type)
    return UNIT if not inputs else inputs[0] if rule is None else rule(node, inputs)


def _unit(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Moments of a product's outputs: mean 0 and variance 1, since `_draw_product_weights` scales its weights for that."""
    return UNIT


def _relu(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Moments of a rectified normal distribution."""
    # Not 0: z divides by it.
    mean, deviation = inputs[0].mean, math.sqrt(inputs[0].variance) or 1e-6
    z = mean / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    above = (1 + math.erf(z / math.sqrt(2))) / 2
    new_mean = mean * above + deviation * density
    square = inputs[0].square * above + mean * deviation * density
    return ActivationStatistics(new_mean, square - new_mean**2)


def _max_pool(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Moments of the maximum of a window, estimated between those of one element and of independent elements."""
    # Neighbors are correlated. The factors need not be exact: they only keep activations of deep networks in range.
    deviation = math.sqrt(inputs[0].variance)
    return ActivationStatistics(inputs[0].mean + 0.8 * deviation, 0.7 * inputs[0].variance)


def _sum(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Moments of a sum of independent values."""
    return ActivationStatistics(sum(m.mean for m in inputs), sum(m.variance for m in inputs))


def _concat(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Moments of a mixture of the parts with equal weights, though their sizes may differ."""
    mean = sum(m.mean for m in inputs) / len(inputs)
    return ActivationStatistics(mean, sum(m.square for m in inputs) / len(inputs) - mean**2)


_RULES: dict[str, Callable[[Node, Sequence[ActivationStatistics]], ActivationStatistics]] = {
    "Add": _sum,
    "BatchNormalization": _unit,
    "Concat": _concat,
    "Conv": _unit,
    "Gemm": _unit,
    "MatMul": _unit,
    "MaxPool": _max_pool,
    "Relu": _relu,
    "Sum": _sum,
}
Array: TypeAlias = np.ndarray[Any, Any]
Maker: TypeAlias = Callable[[np.random.Generator, tuple[int, ...], ActivationStatistics, Node], Array]
"""Draws a weight of a shape for an operator whose input has these moments."""


def fill_random_weights(function: Function, seed: int = 0) -> Function:
    """Replace the float32 weights by random ones; the same seed and Function give the same bytes.

    A weight is a constant, or a ``ConstantOfShape`` of a constant shape, that one of the operators in `_MAKERS` reads as a
    weight, possibly after a Reshape. Scalars and all other values are unchanged.
    """
    weights = {name: Constant(array) for name, array in _draw(function, np.random.default_rng(seed))}
    nodes = tuple(node for node in function.nodes if node.outputs[0] not in weights)
    # Shape constants of replaced fills have lost their readers.
    used = {name for node in nodes for name in node.uses} | {value.name for value in function.outputs}
    constants = {**function.constants, **weights}
    return function.replace(nodes=nodes, constants={name: c for name, c in constants.items() if name in used})


def _draw(function: Function, generator: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Yield name and value of each new weight. The nodes are visited in order, since a weight depends on its node's inputs."""
    weights = _find_weights(function)
    statistics = {value.name: UNIT for value in function.inputs}
    drawn_names: set[str] = set()
    for node in function.nodes:
        if node.outputs[0] in weights:  # a fill, or a reshaped weight
            continue
        # Of the data input: weights have no statistics.
        input_statistics = next((statistics[name] for name in node.inputs if name in statistics), UNIT)
        for slot, name in enumerate(node.inputs):
            maker = _MAKERS.get((node.op_type, slot))
            if maker is not None and name in weights and weights[name].name not in drawn_names:
                # A shared weight is drawn once, for its first reader.
                drawn_names.add(weights[name].name)
                yield weights[name].name, maker(generator, weights[name].shape, input_statistics, node)
        statistics.update(dict.fromkeys(node.defined_names, propagate_statistics(node, statistics)))


@dataclass(frozen=True, slots=True)
class _Weight:
    """A value that may be replaced by random numbers."""

    name: str
    """The value to replace."""
    shape: tuple[int, ...]


def _find_weights(function: Function) -> dict[str, _Weight]:
    """Find the values that may be weights: constants, fills, and both reshaped. The key is the name that an operator reads."""
    weights = {
        name: _Weight(name, constant.shape)
        for name, constant in function.constants.items()
        if constant.dtype is DType.FLOAT32 and constant.array.size > 1
    }
    for node in function.nodes:
        is_fill = node.op_type == "ConstantOfShape" and node.inputs[0] in function.constants
        if is_fill and ((fill := node.attr("value")) is None or fill.dtype is DType.FLOAT32):
            weights[node.outputs[0]] = _Weight(node.outputs[0], tuple(map(int, function.constants[node.inputs[0]].array)))
        elif node.op_type in ("Unsqueeze", "Reshape", "Identity") and node.inputs[0] in weights:
            weights[node.outputs[0]] = weights[node.inputs[0]]
    return weights


# ---------------------------------------------------------------------- one function for each role of a weight


def _draw_product_weights(
    generator: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node
) -> Array:
    """Weights of a product, scaled for outputs of unit variance."""
    if node.op_type == "Conv":
        fan_in = math.prod(shape[1:])
    else:
        rows, columns = shape[-2:]
        fan_in = columns if node.attr("transB", 0) else rows
    return _normal(generator, shape, 0.0, 1 / math.sqrt(max(1.0, fan_in * statistics.square)))


def _draw_near_zero(
    generator: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node
) -> Array:
    return _normal(generator, shape, 0.0, 0.1)


def _draw_mean(generator: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return _normal(generator, shape, statistics.mean, 0.1 * math.sqrt(statistics.variance))


# A batch normalization should normalize: its mean and variance are near those of its input.
def _draw_variance(generator: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return _draw_near_one(generator, shape, statistics, node) * np.float32(statistics.variance)


def _draw_near_one(generator: np.random.Generator, shape: tuple[int, ...], statistics: ActivationStatistics, node: Node) -> Array:
    return generator.random(shape, dtype=np.float32) * np.float32(0.4) + np.float32(0.8)


def _normal(generator: np.random.Generator, shape: tuple[int, ...], mean: float, deviation: float) -> Array:
    values = generator.standard_normal(shape, dtype=np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


_MAKERS: dict[tuple[str, int], Maker] = {
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
"""How to draw a weight, by the operator that reads it and the position among its inputs."""
_PREFIX = "light_"


def light_models() -> tuple[str, ...]:
    """Names of the light models in the installed ``onnx`` package, sorted."""
    return tuple(sorted(path.stem.removeprefix(_PREFIX) for path in _folder().glob(f"{_PREFIX}*.onnx")))


def load_light(name: str, seed: int = 0) -> Function:
    """Load a light model with seeded random weights instead of its fills; the same seed gives the same bytes.

    Weights have their full size in memory: 575 MB for vgg19. Raises ModelError for an unknown name.
    """
    models = light_models()
    if name not in models:
        raise ModelError(f"there is no light model {name!r}.{did_you_mean(name, models)} There are: {', '.join(models)}")
    return fill_random_weights(load(_folder() / f"{_PREFIX}{name}.onnx"), seed)


def _folder() -> Path:
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
