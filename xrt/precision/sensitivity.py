"""How much each node's quantization costs: one model in which each node can be switched between exact and rounded operands.

To compile a model for each node would take minutes. Here one is compiled, and each run switches other nodes on. It rounds
operands as the quantized form does, and no results: that is enough for an order of nodes. The form is measured afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.graph import DType, Function, Node, TensorType, Value
from xrt.passes import infer_shapes
from xrt.passes.quantize.candidates import find_root
from xrt.passes.quantize.emission import Emission, require_opset
from xrt.passes.quantize.options import QuantizationOptions
from xrt.passes.quantize.parameters import fit_activation
from xrt.passes.quantize.weights import find_channel_axis, quantize_channels

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

__all__ = ["NodeErrors", "choose_kept_nodes", "find_node_errors", "make_switchable_model"]

SWITCH = "xrt_switches"
"""The input that says which nodes read rounded operands."""
MOST_PARTS = 32
"""How many parts are measured at first; those of larger models have several nodes."""
LARGE = 0.1
"""A part is divided where its error is a larger share of that of all parts together."""


def make_switchable_model(prepared: Function, table: CalibrationTable, names: Sequence[str]) -> Function:
    """Return the model with one more input, a boolean for each of those nodes: whether it reads rounded operands."""
    function, options, ranges = require_opset(prepared), QuantizationOptions(), table.bind(prepared)
    emission, places = Emission(function), {name: at for at, name in enumerate(names)}
    made: list[Node] = []
    for node in function.nodes:
        if node.name not in places:
            made.append(node)
            continue
        known = ranges[find_root(node.inputs[0], prepared)]
        found = fit_activation(known.low, known.high, options.activation_dtype, symmetric=options.symmetric_activations)
        floats = function.constants[node.inputs[1]].array
        weight = quantize_channels(floats, find_channel_axis(node, floats), options)
        rounded = (
            node.inputs[0] if found is None else emission.quantize(node.inputs[0], found),
            emission.dequantize(node.inputs[1], weight, (node.inputs[1], weight.axis)),
        )
        switch = f"{SWITCH}_{places[node.name]}"
        index = emission.add_constant(f"{switch}_at", np.array(places[node.name], np.int64))
        made.append(Node("Gather", (SWITCH, index), (switch,), name=switch))
        chosen = []
        for slot, near in enumerate(rounded):
            name = f"{switch}_{slot}"
            made.append(Node("Where", (switch, near, node.inputs[slot]), (name,), name=name))
            chosen.append(name)
        made.append(replace(node, inputs=(*chosen, *node.inputs[2:])))
    inputs = (*function.inputs, Value(SWITCH, TensorType(DType.BOOL, (len(names),))))
    return infer_shapes(emission.finish(made).replace(inputs=inputs))


@dataclass(frozen=True, slots=True)
class NodeErrors:
    """The error of each node alone; those of a part that was not divided share that of the part."""

    errors: dict[str, float]
    runs: int


def find_node_errors(
    names: Sequence[str], measure: Callable[[np.ndarray[Any, Any]], float], is_in_time: Callable[[], bool]
) -> NodeErrors:
    """Return the error of each node by runs with some of them switched on.

    Parts of consecutive nodes come first. Those with a large share of the error are divided while there is time, the worst first.
    """
    size = -(-len(names) // MOST_PARTS)
    parts = [tuple(range(at, min(at + size, len(names)))) for at in range(0, len(names), size)]
    known: dict[tuple[int, ...], float] = {}
    runs = 0

    def measure_part(part: tuple[int, ...]) -> None:
        nonlocal runs
        switches = np.zeros(len(names), bool)
        switches[list(part)] = True
        known[part], runs = measure(switches), runs + 1

    for part in parts:
        if not is_in_time() and known:
            known[part] = max(known.values())  # taken for as bad as the worst
        else:
            measure_part(part)
    largest = LARGE * math.sqrt(sum(error**2 for error in known.values() if math.isfinite(error)))
    while is_in_time() and (wide := [part for part in known if len(part) > 1 and known[part] > largest]):
        worst = max(wide, key=known.__getitem__)
        del known[worst]
        middle = len(worst) // 2
        measure_part(worst[:middle])
        measure_part(worst[middle:])
    return NodeErrors({names[at]: error / math.sqrt(len(part)) for part, error in known.items() for at in part}, runs)


def choose_kept_nodes(errors: Mapping[str, float], largest: float) -> list[str]:
    """Return the nodes to keep, worst first: the root of the sum of the squares of the others' errors is then within a limit."""
    order = sorted(errors, key=lambda name: -errors[name])
    rest = math.fsum(errors[name] ** 2 for name in order if math.isfinite(errors[name]))
    kept = []
    for name in order:
        if rest <= largest**2 and math.isfinite(errors[name]):
            break
        kept.append(name)
        rest -= errors[name] ** 2 if math.isfinite(errors[name]) else 0.0
    return kept
