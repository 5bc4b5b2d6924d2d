"""The ways to call a session: the direct one, and the one by binding, for types that NumPy lacks and for buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnxruntime import InferenceSession, IOBinding

from xrt.engines.ort.errors import make_tensor_type
from xrt.engines.ort.values import ValueTransport, by_reference, choose_transport, from_ort, to_ort
from xrt.graph import DType, TensorType, Type, Value

__all__ = ["BoundSession", "Call", "SessionCalls", "through_frames", "why_not_given"]

Array: TypeAlias = np.ndarray[Any, Any]
Call: TypeAlias = Callable[[list[str], Mapping[str, Any], None], list[Any]]


def why_not_given(inputs: Sequence[Value], outputs: Sequence[Value]) -> str | None:
    """Return why a session with those inputs and outputs could not be called; None when it can."""
    if _gives_directly(outputs) or all(_numeric(value.type) for value in (*inputs, *outputs)):
        return None
    boxed = next(value for value in outputs if choose_transport(value.type) is not ValueTransport.DIRECT)
    odd = next(value for value in (*inputs, *outputs) if not _numeric(value.type))
    return (
        f"{boxed.name!r} of type {boxed.type} comes out only by binding, and ONNX Runtime's Python interface cannot bind "
        f"{odd.name!r} with it, which is not a tensor of numbers"
    )


class SessionCalls:
    """A session with what is known of its inputs and outputs; keeps nothing of a call, so threads may share it."""

    def __init__(self, session: InferenceSession, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        known = {output.name: make_tensor_type(output.type) for output in session.get_outputs()}
        outputs = [Value(value.name, value.type or known[value.name]) for value in outputs]
        self._session = session
        self._inputs = {value.name: value.type for value in inputs}
        self._outputs = {value.name: value.type for value in outputs}
        self._names = list(self._outputs)
        self._gives_directly = _gives_directly(outputs)
        self._binds = all(_numeric(value.type) for value in (*inputs, *outputs))
        self.direct: Call = _quickest(session)
        """Takes output names and a feed of values that cross directly; returns fresh values."""
        self.is_direct = self._gives_directly and _gives_directly(inputs)
        """Whether `direct` serves for every input and output."""

    def can_fill(self, name: str) -> bool:
        """Whether the session can write that output into a caller's buffer."""
        return self._binds and name in self._outputs and choose_transport(self._outputs[name]) is not ValueTransport.PACKED

    def can_fix(self) -> bool:
        """Whether a binding can fix every input and output where they lie: numbers, none packed several to a byte."""
        types = (*self._inputs.values(), *self._outputs.values())
        return self._binds and all(choose_transport(type_) is not ValueTransport.PACKED for type_ in types)

    def bind_arrays(self, feed: Mapping[str, Array], buffers: Mapping[str, Array]) -> Callable[[], None]:
        """Return a call over exactly those arrays, one for each input and output, C-contiguous; only if `can_fix`."""
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, by_reference(array, _dtype(self._inputs[name])))
        for name, array in buffers.items():
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(self._outputs[name])))
        return _bound_call(self._session, binding)

    def bind_buffers(self, names: Sequence[str], buffers: Mapping[str, Array]) -> Callable[..., None]:
        """Return a call that takes the inputs of those names and writes to exactly those buffers; only if `can_fix`.

        The inner binding takes an input without the values and lists that the public one makes of it: 2.9 us for a small
        call, where a plain one costs 3.6.
        """
        binding = self._session.io_binding()
        for name, array in buffers.items():
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(self._outputs[name])))
        run, give = _bound_call(self._session, binding), _giving(binding, {name: self._inputs[name] for name in names})

        def call(*values: Array) -> None:
            held = [value if _lies_in_order(value) else np.array(value, order="C") for value in values]  # until it has run
            for name, value in zip(names, held, strict=True):
                give(name, value)
            run()

        return call

    def __call__(self, feed: Mapping[str, Any], buffers: Mapping[str, Array]) -> dict[str, Any]:
        """Return the outputs by name; those in `buffers` (only such as `can_fill`) are written there."""
        if self._gives_directly and not buffers:
            boxed = {name: _boxed(value, self._inputs[name]) for name, value in feed.items()}
            return dict(zip(self._names, self.direct(self._names, boxed, None), strict=True))
        return self._by_binding(feed, buffers)

    def _by_binding(self, feed: Mapping[str, Any], buffers: Mapping[str, Array]) -> dict[str, Any]:
        binding = self._session.io_binding()
        boxed = {name: to_ort(array, _dtype(self._inputs[name])) for name, array in feed.items()}
        for name, value in boxed.items():
            binding.bind_ortvalue_input(name, value)
        for name, type_ in self._outputs.items():
            if name in buffers:
                binding.bind_ortvalue_output(name, by_reference(buffers[name], _dtype(type_)))
            else:
                binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        given = zip(self._outputs.items(), binding.get_outputs(), strict=True)
        return {name: buffers[name] if name in buffers else from_ort(value, _dtype(type_)) for (name, type_), value in given}


def _gives_directly(values: Sequence[Value]) -> bool:
    return all(choose_transport(value.type) is ValueTransport.DIRECT for value in values)


def _quickest(session: InferenceSession) -> Call:
    """Return the session's inner call, at 0.8 of the public one's time; where a version has none, the public one."""
    inner = getattr(session, "_sess", None)
    call: Call = getattr(inner, "run", session.run)
    return call


@dataclass(frozen=True, slots=True)
class BoundSession:
    """A bound call with its arrays."""

    call: Callable[[], None]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def through_frames(make: Callable[[], BoundSession], failed: Callable[[Exception], Exception]) -> Callable[..., list[Array]]:
    """Return a call that copies its inputs to bound arrays, and copies of the outputs out; each thread in it has its own."""
    first = make()
    if len(first.inputs) == len(first.outputs) == 1:
        return _through_pairs(first, make, failed)
    idle = [first]

    def run(*values: Array) -> list[Array]:
        try:
            fixed = idle.pop()
        except IndexError:
            fixed = make()
        try:
            for place, value in zip(fixed.inputs, values, strict=True):
                place[...] = value
            fixed.call()
        except Exception as error:
            raise failed(error) from error
        results = [output.copy() for output in fixed.outputs]
        idle.append(fixed)
        return results

    return run


def _through_pairs(
    first: BoundSession, make: Callable[[], BoundSession], failed: Callable[[Exception], Exception]
) -> Callable[..., list[Array]]:
    """Spell the same out for one input and one output: the common case, and half a microsecond quicker."""

    def parts(fixed: BoundSession) -> tuple[Callable[[], None], Array, Array]:
        return fixed.call, fixed.inputs[0], fixed.outputs[0]

    idle = [parts(first)]

    def run(value: Array) -> list[Array]:
        try:
            frame = idle.pop()
        except IndexError:
            frame = parts(make())
        call, place, output = frame
        try:
            place[...] = value
            call()
        except Exception as error:
            raise failed(error) from error
        result = output.copy()
        idle.append(frame)
        return [result]

    return run


def _bound_call(session: InferenceSession, binding: IOBinding) -> Callable[[], None]:
    """Return the run of a binding: the session's inner call, at 0.85 of the public one's time, where a version has it."""
    run = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner = getattr(binding, "_iobinding", None)
    if run is None or inner is None:
        return lambda: session.run_with_iobinding(binding)

    def call(_: IOBinding = binding) -> None:  # the public binding keeps the arrays alive
        run(inner, None)

    return call


def _giving(binding: IOBinding, inputs: Mapping[str, Type | None]) -> Callable[[str, Array], None]:
    """Return how to give a binding an array in C order: by its inner method, where a version has one and NumPy the types."""
    inner = getattr(getattr(binding, "_iobinding", None), "bind_input", None)
    if inner is not None and all(choose_transport(type_) is ValueTransport.DIRECT for type_ in inputs.values()):
        return inner  # type: ignore[no-any-return]  # the library has no types
    return lambda name, array: binding.bind_ortvalue_input(name, by_reference(array, _dtype(inputs[name])))


def _lies_in_order(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def _boxed(value: Any, type_: Type | None) -> Any:
    if isinstance(type_, TensorType) and choose_transport(type_) is not ValueTransport.DIRECT:
        return to_ort(value, type_.dtype)
    return value


def _numeric(type_: Type | None) -> bool:
    """Whether values of the type can be bound: tensors, but not of strings."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING


def _dtype(type_: Type | None) -> DType:
    """Return the element type of a tensor that is bound: `_numeric` has let nothing else through."""
    if not isinstance(type_, TensorType):
        raise TypeError(f"a value of type {type_} cannot be bound")
    return type_.dtype
