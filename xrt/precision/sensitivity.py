"""Measure which nodes lose most accuracy in integers, and select nodes to keep in floating point to meet a budget.

The error of each node is measured with all other nodes exact. Squared errors of independent nodes add up. This predicts the error
of a model that keeps the worst nodes in floating point. Measuring such a model corrects the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.passes.quantize.candidates import QuantizationOptions, find_range_source
from xrt.passes.quantize.weights import Emission, find_channel_axis, fit_activation, quantize_channels, require_opset

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

MAX_INITIAL_GROUPS = 32
"""Maximum number of groups of nodes that are measured at first."""
SPLIT_ERROR_SHARE = 0.1
"""A group is split if its error exceeds this share of the total error."""


def find_node_errors(
    names: Sequence[str], measure: Callable[[Sequence[str]], float], is_in_time: Callable[[], bool] = lambda: True
) -> dict[str, float]:
    """Estimate the error of quantizing each node, by node name.

    ``measure`` measures the error of the model with only the named nodes in integers. Groups of consecutive nodes are measured
    first. While ``is_in_time()``, groups with a large error are split, worst first. The error of a group is divided among its
    nodes.
    """
    # Measuring each node would take too long for a large model, and most nodes matter little.
    size = math.ceil(len(names) / MAX_INITIAL_GROUPS)
    errors: dict[tuple[str, ...], float] = {}
    for start in range(0, len(names), size):
        group = tuple(names[start : start + size])
        # If time runs out, assume the largest error so far.
        errors[group] = measure(group) if is_in_time() or not errors else max(errors.values())
    split_limit = SPLIT_ERROR_SHARE * _combine_errors(errors.values())
    while is_in_time():
        large_groups = [group for group, error in errors.items() if len(group) > 1 and error > split_limit]
        if not large_groups:
            break
        worst = max(large_groups, key=errors.__getitem__)
        del errors[worst]
        for half in (worst[: len(worst) // 2], worst[len(worst) // 2 :]):
            errors[half] = measure(half)
    # Squared errors add up, so each of n nodes has the group's error divided by sqrt(n).
    return {name: error / math.sqrt(len(group)) for group, error in errors.items() for name in group}


class NodeSelection:
    """Selects the nodes to keep in floating point, so that the predicted error of the other nodes is within a target."""

    def __init__(self, errors: Mapping[str, float], target: float, error: float = math.nan) -> None:
        """``errors`` has the error of quantizing each node alone, ``error`` that of quantizing all nodes, if it is known."""
        self._errors = errors
        self._target = target
        self._min_count = 0
        predicted = _combine_errors(errors.values())
        # The errors of nodes are not quite independent, so predictions are scaled by the ratio of measured to predicted error.
        self._factor = max(0.5, error / predicted) if predicted and math.isfinite(error) else 1.0

    def choose(self) -> list[str]:
        """Select the nodes to keep in floating point, worst first. Each call selects more than twice as many nodes as before."""
        order = sorted(self._errors, key=lambda name: -self._errors[name])
        count = self._min_count
        while count < len(order) and not self._is_within_target([self._errors[name] for name in order[count:]]):
            count += 1
        self._min_count = 2 * count + 1
        return order[:count]

    def _is_within_target(self, errors: Sequence[float]) -> bool:
        return all(map(math.isfinite, errors)) and _combine_errors(errors) <= self._target / self._factor

    def correct(self, error: float) -> None:
        """Correct the prediction by the measured error of the last selection, which was over the target."""
        # By at least 1.2, so that it changes the next selection.
        self._factor *= max(1.2, error / self._target) if math.isfinite(error) else 2.0


def _combine_errors(errors: Iterable[float]) -> float:
    return math.sqrt(math.fsum(error**2 for error in errors if math.isfinite(error)))


SWITCH_INPUT = "xrt_switches"
"""Name of the boolean input that selects which nodes read quantized operands."""


def make_switchable_model(prepared: Function, table: CalibrationTable, names: Sequence[str]) -> Function:
    """Add a boolean input with an element per named node, which switches the node to quantized operands without a recompile."""
    function = require_opset(prepared)
    options, ranges = QuantizationOptions(), table.bind(prepared)
    emission = Emission(function)
    switch_indices = {name: index for index, name in enumerate(names)}
    nodes: list[Node] = []
    for node in function.nodes:
        if node.name not in switch_indices:
            nodes.append(node)
            continue
        # The operands after quantization: the activation, unless it has no range, and the weight.
        observed = ranges[find_range_source(node.inputs[0], prepared)]
        parameters = fit_activation(
            observed.low, observed.high, options.activation_dtype, symmetric=options.symmetric_activations
        )
        floats = function.constants[node.inputs[1]].array
        weight = quantize_channels(floats, find_channel_axis(node, floats), options)
        quantized = (
            node.inputs[0] if parameters is None else emission.quantize(node.inputs[0], parameters),
            emission.dequantize(node.inputs[1], weight, (node.inputs[1], weight.axis)),
        )

        # A Where per operand selects the quantized one if the switch is true.
        switch = f"{SWITCH_INPUT}_{switch_indices[node.name]}"
        index = emission.add_constant(f"{switch}_at", np.array(switch_indices[node.name], np.int64))
        # Read from an input, because compilers would fold a constant.
        nodes.append(Node("Gather", (SWITCH_INPUT, index), (switch,), name=switch))
        selected = []
        for operand, quantized_value in enumerate(quantized):
            name = f"{switch}_{operand}"
            nodes.append(Node("Where", (switch, quantized_value, node.inputs[operand]), (name,), name=name))
            selected.append(name)
        nodes.append(replace(node, inputs=(*selected, *node.inputs[2:])))
    inputs = (*function.inputs, Value(SWITCH_INPUT, TensorType(DType.BOOL, (len(names),))))
    return infer_shapes(emission.finish(nodes).replace(inputs=inputs))
