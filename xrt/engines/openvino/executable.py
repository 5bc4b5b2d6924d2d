"""The executable: conversion of arrays to tensors, infer requests, calls, and the saved form.

OpenVINO rejects read-only arrays but never writes to an input, so it gets a writable alias. Types that NumPy lacks are
passed as integers of the same size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.openvino.library import LIBRARY, core, openvino, release_pool, summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.errors import InputError, RunFailed
from xrt.graph import DType, Function, TensorType, Type, Value

# ---------------------------------------------------------------------- values

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = {
    DType.BOOL: openvino.Type.boolean,
    DType.BFLOAT16: openvino.Type.bf16,
    DType.FLOAT16: openvino.Type.f16,
    DType.FLOAT32: openvino.Type.f32,
    DType.FLOAT64: openvino.Type.f64,
    DType.INT8: openvino.Type.i8,
    DType.INT16: openvino.Type.i16,
    DType.INT32: openvino.Type.i32,
    DType.INT64: openvino.Type.i64,
    DType.UINT8: openvino.Type.u8,
    DType.UINT16: openvino.Type.u16,
    DType.UINT32: openvino.Type.u32,
    DType.UINT64: openvino.Type.u64,
}
_NAMES = {type_.get_type_name(): dtype for dtype, type_ in _TYPES.items()}
_BITS = {DType.BFLOAT16: np.uint16}


def why_not_passable(name: str, type_: Type | None) -> str | None:
    """Explain why a value of this type cannot be an input or output of OpenVINO; None if it can or the type is unknown."""
    if type_ is None or (isinstance(type_, TensorType) and type_.dtype in _TYPES):
        return None
    return f"{name!r} is {type_}, and XRT passes only tensors of numbers to {LIBRARY}"


def type_from(element: Any, shape: Any) -> TensorType | None:
    """Convert an element type and a partial shape of OpenVINO; dynamic extents are None. None for an unknown element type."""
    dtype = _NAMES.get(element.get_type_name())
    if dtype is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(dtype)
    return TensorType(dtype, tuple(None if extent.is_dynamic else extent.get_length() for extent in shape))


def to_tensor(array: Array, dtype: DType) -> Any:
    """A tensor that shares the memory of a C-contiguous array but does not keep it alive."""
    if not array.flags.writeable:
        array = make_writable_alias(array)
    bits = _BITS.get(dtype)
    if bits is None:
        # NumPy has two equal 64-bit integer types (long, long long); the library accepts only one.
        canonical = array if array.dtype.num == dtype.numpy.num else array.view(dtype.numpy)
        return openvino.Tensor(canonical, shared_memory=True)
    return openvino.Tensor(array.view(bits), list(array.shape), _TYPES[dtype])


def make_contiguous(array: Array) -> Array:
    """The array, or a copy if it is not C-contiguous or not aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def empty(type_: TensorType) -> Array:
    """An uninitialized array of a static type."""
    return np.empty([extent for extent in type_.shape or () if isinstance(extent, int)], type_.dtype.numpy)


def to_array(tensor: Any, dtype: DType) -> Array:
    """A view of the tensor's memory, valid as long as the tensor and its owner."""
    data: Array = tensor.data
    return data if dtype not in _BITS else data.view(dtype.numpy)


# ---------------------------------------------------------------------- requests

COPY_TO = 16 * 1024
"""Values up to this many bytes are copied to or from a preset tensor (0.3 to 1 us); setting a tensor takes 4 us."""

_Request = openvino._pyopenvino.InferRequest
"""The binding's class: the public one dispatches over kinds of input, which takes as long as a small call."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model with the types of its inputs and outputs."""

    model: Any
    used: tuple[int, ...]
    """Per input of the model, its position among the Function's inputs."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    fixed: tuple[bool, ...]
    """Per output, whether its tensor can be set once: static shape, and not an alias of an input."""
    passed: tuple[bool, ...]
    """Per output, whether it is an input or constant passed through: setting its tensor would also set the input's."""

    @classmethod
    def of(cls, model: Any, used: tuple[int, ...], passed: Sequence[bool]) -> CompiledModel:
        """Read the types of a compiled model; raises TypeError for an element type that cannot be an input or output."""
        inputs, outputs = (tuple(map(_find_type, ports)) for ports in (model.inputs, model.outputs))
        fixed = (type_.is_static and not is_passed for type_, is_passed in zip(outputs, passed, strict=True))
        return cls(model, used, inputs, outputs, tuple(fixed), tuple(passed))

    @property
    def idle_threads(self) -> int:
        """Threads that the library keeps for the model: one per stream, and one for callbacks."""
        streams = int(self.model.get_property("NUM_STREAMS"))
        return streams + 1 if streams else 0

    @property
    def concurrent_runs(self) -> int:
        """The number of concurrent requests: each stream has one graph under a lock; without streams there is one."""
        return max(1, int(self.model.get_property("NUM_STREAMS")))


def _find_type(port: Any) -> TensorType:
    type_ = type_from(port.element_type, port.partial_shape)
    if type_ is None:
        raise TypeError(f"a value of type {port.element_type.get_type_name()} cannot cross the border")
    return type_


class RequestFrame:
    """An infer request with the arrays and tensors set on it, used by one thread at a time.

    Two threads that share a request get wrong results without an error.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._request = compiled.model.create_infer_request()
        self._compiled: CompiledModel = compiled
        self._tensors: dict[tuple[str, int], object] = {}
        self._outputs = [
            self._preset("output", place, type_) if can_preset else None
            for place, (type_, can_preset) in enumerate(zip(compiled.outputs, compiled.fixed, strict=True))
        ]
        self._inputs = [self._preset("input", place, type_) for place, type_ in enumerate(compiled.inputs)]

    def _preset(self, side: str, place: int, type_: TensorType) -> Array | None:
        """Allocate and set memory for a small value of static shape; None for others."""
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > COPY_TO:
            return None
        array = empty(type_)
        self.set_tensor(side, place, array, type_.dtype)
        return array

    def set_tensor(self, side: str, place: int, array: Array, dtype: DType) -> None:
        """Set a tensor over a C-contiguous array and keep both alive until it is replaced."""
        tensor = to_tensor(array, dtype)
        if side == "input":
            _Request.set_input_tensor(self._request, place, tensor)
        else:
            _Request.set_output_tensor(self._request, place, tensor)
        self._tensors[side, place] = array, tensor

    def run(
        self, inputs: Sequence[Array], buffers: Sequence[Array | None], shapes: Sequence[tuple[int, ...] | None]
    ) -> list[Array]:
        """Compute one array per output: the buffer, which must not overlap other arrays, or a new one.

        ``shapes`` are the shapes of the outputs, None if unknown. Which outputs have one is the same in every run.
        """
        for place, (fixed, source) in enumerate(zip(self._inputs, self._compiled.used, strict=True)):
            if fixed is None:
                self.set_tensor("input", place, make_contiguous(inputs[source]), self._compiled.inputs[place].dtype)
            else:
                fixed[...] = inputs[source]
        targets = [self._choose_target(*item) for item in zip(range(len(shapes)), shapes, buffers, strict=True)]
        # Releases the GIL.
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)
        return [self._read_result(*item) for item in zip(range(len(targets)), targets, buffers, strict=True)]

    def forget_model(self) -> None:
        """Drop the reference to the model; the frame cannot run afterwards."""
        del self._compiled

    def _choose_target(self, place: int, shape: tuple[int, ...] | None, buffer: Array | None) -> Array | None:
        """Set the array that the request writes an output of this shape to; None if the result is to be copied."""
        if shape is None or 0 in shape or self._outputs[place] is not None or self._compiled.passed[place]:
            return None
        dtype = self._compiled.outputs[place].dtype
        target = np.empty(shape, dtype.numpy) if buffer is None else buffer
        self.set_tensor("output", place, target, dtype)
        return target

    def _read_result(self, place: int, target: Array | None, buffer: Array | None) -> Array:
        """The result: the target if the request has written to it, else a copy in the buffer or in a new array."""
        preset, type_ = self._outputs[place], self._compiled.outputs[place]
        if preset is None:
            tensor = _Request.get_output_tensor(self._request, place)
            # The library replaces a tensor of another shape than it computes.
            if target is not None and (type_.is_static or tuple(tensor.shape) == target.shape):
                return target
            preset = np.asarray(to_array(tensor, type_.dtype), type_.dtype.numpy)
        return preset.copy() if buffer is None else fill(buffer, preset)


# ---------------------------------------------------------------------- the executable

Uses = Callable[[], Sequence[MemoryUse]]


class OpenVinoExecutable(Executable):
    """Runs a compiled model with one infer request per concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self, function: Function, compiled: CompiledModel, owner: object, uses: Uses, inplace: Mapping[int, int]
    ) -> None:
        """``compiled`` computes the outputs of the Function. ``owner`` is kept alive with it.

        ``inplace`` maps inputs to outputs that may overwrite them, by position.
        """
        self.idle_threads = compiled.idle_threads
        self.concurrent_runs = compiled.concurrent_runs
        self.function = function
        self.compiled: CompiledModel | None = compiled
        self.saved: memoryview | None = None
        """The data that it was loaded from, if it was not compiled."""
        self.inplace = inplace
        self._owner, self._uses = owner, uses
        types = zip(compiled.outputs, function.outputs, strict=True)
        self._dims = [_trace_dims(type_ if type_.is_static else value.type, function) for type_, value in types]
        """Per output, its extents, or how they follow from the inputs; None if they do not."""
        self._has_dynamic = any(isinstance(dim, tuple) for dims in self._dims for dim in dims or ())
        self._symbolic_inputs = [place for place in compiled.used if _has_symbol(function.inputs[place])]
        """The used inputs with symbolic dims."""
        self._shared_dims = _find_shared_dims(function)
        self._no_buffers: list[Array | None] = [None] * len(function.outputs)
        # One frame per concurrent call so far; pop and append are atomic.
        self._idle: list[RequestFrame] = []

    def prepare(self) -> None:
        self._idle.append(self._acquire_frame())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if (out := options.host_buffers) is None:
            return self._compute(inputs, self._no_buffers)
        _check_buffers(out, self.function.outputs)
        results = self._compute(inputs, self._choose_buffers(inputs, out))
        return [_copy_to(buffer, result) for buffer, result in zip(out, results, strict=True)]

    def _compute(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array]:
        try:
            # The plugin supports empty inputs in some operators only.
            if self._symbolic_inputs and not all(inputs[place].size for place in self._symbolic_inputs):
                raise ValueError("an input of open shape has no elements, which it computes in part of its operators only")
            if self._shared_dims:
                self._check_shared_dims(inputs)
            frame = self._acquire_frame()
            results = frame.run(inputs, buffers, self._find_shapes(inputs))
        except Exception as error:
            raise RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}") from error
        # A frame is reused only after success: a failed request is dropped.
        self._idle.append(frame)
        return results

    def _find_shapes(self, inputs: Sequence[Any]) -> Sequence[tuple[int, ...] | None]:
        """The shape of each output; None if it does not follow from the inputs."""
        if not self._has_dynamic:
            return self._dims  # type: ignore[return-value]  # all extents are numbers
        return [
            None if dims is None else tuple(d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in dims)
            for dims in self._dims
        ]

    def _check_shared_dims(self, inputs: Sequence[Any]) -> None:
        """Raise ValueError if a dim has two sizes: with one thread the library would read beyond the smaller input."""
        for dim, (first, axis), *others in self._shared_dims:
            size = inputs[first].shape[axis]
            for place, other in others:
                if inputs[place].shape[other] != size:
                    names = self.function.inputs[first].name, self.function.inputs[place].name
                    raise ValueError(
                        f"dim {dim!r} is {size} in input {names[0]!r} and {inputs[place].shape[other]} in {names[1]!r}"
                    )

    def _acquire_frame(self) -> RequestFrame:
        """A frame that no other call uses."""
        try:
            return self._idle.pop()
        except IndexError:
            if self.compiled is None:
                raise RuntimeError("the executable is closed") from None
            return RequestFrame(self.compiled)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        compute, buffers = self._compute, self._no_buffers
        return lambda *inputs: compute(inputs, buffers)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        if self.compiled is None:
            return ()
        return [COPY_TO if is_fixed else None for is_fixed in self.compiled.fixed]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """Scatters: the library reads their first input only where it writes, or copies it first.

        Small values are excluded, as they are copied to and from preset tensors.
        """
        least = self.output_buffer_threshold()
        return tuple((i, o) for i, o in self.inplace.items() if _is_large(self.function.outputs[o], least[o]))

    def memory(self) -> Sequence[MemoryUse]:
        return self._uses()

    def close(self) -> None:
        """Release the model. Requests must be its last owners, since only they free it without holding the GIL."""
        if self.compiled is not None:
            # The library keeps the thread pool of a closed model, which a fork must not reuse.
            if self.idle_threads:
                release_pool()
        self.compiled = None
        for frame in self._idle:
            frame.forget_model()
        self._idle.clear()
        self._owner = None

    def _choose_buffers(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array | None]:
        """Per output, the buffer that the model writes to directly; None if it may overlap another input."""
        overwritten = {output: place for place, output in self.inplace_pairs()}
        targets: list[Array | None] = []
        for output, buffer in enumerate(buffers):
            updated = overwritten.get(output) if output in overwritten and inputs[overwritten[output]] is buffer else None
            others = [value for place, value in enumerate(inputs) if place != updated]
            targets.append(None if buffer is None or _overlaps(buffer, others) else buffer)
        return targets


def _copy_to(buffer: Array | None, result: Array) -> Array:
    """Copy the result into the buffer, if there is one and the result is elsewhere."""
    if buffer is None or buffer is result:
        return result
    return fill(buffer, result)


def _check_buffers(buffers: Sequence[Array | None], outputs: Sequence[Value]) -> None:
    """Raise InputError for a buffer whose type or shape differs from its output."""
    for buffer, value in zip(buffers, outputs, strict=True):
        if buffer is None or not isinstance(value.type, TensorType) or not value.type.is_static:
            continue
        dtype = np.dtype(value.type.dtype.numpy)
        if buffer.dtype != dtype or buffer.shape != value.type.shape:
            raise InputError(
                f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is "
                f"{dtype}{list(value.type.shape or ())}; give one just like it, or None"
            )


def _has_symbol(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and any(isinstance(dim, str) for dim in type_.shape or ())


def _find_shared_dims(function: Function) -> list[tuple[Any, ...]]:
    """Each symbolic dim with several occurrences: its name, and the input and axis of each occurrence."""
    places_by_dim: dict[str, list[tuple[int, int]]] = {}
    for place, value in enumerate(function.inputs):
        if _has_symbol(value):
            for axis, dim in enumerate(value.type.shape or ()):  # type: ignore[union-attr]  # only tensors have symbolic dims
                if isinstance(dim, str):
                    places_by_dim.setdefault(dim, []).append((place, axis))
    return [(dim, *places) for dim, places in places_by_dim.items() if len(places) > 1]


def _trace_dims(type_: Type | None, function: Function) -> tuple[int | tuple[int, int], ...] | None:
    """The shape of an output of this type, each extent a number or an (input, axis) pair; None if one is neither."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    inputs = [(place, value.type) for place, value in enumerate(function.inputs) if isinstance(value.type, TensorType)]
    axes = {dim: (place, axis) for place, of in inputs for axis, dim in enumerate(of.shape or ()) if isinstance(dim, str)}
    sources = [dim if isinstance(dim, int) else axes.get(dim or "") for dim in type_.shape]
    return None if None in sources else tuple(sources)  # type: ignore[arg-type]  # checked above


def _is_large(value: Value, least: int | None) -> bool:
    """Whether a value of static shape has more than ``least`` bytes; False if ``least`` is None."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return least is not None and nbytes is not None and nbytes > least


def _overlaps(buffer: Array, values: Sequence[Any]) -> bool:
    return not buffer.flags.c_contiguous or any(np.may_share_memory(buffer, array) for array in values)


# ---------------------------------------------------------------------- the saved form

# blob: OpenVINO's export, the optimized graph and all constants. header: JSON with the used inputs, the outputs passed through,
# the size of the blob, and the outputs that may overwrite an input. Last 8 bytes: the length of the header.


def export_model(compiled: CompiledModel, inplace: Mapping[int, int]) -> memoryview:
    """Serialize a compiled model for `load_model`.

    ``inplace`` maps inputs to outputs that may overwrite them, by position.
    """
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    # The header follows the blob, which keeps the alignment of the file's start.
    header = {"used": compiled.used, "passed": compiled.passed, "blob": size}
    text = json.dumps({**header, "inplace": list(inplace.items())}).encode()
    stream.seek(size)
    stream.write(text + len(text).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(data: memoryview, device: str, settings: Mapping[str, Any]) -> tuple[CompiledModel, dict[int, int]]:
    """Load the data of `export_model`, whose checksum was checked; ``data`` must outlive the model."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    compiled = CompiledModel.of(model, tuple(header["used"]), header["passed"])
    return compiled, dict(header["inplace"])
