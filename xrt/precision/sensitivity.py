"""Measure which nodes lose most accuracy in integers, and select those to keep in floating point to meet a budget.

The error of each node is measured with the rest exact. Errors of independent nodes add in squares, which predicts the error
that remains when the worst nodes are kept. A measurement of the result corrects the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.passes.quantize.candidates import QuantizationOptions, find_root
from xrt.passes.quantize.weights import Emission, find_channel_axis, fit_activation, quantize_channels, require_opset

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

MAX_INITIAL_PARTS = 32
"""The nodes are first measured in at most this many parts, of several nodes each in larger models."""
SPLIT_ERROR_SHARE = 0.1
"""A part of several nodes is split if its error exceeds this share of the total error."""


def find_node_errors(
    names: Sequence[str], measure: Callable[[Sequence[str]], float], is_in_time: Callable[[], bool] = lambda: True
) -> dict[str, float]:
    """Estimate the error of quantizing each node, by node name. ``measure`` runs the model with only the named nodes in integers.

    Measure parts of consecutive nodes first. Then split parts with a large share of the error, worst first, while
    ``is_in_time()``. The error of a part that was not split is divided among its nodes.
    """
    # Measuring each node would take too long for a large model, and most nodes matter little.
    size = -(-len(names) // MAX_INITIAL_PARTS)  # rounded up
    errors: dict[tuple[str, ...], float] = {}
    for start in range(0, len(names), size):
        part = tuple(names[start : start + size])
        # If time runs out, assume the largest error so far.
        errors[part] = measure(part) if is_in_time() or not errors else max(errors.values())
    largest = SPLIT_ERROR_SHARE * math.sqrt(sum(error**2 for error in errors.values() if math.isfinite(error)))
    while is_in_time() and (large_parts := [part for part in errors if len(part) > 1 and errors[part] > largest]):
        worst = max(large_parts, key=errors.__getitem__)
        del errors[worst]
        middle = len(worst) // 2
        errors.update((part, measure(part)) for part in (worst[:middle], worst[middle:]))
    # Errors add in squares, so each of n nodes has the part's error divided by sqrt(n).
    return {name: error / math.sqrt(len(part)) for part, error in errors.items() for name in part}


class NodeSelection:
    """Selects the nodes to keep in floating point until the error of the others is within a target."""

    def __init__(self, errors: Mapping[str, float], target: float, error: float = math.nan) -> None:
        """``errors`` are those of each node alone. ``error``, that of all together, corrects the prediction if passed."""
        self._errors = errors
        self._target = target
        self._min_count = 0
        predicted = _combine_errors(errors.values())
        # The errors of nodes are not quite independent, so scale predictions by how much the measured total differs.
        self._factor = max(0.5, error / predicted) if predicted and math.isfinite(error) else 1.0

    def choose(self) -> list[str]:
        """Select the nodes to keep in floating point, worst first. Each call selects more than twice as many as the last one."""
        order = sorted(self._errors, key=lambda name: -self._errors[name])
        count = self._min_count
        while count < len(order) and not self._is_enough([self._errors[name] for name in order[count:]]):
            count += 1
        self._min_count = 2 * count + 1
        return order[:count]

    def _is_enough(self, errors: Sequence[float]) -> bool:
        return all(map(math.isfinite, errors)) and _combine_errors(errors) <= self._target / self._factor

    def correct(self, error: float) -> None:
        """Correct the prediction by the measured error of the last selection, which was over the target."""
        # At least 1.2, so that each attempt selects more nodes than the last.
        self._factor *= max(1.2, error / self._target) if math.isfinite(error) else 2.0


def _combine_errors(errors: Iterable[float]) -> float:
    return math.sqrt(math.fsum(error**2 for error in errors if math.isfinite(error)))


SWITCH_INPUT = "xrt_switches"
"""Name of the boolean input that selects which nodes read quantized operands."""


def make_switchable_model(prepared: Function, table: CalibrationTable, names: Sequence[str]) -> Function:
    """Add a boolean input with an element per name that switches this node to quantized operands, without a recompile."""
    function, options, ranges = require_opset(prepared), QuantizationOptions(), table.bind(prepared)
    emission, switch_indices = Emission(function), {name: index for index, name in enumerate(names)}
    nodes: list[Node] = []
    for node in function.nodes:
        if node.name not in switch_indices:
            nodes.append(node)
            continue
        observed = ranges[find_root(node.inputs[0], prepared)]
        parameters = fit_activation(
            observed.low, observed.high, options.activation_dtype, symmetric=options.symmetric_activations
        )
        floats = function.constants[node.inputs[1]].array
        weight = quantize_channels(floats, find_channel_axis(node, floats), options)
        rounded = (
            node.inputs[0] if parameters is None else emission.quantize(node.inputs[0], parameters),
            emission.dequantize(node.inputs[1], weight, (node.inputs[1], weight.axis)),
        )
        switch = f"{SWITCH_INPUT}_{switch_indices[node.name]}"
        index = emission.add_constant(f"{switch}_at", np.array(switch_indices[node.name], np.int64))
        # A switch is an input and not a constant, so that no compiler folds it.
        nodes.append(Node("Gather", (SWITCH_INPUT, index), (switch,), name=switch))
        chosen = []
        for operand, rounded_value in enumerate(rounded):
            name = f"{switch}_{operand}"
            nodes.append(Node("Where", (switch, rounded_value, node.inputs[operand]), (name,), name=name))
            chosen.append(name)
        nodes.append(replace(node, inputs=(*chosen, *node.inputs[2:])))
    inputs = (*function.inputs, Value(SWITCH_INPUT, TensorType(DType.BOOL, (len(names),))))
    return infer_shapes(emission.finish(nodes).replace(inputs=inputs))
