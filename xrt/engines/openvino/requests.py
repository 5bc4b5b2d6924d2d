"""Infer requests: what one call needs of a compiled model, to be used by one thread at a time.

A request that two threads use at once gives wrong numbers without a word. What is set on it is a tensor over somebody's
memory, which it does not keep alive; a `Frame` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xrt.engines.openvino.library import openvino
from xrt.engines.openvino.values import Array, copied_out, in_order, tensor_over
from xrt.graph import DType, TensorType

__all__ = ["COPY_TO", "Frame", "bound_call"]

COPY_TO = 16 * 1024
"""Bytes to which copying a value to or from a tensor that is set (0.3 to 1 us) is quicker than setting another (4 us)."""

_Request = openvino._pyopenvino.InferRequest
"""The request without the public one's dispatch over kinds of input, which takes as long as a small call."""


class Frame:
    """A request, the memory for its small inputs and outputs, and the tensors over whatever else it was given last."""

    def __init__(self, compiled: Any, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._request = compiled.create_infer_request()
        self._set: dict[tuple[str, int], object] = {}
        self._inputs = [self._fixed("input", place, type_) for place, type_ in enumerate(inputs)]
        self._outputs = [self._fixed("output", place, type_) for place, type_ in enumerate(outputs)]
        self._in_types = [type_.dtype for type_ in inputs]
        self._out_types = list(outputs)

    def _fixed(self, side: str, place: int, type_: TensorType) -> Array | None:
        """Return memory that stays set for a small value of known size; None for another."""
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > COPY_TO:
            return None
        array = np.zeros(type_.shape or (), type_.dtype.numpy)
        self.give(side, place, array, type_.dtype)
        return array

    def give(self, side: str, place: int, array: Array, dtype: DType) -> None:
        """Set a tensor over a C-contiguous array, and keep both until the next one is set in its place."""
        tensor = tensor_over(array, dtype)
        if side == "input":
            _Request.set_input_tensor(self._request, place, tensor)
        else:
            _Request.set_output_tensor(self._request, place, tensor)
        self._set[side, place] = array, tensor

    def run(self, inputs: Sequence[Array], buffers: Sequence[Array | None]) -> list[Array]:
        """Return one array per output: the buffer where one is given, which nothing else may overlap, or a fresh one."""
        for place, (value, fixed) in enumerate(zip(inputs, self._inputs, strict=True)):
            if fixed is None:
                self.give("input", place, in_order(value), self._in_types[place])
            else:
                fixed[...] = value
        targets = [self._target(place, buffer) for place, buffer in enumerate(buffers)]
        self.infer()
        return [self._result(*three) for three in zip(range(len(targets)), targets, buffers, strict=True)]

    def infer(self) -> None:
        """Compute with what is set; the interpreter's lock is free meanwhile."""
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)

    def _target(self, place: int, buffer: Array | None) -> Array | None:
        """Return the array that the request shall write to; None where it writes to memory of its own or to a fixed array."""
        type_ = self._out_types[place]
        if self._outputs[place] is not None or not type_.is_static or not type_.nbytes:
            return None
        target = np.empty(type_.shape or (), type_.dtype.numpy) if buffer is None else buffer
        self.give("output", place, target, type_.dtype)
        return target

    def _result(self, place: int, target: Array | None, buffer: Array | None) -> Array:
        if target is not None:
            return target
        fixed = self._outputs[place]
        if fixed is None:
            result = copied_out(_Request.get_output_tensor(self._request, place), self._out_types[place].dtype)
        else:
            result = fixed.copy() if buffer is None else fixed
        if buffer is None:
            return result
        buffer[...] = result
        return buffer


def bound_call(
    compiled: Any, inputs: Sequence[tuple[Array, DType]], outputs: Sequence[tuple[Array, DType]]
) -> Callable[[], None]:
    """Return a call over exactly those C-contiguous arrays, with a request of its own."""
    frame = Frame(compiled, (), ())
    for side, given in (("input", inputs), ("output", outputs)):
        for place, (array, dtype) in enumerate(given):
            frame.give(side, place, array, dtype)
    return frame.infer
