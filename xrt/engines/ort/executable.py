"""A session as an Executable.

The session computes the outputs that nodes produce, each once. An output that is itself an input or a constant, or that is listed
twice in the Function, is a copy made here: the library would need an Identity for it, and has none for some types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from onnxruntime import InferenceSession

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.ort.errors import LIBRARY, summarize_error
from xrt.engines.ort.session import Bytes
from xrt.engines.ort.session_calls import BoundSession, SessionCalls, through_frames
from xrt.errors import InputError, RunFailed
from xrt.graph import FrozenDict, Function, TensorType, Value

__all__ = ["OrtExecutable", "list_computed_outputs", "session_function"]

Array: TypeAlias = np.ndarray[Any, Any]

Uses: TypeAlias = Callable[[], Sequence[MemoryUse]]
"""Tells what an executable holds and takes of memory."""

BIND_FROM = 512 * 1024
"""Bytes from which a caller's buffer is bound to the session; a smaller one is filled by a copy, which is quicker."""

COPY_TO = 4 * 1024
"""Bytes to which copying a value to or from a prebound buffer (0.2 to 0.3 us) is quicker than passing it to a call (0.6 us)."""


def list_computed_outputs(function: Function) -> tuple[Value, ...]:
    """Return the outputs that a node produces, each once: what a session is asked for."""
    produced = (value for value in function.outputs if function.computes(value.name))
    return tuple({value.name: value for value in produced}.values())


def session_function(function: Function) -> Function:
    """Keep just the outputs that the session computes, and write some convolutions and sums as products."""
    from xrt.engines.ort.reductions import give_bytes_one_reader, write_sums_as_products
    from xrt.engines.toolkit.convolution_products import write_convolutions_as_products

    computed = list_computed_outputs(function)
    function = give_bytes_one_reader(write_sums_as_products(write_convolutions_as_products(function)))
    return function if computed == function.outputs else function.replace(outputs=computed, aliases=())


class OrtExecutable(Executable):
    """Runs one session; threads may share it, for a session is safe and nothing else is kept of a call."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self,
        function: Function,
        session: InferenceSession | None,
        files: Mapping[str, Bytes] = FrozenDict(),
        uses: Uses = tuple,
        inplace: Mapping[int, int] | None = None,
    ) -> None:
        """`session` computes `list_computed_outputs`; None where there are none. `files` must live as long as it.

        `inplace` has, by place of an input, the output that the session may write over it; None to find it in the Function.
        """
        self._uses = uses
        if inplace is None:
            from xrt.engines.toolkit.scatters import find_inplace_outputs

            inplace = find_inplace_outputs(function) if session else {}
        self.inplace = inplace
        computed = list_computed_outputs(function)
        self.function = function
        self.saved: memoryview | None = None
        """What it was loaded from, where it was not compiled."""
        self.files = files
        """The memory of its weights, by the names of files in its model, which must live as long as the session."""
        self._inputs = [value.name for value in function.inputs]
        self._only = self._inputs[0] if len(self._inputs) == 1 else None
        self._names = [value.name for value in computed]
        self._calls = None if session is None else SessionCalls(session, function.inputs, computed)
        self._compute: Callable[..., dict[str, Any]] = self._calls or _nothing
        self._call: Callable[..., Any] = self._calls.direct if self._calls else _nothing
        self._gives_all = computed == function.outputs
        self._is_direct = self._gives_all and self._calls is not None and self._calls.is_direct
        self._constants = {v.name: function.constants[v.name].array for v in function.outputs if v.name in function.constants}

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        try:
            if self._only is None:
                feed = dict(zip(self._inputs, inputs, strict=True))
            else:  # the common case, and a third of a microsecond quicker
                (value,) = inputs
                feed = {self._only: value}
            if self._is_direct and options.out is None:
                return self._call(self._names, feed, None)  # type: ignore[no-any-return]  # a list, as the library says
            return self._run_indirectly(feed, options.out)
        except InputError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        if not self._is_direct:
            return super().fast_call()
        if self.supports_io_binding() and all(_is_small(value) for value in (*self.function.inputs, *self.function.outputs)):
            return through_frames(self._fixed_frame, self._failed)
        return self._direct_from_one() if self._only is not None else self._direct_from_many()

    def _fixed_frame(self) -> BoundSession:
        inputs, outputs = ([_empty(value) for value in values] for values in (self.function.inputs, self.function.outputs))
        return BoundSession(self._bound(inputs, outputs), tuple(inputs), tuple(outputs))

    def _direct_from_one(self) -> Callable[..., Sequence[Any]]:
        call, names, only = self._call, self._names, self._only

        def run(value: Any) -> Sequence[Any]:
            try:
                return call(names, {only: value}, None)  # type: ignore[no-any-return]  # a list, as the library says
            except Exception as error:
                raise self._failed(error) from error

        return run

    def _direct_from_many(self) -> Callable[..., Sequence[Any]]:
        call, names, inputs = self._call, self._names, self._inputs

        def run(*values: Any) -> Sequence[Any]:
            try:
                return call(names, dict(zip(inputs, values, strict=True)), None)  # type: ignore[no-any-return]  # as above
            except Exception as error:
                raise self._failed(error) from error

        return run

    def supports_io_binding(self) -> bool:
        return self._gives_all and self._calls is not None and self._calls.can_fix()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if not self.supports_io_binding():
            return super().bind(inputs, outputs)
        call = self._bound(inputs, outputs)

        def run() -> None:
            try:
                call()
            except Exception as error:
                raise self._failed(error) from error

        return run

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        if self._calls is None or not self.supports_io_binding():
            return super().bind_outputs(outputs)
        call = self._calls.bind_buffers(self._inputs, dict(zip(self._names, outputs, strict=True)))

        def run(*inputs: Any) -> None:
            try:
                call(*inputs)
            except Exception as error:
                raise self._failed(error) from error

        return run

    def _bound(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """Return the library's own bound call; only if `binds`."""
        if self._calls is None:
            raise RuntimeError("the executable is closed")
        return self._calls.bind_arrays(dict(zip(self._inputs, inputs, strict=True)), dict(zip(self._names, outputs, strict=True)))

    def output_buffer_threshold(self) -> Sequence[int | None]:
        first = [value not in self.function.outputs[:place] for place, value in enumerate(self.function.outputs)]
        names = [value.name for value in self.function.outputs]
        can = [self._calls is not None and self._calls.can_fill(name) for name in names]
        return [BIND_FROM if one and fills else None for one, fills in zip(first, can, strict=True)]

    def _failed(self, error: Exception) -> RunFailed:
        return RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}")

    def memory(self) -> Sequence[MemoryUse]:
        return self._uses()

    def close(self) -> None:
        self._call = self._compute = _closed
        self._calls = None
        self.files = FrozenDict()

    # ------------------------------------------------------------------ values to convert, copies, buffers of the caller's

    def _run_indirectly(self, feed: Mapping[str, Any], out: Sequence[Any] | None) -> list[Any]:
        buffers: Sequence[Any] = [None] * len(self.function.outputs) if out is None else out
        outputs = self._in_order(feed, self._compute(feed, self._to_bind(feed, buffers)))
        return [result if buffer is None else _filled(buffer, result) for result, buffer in zip(outputs, buffers, strict=True)]

    def _in_order(self, feed: Mapping[str, Any], results: Mapping[str, Any]) -> list[Any]:
        """Return one value per output; what is not the session's own, or was given already, is a copy."""
        if self._gives_all:
            return list(results.values())
        fresh = dict(results)
        sources = {**self._constants, **feed, **results}
        return [fresh.pop(v.name) if v.name in fresh else _copy(sources[v.name]) for v in self.function.outputs]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return tuple(self.inplace.items()) if self._calls is not None else ()

    def _to_bind(self, feed: Mapping[str, Any], buffers: Sequence[Array | None]) -> dict[str, Array]:
        """Return the buffers that the session itself shall write: large ones, and inputs that it may write over.

        None may share memory with another input.
        """
        over = {output: self._inputs[place] for place, output in self.inplace.items()}
        chosen: dict[str, Array] = {}
        for place, (value, buffer) in enumerate(zip(self.function.outputs, buffers, strict=True)):
            if buffer is None or value.name in chosen or not self._calls or not self._calls.can_fill(value.name):
                continue
            is_inplace = place in over and feed[over[place]] is buffer
            others = [array for name, array in feed.items() if not (is_inplace and name == over[place])]
            if (is_inplace or buffer.nbytes >= BIND_FROM) and not _overlaps(buffer, others):
                chosen[value.name] = buffer
        return chosen


def _is_small(value: Value) -> bool:
    """Whether copying it in or out costs less than handing it over."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return nbytes is not None and 0 < nbytes <= COPY_TO


def _empty(value: Value) -> Array:
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        raise TypeError(f"{value} has no fixed size")
    return np.empty(value.type.shape, value.type.dtype.numpy)


def _overlaps(buffer: Array, values: Iterable[Any]) -> bool:
    return any(np.may_share_memory(buffer, array) for array in values)


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


def _closed(*_: Any) -> dict[str, Any]:
    raise RuntimeError("the executable is closed")


def _copy(value: Any) -> Any:
    """Return a copy that shares no array with the value."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def _filled(buffer: Array, result: Array) -> Array:
    """Return the buffer, holding the result; raises InputError when it is of another type or shape."""
    if buffer is result:
        return buffer
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        given, due = (f"{array.dtype}{list(array.shape)}" for array in (buffer, result))
        raise InputError(f"a buffer given in out= is {given}, and the output is {due}; give one just like it, or None")
    buffer[...] = result
    return buffer
