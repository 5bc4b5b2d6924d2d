"""Infer requests: what one call needs of a compiled model, to be used by one thread at a time.

A request that two threads use at once gives wrong numbers without an error. Its tensors refer to memory that it does not keep
alive; a `CallFrame` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import fill
from xrt.engines.openvino.library import openvino
from xrt.engines.openvino.values import Array, copy_out, empty, in_order, to_tensor, type_from

if TYPE_CHECKING:
    from xrt.graph import DType, TensorType

__all__ = ["COPY_TO", "CompiledModel", "RequestFrame", "bound_call"]

COPY_TO = 16 * 1024
"""Bytes to which copying a value to or from a tensor that is set (0.3 to 1 us) is quicker than setting another (4 us)."""

_Request = openvino._pyopenvino.InferRequest
"""The request without the public one's dispatch over kinds of input, which takes as long as a small call."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model, with what is known of its inputs and outputs."""

    model: Any
    used: tuple[int, ...]
    """Which of the Function's inputs the model has, in its order."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    fixed: tuple[bool, ...]
    """Per output, whether a tensor may be set for it once and for all: its shape is fixed, and it is no input's own value."""
    passed: tuple[bool, ...]
    """Per output, whether it is the very value of an input or a constant: to set a tensor for it would set the input."""

    @classmethod
    def of(cls, model: Any, used: tuple[int, ...], passed: Sequence[bool]) -> CompiledModel:
        """Raises TypeError for an element type that cannot cross."""
        inputs, outputs = (tuple(map(_type_of, ports)) for ports in (model.inputs, model.outputs))
        fixed = (type_.is_static and not is_passed for type_, is_passed in zip(outputs, passed, strict=True))
        return cls(model, used, inputs, outputs, tuple(fixed), tuple(passed))

    @property
    def idle_threads(self) -> int:
        """The threads that the library keeps for it: one for each stream, and one that would call back."""
        streams = int(self.model.get_property("NUM_STREAMS"))
        return streams + 1 if streams else 0

    @property
    def concurrent_runs(self) -> int:
        """How many requests compute at the same time: each stream has a graph under a lock, and without streams there is one."""
        return max(1, int(self.model.get_property("NUM_STREAMS")))

    @property
    def is_fixed(self) -> bool:
        """Whether tensors may be set once and for all on both sides."""
        return all(self.fixed) and all(type_.is_static for type_ in (*self.inputs, *self.outputs))


def _type_of(port: Any) -> TensorType:
    type_ = type_from(port.element_type, port.partial_shape)
    if type_ is None:
        raise TypeError(f"a value of type {port.element_type.get_type_name()} cannot cross the border")
    return type_


class RequestFrame:
    """A request, the memory for its small inputs and outputs, and the tensors over whatever else it was given last."""

    def __init__(self, compiled: CompiledModel, *, empty: bool = False) -> None:
        """An empty frame has nothing set yet."""
        self._request = compiled.model.create_infer_request()
        self._compiled: CompiledModel = compiled
        self._set: dict[tuple[str, int], object] = {}
        if empty:
            return
        self._outputs = [
            self._fixed("output", place, type_) if may else None
            for place, (type_, may) in enumerate(zip(compiled.outputs, compiled.fixed, strict=True))
        ]
        self._inputs = [self._fixed("input", place, type_) for place, type_ in enumerate(compiled.inputs)]

    def _fixed(self, side: str, place: int, type_: TensorType) -> Array | None:
        """Return memory that stays set for a small value of known size; None for another."""
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > COPY_TO:
            return None
        array = empty(type_)
        self.give(side, place, array, type_.dtype)
        return array

    def give(self, side: str, place: int, array: Array, dtype: DType) -> None:
        """Set a tensor over a C-contiguous array, and keep both until the next one is set in its place."""
        tensor = to_tensor(array, dtype)
        if side == "input":
            _Request.set_input_tensor(self._request, place, tensor)
        else:
            _Request.set_output_tensor(self._request, place, tensor)
        self._set[side, place] = array, tensor

    def run(
        self, inputs: Sequence[Array], buffers: Sequence[Array | None], shapes: Sequence[tuple[int, ...] | None] = ()
    ) -> list[Array]:
        """Return one array per output: the buffer where one is given, which nothing else may overlap, or a fresh one.

        ``shapes`` are those of outputs of open shape, None where they are not known; the same ones in each run.
        """
        for place, (fixed, source) in enumerate(zip(self._inputs, self._compiled.used, strict=True)):
            if fixed is None:
                self.give("input", place, in_order(inputs[source]), self._compiled.inputs[place].dtype)
            else:
                fixed[...] = inputs[source]
        targets = [self._target(place, buffer, shapes[place] if shapes else None) for place, buffer in enumerate(buffers)]
        self.infer()
        return [self._result(*three) for three in zip(range(len(targets)), targets, buffers, strict=True)]

    def forget_model(self) -> None:
        """Let the request alone refer to the model; it runs no more."""
        del self._compiled

    def infer(self) -> None:
        """Compute with what is set; the interpreter's lock is free meanwhile."""
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)

    def _target(self, place: int, buffer: Array | None, shape: tuple[int, ...] | None) -> Array | None:
        """Return the array that the request shall write to; None where it writes to memory of its own or to a fixed array."""
        type_ = self._compiled.outputs[place]
        if shape is not None and not self._compiled.passed[place]:
            target = np.empty(shape, type_.dtype.numpy) if buffer is None else buffer
            self.give("output", place, target, type_.dtype)
            return target
        if self._outputs[place] is not None or not self._compiled.fixed[place] or not type_.nbytes:
            return None
        target = empty(type_) if buffer is None else buffer
        self.give("output", place, target, type_.dtype)
        return target

    def _result(self, place: int, target: Array | None, buffer: Array | None) -> Array:
        fixed = self._outputs[place]
        if target is not None:
            if self._compiled.fixed[place] or tuple(_Request.get_output_tensor(self._request, place).shape) == target.shape:
                return target
            fixed = None  # the library has put another shape in place of it
        if fixed is None:
            result = copy_out(_Request.get_output_tensor(self._request, place), self._compiled.outputs[place].dtype)
        else:
            result = fixed.copy() if buffer is None else fixed
        if buffer is None:
            return result
        fill(buffer, result)
        return buffer


def bound_call(compiled: CompiledModel, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
    """Return a call over exactly those C-contiguous arrays, with a request of its own; only where `is_fixed`."""
    frame = RequestFrame(compiled, empty=True)
    for place, (array, type_) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        frame.give("output", place, array, type_.dtype)
    for place, (source, type_) in enumerate(zip(compiled.used, compiled.inputs, strict=True)):
        frame.give("input", place, inputs[source], type_.dtype)
    return frame.infer
