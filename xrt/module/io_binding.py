"""A call whose arrays are fixed: `XRTModule.bind`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from xrt import passes
from xrt.errors import InputError
from xrt.graph import DType, Function, TensorType, Value
from xrt.runtime.inputs import check_updated
from xrt.runtime.multi_device.buffers import check_placed_buffers
from xrt.runtime.outputs import check_buffers

if TYPE_CHECKING:
    from xrt.runtime import Program

__all__ = ["IOBinding", "bind_io", "check_bindable"]


class IOBinding:
    """A module's call over fixed arrays: write to the inputs, call, read the outputs; nothing is allocated or checked.

    One thread at a time, for its arrays are shared by all its calls: bind once per thread. It stays what it is when its
    module is closed or meets other signatures; `close`, or the end of a ``with``, lets go of the arrays.
    """

    def __init__(self, call: Callable[[], None], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        self._call = call
        self.inputs = inputs
        """What every call reads, in the model's order."""
        self.outputs = outputs
        """What every call writes, in the model's order; an output that updates an input is that input."""
        self._returned = outputs[0] if len(outputs) == 1 else outputs

    def __call__(self) -> Any:
        """Run on what the inputs hold now; returns the same arrays each time, one output as it is, several as a tuple."""
        self._call()
        return self._returned

    def close(self) -> None:
        """Let go of the arrays and of the compiled program; a call afterwards raises InputError."""
        self._call = _closed
        self.inputs = self.outputs = self._returned = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _closed() -> None:
    raise InputError("the bound call is closed; bind the module's inputs again")


def check_bindable(inputs: Sequence[Value], given: Sequence[Any], values: Sequence[Any]) -> None:
    """Check that the values are the given arrays themselves, as they lie; raises InputError naming the one that is not."""
    for declared, raw, value in zip(inputs, given, values, strict=True):
        if not hasattr(value, "flags"):
            continue
        if isinstance(raw, np.ndarray) and raw.dtype != value.dtype:
            raise InputError(
                f"input {declared.name!r} is {raw.dtype.str}; a bound input is read where it lies, so it must be "
                f"{value.dtype.str}: bind raw.astype({value.dtype.str!r}), and write to that"
            )
        is_aligned = not isinstance(value, np.ndarray) or value.flags.aligned
        if not value.flags.c_contiguous or not is_aligned:
            fault = "not aligned" if value.flags.c_contiguous else "not C-contiguous"
            mended = "np.ascontiguousarray(...)" if isinstance(value, np.ndarray) else "a C-contiguous copy"
            raise InputError(
                f"input {declared.name!r} is {fault}; a bound input is read where it lies: bind {mended} of it, and write to that"
            )


def bind_io(program: Program, function: Function, values: Sequence[Any], out: Any) -> IOBinding:
    """Return the call over those inputs, and over ``out`` or fresh buffers.

    Raises InputError for a buffer that does not fit, or an output whose size only a run can tell and that has no buffer.
    """
    updates, home = _updates(function), program.plan.device
    for _, target in updates:
        if isinstance(values[target], np.ndarray):
            check_updated(function.inputs[target].name, values[target])
    sized = _sized(function, values)
    check = check_buffers if home == "cpu" else partial(check_placed_buffers, home)
    given = check(out, sized.outputs, sized.inputs, values) if out is not None else (None,) * len(sized.outputs)
    updated = {source: values[target] if home == "cpu" else None for source, target in updates}  # a device's is updated itself
    buffers = [
        buffer if buffer is not None else updated[place] if place in updated else _empty(value, program)
        for place, (value, buffer) in enumerate(zip(sized.outputs, given, strict=True))
    ]
    types = None if sized is function else {name: sized.get_type(name) for name in sized.value_names()}
    returned = list(buffers)
    for source, target in updates:
        if given[source] is None:
            returned[source] = values[target]
    return IOBinding(program.bind(values, buffers, types), tuple(values), tuple(returned))


def _sized(function: Function, values: Sequence[Any]) -> Function:
    """Return the function with the extents that these inputs give its values."""
    if all(isinstance(value.type, TensorType) and value.type.is_static for value in function.outputs):
        return function
    shapes = {v.name: x.shape for v, x in zip(function.inputs, values, strict=True) if isinstance(v.type, TensorType)}
    return passes.specialize(function, shapes)


def _empty(value: Value, program: Program) -> Any:
    type_ = value.type
    if isinstance(type_, TensorType) and type_.is_static:
        dtype = np.dtype(object) if type_.dtype is DType.STRING else type_.dtype.numpy
        return program.buffer(type_.shape, dtype)  # type: ignore[arg-type]  # it is static
    if isinstance(type_, TensorType) or type_ is None:
        shown = "of unknown type" if type_ is None else str(type_)
        raise InputError(f"output {value.name!r} is {shown}, whose size is known only after a run; give a buffer for it in out=")
    raise InputError(f"output {value.name!r} is {type_}, which no buffer holds; call the module instead of binding it")


def _updates(function: Function) -> list[tuple[int, int]]:
    """Return (output, input) places of the aliases."""
    outputs = {value.name: i for i, value in reversed(list(enumerate(function.outputs)))}
    inputs = {value.name: i for i, value in enumerate(function.inputs)}
    return [(outputs[after], inputs[before]) for before, after in function.aliases]
