"""A tape as an executable: runs it, and returns arrays without other users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, peak_of_values
from xrt.engines.contract.options import RunOptions
from xrt.engines.toy.products import product_threads
from xrt.engines.toy.tape import Overwritten, Tape, describe_kernel
from xrt.errors import InputError, OptionError, RunFailed
from xrt.graph import DType, Function, TensorType, Type, Value, is_static

__all__ = ["InterpretedExecutable", "ToyExecutable"]

FILLED_FROM = 1 << 19
"""Bytes from which handing a buffer down to its kernel (some 3 us) is lost in what the kernel takes."""


class InterpretedExecutable(Executable):
    """A tape of Python kernels, some of which may be whole runs of native ones; the same for every call."""

    outputs_are_fresh = True

    def __init__(self, function: Function, tape: Tape, threads: int, native: bool) -> None:
        self.function = function
        self._tape = tape
        self._filled = tape.find_output_steps()
        self._products = product_threads(threads, native)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape = self._tape
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # ONNX defines what a division by zero or an overflow gives, and NumPy gives that: its warnings say nothing new.
        with self._products, np.errstate(all="ignore"):
            if options.out is None:
                return _fresh(tape.play(inputs), inputs)
            over = self._find_overwritten(inputs, options.out)
            buffers = self._buffers(tape, options.out, inputs)
            given = list(inputs)
            for one in over.values():
                given[one.input] = one.array
            results = tape.play(given, buffers, over)
            for place, slot in enumerate(tape.outputs):
                if slot in over and results[place] is over[slot].array:
                    results[place] = options.out[place]
            results = _fresh(results, given, options.out)
        return self._delivered(results, options.out)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [FILLED_FROM if step else None for step in self._filled]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._pairs

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs in which no kernel reads that input after the one that writes the output, and both are of one type."""
        places: dict[Type | None, list[int]] = {}
        for place, value in enumerate(self.function.inputs):
            places.setdefault(value.type, []).append(place)
        alike = [places.get(value.type, ()) if _is_plain(value.type) else () for value in self.function.outputs]
        return self._tape.find_inplace_pairs(alike)

    @cached_property
    def _shared(self) -> frozenset[tuple[int, int]]:
        """The pairs, for calls to look them up."""
        return frozenset(self._pairs)

    def _find_overwritten(self, inputs: Sequence[Any], out: Sequence[Any]) -> dict[int, Overwritten]:
        """Return, by the slot of the output, the inputs in whose memory an output is to be written."""
        place = {id(value): number for number, value in enumerate(inputs) if isinstance(value, np.ndarray)}
        found = {}
        for index, (slot, buffer) in enumerate(zip(self._tape.outputs, out, strict=False)):
            number = place.get(id(buffer), -1)
            if (number, index) in self._shared and buffer.nbytes and buffer.flags.carray:
                found[slot] = Overwritten(buffer, number, self._tape.inputs[number])
        return found

    def _buffers(self, tape: Tape, out: Sequence[Any], inputs: Sequence[Any]) -> dict[int, Any]:
        """Return the caller's buffers by the slot of the output, where a kernel can write to them and they fit.

        One that is an input too is none of them.
        """
        taken = {id(value) for value in inputs}
        pairs = zip(tape.outputs, self._filled, self.function.outputs, out, strict=False)
        return {slot: buffer for slot, step, value, buffer in pairs if step and id(buffer) not in taken and _is_of(buffer, value)}

    def memory(self) -> tuple[MemoryUse, ...]:
        why = "inner values, each until its last reader has run; what a kernel takes while it computes comes on top"
        return (MemoryUse("workspace", peak_of_values(self.function), why, per_call=True),)

    def _delivered(self, results: list[Any], out: Sequence[Any]) -> list[Any]:
        """Copy results into the caller's buffers and return those in their places."""
        if len(out) != len(results):
            raise InputError(f"function {self.function.name!r} has {len(results)} outputs; out= holds {len(out)} buffers")
        pairs = list(zip(self.function.outputs, results, out, strict=True))
        for value, result, buffer in pairs:
            if buffer is not None and (reason := _misfit(result, buffer)):
                raise InputError(
                    f"out= for output {value.name!r}: {reason}; give a writable C-contiguous array, or None for a fresh one"
                )
        for _, result, buffer in pairs:
            if buffer is not None and result is not buffer:
                np.copyto(buffer, result)
        return [result if buffer is None else buffer for _, result, buffer in pairs]


def _is_plain(type_: Type | None) -> bool:
    """Whether it is a tensor of a fixed shape, of numbers."""
    return isinstance(type_, TensorType) and is_static(type_) and type_.dtype is not DType.STRING


def _is_of(buffer: Any, value: Value) -> bool:
    """Whether it is an array to write to, of the value's own type and fixed shape."""
    type_ = value.type
    if not isinstance(buffer, np.ndarray) or not isinstance(type_, TensorType) or buffer.shape != type_.shape:
        return False
    return bool(buffer.dtype == type_.dtype.numpy and buffer.flags.carray)


def _misfit(result: Any, buffer: Any) -> str | None:
    """Return why a result cannot be copied into a caller's buffer; None when it can."""
    if not isinstance(result, np.ndarray):
        return f"the output is {describe_kernel(result)}, which no buffer holds"
    if not isinstance(buffer, np.ndarray):
        return f"the output is {describe_kernel(result)}, the buffer {type(buffer).__name__}"
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        return f"the output is {describe_kernel(result)}, the buffer {describe_kernel(buffer)}"
    if not (buffer.flags.c_contiguous and buffer.flags.writeable):
        return "the buffer is " + ("read-only" if buffer.flags.c_contiguous else "not C-contiguous")
    return None


def _fresh(results: Sequence[Any], inputs: Sequence[Any], buffers: Iterable[Any] = ()) -> list[Any]:
    """Return the results, copied where they may share memory with an input, a constant or an earlier result.

    The caller's own ``buffers`` stay what they are.

    An array that owns its memory shares it only with its own views; those do not own theirs and are copied. So it is
    enough to look for arrays that do not own their memory (constants are of that kind), and for the very same array.
    """
    taken = {id(array) for array in _arrays(inputs)}
    kept = {id(buffer) for buffer in buffers}
    return [_own(result, taken, kept) for result in results]


def _arrays(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        else:
            yield value


def _own(value: Any, taken: set[int], kept: set[int]) -> Any:
    if isinstance(value, list):
        return [_own(item, taken, kept) for item in value]
    if isinstance(value, dict):
        return dict(value)
    if not isinstance(value, np.ndarray):
        return value
    if id(value) in taken or not (value.flags.owndata or id(value) in kept):
        value = value.copy()
    taken.add(id(value))
    return value


class ToyExecutable(Executable):
    """A Function that waits to be prepared; then it is what `prepare` made of it: a tape of Python kernels or a native one."""

    outputs_are_fresh = True
    updates_inputs = False

    def __init__(self, engine: str, function: Function, made: Callable[[Function], Executable]) -> None:
        self._engine = engine
        self.function = function
        self._made = made
        self._ready: Executable | None = None

    def prepare(self) -> None:
        self._ready = self._made(self.function)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if options.stream is not None:
            raise OptionError(
                f"engine {self._engine!r} runs on the CPU, which has no streams; got stream={options.stream!r}, pass None"
            )
        return self._prepared().run(inputs, options)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return self._prepared().fast_call()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        return self._prepared().bind(inputs, outputs)

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        return self._prepared().bind_outputs(outputs)

    def supports_io_binding(self) -> bool:
        return self._prepared().supports_io_binding()

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return self._prepared().output_buffer_threshold()

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return self._prepared().inplace_pairs()

    def memory(self) -> Sequence[MemoryUse] | None:
        return self._prepared().memory()

    def close(self) -> None:
        self._ready = None

    def _prepared(self) -> Executable:
        if self._ready is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        return self._ready
