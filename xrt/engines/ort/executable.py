"""The executable on the CPU: calls of a session, I/O binding, and conversion of arrays to values of the library."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from onnxruntime import InferenceSession, IOBinding, OrtValue

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.ort.session import LIBRARY, Bytes, make_tensor_type
from xrt.engines.toolkit.libraries import summarize_error
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import Constant, DType, FrozenDict, Function, MapType, TensorType, Type, Value

Array: TypeAlias = np.ndarray[Any, Any]
BOUND_BYTES = 512 * 1024
"""The session writes directly to a caller's buffer of at least this size. For a smaller buffer, copying the result is faster."""
MAX_COPIED_BYTES = 4 * 1024
"""Inputs of at most this size are copied to bound arrays, which takes 0.2 to 0.3 us. Passing an input to a call takes 0.6 us."""


class OrtExecutable(Executable):
    """Runs a session. Several threads can run it at the same time."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self,
        function: Function,
        session: InferenceSession,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        files: Mapping[str, Bytes] = FrozenDict(),
        list_memory: Callable[[], Sequence[MemoryUse]] = tuple,
        inplace: Mapping[int, int] = FrozenDict(),
    ) -> None:
        """``inputs`` and ``outputs`` are those of the Function, with the names in the session.

        The session reads the memory of ``files``. ``list_memory`` lists the memory of the session and the files. ``inplace`` maps
        the indices of inputs to those of the outputs that may overwrite them.
        """
        session_types = {output.name: make_tensor_type(output.type) for output in session.get_outputs()}
        self.function = function
        self.saved: memoryview | None = None
        """The data from which the executable was loaded; None if it was compiled."""
        self.files = files
        """The memory of weights, by their file names in the model."""
        self.inplace = inplace
        self._list_memory = list_memory
        self._session: InferenceSession | None = session
        self._inputs = {value.name: value.type for value in inputs}
        self._outputs = {value.name: value.type or session_types[value.name] for value in outputs}
        self._names = list(self._outputs)
        types = (*self._inputs.values(), *self._outputs.values())
        self._needs_binding = not all(map(_is_direct, self._outputs.values()))
        """Whether NumPy lacks the type of an output, which then can only be read from a binding."""
        self._can_bind = all(map(_is_numeric, types))
        if self._needs_binding and not self._can_bind:
            indirect = next(name for name, type_ in self._outputs.items() if not _is_direct(type_))
            values = {**self._inputs, **self._outputs}
            unbindable = next(name for name, type_ in values.items() if not _is_numeric(type_))
            raise CompileRefused(
                f"ONNX Runtime returns {indirect!r} of type {values[indirect]} only by I/O binding, which does not support "
                f"{unbindable!r} of type {values[unbindable]}"
            )
        self._needs_no_conversion = all(map(_is_direct, types))
        has_packed_values = any(choose_transport(type_) is ValueTransport.PACKED for type_ in types)
        self._can_bind_arrays = self._can_bind and not has_packed_values
        # The private method of the session is 20 % faster than the public one.
        self._call: Call = session._sess.run

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        out = options.host_buffers
        try:
            feed = dict(zip(self._inputs, inputs, strict=True))
            if self._needs_no_conversion and out is None:
                return self._call(self._names, feed, None)
            buffers = out or [None] * len(self._names)
            results = self._compute(feed, self._choose_buffers(feed, buffers))
        except Exception as error:
            raise self._make_error(error) from error
        return [x if buffer is None else fill(buffer, x) for x, buffer in zip(results, buffers, strict=True)]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        if not self._needs_no_conversion:
            return super().fast_call()
        types = (*self._inputs.values(), *self._outputs.values())
        # Copying small values to bound arrays is faster than passing them.
        if self._can_bind_arrays and all(map(_is_small, types)):
            return self._make_frame_call()
        call, names, inputs = self._call, self._names, list(self._inputs)

        def run(*values: Any) -> Sequence[Any]:
            try:
                return call(names, dict(zip(inputs, values, strict=True)), None)
            except Exception as error:
                raise self._make_error(error) from error

        return run

    def _make_frame_call(self) -> Callable[..., list[Array]]:
        """Make a call that copies inputs to, and outputs from, arrays that are bound to the session.

        Each call that runs at the same time uses another set of arrays (a frame).
        """

        def make_frame() -> Frame:
            inputs = [_allocate(type_) for type_ in self._inputs.values()]
            outputs = [_allocate(type_) for type_ in self._outputs.values()]
            return self._bind_arrays(inputs, outputs), inputs, outputs

        # A list is a thread-safe pool, because pop and append are atomic.
        idle = [make_frame()]

        def run(*values: Array) -> list[Array]:
            try:
                frame = idle.pop()
            except IndexError:
                frame = make_frame()
            call, inputs, outputs = frame
            try:
                for array, value in zip(inputs, values):  # noqa: B905  # `strict` takes 0.1 us, and callers check the number
                    array[...] = value
                call()
            except Exception as error:
                raise self._make_error(error) from error
            results = [output.copy() for output in outputs]
            idle.append(frame)
            return results

        return run

    def supports_io_binding(self) -> bool:
        return self._can_bind_arrays

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if not self.supports_io_binding():
            return super().bind(inputs, outputs)
        return self._convert_errors(self._bind_arrays(inputs, outputs))

    def bind_outputs(self, outputs: Sequence[Any]) -> Callable[..., None]:
        """Return a function that writes to fixed outputs, with private methods of the library: 2.9 instead of 3.6 us per call."""
        if not self.supports_io_binding():
            return super().bind_outputs(outputs)
        session = self._get_session()
        binding = session.io_binding()
        for (name, type_), array in zip(self._outputs.items(), outputs, strict=True):
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(type_)))
        run = _make_bound_call(session, binding)
        bind = _make_binder(binding, self._inputs)
        names = list(self._inputs)

        def call(*values: Array) -> None:
            # Keep references to copies until the run ends.
            contiguous = [x if x.flags.c_contiguous and x.flags.aligned else np.array(x, order="C") for x in values]
            for name, value in zip(names, contiguous, strict=True):
                bind(name, value)
            run()

        return self._convert_errors(call)

    def _bind_arrays(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Make a call that reads and writes these C-contiguous arrays."""
        session = self._get_session()
        binding = session.io_binding()
        for (name, type_), array in zip(self._inputs.items(), inputs, strict=True):
            binding.bind_ortvalue_input(name, by_reference(array, _dtype(type_)))
        for (name, type_), array in zip(self._outputs.items(), outputs, strict=True):
            binding.bind_ortvalue_output(name, by_reference(array, _dtype(type_)))
        return _make_bound_call(session, binding)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        return [BOUND_BYTES if self._can_fill(type_) else None for type_ in self._outputs.values()]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        return tuple(self.inplace.items())

    def _convert_errors(self, call: Callable[..., None]) -> Callable[..., None]:
        def run(*inputs: Any) -> None:
            try:
                call(*inputs)
            except Exception as error:
                raise self._make_error(error) from error

        return run

    def _make_error(self, error: Exception) -> RunFailed:
        return RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}")

    def memory(self) -> Sequence[MemoryUse]:
        return self._list_memory()

    def close(self) -> None:
        self._call = _raise_closed
        self._session = None
        self.files = FrozenDict()

    def _get_session(self) -> InferenceSession:
        return self._session or _raise_closed()

    def _compute(self, feed: Mapping[str, Any], buffers: Mapping[str, Array]) -> list[Any]:
        """Compute all outputs. ``feed`` has the inputs by name, ``buffers`` the arrays to which the session writes outputs."""
        # A binding takes longer than a call, but only a binding can write to a buffer or return types that NumPy lacks.
        if not self._needs_binding and not buffers:
            types = self._inputs
            values = {name: x if _is_direct(types[name]) else to_ort(x, _dtype(types[name])) for name, x in feed.items()}
            return self._call(self._names, values, None)
        session = self._get_session()
        binding = session.io_binding()
        feed_values = {name: to_ort(array, _dtype(self._inputs[name])) for name, array in feed.items()}
        for name, value in feed_values.items():
            binding.bind_ortvalue_input(name, value)
        for name, type_ in self._outputs.items():
            if name in buffers:
                binding.bind_ortvalue_output(name, by_reference(buffers[name], _dtype(type_)))
            else:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        bound = zip(self._outputs.items(), binding.get_outputs(), strict=True)
        return [buffers[name] if name in buffers else from_ort(value, _dtype(type_)) for (name, type_), value in bound]

    def _can_fill(self, type_: Type | None) -> bool:
        """Whether the session can write an output of this type to a caller's buffer."""
        return self._can_bind and choose_transport(type_) is not ValueTransport.PACKED

    def _choose_buffers(self, feed: Mapping[str, Any], buffers: Sequence[Array | None]) -> dict[str, Array]:
        """Select, by output name, the buffers to which the session writes directly. Other results are copied after the run.

        A buffer that is the input to update is selected at any size, others from `BOUND_BYTES` on. None may share memory with
        another input, because the session may still read that.
        """
        input_names = list(self._inputs)
        # By the index of an output: the name of the input that it may overwrite. If both are the same array, that is an update.
        updated_inputs = {output: input_names[index] for index, output in self.inplace.items()}
        selected: dict[str, Array] = {}
        for index, ((name, type_), buffer) in enumerate(zip(self._outputs.items(), buffers, strict=True)):
            if buffer is None or not self._can_fill(type_):
                continue
            updated = updated_inputs.get(index)
            is_update = updated is not None and feed[updated] is buffer
            other_inputs = [array for input_name, array in feed.items() if not (is_update and input_name == updated)]
            if not is_update and buffer.nbytes < BOUND_BYTES:
                continue
            if not any(np.may_share_memory(buffer, array) for array in other_inputs):
                selected[name] = buffer
        return selected


def _is_small(type_: Type | None) -> bool:
    """Whether copying a value of the type is faster than passing it (`MAX_COPIED_BYTES`)."""
    nbytes = type_.nbytes if isinstance(type_, TensorType) else None
    return nbytes is not None and 0 < nbytes <= MAX_COPIED_BYTES


def _allocate(type_: Type | None) -> Array:
    if not isinstance(type_, TensorType) or not type_.is_static:
        raise TypeError(f"{type_} has no fixed size")
    return np.empty(type_.shape, type_.dtype.numpy)


def _raise_closed(*_: Any) -> Any:
    raise RuntimeError("the executable is closed")


Call: TypeAlias = Callable[[list[str], Mapping[str, Any], None], list[Any]]
"""``f(output_names, inputs_by_name, None)`` runs a session. The values need no conversion."""
Frame: TypeAlias = tuple[Callable[[], None], list[Array], list[Array]]
"""A call, and the arrays that it reads and writes."""


def _is_direct(type_: Type | None) -> bool:
    return choose_transport(type_) is ValueTransport.DIRECT


def _make_bound_call(session: InferenceSession, binding: IOBinding) -> Callable[[], None]:
    """Make a call that runs the binding, with a private method of the session, which is 15 % faster."""
    run, inner = session._sess.run_with_iobinding, binding._iobinding

    def call(_: IOBinding = binding) -> None:  # this reference keeps the arrays alive
        run(inner, None)

    return call


def _make_binder(binding: IOBinding, inputs: Mapping[str, Type | None]) -> Callable[[str, Array], None]:
    """Make a function that binds a C-contiguous array to an input by name.

    It is a private method of the binding, which is faster, if NumPy has the types of all inputs.
    """
    if all(map(_is_direct, inputs.values())):
        return binding._iobinding.bind_input  # type: ignore[no-any-return]  # the library is untyped
    return lambda name, array: binding.bind_ortvalue_input(name, by_reference(array, _dtype(inputs[name])))


def _is_numeric(type_: Type | None) -> bool:
    """Whether values of the type can be bound: tensors of numbers or booleans."""
    return isinstance(type_, TensorType) and type_.dtype is not DType.STRING


def _dtype(type_: Type | None) -> DType:
    """The element type of ``type_``, which must satisfy `_is_numeric`."""
    if not isinstance(type_, TensorType):
        raise TypeError(f"a value of type {type_} cannot be bound")
    return type_.dtype


class ValueTransport(enum.Enum):
    """How values of a type are passed to and from the library."""

    DIRECT = "as the Python object itself"
    BITS = "as an OrtValue over the same bytes"
    PACKED = "as an OrtValue with several elements per byte"
    NONE = "not supported"


_TYPES = {
    ValueTransport.BITS: "bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0",
    ValueTransport.PACKED: "uint4 int4 float4e2m1 uint2 int2",
    ValueTransport.NONE: "complex64 complex128 float6e2m3 float6e3m2",
}
_TRANSPORTS = {DType.parse(name): transport for transport, names in _TYPES.items() for name in names.split()}


def choose_transport(type_: Type | None) -> ValueTransport:
    """Determine how values of this type are passed to the library; DIRECT if the type is unknown."""
    if isinstance(type_, TensorType):
        return _TRANSPORTS.get(type_.dtype, ValueTransport.DIRECT)
    if type_ is None:
        return ValueTransport.DIRECT
    if isinstance(type_, MapType):  # the library converts all values of a dict to float
        return ValueTransport.DIRECT if getattr(type_.value, "dtype", None) is DType.FLOAT32 else ValueTransport.NONE
    return ValueTransport.DIRECT if choose_transport(type_.element) is ValueTransport.DIRECT else ValueTransport.NONE


def why_not_passable(name: str, type_: Type | None) -> str | None:
    """Explain why a value of this type cannot be an input or output of ONNX Runtime; None if it can."""
    if choose_transport(type_) is not ValueTransport.NONE:
        return None
    return f"{LIBRARY} cannot pass {name!r} in or out: its Python interface has no values of type {type_}"


def to_ort(array: Array, dtype: DType) -> OrtValue:
    """Convert an array to a value of the library, which shares the array's memory if possible.

    Raises TypeError if the array has another dtype, because the library would reinterpret its bits.
    """
    if array.dtype != dtype.numpy:
        raise TypeError(f"an array of {array.dtype} was given for {dtype}")
    if _TRANSPORTS.get(dtype) is ValueTransport.PACKED:
        from xrt.formats.onnx.messages import encode_data  # few models pass values of these types

        value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype.onnx)
        raw = np.frombuffer(encode_data(Constant(array)), np.uint8)
        ctypes.memmove(value.data_ptr(), raw.ctypes.data, raw.size)
        return value
    return by_reference(array, dtype)


def by_reference(array: Array, dtype: DType) -> OrtValue:
    """Make a value that shares the array's memory, and keeps a reference to it. An array that is not C-contiguous is copied."""
    array = np.require(array, requirements=["C", "A"])
    if dtype not in _TRANSPORTS:
        return OrtValue.ortvalue_from_numpy(array)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.itemsize}"), dtype.onnx)


def from_ort(value: OrtValue, dtype: DType) -> Array:
    """Copy a tensor of the library to a new array."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    raw: Array = np.empty(size, np.uint8)
    ctypes.memmove(raw.ctypes.data, value.data_ptr(), size)
    if _TRANSPORTS.get(dtype) is ValueTransport.PACKED:
        from xrt.formats.onnx.messages import decode_data  # few models pass values of these types

        return decode_data(raw.data, dtype, shape, "an output")
    array: Array = raw.view(dtype.numpy)
    return array.reshape(shape)
