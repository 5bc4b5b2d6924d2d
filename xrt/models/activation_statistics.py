"""How large the values of a network are: mean and variance of each, estimated from the operators without running them.

A value is taken for normally distributed and its elements for independent. That is rough, and enough for the purpose:
weights that keep every layer of a deep network near unit size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Node

__all__ = ["UNIT", "ActivationStatistics", "propagate_statistics"]


@dataclass(frozen=True, slots=True)
class ActivationStatistics:
    """Mean and variance of a value's elements."""

    mean: float
    variance: float

    @property
    def square(self) -> float:
        """The mean square of the elements."""
        return self.mean**2 + self.variance


UNIT = ActivationStatistics(0.0, 1.0)


def propagate_statistics(node: Node, known: Mapping[str, ActivationStatistics]) -> ActivationStatistics:
    """Return the moments of the node's outputs from those of its varying inputs; an operator without a rule changes nothing."""
    inputs = [known[name] for name in node.uses if name in known]
    return _RULES.get(node.op_type, _unchanged)(node, inputs) if inputs else UNIT


def _unchanged(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    return inputs[0]


def _unit(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """Describe what weighted operators give: their weights are scaled to it."""
    return UNIT


def _relu(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """The rectified normal distribution."""
    mean, deviation = inputs[0].mean, math.sqrt(inputs[0].variance) or 1e-6
    z = mean / deviation
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    above = (1 + math.erf(z / math.sqrt(2))) / 2
    new_mean = mean * above + deviation * density
    square = inputs[0].square * above + mean * deviation * density
    return ActivationStatistics(new_mean, square - new_mean**2)


def _max_pool(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """The largest of a few neighbours, which resemble each other: between one and the largest of independent ones."""
    deviation = math.sqrt(inputs[0].variance)
    return ActivationStatistics(inputs[0].mean + 0.8 * deviation, 0.7 * inputs[0].variance)


def _sum(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    return ActivationStatistics(sum(m.mean for m in inputs), sum(m.variance for m in inputs))


def _concat(node: Node, inputs: Sequence[ActivationStatistics]) -> ActivationStatistics:
    """A mixture of the parts, each of equal weight."""
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
