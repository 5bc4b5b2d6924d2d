"""Run a compiled model: convert arrays to tensors, reuse infer requests, and serialize the model.

OpenVINO rejects read-only arrays, although it never writes to an input, so read-only inputs are passed as writable aliases.
bfloat16, which NumPy lacks, is passed as uint16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import openvino

from xrt.engines.contract.graph_compiler import Executable, MemoryUse, fill
from xrt.engines.contract.options import RunOptions
from xrt.engines.openvino.library import LIBRARY, get_core, mark_pool_idle
from xrt.engines.toolkit.libraries import summarize_error
from xrt.engines.toolkit.memory import make_writable_alias
from xrt.errors import RunFailed
from xrt.graph import DType, Function, TensorType, Type, Value

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


def why_not_passable(name: str, type_: Type | None) -> str | None:
    """Explain why the value ``name`` cannot be an input or output of OpenVINO; None if it can, or if its type is unknown."""
    if type_ is None or (isinstance(type_, TensorType) and type_.dtype in _ELEMENT_TYPES):
        return None
    return f"{name!r} is {type_}, and XRT passes only tensors of numbers to {LIBRARY}"


def convert_type(element: Any, shape: Any) -> TensorType | None:
    """Convert a type of OpenVINO; dynamic extents become None. Return None instead for an element type that XRT does not pass."""
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
    if dtype is DType.BFLOAT16:
        return openvino.Tensor(array.view(np.uint16), list(array.shape), _ELEMENT_TYPES[dtype])
    # NumPy has two equivalent 64-bit integer types, long and long long, and OpenVINO accepts only one of them.
    if array.dtype.num != dtype.numpy.num:
        array = array.view(dtype.numpy)
    return openvino.Tensor(array, shared_memory=True)


def make_contiguous(array: Array) -> Array:
    """Return the array, or a copy if it is not C-contiguous or not aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def to_array(tensor: Any, dtype: DType) -> Array:
    """View the tensor's memory as an array, which is valid only as long as the tensor and its owner exist."""
    data: Array = tensor.data
    return data.view(dtype.numpy) if dtype is DType.BFLOAT16 else data


MAX_COPIED_BYTES = 16 * 1024
"""Inputs and outputs up to this size are copied to or from tensors that are set once per request. A copy takes 0.3 to 1 us;
setting the caller's array as the tensor of a run takes 4 us."""
_Request = openvino._pyopenvino.InferRequest
"""The class of the C++ binding. The public class in Python dispatches on the types of the inputs, which would double the time of
a small call."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model with the types of its inputs and outputs."""

    model: Any
    used_inputs: tuple[int, ...]
    """For each input of the model, its index among the Function's inputs. OpenVINO drops inputs that are not used."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    can_preset: tuple[bool, ...]
    """For each output, whether its tensor can be set once for all runs: its shape is static, and it is not passed through."""
    passed_through: tuple[bool, ...]
    """For each output, whether it is an input or a constant. Setting the output's tensor would also set the input's tensor."""

    @classmethod
    def from_model(cls, model: Any, used_inputs: tuple[int, ...], passed_through: Sequence[bool]) -> CompiledModel:
        """Get the types from a model that OpenVINO compiled. Raises TypeError for an element type that XRT cannot pass."""
        inputs = tuple(map(_get_port_type, model.inputs))
        outputs = tuple(map(_get_port_type, model.outputs))
        can_preset = (type_.is_static and not is_passed for type_, is_passed in zip(outputs, passed_through, strict=True))
        return cls(model, used_inputs, inputs, outputs, tuple(can_preset), tuple(passed_through))


def _get_port_type(port: Any) -> TensorType:
    type_ = convert_type(port.element_type, port.partial_shape)
    if type_ is None:
        raise TypeError(f"a value of type {port.element_type.get_type_name()} cannot be an input or output")
    return type_


class RequestFrame:
    """An infer request and the arrays of its tensors. It runs one call at a time: concurrent runs would mix their results."""

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
        """Allocate an array, set it as the tensor of an input or output for all runs, and return it.

        ``side`` is "input" or "output". Return None for a value that is not static or has more than `MAX_COPIED_BYTES`; the
        tensor of such a value is set in each run.
        """
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > MAX_COPIED_BYTES:
            return None
        array = np.empty(type_.shape, type_.dtype.numpy)  # type: ignore[type-var]  # its shape is static
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
        """Compute the outputs into ``buffers``; an output whose buffer is None, into a new array. No buffer may overlap an input.

        ``shapes`` are the shapes of the outputs for these inputs. The shape of an output is None in each run if it is unknown.
        """
        # ``preset`` is the array of the tensor that is set for all runs, or None; ``source`` is the index among the inputs.
        for index, (preset, source) in enumerate(zip(self._inputs, self._compiled.used_inputs, strict=True)):
            if preset is None:
                self.set_tensor("input", index, make_contiguous(inputs[source]), self._compiled.inputs[index].dtype)
            else:
                preset[...] = inputs[source]
        targets = [self._choose_target(index, shape, buffers[index]) for index, shape in enumerate(shapes)]
        # This releases the GIL while OpenVINO computes.
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)
        return [self._read_result(index, target, buffers[index]) for index, target in enumerate(targets)]

    def release_model(self) -> None:
        """Release the reference to the model. The frame cannot run afterwards."""
        del self._compiled

    def _choose_target(self, index: int, shape: tuple[int, ...] | None, buffer: Array | None) -> Array | None:
        """Set the buffer, or a new array, as the tensor of an output, and return it; None if the result is copied instead."""
        if shape is None or 0 in shape or self._outputs[index] is not None or self._compiled.passed_through[index]:
            return None
        dtype = self._compiled.outputs[index].dtype
        target = np.empty(shape, dtype.numpy) if buffer is None else buffer
        self.set_tensor("output", index, target, dtype)
        return target

    def _read_result(self, index: int, target: Array | None, buffer: Array | None) -> Array:
        """Return an output after the run: ``target`` if OpenVINO wrote to it, else a copy in ``buffer`` or in a new array."""
        result = self._outputs[index]
        type_ = self._compiled.outputs[index]
        if result is None:
            tensor = _Request.get_output_tensor(self._request, index)
            # OpenVINO replaces the tensor if the result has another shape than the target.
            if target is not None and (type_.is_static or tuple(tensor.shape) == target.shape):
                return target
            result = np.asarray(to_array(tensor, type_.dtype), type_.dtype.numpy)
        return result.copy() if buffer is None else fill(buffer, result)


ReportMemory = Callable[[], Sequence[MemoryUse]]


class OpenVinoExecutable(Executable):
    """Runs a compiled model with one infer request per concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self, function: Function, compiled: CompiledModel, owner: object, report_memory: ReportMemory, inplace: Mapping[int, int]
    ) -> None:
        """``compiled`` was compiled from ``function``. ``owner`` is kept alive, because it owns memory that the model reads.

        ``inplace`` maps the index of an input to the index of the output that may overwrite the input.
        """
        streams = int(compiled.model.get_property("NUM_STREAMS"))
        # One thread per stream, and one for callbacks.
        self.idle_threads = streams + 1 if streams else 0
        # One run per stream; without streams there is one graph, for one run.
        self.concurrent_runs = max(1, streams)
        self.function = function
        self.compiled: CompiledModel | None = compiled
        self.saved: memoryview | None = None
        """The serialized model that was loaded; None if the model was compiled."""
        self.inplace = inplace
        self._owner = owner
        self._used_inputs = frozenset(compiled.used_inputs)
        self._report_memory = report_memory
        self._symbolic_inputs = [
            (index, value.type.shape)
            for index, value in enumerate(function.inputs)
            if isinstance(value.type, TensorType) and any(isinstance(dim, str) for dim in value.type.shape or ())
        ]
        """Index and shape of each input that has symbolic dims."""
        input_dims = {dim for _, shape in self._symbolic_inputs for dim in shape or () if isinstance(dim, str)}
        # OpenVINO infers more static shapes, but only the Function has the names of symbolic dims.
        types = zip(compiled.outputs, function.outputs, strict=True)
        self._output_shapes = [_find_shape(type_ if type_.is_static else value.type, input_dims) for type_, value in types]
        """The shape of each output; None if it contains a dim that is unknown before the run."""
        self._no_buffers: list[Array | None] = [None] * len(function.outputs)
        # As many frames as there were concurrent calls. `pop` and `append` are atomic, so no lock is needed.
        self._idle: list[RequestFrame] = []

    def prepare(self) -> None:
        self._idle.append(self._acquire_frame())

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if (out := options.host_buffers) is None:
            return self._compute(inputs, self._no_buffers)
        results = self._compute(inputs, self._choose_buffers(inputs, out))
        return [result if buffer is None else fill(buffer, result) for result, buffer in zip(results, out, strict=True)]

    def _compute(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array]:
        try:
            shapes = self._resolve_shapes(inputs) if self._symbolic_inputs else self._output_shapes
            frame = self._acquire_frame()
            results = frame.run(inputs, buffers, shapes)
        except Exception as error:
            raise RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}") from error
        # A frame is reused only after success: a failed request is dropped.
        self._idle.append(frame)
        return results

    def _resolve_shapes(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Determine the shape of each output from the shapes of the inputs; None for a shape that is unknown before the run.

        Raises ValueError for an empty input that the model uses. Also raises it for a dim with two sizes, because OpenVINO would
        read beyond the end of the smaller input.
        """
        sizes: dict[str, int] = {}
        # The first input with a symbolic dim sets its size; later inputs must agree.
        for index, shape in self._symbolic_inputs:
            name, array = self.function.inputs[index].name, inputs[index]
            if index in self._used_inputs and not array.size:
                raise ValueError(f"input {name!r} has no elements, which only some operators of OpenVINO support")
            for dim, size in zip(shape or (), array.shape, strict=True):
                if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                    raise ValueError(f"dim {dim!r} is {size} in input {name!r}, and {sizes[dim]} in an earlier input")
        return [
            None if shape is None else tuple(dim if isinstance(dim, int) else sizes[dim] for dim in shape)
            for shape in self._output_shapes
        ]

    def _acquire_frame(self) -> RequestFrame:
        """Take an idle frame, or make a new one."""
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
        # Smaller results are copied from preset tensors anyway. None: the output is passed through, or its shape is dynamic.
        return [MAX_COPIED_BYTES if is_fixed else None for is_fixed in self.compiled.can_preset]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """List the (input, output) index pairs of large scatters, in which the output may overwrite the input.

        OpenVINO reads the input only at the elements that it writes, or copies the input first. Small values are excluded,
        because they are copied to and from preset tensors.
        """
        thresholds = self.output_buffer_threshold()
        return tuple((i, o) for i, o in self.inplace.items() if _is_large(self.function.outputs[o], thresholds[o]))

    def memory(self) -> Sequence[MemoryUse]:
        return self._report_memory()

    def close(self) -> None:
        # OpenVINO keeps the thread pool of a closed model for the next model. A forked child must not use that pool.
        if self.compiled is not None and self.idle_threads:
            mark_pool_idle()
        # Release other references before the requests, because only requests free the model without holding the GIL.
        self.compiled = None
        for frame in self._idle:
            frame.release_model()
        self._idle.clear()
        self._owner = None

    def _choose_buffers(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array | None]:
        """For each output, return its buffer if OpenVINO may write to the buffer, else None.

        It may if the buffer is contiguous, and overlaps no input except one that `inplace_pairs` allows the output to overwrite.
        """
        overwritable = {output: index for index, output in self.inplace_pairs()}
        targets: list[Array | None] = []
        for output, buffer in enumerate(buffers):
            index = overwritable.get(output)
            is_inplace = index is not None and inputs[index] is buffer
            other_inputs = [value for k, value in enumerate(inputs) if not (is_inplace and k == index)]
            is_target = buffer is not None and _is_writable(buffer, other_inputs)
            targets.append(buffer if is_target else None)
        return targets


def _find_shape(type_: Type | None, input_dims: Collection[str]) -> tuple[Any, ...] | None:
    """Find the shape of an output; None if it has a dim that is neither a number nor one of ``input_dims``."""
    shape = type_.shape if isinstance(type_, TensorType) else None
    is_known = shape is not None and all(isinstance(dim, int) or dim in input_dims for dim in shape)
    return shape if is_known else None


def _is_large(value: Value, threshold: int | None) -> bool:
    """Whether a value has more than ``threshold`` bytes. False if the threshold is None, or the size is unknown."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return threshold is not None and nbytes is not None and nbytes > threshold


def _is_writable(buffer: Array, inputs: Sequence[Any]) -> bool:
    """Whether OpenVINO may write to a buffer: it is C-contiguous, and overlaps none of ``inputs``."""
    return buffer.flags.c_contiguous and not any(np.may_share_memory(buffer, array) for array in inputs)


# The format of a serialized model:
# - the blob: OpenVINO's export of the optimized graph and all constants.
# - the footer, in JSON: the used inputs, the outputs that are passed through, the size of the blob in bytes, and ``inplace``.
# - 8 bytes: the length of the footer in bytes.


def export_model(compiled: CompiledModel, inplace: Mapping[int, int]) -> memoryview:
    """Serialize a model for `load_model`. ``inplace`` maps the index of an input to that of the output that may overwrite it."""
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    footer = {"used": compiled.used_inputs, "passed": compiled.passed_through, "blob": size, "inplace": list(inplace.items())}
    # The blob comes first, so that it starts at the start of the file and is aligned.
    encoded = json.dumps(footer).encode()
    stream.seek(size)
    stream.write(encoded + len(encoded).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(data: memoryview, device: str, settings: Mapping[str, Any]) -> tuple[CompiledModel, dict[int, int]]:
    """Load a model that `export_model` serialized, and its ``inplace``. The caller verifies ``data`` and keeps it alive."""
    length = int.from_bytes(data[-8:], "little")
    footer = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: footer["blob"]], np.uint8)
    model = get_core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    compiled = CompiledModel.from_model(model, tuple(footer["used"]), footer["passed"])
    return compiled, dict(footer["inplace"])
