"""Convert a Function to an OpenVINO model: a small ONNX model for the frontend, with large constants attached by reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xrt.engines.openvino.executable import Array, make_contiguous, to_tensor
from xrt.engines.openvino.library import core, openvino
from xrt.formats.onnx import lowest_model
from xrt.graph import DType, Function, Value

NEWEST_OPSET = 25
"""The newest version of ai.onnx that the frontend converts correctly."""

HEAVY = 64 * 1024
"""Constants from this many bytes are passed by reference; smaller ones inside the ONNX model."""


@dataclass(frozen=True)
class ImportedModel:
    """An OpenVINO model and the arrays that it references."""

    model: Any
    used: tuple[int, ...]
    """Per input of the model, its position among the Function's inputs: the frontend drops unused ones."""
    passed: tuple[bool, ...]
    """Per output, whether it is an input or constant passed through."""
    arrays: tuple[Array, ...]
    """Must live as long as the model and everything compiled from it."""
    copied: int
    """Total bytes of constants that were copied because they were not contiguous."""


def export_function(function: Function) -> ImportedModel:
    """Convert the Function to a model.

    Large constants are inputs while the frontend reads the model and are replaced afterwards, so that protobuf does not copy
    them. Raises ModelError or an error of OpenVINO's frontend.
    """
    large = {name: c for name, c in function.constants.items() if c.nbytes >= HEAVY and c.dtype is not DType.STRING}
    small = {name: c for name, c in function.constants.items() if name not in large}
    # Large constants come after the real inputs, so that positions tell them apart.
    inputs = (*function.inputs, *(Value(name, c.type) for name, c in large.items()))
    model = read_model(function.replace(inputs=inputs, constants=small) if large else function)
    weights = list(large.values())
    contiguous = [make_contiguous(c.array) for c in weights]
    places = _map_inputs([value.name for value in inputs], model)
    count = len(function.inputs)
    for place, parameter in zip(places, model.get_parameters(), strict=True):
        if place >= count:
            _replace_by_constant(model, parameter, to_tensor(contiguous[place - count], weights[place - count].dtype))
    _keep_order_of_ties(model)
    # Constants in place of inputs may determine more types and shapes.
    model.validate_nodes_and_infer_types()
    copied = sum(array.nbytes for array, c in zip(contiguous, weights, strict=True) if array is not c.array)
    return ImportedModel(model, tuple(p for p in places if p < count), _find_passed_through(model), tuple(contiguous), copied)


def _map_inputs(names: Sequence[str], model: Any) -> list[int]:
    """Return the position in ``names`` of each input of the model, from which the frontend drops unused inputs.

    Inputs are matched by name. The frontend may rename an input that is also an output; raises TypeError if such a one remains.
    """
    parameters = model.get_parameters()
    # Without dropped inputs the order is that of the Function.
    if len(parameters) == len(names):
        return list(range(len(names)))
    matches = [next((name for name in parameter.output(0).names if name in names), None) for parameter in parameters]
    if None in matches:
        raise TypeError("the frontend dropped inputs, and renamed another that is passed on as an output")
    return [names.index(name) for name in matches if name is not None]


def _find_passed_through(model: Any) -> tuple[bool, ...]:
    producers = (result.input_value(0).get_node().get_type_name() for result in model.get_results())
    return tuple(producer in ("Parameter", "Constant") for producer in producers)


def read_model(function: Function) -> Any:
    """Convert the Function with all constants copied; raises ModelError or an error of the frontend."""
    return core().read_model(lowest_model(function, NEWEST_OPSET).SerializeToString())


def _replace_by_constant(model: Any, parameter: Any, tensor: Any) -> None:
    """Replace an input by a constant that shares the tensor's memory."""
    constant = openvino.op.Constant(tensor, shared_memory=True)
    parameter.output(0).replace(constant.output(0))
    model.remove_parameter(parameter)


def _keep_order_of_ties(model: Any) -> None:
    """Make each TopK stable, as ONNX requires; the frontend does not."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "TopK":
            attributes = node.get_attributes()
            data, count = node.input_value(0), node.input_value(1)
            kind = attributes["index_element_type"]
            stable = openvino.opset13.topk(data, count, attributes["axis"], attributes["mode"], "value", kind, stable=True)
            # Redirect all readers from the old node to the stable one.
            for old, new in zip(node.outputs(), stable.outputs(), strict=True):
                for reader in list(old.get_target_inputs()):
                    reader.replace_source_output(new)
