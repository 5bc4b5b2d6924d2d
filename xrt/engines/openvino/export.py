"""A Function becomes a model of OpenVINO's: a small ONNX model through its frontend, the large constants by reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xrt.engines.openvino.executable import Array, in_order, to_tensor
from xrt.engines.openvino.library import core, openvino
from xrt.formats.onnx import lowest_model
from xrt.graph import Constant, DType, Function, Value

__all__ = ["NEWEST_OPSET", "ImportedModel", "export_function", "read_model"]

NEWEST_OPSET = 25
"""The newest version of ai.onnx whose operators the frontend converts by their own rules."""

HEAVY = 64 * 1024
"""Bytes from which a constant is handed over by reference; a smaller one goes through the ONNX model."""


@dataclass(frozen=True)
class ImportedModel:
    """A model of OpenVINO's, and the arrays whose memory it reads."""

    model: Any
    used: tuple[int, ...]
    """Which of the Function's inputs the model has, in its order: the frontend drops those that nothing depends on."""
    passed: tuple[bool, ...]
    """Per output, whether it is the very value of an input or a constant."""
    held: tuple[Array, ...]
    """They must live as long as the model and all that is compiled from it."""
    copied: int
    """How many bytes of them are copies of constants, which did not lie in order."""


def export_function(function: Function) -> ImportedModel:
    """Convert the Function to a model.

    Heavy constants become inputs while the frontend reads the model, and are put in their places afterwards, so that no copy
    of them goes through protobuf. Raises ModelError, or whatever OpenVINO's frontend raises.
    """
    heavy = {name: c for name, c in function.constants.items() if _is_heavy(c)}
    light = {name: c for name, c in function.constants.items() if name not in heavy}
    inputs = (*function.inputs, *(Value(name, c.type) for name, c in heavy.items()))
    model = read_model(function.replace(inputs=inputs, constants=light) if heavy else function)
    weights = list(heavy.values())
    held = [in_order(c.array) for c in weights]
    places = _places([value.name for value in inputs], model)
    count = len(function.inputs)
    for place, parameter in zip(places, model.get_parameters(), strict=True):
        if place >= count:
            _put(model, parameter, to_tensor(held[place - count], weights[place - count].dtype))
    _keep_order_of_ties(model)
    model.validate_nodes_and_infer_types()
    copied = sum(array.nbytes for array, c in zip(held, weights, strict=True) if array is not c.array)
    return ImportedModel(model, tuple(p for p in places if p < count), _passed(model), tuple(held), copied)


def _places(names: Sequence[str], model: Any) -> list[int]:
    """Return the place among the names of each input of the model, which may have lost some.

    An input that is also an output has the output's name, and only sometimes its own. Raises TypeError if its place is ambiguous.
    """
    parameters = model.get_parameters()
    if len(parameters) == len(names):
        return list(range(len(names)))
    found = [next((name for name in parameter.output(0).names if name in names), None) for parameter in parameters]
    if None in found:
        raise TypeError("the frontend dropped inputs, and renamed another that is passed on as an output")
    return [names.index(name) for name in found if name is not None]


def _passed(model: Any) -> tuple[bool, ...]:
    makers = (result.input_value(0).get_node().get_type_name() for result in model.get_results())
    return tuple(maker in ("Parameter", "Constant") for maker in makers)


def read_model(function: Function) -> Any:
    """Return the Function as a model of OpenVINO's, its constants copied; raises ModelError, or whatever the frontend raises."""
    return core().read_model(lowest_model(function, NEWEST_OPSET).SerializeToString())


def _is_heavy(constant: Constant) -> bool:
    return constant.nbytes >= HEAVY and constant.dtype is not DType.STRING


def _put(model: Any, parameter: Any, tensor: Any) -> None:
    """Put a constant over the tensor's memory in the place of an input."""
    constant = openvino.op.Constant(tensor, shared_memory=True)
    parameter.output(0).replace(constant.output(0))
    model.remove_parameter(parameter)


def _keep_order_of_ties(model: Any) -> None:
    """Let each TopK order equal elements by their places, as ONNX does; the frontend asks for any order."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "TopK":
            how = node.get_attributes()
            data, count = node.input_value(0), node.input_value(1)
            kind = how["index_element_type"]
            stable = openvino.opset13.topk(data, count, how["axis"], how["mode"], "value", kind, stable=True)
            for old, new in zip(node.outputs(), stable.outputs(), strict=True):
                for reader in list(old.get_target_inputs()):
                    reader.replace_source_output(new)
