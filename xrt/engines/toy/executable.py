"""A prepared Function: checks what comes in, plays the tape, hands out arrays that nobody else holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xrt.engines.contract import Executable
from xrt.engines.options import RunOptions
from xrt.engines.toy.tape import Tape, described
from xrt.errors import InputError, OptionError, RunFailed
from xrt.graph import Function

__all__ = ["ToyExecutable"]


class ToyExecutable(Executable):
    """Toy's executable: a tape, made in `prepare` and the same for every call."""

    outputs_are_fresh = True

    def __init__(self, function: Function, lay_out: Callable[[Function], Tape]) -> None:
        self.function = function
        self._lay_out = lay_out
        self._tape: Tape | None = None

    def prepare(self) -> None:
        self._tape = self._lay_out(self.function)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> list[Any]:
        tape = self._tape
        if tape is None:
            raise RunFailed(
                f"function {self.function.name!r} is not ready to run; call prepare() first, and run() before close()"
            )
        if options.stream is not None:
            raise OptionError(
                f"engine {tape.engine!r} runs on the CPU, which has no streams; got stream={options.stream!r}, pass None"
            )
        if len(inputs) != len(tape.inputs):
            raise InputError(f"function {self.function.name!r} takes {len(tape.inputs)} inputs; got {len(inputs)}")
        # ONNX defines what a division by zero or an overflow gives, and NumPy gives that: its warnings say nothing new.
        with np.errstate(all="ignore"):
            results = _fresh(tape.play(inputs), inputs)
        return results if options.out is None else self._delivered(results, options.out)

    def close(self) -> None:
        self._tape = None

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
            if buffer is not None:
                np.copyto(buffer, result)
        return [result if buffer is None else buffer for _, result, buffer in pairs]


def _misfit(result: Any, buffer: Any) -> str | None:
    """Return why a result cannot be copied into a caller's buffer; None when it can."""
    if not isinstance(result, np.ndarray):
        return f"the output is {described(result)}, which no buffer holds"
    if not isinstance(buffer, np.ndarray):
        return f"the output is {described(result)}, the buffer {type(buffer).__name__}"
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        return f"the output is {described(result)}, the buffer {described(buffer)}"
    if not (buffer.flags.c_contiguous and buffer.flags.writeable):
        return "the buffer is " + ("read-only" if buffer.flags.c_contiguous else "not C-contiguous")
    return None


def _fresh(results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the results, copied where they may share memory with an input, a constant or an earlier result.

    An array that owns its memory shares it only with its own views; those do not own theirs and are copied. So it is
    enough to look for arrays that do not own their memory (constants are of that kind), and for the very same array.
    """
    taken = {id(array) for array in _arrays(inputs)}
    return [_own(result, taken) for result in results]


def _arrays(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        else:
            yield value


def _own(value: Any, taken: set[int]) -> Any:
    if isinstance(value, list):
        return [_own(item, taken) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if id(value) in taken or not value.flags.owndata:
        value = value.copy()
    taken.add(id(value))
    return value
