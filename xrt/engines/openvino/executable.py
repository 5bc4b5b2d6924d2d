"""A compiled model as an Executable: arrays in and out, infer requests, the executable itself, and its saved form.

The model computes the outputs that nodes produce, each once. An output that is itself an input or a constant, or that is listed
twice in the Function, is copied here. The library accepts no array that is read-only, and shares none of a type that NumPy lacks.
It never writes to an input, so a writable alias of it is safe; types that NumPy lacks go by their bits.
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
from xrt.engines.toolkit.scatters import find_inplace_outputs, make_writable_alias
from xrt.errors import InputError, RunFailed
from xrt.graph import DType, Function, TensorType, Type, Value

__all__ = [
    "COPY_TO",
    "Array",
    "CompiledModel",
    "OpenVinoExecutable",
    "empty",
    "export_model",
    "in_order",
    "list_computed_outputs",
    "load_model",
    "model_function",
    "to_tensor",
    "type_from",
    "why_not_carried",
]

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


def why_not_carried(name: str, type_: Type | None) -> str | None:
    """Return why a value of the type cannot enter or leave OpenVINO; None when it can, or nothing is known of it."""
    if type_ is None or (isinstance(type_, TensorType) and type_.dtype in _TYPES):
        return None
    return f"{name!r} is {type_}, and {LIBRARY} is handed tensors of numbers only"


def type_from(element: Any, shape: Any) -> TensorType | None:
    """Return a type as the library spells it; extents that it leaves open are None, and so is an element type unknown here."""
    dtype = _NAMES.get(element.get_type_name())
    if dtype is None:
        return None
    if shape.rank.is_dynamic:
        return TensorType(dtype)
    return TensorType(dtype, tuple(None if extent.is_dynamic else extent.get_length() for extent in shape))


def to_tensor(array: Array, dtype: DType) -> Any:
    """Return a tensor over the memory of a C-contiguous array, which must outlive all use of the tensor: it keeps nothing."""
    if not array.flags.writeable:
        array = make_writable_alias(array)
    bits = _BITS.get(dtype)
    if bits is None:
        # NumPy has two types of 64-bit integers that compare equal, and the library knows one of them.
        same = array if array.dtype.num == dtype.numpy.num else array.view(dtype.numpy)
        return openvino.Tensor(same, shared_memory=True)
    return openvino.Tensor(array.view(bits), list(array.shape), _TYPES[dtype])


def in_order(array: Array) -> Array:
    """Return the array, or a copy where it does not lie in order or is not aligned."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def empty(type_: TensorType) -> Array:
    """Return an array of a static type; what it holds is what the memory held."""
    return np.empty([extent for extent in type_.shape or () if isinstance(extent, int)], type_.dtype.numpy)


def to_array(tensor: Any, dtype: DType) -> Array:
    """Return the tensor's memory as an array, which lives as long as the tensor and what holds it."""
    data: Array = tensor.data
    return data if dtype not in _BITS else data.view(dtype.numpy)


def copy_out(tensor: Any, dtype: DType) -> Array:
    """Return a fresh array of what the tensor holds."""
    return np.array(to_array(tensor, dtype), dtype.numpy, order="C")


# ---------------------------------------------------------------------- requests

COPY_TO = 16 * 1024
"""Bytes to which copying a value to or from a tensor that is set (0.3 to 1 us) is quicker than setting another (4 us)."""

_Request = openvino._pyopenvino.InferRequest
"""The request without the public one's dispatch over kinds of input, which takes as long as a small call."""


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model, with what is known of its inputs and outputs."""

    model: Any
    used: tuple[int, ...]
    """Which of the Function's inputs the model has, in its order."""
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    fixed: tuple[bool, ...]
    """Per output, whether a tensor may be set for it once and for all: its shape is fixed, and it is no input's own value."""
    passed: tuple[bool, ...]
    """Per output, whether it is the very value of an input or a constant: to set a tensor for it would set the input."""

    @classmethod
    def of(cls, model: Any, used: tuple[int, ...], passed: Sequence[bool]) -> CompiledModel:
        """Raises TypeError for an element type that cannot cross."""
        inputs, outputs = (tuple(map(_type_of, ports)) for ports in (model.inputs, model.outputs))
        fixed = (type_.is_static and not is_passed for type_, is_passed in zip(outputs, passed, strict=True))
        return cls(model, used, inputs, outputs, tuple(fixed), tuple(passed))

    @property
    def idle_threads(self) -> int:
        """The threads that the library keeps for it: one for each stream, and one that would call back."""
        streams = int(self.model.get_property("NUM_STREAMS"))
        return streams + 1 if streams else 0

    @property
    def concurrent_runs(self) -> int:
        """How many requests compute at the same time: each stream has a graph under a lock, and without streams there is one."""
        return max(1, int(self.model.get_property("NUM_STREAMS")))

    @property
    def is_fixed(self) -> bool:
        """Whether tensors may be set once and for all on both sides."""
        return all(self.fixed) and all(type_.is_static for type_ in (*self.inputs, *self.outputs))


def _type_of(port: Any) -> TensorType:
    type_ = type_from(port.element_type, port.partial_shape)
    if type_ is None:
        raise TypeError(f"a value of type {port.element_type.get_type_name()} cannot cross the border")
    return type_


class RequestFrame:
    """A request for one thread at a time: two threads that use one get wrong numbers without an error.

    It holds the request, the memory for its small inputs and outputs, and the tensors over whatever else it was given last.
    """

    def __init__(self, compiled: CompiledModel, *, empty: bool = False) -> None:
        """An empty frame has nothing set yet."""
        self._request = compiled.model.create_infer_request()
        self._compiled: CompiledModel = compiled
        self._set: dict[tuple[str, int], object] = {}
        if empty:
            return
        self._outputs = [
            self._fixed("output", place, type_) if may else None
            for place, (type_, may) in enumerate(zip(compiled.outputs, compiled.fixed, strict=True))
        ]
        self._inputs = [self._fixed("input", place, type_) for place, type_ in enumerate(compiled.inputs)]

    def _fixed(self, side: str, place: int, type_: TensorType) -> Array | None:
        """Return memory that stays set for a small value of known size; None for another."""
        nbytes = type_.nbytes if type_.is_static else None
        if not nbytes or nbytes > COPY_TO:
            return None
        array = empty(type_)
        self.give(side, place, array, type_.dtype)
        return array

    def give(self, side: str, place: int, array: Array, dtype: DType) -> None:
        """Set a tensor over a C-contiguous array, and keep both until the next one is set in its place."""
        tensor = to_tensor(array, dtype)
        if side == "input":
            _Request.set_input_tensor(self._request, place, tensor)
        else:
            _Request.set_output_tensor(self._request, place, tensor)
        self._set[side, place] = array, tensor

    def run(
        self, inputs: Sequence[Array], buffers: Sequence[Array | None], shapes: Sequence[tuple[int, ...] | None] = ()
    ) -> list[Array]:
        """Return one array per output: the buffer where one is given, which nothing else may overlap, or a fresh one.

        ``shapes`` are those of outputs of open shape, None where they are not known; the same ones in each run.
        """
        for place, (fixed, source) in enumerate(zip(self._inputs, self._compiled.used, strict=True)):
            if fixed is None:
                self.give("input", place, in_order(inputs[source]), self._compiled.inputs[place].dtype)
            else:
                fixed[...] = inputs[source]
        targets = [self._target(place, buffer, shapes[place] if shapes else None) for place, buffer in enumerate(buffers)]
        self.infer()
        return [self._result(*three) for three in zip(range(len(targets)), targets, buffers, strict=True)]

    def forget_model(self) -> None:
        """Let the request alone refer to the model; it runs no more."""
        del self._compiled

    def infer(self) -> None:
        """Compute with what is set; the interpreter's lock is free meanwhile."""
        _Request.infer(self._request, {}, share_outputs=True, decode_strings=False)

    def _target(self, place: int, buffer: Array | None, shape: tuple[int, ...] | None) -> Array | None:
        """Return the array that the request shall write to; None where it writes to memory of its own or to a fixed array."""
        type_ = self._compiled.outputs[place]
        if shape is not None and not self._compiled.passed[place]:
            target = np.empty(shape, type_.dtype.numpy) if buffer is None else buffer
            self.give("output", place, target, type_.dtype)
            return target
        if self._outputs[place] is not None or not self._compiled.fixed[place] or not type_.nbytes:
            return None
        target = empty(type_) if buffer is None else buffer
        self.give("output", place, target, type_.dtype)
        return target

    def _result(self, place: int, target: Array | None, buffer: Array | None) -> Array:
        fixed = self._outputs[place]
        if target is not None:
            if self._compiled.fixed[place] or tuple(_Request.get_output_tensor(self._request, place).shape) == target.shape:
                return target
            fixed = None  # the library has put another shape in place of it
        if fixed is None:
            result = copy_out(_Request.get_output_tensor(self._request, place), self._compiled.outputs[place].dtype)
        else:
            result = fixed.copy() if buffer is None else fixed
        if buffer is None:
            return result
        fill(buffer, result)
        return buffer


def bound_call(compiled: CompiledModel, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
    """Return a call over exactly those C-contiguous arrays, with a request of its own; only where `is_fixed`."""
    frame = RequestFrame(compiled, empty=True)
    for place, (array, type_) in enumerate(zip(outputs, compiled.outputs, strict=True)):
        frame.give("output", place, array, type_.dtype)
    for place, (source, type_) in enumerate(zip(compiled.used, compiled.inputs, strict=True)):
        frame.give("input", place, inputs[source], type_.dtype)
    return frame.infer


# ---------------------------------------------------------------------- the executable

Uses = Callable[[], Sequence[MemoryUse]]


def list_computed_outputs(function: Function) -> tuple[Value, ...]:
    """Return the outputs that a node produces, each once: what a model is asked for."""
    produced = (value for value in function.outputs if function.computes(value.name))
    return tuple({value.name: value for value in produced}.values())


def model_function(function: Function) -> Function:
    """Return the Function with just the outputs that its model computes."""
    computed = list_computed_outputs(function)
    return function if computed == function.outputs else function.replace(outputs=computed, aliases=())


class OpenVinoExecutable(Executable):
    """Runs one compiled model, with an infer request for each concurrent call."""

    outputs_are_fresh: ClassVar[bool] = True
    updates_inputs: ClassVar[bool] = False

    def __init__(
        self,
        function: Function,
        compiled: CompiledModel | None,
        held: object = None,
        uses: Uses = tuple,
        inplace: Mapping[int, int] | None = None,
    ) -> None:
        """`compiled` gives `list_computed_outputs`; None where there are none. `held` must live as long as it.

        `inplace` are the places of outputs that may be
        written over an input, by its place; None to find them, which reads the Function's nodes.
        """
        self.idle_threads = 0 if compiled is None else compiled.idle_threads
        self.concurrent_runs = None if compiled is None else compiled.concurrent_runs
        self.function = function
        self.compiled = compiled
        self.saved: memoryview | None = None
        """What it was loaded from, where it was not compiled."""
        self._held, self._uses = held, uses
        names = [value.name for value in list_computed_outputs(function)]
        self._places = [names.index(value.name) if value.name in names else None for value in function.outputs]
        """Per output, which of the model's it is."""
        self._open = [_trace_dims(value, function) for value in list_computed_outputs(function)]
        """Per output of the model, where its extents are among those of the inputs; None where it is fixed, or they are not."""
        used = () if compiled is None else compiled.used
        self._sized = [place for place in used if _has_symbol(function.inputs[place])]
        """The inputs with symbolic dims that are read."""
        self._shared = _find_shared_dims(function)
        self._has_open = any(dims is not None for dims in self._open)
        self._gives_all = compiled is not None and self._places == list(range(len(names)))
        self._none: list[Array | None] = [None] * len(names)
        self.inplace = (find_inplace_outputs(function) if compiled is not None else {}) if inplace is None else inplace
        self._idle: list[RequestFrame] = []

    def prepare(self) -> None:
        if self.compiled is not None:
            self._idle.append(RequestFrame(self.compiled))

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        if self._gives_all and options.out is None:
            return self._computed(inputs, self._none)
        buffers = options.out or [None] * len(self.function.outputs)
        _check(buffers, self.function.outputs)
        computed = self._computed(inputs, self._to_fill(inputs, buffers)) if self._none else []
        return self._in_order(inputs, computed, buffers)

    def _computed(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array]:
        try:
            if self._sized and not all(inputs[place].size for place in self._sized):
                raise ValueError("an input of open shape has no elements, which it computes in part of its operators only")
            if self._shared:
                self._check_shared_dims(inputs)
            frame = self._taken()
            results = frame.run(inputs, buffers, self._find_shapes(inputs))
        except Exception as error:
            raise self._failed(error) from error
        self._idle.append(frame)
        return results

    def _find_shapes(self, inputs: Sequence[Any]) -> Sequence[tuple[int, ...] | None]:
        """Return the shapes of the outputs of open shape, as far as the inputs tell them; nothing where all are fixed."""
        if not self._has_open:
            return ()
        return [
            None if dims is None else tuple(d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in dims)
            for dims in self._open
        ]

    def _check_shared_dims(self, inputs: Sequence[Any]) -> None:
        """Raise ValueError where a dim has two sizes: with one thread the library reads beyond the smaller input."""
        for dim, (first, axis), *others in self._shared:
            size = inputs[first].shape[axis]
            for place, other in others:
                if inputs[place].shape[other] != size:
                    names = self.function.inputs[first].name, self.function.inputs[place].name
                    raise ValueError(
                        f"dim {dim!r} is {size} in input {names[0]!r} and {inputs[place].shape[other]} in {names[1]!r}"
                    )

    def _taken(self) -> RequestFrame:
        """Return a frame that no other call has."""
        try:
            return self._idle.pop()
        except IndexError:
            if self.compiled is None:
                raise RuntimeError("the executable is closed") from None
            return RequestFrame(self.compiled)

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        if not self._gives_all:
            return super().fast_call()
        computed, none = self._computed, self._none
        return lambda *inputs: computed(inputs, none)

    def supports_io_binding(self) -> bool:
        return self._gives_all and self.compiled is not None and self.compiled.is_fixed

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if self.compiled is None or not self.supports_io_binding():
            return super().bind(inputs, outputs)
        call = bound_call(self.compiled, inputs, outputs)

        def run() -> None:
            try:
                call()
            except Exception as error:
                raise self._failed(error) from error

        return run

    def output_buffer_threshold(self) -> Sequence[int | None]:
        if self.compiled is None:
            return ()
        can = [p is not None and self.compiled.fixed[p] and p not in self._places[:at] for at, p in enumerate(self._places)]
        return [COPY_TO if fills else None for fills in can]

    def inplace_pairs(self) -> Sequence[tuple[int, int]]:
        """Return the scatters: the library reads their first input where they write, or copies it before, and nowhere else.

        Small values are copied to and from memory that stays set.
        """
        least = self.output_buffer_threshold()
        return tuple((i, o) for i, o in self.inplace.items() if _is_large(self.function.outputs[o], least[o]))

    def memory(self) -> Sequence[MemoryUse]:
        return self._uses()

    def close(self) -> None:
        """Free the model without the interpreter's lock, which the library holds unless a request is the last to refer to it."""
        if self.compiled is not None:
            if self.idle_threads:
                release_pool()
        self.compiled = None
        for frame in self._idle:
            frame.forget_model()
        self._idle.clear()
        self._held = None

    def _failed(self, error: Exception) -> RunFailed:
        return RunFailed(f"{LIBRARY} failed while it ran {self.function.name!r}: {summarize_error(error)}")

    # ------------------------------------------------------------------ copies, buffers of the caller's

    def _to_fill(self, inputs: Sequence[Any], buffers: Sequence[Array | None]) -> list[Array | None]:
        """Return, per computed output, the buffer that the model itself shall write: none that may overlap another input."""
        chosen, over = list(self._none), {output: place for place, output in self.inplace_pairs()}
        for output, (place, buffer) in enumerate(zip(self._places, buffers, strict=True)):
            if place is None or chosen[place] is not None or buffer is None:
                continue
            own = over.get(output) if output in over and inputs[over[output]] is buffer else None
            if not _overlaps(buffer, [value for i, value in enumerate(inputs) if i != own]):
                chosen[place] = buffer
        return chosen

    def _in_order(self, inputs: Sequence[Any], computed: list[Array], buffers: Sequence[Array | None]) -> list[Array]:
        """Return one array per output of the Function, each its own."""
        given = dict(zip((value.name for value in self.function.inputs), inputs, strict=True))
        results: list[Array] = []
        for value, place, buffer in zip(self.function.outputs, self._places, buffers, strict=True):
            if place is not None:
                source, is_own = computed[place], not any(computed[place] is result for result in results)
            else:
                source, is_own = given[value.name] if value.name in given else self.function.constants[value.name].array, False
            results.append(_own(source, buffer, is_own=is_own))
        return results


def _own(source: Array, buffer: Array | None, *, is_own: bool) -> Array:
    """Return the buffer, or an array without other users, holding the value."""
    if buffer is source or (buffer is None and is_own):
        return source
    if buffer is None:
        return np.array(source, order="C")
    buffer[...] = source
    return buffer


def _check(buffers: Sequence[Array | None], outputs: Sequence[Value]) -> None:
    """Raise InputError for a buffer that is not of its output's type."""
    for buffer, value in zip(buffers, outputs, strict=True):
        if buffer is None or not isinstance(value.type, TensorType) or not value.type.is_static:
            continue
        due = np.dtype(value.type.dtype.numpy)
        if buffer.dtype != due or buffer.shape != value.type.shape:
            raise InputError(
                f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is "
                f"{due}{list(value.type.shape or ())}; give one just like it, or None"
            )


def _has_symbol(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and any(isinstance(dim, str) for dim in type_.shape or ())


def _find_shared_dims(function: Function) -> list[tuple[Any, ...]]:
    """Return each symbolic dim that several axes of inputs have: its name, and the input and axis of each."""
    found: dict[str, list[tuple[int, int]]] = {}
    for place, value in enumerate(function.inputs):
        if _has_symbol(value):
            for axis, dim in enumerate(value.type.shape or ()):  # type: ignore[union-attr]  # a tensor, as it has a symbol
                if isinstance(dim, str):
                    found.setdefault(dim, []).append((place, axis))
    return [(dim, *places) for dim, places in found.items() if len(places) > 1]


def _trace_dims(value: Value, function: Function) -> tuple[int | tuple[int, int], ...] | None:
    """Return the extents of an output of open shape, each a number or an input with an axis; None where one is neither."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or type_.is_static:
        return None
    inputs = [(place, given.type) for place, given in enumerate(function.inputs) if isinstance(given.type, TensorType)]
    known = {dim: (place, axis) for place, of in inputs for axis, dim in enumerate(of.shape or ()) if isinstance(dim, str)}
    found = [dim if isinstance(dim, int) else known.get(dim or "") for dim in type_.shape]
    return None if None in found else tuple(found)  # type: ignore[arg-type]  # none is None


def _is_large(value: Value, least: int | None) -> bool:
    """Whether a value of known size has more than the least of bytes that is set; False where none is."""
    nbytes = value.type.nbytes if isinstance(value.type, TensorType) else None
    return least is not None and nbytes is not None and nbytes > least


def _overlaps(buffer: Array, values: Sequence[Any]) -> bool:
    return not buffer.flags.c_contiguous or any(np.may_share_memory(buffer, array) for array in values)


# ---------------------------------------------------------------------- the saved form

# blob       as OpenVINO exports it: its optimised graph and all constants
# header     JSON: the inputs of the Function that the model has, the outputs that it only passes on, the length of the blob, and
#            the outputs that may be written over an input
# 8 bytes    length of the header


def export_model(compiled: CompiledModel, inplace: Mapping[int, int]) -> memoryview:
    """Return a compiled model as `load_model` reads it.

    ``inplace`` are the places of outputs that may be written over an input, by its place.
    """
    stream = compiled.model.export_model()
    size = len(stream.getbuffer())
    header = {"used": compiled.used, "passed": compiled.passed, "blob": size}
    text = json.dumps({**header, "inplace": list(inplace.items())}).encode()
    stream.seek(size)
    stream.write(text + len(text).to_bytes(8, "little"))
    view: memoryview = stream.getbuffer()
    return view


def load_model(data: memoryview, device: str, settings: Mapping[str, Any]) -> tuple[CompiledModel, dict[int, int]]:
    """Return what `export_model` wrote, whose checksum has been checked; ``data`` must live as long as it."""
    length = int.from_bytes(data[-8:], "little")
    header = json.loads(bytes(data[-8 - length : -8]))
    blob = np.frombuffer(data[: header["blob"]], np.uint8)
    model = core().import_model(to_tensor(blob, DType.UINT8), device, settings)
    compiled = CompiledModel.of(model, tuple(header["used"]), header["passed"])
    return compiled, dict(header["inplace"])
