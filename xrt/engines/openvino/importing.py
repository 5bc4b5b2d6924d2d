"""A Function becomes a model of OpenVINO's: a small ONNX model through its frontend, the large constants by reference."""

from __future__ import annotations

from typing import Any

from xrt.engines.openvino.library import core, openvino
from xrt.engines.openvino.values import Array, in_order, tensor_over
from xrt.formats.onnx import lowest_model
from xrt.graph import Constant, DType, Function, TensorType, Value

__all__ = ["NEWEST_OPSET", "Imported", "import_function", "read_model"]

NEWEST_OPSET = 25
"""The newest version of ai.onnx whose operators the frontend converts by their own rules."""

HEAVY = 64 * 1024
"""Bytes from which a constant is handed over by reference; a smaller one goes through the ONNX model."""


class Imported:
    """A model of OpenVINO's, and the arrays whose memory it reads."""

    def __init__(self, model: Any, held: tuple[Array, ...], copied: int) -> None:
        self.model = model
        self.held = held
        """They must live as long as the model and all that is compiled from it."""
        self.copied = copied
        """How many bytes of them are copies of constants, which did not lie in order."""


def import_function(function: Function) -> Imported:
    """Return the Function as a model, its inputs and outputs in their order.

    Heavy constants become inputs while the frontend reads the model, and are put in their places afterwards, so that no copy
    of them goes through protobuf. Raises ModelError, or whatever OpenVINO's frontend raises.
    """
    heavy = {name: c for name, c in function.constants.items() if _is_heavy(c)}
    light = {name: c for name, c in function.constants.items() if name not in heavy}
    inputs = (*function.inputs, *(Value(name, c.type) for name, c in heavy.items()))
    model = read_model(function.replace(inputs=inputs, constants=light) if heavy else function)
    held = tuple(in_order(c.array) for c in heavy.values())
    for parameter, array, constant in zip(model.get_parameters()[len(function.inputs) :], held, heavy.values(), strict=True):
        _put(model, parameter, tensor_over(array, constant.dtype))
    if heavy:
        model.validate_nodes_and_infer_types()
    copied = sum(a.nbytes for a, c in zip(held, heavy.values(), strict=True) if a is not c.array)
    return Imported(model, held, copied)


def read_model(function: Function) -> Any:
    """Return the Function as a model of OpenVINO's, its constants copied; raises ModelError, or whatever the frontend raises."""
    return core().read_model(lowest_model(function, NEWEST_OPSET).SerializeToString())


def _is_heavy(constant: Constant) -> bool:
    return constant.nbytes >= HEAVY and isinstance(constant.type, TensorType) and constant.dtype is not DType.STRING


def _put(model: Any, parameter: Any, tensor: Any) -> None:
    """Put a constant over the tensor's memory in the place of an input."""
    constant = openvino.op.Constant(tensor, shared_memory=True)
    parameter.output(0).replace(constant.output(0))
    model.remove_parameter(parameter)
