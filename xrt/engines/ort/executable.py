"""The executable: calls of a session, I/O binding, and conversion of arrays to values of the library.

The session computes each output that a node produces once. An output that is an input or a constant, or is listed twice, is
copied here: the library would need an Identity, which it lacks for some types.
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from onnxruntime import InferenceSession, IOBinding, OrtValue

from xrt.engines.contract.graph_compiler import Executable, MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.ort.session import LIBRARY, Bytes, make_tensor_type, summarize_error
from xrt.errors import InputError, RunFailed
from xrt.forking import get_generation, why_left_behind
from xrt.graph import DType, FrozenDict, Function, MapType, TensorType, Type, Value

# ---------------------------------------------------------------------- the executable

Array: TypeAlias = np.ndarray[Any, Any]

Uses: TypeAlias = Callable[[], Sequence[MemoryUse]]
"""Reports the memory of an executable."""

BIND_FROM = 512 * 1024
"""Caller's buffers from this many bytes are bound to the session; below, a copy is faster."""

COPY_TO = 4 * 1024
"""Values up to this many bytes are copied to or from a bound buffer (0.2 to 0.3 us); passing one to a call takes 0.6 us."""


def list_computed_outputs(function: Function) -> tuple[Value, ...]:
    """The outputs that a node produces, without duplicates: the outputs of the session."""
    produced = (value for value in function.outputs if function.computes(value.name))
    return tuple({value.name: value for value in produced}.values())


def session_function(function: Function) -> Function:
    """The Function to export: computed outputs only, and some convolutions and sums rewritten as products."""
    from xrt.engines.ort.export import give_bytes_one_reader, write_sums_as_products
    from xrt.engines.toolkit.rewrites import write_convolutions_as_products

    computed = list_computed_outputs(function)
    function = give_bytes_one_reader(write_sums_as_products(write_convolutions_as_products(function)))
    return function if computed == function.outputs else function.replace(outputs=computed, aliases=())


class OrtExecutable(Executable):
    """Runs one session. Threads can share it: it holds no state of a call."""

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
        """``session`` computes `list_computed_outputs`; None if there are none. ``files`` is kept alive with it.

        ``inplace`` maps inputs to outputs that may overwrite them, by position; None to derive it from the Function.
        """
        self._uses = uses
        if inplace is None:
            from xrt.engines.toolkit.memory import find_inplace_outputs

            inplace = find_inplace_outputs(function) if session else {}
        self.inplace = inplace
        computed = list_computed_outputs(function)
        self.function = function
        self.saved: memoryview | None = None
        """The data that it was loaded from, if it was not compiled."""
        self.files = files
        """Memory of the weights by file name in the model; the session reads it in place."""
        self._inputs = [value.name for value in function.inputs]
        # A single input is common and allows a faster call.
        self._single_input = self._inputs[0] if len(self._inputs) == 1 else None
        self._names = [value.name for value in computed]
        self._calls = None if session is None else SessionCalls(session, function.inputs, computed)
        self._compute: Callable[..., dict[str, Any]] = self._calls or _compute_nothing
        self._call: Callable[..., Any] = self._calls.direct if self._calls else _compute_nothing
        self._computes_all = computed == function.outputs
        self._is_direct = self._computes_all and self._calls is not None and self._calls.is_direct
        self._constants = {v.name: function.constants[v.name].array for v in function.outputs if v.name in function.constants}

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        try:
            if self._single_input is None:
                feed = dict(zip(self._inputs, inputs, strict=True))
            else:  # the common case: 0.3 us faster
                (value,) = inputs
                feed = {self._single_input: value}
            if self._is_direct and options.out is None:
                return self._call(self._names, feed, None)  # type: ignore[no-any-return]  # the library returns a list
            return self._run_indirectly(feed, options.out)
        except InputError:
            raise
        except Exception as error:
            raise self._make_error(error) from error

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        # Values that need a conversion take the general path.
        if not self._is_direct:
            return super().fast_call()
        if self.supports_io_binding() and all(_is_small(value) for value in (*self.function.inputs, *self.function.outputs)):
            return through_frames(self._make_frame, self._make_error)
        return self._make_unary_call() if self._single_input is not None else self._make_direct_call()

    def _make_frame(self) -> BoundSession:
        inputs, outputs = ([_allocate(value) for value in values] for values in (self.function.inputs, self.function.outputs))
        return BoundSession(self._bind_arrays(inputs, outputs), tuple(inputs), tuple(outputs))

    def _make_unary_call(self) -> Callable[..., Sequence[Any]]:
        call, names, name = self._call, self._names, self._single_input

        def run(value: Any) -> Sequence[Any]:
            try:
                return call(names, {name: value}, None)  # type: ignore[no-any-return]  # the library returns a list
            except Exception as error:
                raise self._make_error(error) from error

        return run

    def _make_direct_call(self) -> Callable[..., Sequence[Any]]:
        call, names, inputs = self._call, self._names, self._inputs

        def run(*values: Any) -> Sequence[Any]:
            try:
                return call(names, dict(zip(inputs, values, strict=True)), None)  # type: ignore[no-any-return]  # as above
            except Exception as error:
                raise self._make_error(error) from error

        return run

    def supports_io_binding(self) -> bool:
        return self._computes_all and self._calls is not None and self._calls.can_fix()

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if not self.supports_io_binding():
            return super().bind(inputs, outputs)
        return self._convert_errors(self._bind_arrays(inputs, outputs))

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        if self._calls is None or not self.supports_io_binding():
            return super().bind_outputs(outputs)
        return self._convert_errors(self._calls.bind_buffers(self._inputs, dict(zip(self._names, outputs, strict=True))))

    def _bind_arrays(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        """A call over these arrays; requires `supports_io_binding`."""
        if self._calls is None:
            raise RuntimeError("the executable is closed")
        return self._calls.bind_arrays(dict(zip(self._inputs, inputs, strict=True)), dict(zip(self._names, outputs, strict=True)))

    def output_buffer_threshold(self) -> Sequence[int | None]:
        first = [value not in self.function.outputs[:place] for place, value in enumerate(self.function.outputs)]
        names = [value.name for value in self.function.outputs]
        can_fill = [self._calls is not None and self._calls.can_fill(name) for name in names]
        return [BIND_FROM if is_first and fills else None for is_first, fills in zip(first, can_fill, strict=True)]

    def _convert_errors(self, call: Callable[..., None]) -> Callable[..., None]:
        """The call with errors of the library as RunFailed."""

        def run(*inputs: Any) -> None:
            try:
                call(*inputs)
            except Exception as error:
                raise self._make_error(error) from error

        return run

    def _make_error(self, error: Exception) -> RunFailed:
        return RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}")

    def memory(self) -> Sequence[MemoryUse]:
        return self._uses()

    def close(self) -> None:
        self._call = self._compute = _raise_closed
        self._calls = None
        self.files = FrozenDict()

    # ------------------------------------------------------------------ values to convert, copies, buffers of the caller's

    def _run_indirectly(self, feed: Mapping[str, Any], out: Sequence[Any] | None) -> list[Any]:
        buffers: Sequence[Any] = [None] * len(self.function.outputs) if out is None else out
        outputs = self._order_outputs(feed, self._compute(feed, self._choose_buffers(feed, buffers)))
        return [result if buffer is None else _fill(buffer, result) for result, buffer in zip(outputs, buffers, strict=True)]

    def _order_outputs(self, feed: Mapping[str, Any], results: Mapping[str, Any]) -> list[Any]:
        """One value per output of the Function; copies inputs, constants and repeated outputs."""
        if self._computes_all:
            return list(results.values())
        fresh = dict(results)
        sources = {**self._constants, **feed, **results}
        return [fresh.pop(v.name) if v.name in fresh else _copy(sources[v.name]) for v in self.function.outputs]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return tuple(self.inplace.items()) if self._calls is not None else ()

    def _choose_buffers(self, feed: Mapping[str, Any], buffers: Sequence[Array | None]) -> dict[str, Array]:
        """The buffers that the session writes directly: large ones, and inputs that it may overwrite.

        None shares memory with another input.
        """
        overwritten = {output: self._inputs[place] for place, output in self.inplace.items()}
        bound: dict[str, Array] = {}
        for place, (value, buffer) in enumerate(zip(self.function.outputs, buffers, strict=True)):
            if buffer is None or value.name in bound or not self._calls or not self._calls.can_fill(value.name):
                continue
            is_inplace = place in overwritten and feed[overwritten[place]] is buffer
            others = [array for name, array in feed.items() if not (is_inplace and name == overwritten[place])]
            # Buffers of an update in place must be bound at any size, else the state would be copied.
            if (is_inplace or buffer.nbytes >= BIND_FROM) and not _overlaps(buffer, others):
                bound[value.name] = buffer
        return bound


class ParallelOrtExecutable(OrtExecutable):
    """A session with a separate pool for nodes. A run in a forked child would wait for its missing threads forever."""

    survives_fork = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._generation = get_generation()

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if reason := why_left_behind(self._generation):
            raise RunFailed(f"{LIBRARY} cannot run {self.function.name!r}: {reason}")
        return super().run(inputs, options)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return Executable.fast_call(self)

    def supports_io_binding(self) -> bool:
        return False


def _is_small(value: Value) -> bool:
    """Whether copying the value is faster than passing it."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return nbytes is not None and 0 < nbytes <= COPY_TO


def _allocate(value: Value) -> Array:
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        raise TypeError(f"{value} has no fixed size")
    return np.empty(value.type.shape, value.type.dtype.numpy)


def _overlaps(buffer: Array, values: Iterable[Any]) -> bool:
    return any(np.may_share_memory(buffer, array) for array in values)


def _compute_nothing(*_: Any) -> dict[str, Any]:
    return {}


def _raise_closed(*_: Any) -> dict[str, Any]:
    raise RuntimeError("the executable is closed")


def _copy(value: Any) -> Any:
    """Copy a value and all arrays in it."""
    if isinstance(value, np.ndarray):
        return np.array(value)
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def _fill(buffer: Array, result: Array) -> Array:
    """Copy the result into the buffer; raises InputError if type or shape differ."""
    if buffer is result:
        return buffer
    if buffer.dtype != result.dtype or buffer.shape != result.shape:
        actual, expected = (f"{array.dtype}{list(array.shape)}" for array in (buffer, result))
        raise InputError(f"a buffer given in out= is {actual}, and the output is {expected}; give one just like it, or None")
    buffer[...] = result
    return buffer


# ---------------------------------------------------------------------- calls of a session

Call: TypeAlias = Callable[[list[str], Mapping[str, Any], None], list[Any]]


def why_not_bindable(inputs: Sequence[Value], outputs: Sequence[Value]) -> str | None:
    """Explain why a session with these inputs and outputs could not be called; None if it can."""
    if _needs_no_conversion(outputs) or all(_is_numeric(value.type) for value in (*inputs, *outputs)):
        return None
    indirect = next(value for value in outputs if choose_transport(value.type) is not ValueTransport.DIRECT)
    unbindable = next(value for value in (*inputs, *outputs) if not _is_numeric(value.type))
    return (
        f"{indirect.name!r} of type {indirect.type} comes out only by binding, and ONNX Runtime's Python interface cannot bind "
        f"{unbindable.name!r} with it, which is not a tensor of numbers"
    )


class SessionCalls:
    """A session with the types of its inputs and outputs. Threads can share it: it holds no state of a call."""

    def __init__(self, session: InferenceSession, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        session_types = {output.name: make_tensor_type(output.type) for output in session.get_outputs()}
        outputs = [Value(value.name, value.type or session_types[value.name]) for value in outputs]
        self._session = session
        self._inputs = {value.name: value.type for value in inputs}
        self._outputs = {value.name: value.type for value in outputs}
        self._names = list(self._outputs)
        self._needs_no_conversion = _needs_no_conversion(outputs)
        self._can_bind = all(_is_numeric(value.type) for value in (*inputs, *outputs))
        self.direct: Call = _find_fastest_call(session)
        """Called with output names and a feed of values that need no conversion; returns new values."""
        self.is_direct = self._needs_no_conversion and _needs_no_conversion(inputs)
        """Whether no input or output needs a conversion."""

    def can_fill(self, name: str) -> bool:
        """Whether the session can write this output to a caller's buffer."""
        return self._can_bind and name in self._outputs and choose_transport(self._outputs[name]) is not ValueTransport.PACKED

    def can_fix(self) -> bool:
        """Whether all inputs and outputs can be bound to fixed arrays: numeric tensors without sub-byte packing."""
        types = (*self._inputs.values(), *self._outputs.values())
        return self._can_bind and all(choose_transport(type_) is not ValueTransport.PACKED for type_ in types)

    def bind_arrays(self, feed: Mapping[str, Array], buffers: Mapping[str, Array]) -> Callable[[], None]:
        """A call over these C-contiguous arrays, one per input and output; requires `can_fix`."""
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_ortvalue_input(name, by_reference(array, _dtype(self._inputs[name])))
        for name, array in buffers.items():
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(self._outputs[name])))
        return _make_bound_call(self._session, binding)

    def bind_buffers(self, names: Sequence[str], buffers: Mapping[str, Array]) -> Callable[..., None]:
        """A call with the inputs as arguments that writes to these buffers; requires `can_fix`.

        Uses the inner binding, which skips the wrappers of the public one: 2.9 us for a small call instead of 3.6.
        """
        binding = self._session.io_binding()
        for name, array in buffers.items():
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(self._outputs[name])))
        run, bind = _make_bound_call(self._session, binding), _make_binder(binding, {name: self._inputs[name] for name in names})

        def call(*values: Array) -> None:
            # Copies must live until the run ends.
            contiguous = [value if _is_contiguous(value) else np.array(value, order="C") for value in values]
            for name, value in zip(names, contiguous, strict=True):
                bind(name, value)
            run()

        return call

    def __call__(self, feed: Mapping[str, Any], buffers: Mapping[str, Array]) -> dict[str, Any]:
        """Compute all outputs by name; those in ``buffers`` (which must satisfy `can_fill`) are written there."""
        if self._needs_no_conversion and not buffers:
            feed_values = {name: _to_value(value, self._inputs[name]) for name, value in feed.items()}
            return dict(zip(self._names, self.direct(self._names, feed_values, None), strict=True))
        return self._run_binding(feed, buffers)

    def _run_binding(self, feed: Mapping[str, Any], buffers: Mapping[str, Array]) -> dict[str, Any]:
        binding = self._session.io_binding()
        feed_values = {name: to_ort(array, _dtype(self._inputs[name])) for name, array in feed.items()}
        for name, value in feed_values.items():
            binding.bind_ortvalue_input(name, value)
        for name, type_ in self._outputs.items():
            if name in buffers:
                binding.bind_ortvalue_output(name, by_reference(buffers[name], _dtype(type_)))
            else:
                binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        bound = zip(self._outputs.items(), binding.get_outputs(), strict=True)
        return {name: buffers[name] if name in buffers else from_ort(value, _dtype(type_)) for (name, type_), value in bound}


def _needs_no_conversion(values: Sequence[Value]) -> bool:
    return all(choose_transport(value.type) is ValueTransport.DIRECT for value in values)


def _find_fastest_call(session: InferenceSession) -> Call:
    """The session's inner call, which takes 0.8 of the public one's time; the public one if a version has none."""
    inner = getattr(session, "_sess", None)
    call: Call = getattr(inner, "run", session.run)
    return call


@dataclass(frozen=True, slots=True)
class BoundSession:
    """A bound call and its arrays."""

    call: Callable[[], None]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


def through_frames(make: Callable[[], BoundSession], make_error: Callable[[Exception], Exception]) -> Callable[..., list[Array]]:
    """A call that copies inputs to bound arrays and outputs from them; concurrent calls use separate frames."""
    first = make()
    if len(first.inputs) == len(first.outputs) == 1:
        return _make_pair_call(first, make, make_error)
    # A list is thread-safe as a pool: pop and append are atomic.
    idle = [first]

    def run(*values: Array) -> list[Array]:
        try:
            frame = idle.pop()
        except IndexError:
            frame = make()
        try:
            for place, value in zip(frame.inputs, values, strict=True):
                place[...] = value
            frame.call()
        except Exception as error:
            raise make_error(error) from error
        results = [output.copy() for output in frame.outputs]
        idle.append(frame)
        return results

    return run


def _make_pair_call(
    first: BoundSession, make: Callable[[], BoundSession], make_error: Callable[[Exception], Exception]
) -> Callable[..., list[Array]]:
    """The same for one input and one output, the common case: half a microsecond faster."""

    def parts(frame: BoundSession) -> tuple[Callable[[], None], Array, Array]:
        return frame.call, frame.inputs[0], frame.outputs[0]

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
            raise make_error(error) from error
        result = output.copy()
        idle.append(frame)
        return [result]

    return run


def _make_bound_call(session: InferenceSession, binding: IOBinding) -> Callable[[], None]:
    """Run a binding by the session's inner call (0.85 of the public one's time) if the version has it."""
    run = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    inner = getattr(binding, "_iobinding", None)
    if run is None or inner is None:
        return lambda: session.run_with_iobinding(binding)

    def call(_: IOBinding = binding) -> None:  # the public binding keeps the arrays alive
        run(inner, None)

    return call


def _make_binder(binding: IOBinding, inputs: Mapping[str, Type | None]) -> Callable[[str, Array], None]:
    """How to bind a C-contiguous input: by the inner method if the version has it and NumPy has all the types."""
    inner = getattr(getattr(binding, "_iobinding", None), "bind_input", None)
    if inner is not None and all(choose_transport(type_) is ValueTransport.DIRECT for type_ in inputs.values()):
        return inner  # type: ignore[no-any-return]  # the library is untyped
    return lambda name, array: binding.bind_ortvalue_input(name, by_reference(array, _dtype(inputs[name])))


def _is_contiguous(array: Array) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def _to_value(value: Any, type_: Type | None) -> Any:
    if isinstance(type_, TensorType) and choose_transport(type_) is not ValueTransport.DIRECT:
        return to_ort(value, type_.dtype)
    return value


def _is_numeric(type_: Type | None) -> bool:
    """Whether values of the type can be bound: tensors, but not of strings."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING


def _dtype(type_: Type | None) -> DType:
    """The element type of a value that satisfies `_is_numeric`."""
    if not isinstance(type_, TensorType):
        raise TypeError(f"a value of type {type_} cannot be bound")
    return type_.dtype


# ---------------------------------------------------------------------- values


class ValueTransport(enum.Enum):
    """How values of a type are passed to and from the library."""

    DIRECT = "the library takes and gives the Python object itself"
    BITS = "as one of the library's values over the same bytes"
    PACKED = "as one of the library's values, several elements to a byte"
    NONE = "not at all"


_BITS = {
    DType.BFLOAT16: np.uint16,
    DType.FLOAT8E4M3FN: np.uint8,
    DType.FLOAT8E4M3FNUZ: np.uint8,
    DType.FLOAT8E5M2: np.uint8,
    DType.FLOAT8E5M2FNUZ: np.uint8,
    DType.FLOAT8E8M0: np.uint8,
}
_PACKED = frozenset({DType.UINT4, DType.INT4, DType.FLOAT4E2M1, DType.UINT2, DType.INT2})
_NONE = frozenset({DType.COMPLEX64, DType.COMPLEX128, DType.FLOAT6E2M3, DType.FLOAT6E3M2})
_TRANSPORTS = (
    dict.fromkeys(_BITS, ValueTransport.BITS)
    | dict.fromkeys(_PACKED, ValueTransport.PACKED)
    | dict.fromkeys(_NONE, ValueTransport.NONE)
)


def choose_transport(type_: Type | None) -> ValueTransport:
    """How values of this type are passed; DIRECT if the type is unknown."""
    if isinstance(type_, TensorType):
        return _TRANSPORTS.get(type_.dtype, ValueTransport.DIRECT)
    if type_ is None:
        return ValueTransport.DIRECT
    if isinstance(type_, MapType):  # the library converts all values of a dict to float
        return ValueTransport.DIRECT if getattr(type_.value, "dtype", None) is DType.FLOAT32 else ValueTransport.NONE
    return ValueTransport.DIRECT if choose_transport(type_.element) is ValueTransport.DIRECT else ValueTransport.NONE


def why_not_carried(name: str, type_: Type | None) -> str | None:
    """Explain why a value of this type cannot be an input or output of ONNX Runtime; None if it can."""
    if choose_transport(type_) is not ValueTransport.NONE:
        return None
    return f"{LIBRARY} cannot pass {name!r} in or out: its Python interface has no values of type {type_}"


def to_ort(array: Array, dtype: DType) -> OrtValue:
    """Convert an array to a value of the library, sharing its memory if possible.

    Raises TypeError for an array of another type, whose bits the library would reinterpret.
    """
    if array.dtype != dtype.numpy:
        raise TypeError(f"an array of {array.dtype} was given for {dtype}")
    if dtype in _PACKED:
        return _pack(array, dtype)
    return by_reference(array, dtype)


def by_reference(array: Array, dtype: DType) -> OrtValue:
    """A value that shares the array's memory and keeps it alive; an array that is not C-contiguous is copied."""
    array = np.require(array, requirements=["C", "A"])
    bits = _BITS.get(dtype)
    if bits is None:
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(bits), dtype.onnx)


def from_ort(value: OrtValue, dtype: DType) -> Array:
    """Copy a tensor of the library to a new array."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    raw: Array = np.empty(size, np.uint8)
    ctypes.memmove(raw.ctypes.data, value.data_ptr(), size)
    return _unpack(raw, dtype, shape) if dtype in _PACKED else raw.view(dtype.numpy).reshape(shape)


def _pack(array: Array, dtype: DType) -> OrtValue:
    value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype.onnx)
    padded = np.zeros((value.tensor_size_in_bytes(), 8 // dtype.bits), np.uint8)
    padded.reshape(-1)[: array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & _make_mask(dtype)
    raw = np.bitwise_or.reduce(padded << _make_shifts(dtype), axis=1, dtype=np.uint8)
    ctypes.memmove(value.data_ptr(), raw.ctypes.data, raw.size)
    return value


def _unpack(raw: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    elements: Array = ((raw[:, None] >> _make_shifts(dtype)) & _make_mask(dtype)).reshape(-1)
    array: Array = elements[: math.prod(shape)].view(dtype.numpy)
    return array.reshape(shape)


def _make_shifts(dtype: DType) -> Array:
    return np.arange(0, 8, dtype.bits, dtype=np.uint8)


def _make_mask(dtype: DType) -> np.uint8:
    return np.uint8(2**dtype.bits - 1)
