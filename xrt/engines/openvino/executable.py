"""A compiled model as an Executable.

The model computes the outputs that nodes produce, each once. An output that is itself an input or a constant, or that is listed
twice in the Function, is a copy made here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.memory_use import MemoryUse
from xrt.engines.contract.options import RunOptions
from xrt.engines.openvino.errors import summarize_error
from xrt.engines.openvino.library import LIBRARY
from xrt.engines.openvino.requests import COPY_TO, CompiledModel, RequestFrame, bound_call
from xrt.engines.openvino.size_log import SizeLog
from xrt.engines.toolkit.scatters import find_inplace_outputs
from xrt.errors import InputError, RunFailed
from xrt.graph import FrozenDict, Function, TensorType, Value

if TYPE_CHECKING:
    from xrt.engines.openvino.values import Array

__all__ = ["OpenVinoExecutable", "list_computed_outputs", "model_function"]

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
        limits: Mapping[int, int] = FrozenDict(),
        held: object = None,
        uses: Uses = tuple,
        inplace: Mapping[int, int] | None = None,
    ) -> None:
        """`compiled` gives `list_computed_outputs`; None where there are none. `held` must live as long as it.

        `limits` are the largest magnitudes that inputs may have, by their places. `inplace` are the places of outputs that may be
        written over an input, by its place; None to find them, which reads the Function's nodes.
        """
        self.limits = limits
        self._limits = tuple(limits.items())
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
        self._varying = [place for place in used if not _is_static(function.inputs[place])]
        """The inputs of open size that are read."""
        self._shared = _find_shared_dims(function)
        self._met = SizeLog()
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
            if self._limits:
                self._check_magnitudes(inputs)
            if self._sized and not all(inputs[place].size for place in self._sized):
                raise ValueError("an input of open shape has no elements, which it computes in part of its operators only")
            if self._shared:
                self._check_shared_dims(inputs)
            frame = self._taken()
            results = frame.run(inputs, buffers, self._find_shapes(inputs))
        except Exception as error:
            raise self._failed(error) from error
        self._idle.append(frame)
        if self._varying:
            self._met.note(tuple([inputs[place].shape for place in self._varying]))
        return results

    def _find_shapes(self, inputs: Sequence[Any]) -> Sequence[tuple[int, ...] | None]:
        """Return the shapes of the outputs of open shape, as far as the inputs tell them; nothing where all are fixed."""
        if not self._has_open:
            return ()
        return [
            None if dims is None else tuple(d if isinstance(d, int) else inputs[d[0]].shape[d[1]] for d in dims)
            for dims in self._open
        ]

    def _check_magnitudes(self, inputs: Sequence[Any]) -> None:
        """Raise OverflowError for an integer with which the library would compute something else."""
        for place, limit in self._limits:
            value = inputs[place]
            if value.size and not -limit <= value.min() <= value.max() <= limit:
                raise OverflowError(
                    f"input {self.function.inputs[place].name!r} holds an integer beyond {limit}, and OpenVINO computes in int32"
                )

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
                if self._limits:
                    self._check_magnitudes(inputs)
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


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


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
