"""Convert a Function to an OpenVINO model: small constants through ONNX, large constants by reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openvino

from xrt.engines.openvino.executable import Array, make_contiguous, to_tensor
from xrt.engines.openvino.library import get_core
from xrt.formats.onnx import to_lowest_model
from xrt.graph import DType, Function, Value

NEWEST_OPSET = 25
"""The newest version of ai.onnx that the frontend converts correctly."""
MIN_SHARED_BYTES = 64 * 1024
"""Constants of at least this size are passed by reference. Smaller ones are stored in the ONNX model."""


@dataclass(frozen=True)
class ImportedModel:
    """An OpenVINO model and the arrays that it references."""

    model: Any
    used_inputs: tuple[int, ...]
    """For each input of the model, its index among the Function's inputs. The frontend drops inputs that are not used."""
    passed_through: tuple[bool, ...]
    """For each output, whether it is an input or a constant."""
    arrays: tuple[Array, ...]
    """The large constants. They must live as long as the model and all models that are compiled from it."""
    copied_bytes: int
    """Total size of large constants that were copied because they were not contiguous."""


def export_function(function: Function) -> ImportedModel:
    """Convert the Function to an OpenVINO model. Raises ModelError or an error of OpenVINO's frontend.

    The frontend sees large constants as inputs, so that protobuf does not copy them. Afterwards these inputs are replaced by
    constants.
    """
    large = {name: c for name, c in function.constants.items() if c.nbytes >= MIN_SHARED_BYTES and c.dtype is not DType.STRING}
    small = {name: c for name, c in function.constants.items() if name not in large}
    # Large constants come after the Function's inputs, so an index of at least len(function.inputs) is a constant's.
    inputs = (*function.inputs, *(Value(name, c.type) for name, c in large.items()))
    model = read_model(function.replace(inputs=inputs, constants=small) if large else function)
    weights = list(large.values())
    contiguous = [make_contiguous(c.array) for c in weights]
    indices = _map_inputs([value.name for value in inputs], model)
    num_inputs = len(function.inputs)
    for index, parameter in zip(indices, model.get_parameters(), strict=True):
        if index >= num_inputs:
            tensor = to_tensor(contiguous[index - num_inputs], weights[index - num_inputs].dtype)
            constant = openvino.op.Constant(tensor, shared_memory=True)
            parameter.output(0).replace(constant.output(0))
            model.remove_parameter(parameter)
    _make_topk_stable(model)
    # With constants instead of inputs the frontend can infer more types and shapes.
    model.validate_nodes_and_infer_types()
    copied_bytes = sum(array.nbytes for array, c in zip(contiguous, weights, strict=True) if array is not c.array)
    producers = (result.input_value(0).get_node().get_type_name() for result in model.get_results())
    return ImportedModel(
        model=model,
        used_inputs=tuple(index for index in indices if index < num_inputs),
        passed_through=tuple(producer in ("Parameter", "Constant") for producer in producers),
        arrays=tuple(contiguous),
        copied_bytes=copied_bytes,
    )


def _map_inputs(names: Sequence[str], model: Any) -> list[int]:
    """Find the index in ``names`` of each input of the model.

    If the frontend dropped unused inputs, the remaining inputs are matched by name. Raises TypeError if it also renamed an input,
    which it does to an input that is an output too.
    """
    parameters = model.get_parameters()
    # If no input was dropped, they are in the order of the Function.
    if len(parameters) == len(names):
        return list(range(len(names)))
    matches = [next((name for name in parameter.output(0).names if name in names), None) for parameter in parameters]
    if None in matches:
        raise TypeError("the frontend dropped an input, and renamed another one that is also an output")
    return [names.index(name) for name in matches if name is not None]


def read_model(function: Function) -> Any:
    """Convert the Function with the frontend, copying all constants. Raises ModelError or an error of the frontend."""
    return get_core().read_model(to_lowest_model(function, NEWEST_OPSET).SerializeToString())


def _make_topk_stable(model: Any) -> None:
    """Replace each TopK by a stable one, as ONNX requires. The frontend creates unstable ones."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "TopK":
            attributes = node.get_attributes()
            data, count = node.input_value(0), node.input_value(1)
            axis, mode, index_type = (attributes[name] for name in ("axis", "mode", "index_element_type"))
            stable = openvino.opset13.topk(data, count, axis, mode, "value", index_type, stable=True)
            # Redirect all readers from the old node to the stable one.
            for old, new in zip(node.outputs(), stable.outputs(), strict=True):
                for reader in list(old.get_target_inputs()):
                    reader.replace_source_output(new)
