"""Run a compiled model: convert arrays to tensors, reuse infer requests, and serialize the model.

OpenVINO rejects read-only arrays although it never writes to an input, so it gets a writable alias of them. Types that NumPy
lacks, such as bfloat16, are passed as integers of the same size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.openvino.library import LIBRARY, get_core, mark_pool_idle, openvino, summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.errors import InputError, RunFailed
from xrt.graph import DType, Function, TensorType, Type, Value

# ---------------------------------------------------------------------- values

Array: TypeAlias = np.ndarray[Any, Any]

_ELEMENT_TYPES = {
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
_DTYPES_BY_NAME = {type_.get_type_name(): dtype for dtype, type_ in _ELEMENT_TYPES.items()}
_INTEGER_VIEWS = {DType.BFLOAT16: np.uint16}


def why_not_passable(name: str, type_: Type | None) -> str | None:
    """Explain why the value ``name`` cannot be an input or output of OpenVINO; None if it can, or if its type is unknown."""
    if type_ is None or (isinstance(type_, TensorType) and type_.dtype in _ELEMENT_TYPES):
        return None
    return f"{name!r} is {type_}, and XRT passes only tensors of numbers to {LIBRARY}"


def convert_type(element: Any, shape: Any) -> TensorType | None:
    """Convert a type of OpenVINO; dynamic dims become None. Return None for an element type that XRT does not pass."""
    dtype = _DTYPES_BY_NAME.get(element.get_type_name())
    if dtype is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(dtype)
    return TensorType(dtype, tuple(None if extent.is_dynamic else extent.get_length() for extent in shape))


def to_tensor(array: Array, dtype: DType) -> Any:
    """Make a tensor that shares the memory of a C-contiguous array. The caller must keep the array alive."""
    if not array.flags.writeable:
        array = make_writable_alias(array)
    bits = _INTEGER_VIEWS.get(dtype)
    if bits is None:
        # NumPy has two equivalent 64-bit integer types (long, long long), and OpenVINO accepts only one.
        canonical = array if array.dtype.num == dtype.numpy.num else array.view(dtype.numpy)
        return openvino.Tensor(canonical, shared_memory=True)
    return openvino.Tensor(array.view(bits), list(array.shape), _ELEMENT_TYPES[dtype])


def make_contiguous(array: Array) -> Array:
    """Return the array, or a copy if it is not C-contiguous or not aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def allocate(type_: TensorType) -> Array:
    """Allocate an uninitialized array of a static type."""
    return np.empty([extent for extent in type_.shape or () if isinstance(extent, int)], type_.dtype.numpy)


def to_array(tensor: Any, dtype: DType) -> Array:
    """View the tensor's memory as an array, which is valid only as long as the tensor and its owner exist."""
    data: Array = tensor.data
    return data if dtype not in _INTEGER_VIEWS else data.view(dtype.numpy)


MAX_COPIED_BYTES = 16 * 1024
"""Inputs and outputs up to this size are copied to or from tensors that are set once per request. That takes 0.3 to 1 us, and
setting a tensor over the caller's array takes 4 us."""

_Request = openvino._pyopenvino.InferRequest
"""The class of the C++ binding. Its public Python wrapper dispatches on the types of the inputs, which would double the time of a
small call."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model with the types of its inputs and outputs."""

    model: Any
    used_inputs: tuple[int, ...]
    """For each input of the model, its index among the Function's inputs. OpenVINO drops inputs that are not used."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    can_preset: tuple[bool, ...]
    """For each output, whether its tensor can be set once per request: its shape is static, and it is not passed through."""
    passed_through: tuple[bool, ...]
    """For each output, whether it is an input or a constant. Setting the tensor of such an output would also set the input's."""

    @classmethod
    def from_model(cls, model: Any, used_inputs: tuple[int, ...], passed_through: Sequence[bool]) -> CompiledModel:
        """Get the types from a model that OpenVINO compiled. Raises TypeError for an element type that XRT cannot pass."""
        inputs, outputs = (tuple(map(_get_port_type, ports)) for ports in (model.inputs, model.outputs))
        can_preset = (type_.is_static and not is_passed for type_, is_passed in zip(outputs, passed_through, strict=True))
        return cls(model, used_inputs, inputs, outputs, tuple(can_preset), tuple(passed_through))

    @property
    def idle_threads(self) -> int:
        """Number of threads that OpenVINO holds for the model: one per stream, and one for callbacks."""
        streams = int(self.model.get_property("NUM_STREAMS"))
        return streams + 1 if streams else 0

    @property
    def concurrent_runs(self) -> int:
        """How many requests can compute at the same time: one per stream; others wait. Without streams there is one graph."""
        return max(1, int(self.model.get_property("NUM_STREAMS")))


def _get_port_type(port: Any) -> TensorType:
    type_ = convert_type(port.element_type, port.partial_shape)
    if type_ is None:
        raise TypeError(f"a value of type {port.element_type.get_type_name()} cannot be an input or output")
    return type_


class RequestFrame:
    """An infer request and the arrays of its tensors, for one call at a time: concurrent runs would compute wrong results."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._request = compiled.model.create_infer_request()
        self._compiled: CompiledModel = compiled
        self._tensors: dict[tuple[str, int], object] = {}
        self._outputs = [
            self._preset("output", index, type_) if can_preset else None
            for index, (type_, can_preset) in enumerate(zip(compiled.outputs, compiled.can_preset, strict=True))
        ]
        self._inputs = [self._preset("input", index, type_) for index, type_ in enumerate(compiled.inputs)]

    def _preset(self, side: str, index: int, type_: TensorType) -> Array | None:
        """Allocate an array and set it as input or output of the request, if it is static and at most `MAX_COPIED_BYTES`.

        ``side`` is "input" or "output". Return the array, or None for other values, whose tensors are set in each run.
        """
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > MAX_COPIED_BYTES:
            return None
        array = allocate(type_)
        self.set_tensor(side, index, array, type_.dtype)
        return array

    def set_tensor(self, side: str, index: int, array: Array, dtype: DType) -> None:
        """Set a C-contiguous array as the tensor of an input or output, and keep it alive until it is replaced."""
        tensor = to_tensor(array, dtype)
        if side == "input":
            _Request.set_input_tensor(self._request, index, tensor)
        else:
            _Request.set_output_tensor(self._request, index, tensor)
        self._tensors[side, index] = array, tensor

    def run(
        self, inputs: Sequence[Array], buffers: Sequence[Array | None], shapes: Sequence[tuple[int, ...] | None]
    ) -> list[Array]:
        """Compute the outputs into ``buffers``, or into new arrays where a buffer is None. A buffer must not overlap an input.

        ``shapes`` has the shape of each output for these inputs, or None if it is unknown. For each output it is either known in
        every run or in none.
        """
        for index, (preset, source) in enumerate(zip(self._inputs, self._compiled.used_inputs, strict=True)):
            if preset is None:
                self.set_tensor("input", index, make_contiguous(inputs[source]), self._compiled.inputs[index].dtype)
            else:
                preset[...] = inputs[source]
        targets = [self._choose_target(*item) for item in zip(range(len(shapes)), shapes, buffers, strict=True)]
        # This releases the GIL while OpenVINO computes.
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)
        return [self._read_result(*item) for item in zip(range(len(targets)), targets, buffers, strict=True)]

    def release_model(self) -> None:
        """Release the reference to the model. The frame cannot run afterwards."""
        del self._compiled

    def _choose_target(self, index: int, shape: tuple[int, ...] | None, buffer: Array | None) -> Array | None:
        """Set the buffer or a new array as the tensor of an output, and return it; None if the result must be copied instead."""
        if shape is None or 0 in shape or self._outputs[index] is not None or self._compiled.passed_through[index]:
            return None
        dtype = self._compiled.outputs[index].dtype
        target = np.empty(shape, dtype.numpy) if buffer is None else buffer
        self.set_tensor("output", index, target, dtype)
        return target

    def _read_result(self, index: int, target: Array | None, buffer: Array | None) -> Array:
        """Return an output after the run: ``target`` if OpenVINO wrote to it, else a copy in ``buffer`` or in a new array."""
        preset = self._outputs[index]
        type_ = self._compiled.outputs[index]
        if preset is None:
            tensor = _Request.get_output_tensor(self._request, index)
            # OpenVINO replaces the tensor if it computes another shape than that of the target.
            if target is not None and (type_.is_static or tuple(tensor.shape) == target.shape):
                return target
            preset = np.asarray(to_array(tensor, type_.dtype), type_.dtype.numpy)
        return preset.copy() if buffer is None else fill(buffer, preset)


ReportMemory = Callable[[], Sequence[MemoryUse]]


class OpenVinoExecutable(Executable):
    """Runs a compiled model with one infer request per concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self, function: Function, compiled: CompiledModel, owner: object, report_memory: ReportMemory, inplace: Mapping[int, int]
    ) -> None:
        """``compiled`` was compiled from ``function``. ``owner`` owns memory that it reads, such as weights, and is kept alive.

        ``inplace`` maps the index of an input to the index of the output that may overwrite it.
        """
        self.idle_threads = compiled.idle_threads
        self.concurrent_runs = compiled.concurrent_runs
        self.function = function
        self.compiled: CompiledModel | None = compiled
        self.saved: memoryview | None = None
        """The bytes that this was loaded from; None if it was compiled."""
        self.inplace = inplace
        self._owner = owner
        self._report_memory = report_memory
        types = zip(compiled.outputs, function.outputs, strict=True)
        self._output_dims = [_trace_dims(type_ if type_.is_static else value.type, function) for type_, value in types]
        """For each output, its dims: numbers, or (input index, axis) of an equal dim. None if a dim is unknown before the run."""
        self._has_symbolic_outputs = any(isinstance(dim, tuple) for dims in self._output_dims for dim in dims or ())
        self._symbolic_inputs = [index for index in compiled.used_inputs if _has_symbolic_dims(function.inputs[index])]
        """Indices of used inputs with symbolic dims."""
        self._shared_dims = _find_shared_dims(function)
        self._no_buffers: list[Array | None] = [None] * len(function.outputs)
        # As many frames as there were concurrent calls. Its pop and append are atomic, so no lock is needed.
        self._idle: list[RequestFrame] = []

    def prepare(self) -> None:
        self._idle.append(self._acquire_frame())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if (out := options.host_buffers) is None:
            return self._compute(inputs, self._no_buffers)
        _check_buffers(out, self.function.outputs)
        results = self._compute(inputs, self._choose_buffers(inputs, out))
        return [_copy_to_buffer(buffer, result) for buffer, result in zip(out, results, strict=True)]

    def _compute(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array]:
        try:
            # Only some operators of the plugin support empty inputs. Inputs with static shapes were checked at compile time.
            if self._symbolic_inputs and not all(inputs[index].size for index in self._symbolic_inputs):
                raise ValueError("an input with symbolic dims has no elements, which only some of its operators support")
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
        """Determine the shape of each output from the shapes of the inputs; None if it is unknown before the run."""
        if not self._has_symbolic_outputs:
            return self._output_dims  # type: ignore[return-value]  # all extents are numbers
        return [
            None if dims is None else tuple(d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in dims)
            for dims in self._output_dims
        ]

    def _check_shared_dims(self, inputs: Sequence[Any]) -> None:
        """Raise ValueError if a dim has two sizes: with one thread OpenVINO would read beyond the end of the smaller input."""
        for dim, (first, axis), *others in self._shared_dims:
            size = inputs[first].shape[axis]
            for index, other_axis in others:
                if inputs[index].shape[other_axis] != size:
                    names = self.function.inputs[first].name, self.function.inputs[index].name
                    raise ValueError(
                        f"dim {dim!r} is {size} in input {names[0]!r} and {inputs[index].shape[other_axis]} in {names[1]!r}"
                    )

    def _acquire_frame(self) -> RequestFrame:
        """Get a frame that no other call uses, an idle or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            if self.compiled is None:
                raise RuntimeError("the executable is closed") from None
            return RequestFrame(self.compiled)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        compute = self._compute
        buffers = self._no_buffers
        return lambda *inputs: compute(inputs, buffers)

    def output_buffer_threshold(self) -> Sequence[int | None]:
        if self.compiled is None:
            return ()
        return [MAX_COPIED_BYTES if is_fixed else None for is_fixed in self.compiled.can_preset]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """List (input, output) index pairs of large scatters, whose output may overwrite their first input.

        OpenVINO reads that input only at the elements that it writes, or copies it first. Small values are excluded, because
        they are copied to and from preset tensors.
        """
        thresholds = self.output_buffer_threshold()
        return tuple((i, o) for i, o in self.inplace.items() if _is_large(self.function.outputs[o], thresholds[o]))

    def memory(self) -> Sequence[MemoryUse]:
        return self._report_memory()

    def close(self) -> None:
        """Release the model. Requests must be its last owners, because only they free it without holding the GIL."""
        if self.compiled is not None:
            # OpenVINO holds the thread pool of a closed model for the next one. A forked child must not use that pool.
            if self.idle_threads:
                mark_pool_idle()
        self.compiled = None
        for frame in self._idle:
            frame.release_model()
        self._idle.clear()
        self._owner = None

    def _choose_buffers(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array | None]:
        """For each output, return its buffer if it is contiguous and overlaps only the input that it may overwrite, else None."""
        overwritten = {output: index for index, output in self.inplace_pairs()}
        targets: list[Array | None] = []
        for output, buffer in enumerate(buffers):
            updated = overwritten.get(output) if output in overwritten and inputs[overwritten[output]] is buffer else None
            others = [value for index, value in enumerate(inputs) if index != updated]
            targets.append(None if buffer is None or _overlaps(buffer, others) else buffer)
        return targets


def _copy_to_buffer(buffer: Array | None, result: Array) -> Array:
    """Copy the result into the buffer unless it is there already, and return the buffer. Without a buffer return the result."""
    if buffer is None or buffer is result:
        return result
    return fill(buffer, result)


def _check_buffers(buffers: Sequence[Array | None], outputs: Sequence[Value]) -> None:
    """Raise InputError if the type or shape of a buffer differs from that of its output."""
    for buffer, value in zip(buffers, outputs, strict=True):
        if buffer is None or not isinstance(value.type, TensorType) or not value.type.is_static:
            continue
        dtype = np.dtype(value.type.dtype.numpy)
        if buffer.dtype != dtype or buffer.shape != value.type.shape:
            raise InputError(
                f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is "
                f"{dtype}{list(value.type.shape or ())}; give one just like it, or None"
            )


def _has_symbolic_dims(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and any(isinstance(dim, str) for dim in type_.shape or ())


def _find_shared_dims(function: Function) -> list[tuple[Any, ...]]:
    """List the symbolic dims that occur several times in the inputs, each as (name, (input index, axis), ...)."""
    occurrences: dict[str, list[tuple[int, int]]] = {}
    for index, value in enumerate(function.inputs):
        if _has_symbolic_dims(value):
            for axis, dim in enumerate(value.type.shape or ()):  # type: ignore[union-attr]  # only tensors have symbolic dims
                if isinstance(dim, str):
                    occurrences.setdefault(dim, []).append((index, axis))
    return [(dim, *pairs) for dim, pairs in occurrences.items() if len(pairs) > 1]


def _trace_dims(type_: Type | None, function: Function) -> tuple[int | tuple[int, int], ...] | None:
    """Describe each dim of an output: a number, or the (input index, axis) of an equal symbol. None if a dim is neither."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    inputs = [(index, value.type) for index, value in enumerate(function.inputs) if isinstance(value.type, TensorType)]
    axes = {dim: (index, axis) for index, t in inputs for axis, dim in enumerate(t.shape or ()) if isinstance(dim, str)}
    sources = [dim if isinstance(dim, int) else axes.get(dim or "") for dim in type_.shape]
    return None if None in sources else tuple(sources)  # type: ignore[arg-type]  # checked above


def _is_large(value: Value, threshold: int | None) -> bool:
    """Whether a value has more than ``threshold`` bytes. False if ``threshold`` is None or the shape is not static."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return threshold is not None and nbytes is not None and nbytes > threshold


def _overlaps(buffer: Array, values: Sequence[Any]) -> bool:
    return not buffer.flags.c_contiguous or any(np.may_share_memory(buffer, array) for array in values)


# The format: OpenVINO's own export of the optimized graph and all constants (the blob); a header in JSON, with the used inputs,
# the outputs passed through, the size of the blob, and the outputs that may overwrite an input; 8 bytes, the header's length.


def export_model(compiled: CompiledModel, inplace: Mapping[int, int]) -> memoryview:
    """Serialize a model for `load_model`. ``inplace`` maps indices of inputs to those of the outputs that may overwrite them."""
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    # The header comes last, so that the blob starts where the file does and is aligned.
    header = {"used": compiled.used_inputs, "passed": compiled.passed_through, "blob": size}
    encoded = json.dumps({**header, "inplace": list(inplace.items())}).encode()
    stream.seek(size)
    stream.write(encoded + len(encoded).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(data: memoryview, device: str, settings: Mapping[str, Any]) -> tuple[CompiledModel, dict[int, int]]:
    """Load a model of `export_model`, and its ``inplace``. ``data``, whose checksum was verified, must outlive the model."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = get_core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    compiled = CompiledModel.from_model(model, tuple(header["used"]), header["passed"])
    return compiled, dict(header["inplace"])
