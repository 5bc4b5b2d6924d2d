"""Models with state: `stateful` recognizes the state of a model, and a module makes sessions of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from xrt.errors import DeviceError, InputError, ModelError, OptionError, did_you_mean
from xrt.graph import Function, State, TensorType, Value, declare_states, list_states
from xrt.graph.aligned_arrays import make_aligned_array
from xrt.graph.state import Capacity, find_capacity
from xrt.module.model_source import StaticModel, TracedModel, make_source
from xrt.runtime import inputs

if TYPE_CHECKING:
    import threading

    from xrt.cache import CompileCache
    from xrt.module.copying import Given
    from xrt.module.model_source import ModelSource
    from xrt.module.module import XRTModule
    from xrt.module.session import Session
    from xrt.placement.engine_list import EngineList

__all__ = ["StatefulFunction", "StatefulModule", "stateful"]

Array: TypeAlias = np.ndarray[Any, Any]

FIRST_CAPACITY = 16
"""What a state that a session enlarges holds at first."""

_log = logging.getLogger(__name__)

_PAST, _PRESENT = re.compile(r"past(_key_values)?(?=[._])"), re.compile(r"present(_key_values)?(?=[._])")
"""How names of state begin by convention: ``present.0.key`` is what ``past_key_values.0.key`` becomes, ``present_0`` that of
``past_0``."""


def stateful(
    model: Any,
    pairs: Mapping[str, str] | None = None,
    *,
    capacity: int | Literal["double"] | None = None,
    front: bool = False,
) -> Function:
    """Return the model as a Function with state, for ``XRTModule(...).new_session()``.

    ``pairs`` maps inputs to the outputs that are their next values. Without it, inputs and outputs are paired by the names that
    exporters give them: ``past_key_values.*`` or ``past*`` with ``present*``. The pairs are logged, and ``xrt.graph.list_states``
    gives them. The model is an `xrt.Graph` without inputs, a Function, or ONNX as a path, bytes or ModelProto.

    With ``capacity``, caches that a Concat makes longer are kept in buffers of that size, in which a call writes what is new;
    ``"double"`` lets a session enlarge them as they fill. What attention reads behind their length has no weight. With ``front``
    a call reads the first power of two of a buffer that holds what is valid, instead of all of it. The engine must take the size
    of a Slice from a value, as ``ort`` and ``toy`` do: one that needs sizes does not take what reads the caches.

    Raises ModelError where a name has no partner, there is no state, two types differ, or with ``capacity`` where it cannot be
    shown that results stay the same.
    """
    if capacity is not None and capacity != "double" and (type(capacity) is not int or capacity < 1):
        raise OptionError(f"capacity must be a positive integer, 'double' or None; got {capacity!r}")
    if not isinstance(front, bool) or (front and not isinstance(capacity, int)):
        raise OptionError(
            f"front=True is of buffers of one size, such as capacity=4096; got front={front!r}, capacity={capacity!r}"
        )
    function = make_source(model).get_declared_function()
    states = tuple(State(*pair) for pair in pairs.items()) if pairs is not None else tuple(_pair_by_name(function))
    if capacity is not None:
        from xrt.module.specialization import optimize
        from xrt.passes.padding.caches import make_static_caches

        simple = optimize(function, fold=True)
        declared = make_static_caches(simple, states, None if capacity == "double" or front else capacity)
        if front:
            from xrt.passes.padding.cache_fronts import read_fronts

            declared = read_fronts(declared, capacity)  # type: ignore[arg-type]  # it is a number, with front
    else:
        declared = declare_states(function, states)
    _log.info("state of %s: %s", function.name, "; ".join(map(str, list_states(declared))))
    return declared


def _pair_by_name(function: Function) -> Iterator[State]:
    before = {_PAST.sub("", v.name, count=1): v.name for v in function.inputs if _PAST.match(v.name)}
    after = {_PRESENT.sub("", v.name, count=1): v.name for v in function.outputs if _PRESENT.match(v.name)}
    if not before:
        named = ", ".join(value.name for value in function.inputs)
        raise ModelError(f"no input of {function.name!r} is named past* ({named}); give the pairs: xrt.stateful(model, {{...}})")
    for key, name in before.items():
        if key not in after:
            have = ", ".join(after.values()) or "none"
            raise ModelError(f"input {name!r} has no partner among the outputs present*{key} (there are: {have}); give the pairs")
        yield State(name, after[key])


@dataclass(frozen=True)
class StatefulFunction:
    """A Function with state, and the module that runs it with the state as inputs and outputs."""

    module: XRTModule
    function: Function

    @cached_property
    def states(self) -> dict[str, State]:
        """The states by the names of their inputs."""
        return {state.input: state for state in list_states(self.function)}

    @cached_property
    def others(self) -> tuple[Value, ...]:
        """The inputs that are no state."""
        return tuple(value for value in self.function.inputs if value.name not in self.states)

    @cached_property
    def next_values(self) -> dict[str, int]:
        """The places of the outputs that are the next values of the states."""
        places = {value.name: place for place, value in reversed(list(enumerate(self.function.outputs)))}
        return {name: places[state.output] for name, state in self.states.items()}

    @cached_property
    def returned(self) -> tuple[int, ...]:
        """The places of the other outputs."""
        return tuple(place for place in range(len(self.function.outputs)) if place not in self.next_values.values())

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The states whose arrays are written in place."""
        return frozenset(before for before, _ in self.function.aliases if before in self.states)

    @cached_property
    def capacity(self) -> Capacity | None:
        """How much the state holds, where the model declares it."""
        return find_capacity(self.function)

    def check_capacity(self, held: Mapping[str, Array], given: Mapping[str, Any]) -> None:
        """Raise InputError where the call would exceed the capacity of the state."""
        capacity = self.capacity
        if capacity is None or capacity.length not in held:
            return
        after, before = self._count(capacity, held, given), int(held[capacity.length].max(initial=0))
        if after > capacity.size:
            raise InputError(
                f"the state holds {before:,} of {capacity.size:,} entries, and this call adds {after - before:,} by input "
                f"{capacity.input!r}; call session.reset(), or make the model with a larger capacity"
            )

    def enlarge(self, held: Mapping[str, Array], given: Mapping[str, Any]) -> dict[str, Array]:
        """Return larger arrays for the states that cannot hold what the call adds: twice as large, or as large as it takes."""
        capacity = self.capacity
        if capacity is None or not capacity.dim or capacity.length not in held:
            return {}
        needed = self._count(capacity, held, given)
        found = {}
        for name, array in held.items():
            dims = _dims(Value(name, self._type(name)), every=True)
            have = array.shape[dims.index(capacity.dim)] if capacity.dim in dims else needed
            if have < needed:
                size = min(1 << (needed - 1).bit_length(), max(capacity.size, needed))
                shape = tuple(size if dim == capacity.dim else n for dim, n in zip(dims, array.shape, strict=True))
                found[name] = self._fill(name, shape, array.dtype)
                found[name][tuple(map(slice, array.shape))] = array
        return found

    @staticmethod
    def _count(capacity: Capacity, held: Mapping[str, Array], given: Mapping[str, Any]) -> int:
        """Return how much the state would hold after a call."""
        shape = getattr(given.get(capacity.input), "shape", ())
        return int(held[capacity.length].max(initial=0)) + (shape[capacity.axis] if capacity.axis < len(shape) else 0)

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise InputError for the size of an extent that no input has, or that is no size."""
        known = {dim for value in self.function.inputs for dim in _dims(value)}
        for name, size in sizes.items():
            if name not in known:
                raise InputError(f"no input of the model has an extent named {name!r}.{did_you_mean(name, known)}")
            if not isinstance(size, int) or size < 0:
                raise InputError(f"sizes has {size!r} for {name!r}; a size is a number from 0 on")

    def make(self, name: str, sizes: Mapping[str, int], given: Mapping[str, Any] | None) -> Array:
        """Return the array of a new state; ``given`` has the other inputs of the call that makes it, None where there is none.

        Raises InputError where an extent is not known.
        """
        type_ = self._type(name)
        known = {**_read_sizes(self.others, given or {}), **sizes}
        if self.capacity is not None and self.capacity.dim:
            known.setdefault(self.capacity.dim, FIRST_CAPACITY)
        shape = tuple(self._extent(name, dim, known, given is None) for dim in type_.shape or ())
        return self._fill(name, shape, type_.dtype.numpy)

    def _fill(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = make_aligned_array(shape, dtype)
        array.fill(self.states[name].fill)
        return array

    def _extent(self, name: str, dim: Any, sizes: Mapping[str, int], early: bool) -> int:
        if isinstance(dim, int) or dim in sizes:
            return dim if isinstance(dim, int) else sizes[dim]
        is_read = any(dim in _dims(value) for value in self.others)
        if name not in self.fixed and not is_read and dim is not None:
            return 0  # it grows
        advice = f"call m.new_session(sizes={{{dim!r}: ...}})" if dim is not None else f"set session.state[{name!r}] to an array"
        why = "is known only in a call" if early and is_read else "no input tells"
        raise InputError(f"state {name!r} is {self._type(name)}, whose extent {dim or '?'!r} {why}; {advice}")

    def take(self, name: str, value: Any) -> Array:
        """Return a copy of an array for a state; raises InputError for a name or an array that does not fit."""
        declared = Value(name, self._type(name))
        array = inputs.normalize(declared, value)
        inputs.check((declared,), (array,))
        copy = make_aligned_array(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy

    def _type(self, name: str) -> TensorType:
        if name not in self.states:
            raise InputError(
                f"the model has no state {name!r}.{did_you_mean(name, self.states)} It has: {', '.join(self.states)}"
            )
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise InputError(f"state {name!r} is {type_ or 'of unknown type'}; its model must declare a tensor of known rank")
        return type_


def _dims(value: Value, *, every: bool = False) -> tuple[Any, ...]:
    """Return the named extents of a tensor; ``every``: all of them."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return tuple(dim for dim in shape or () if every or isinstance(dim, str))


def _read_sizes(declared: Sequence[Value], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the named extents that the inputs of a call settle; what does not fit is found when the module checks it."""
    sizes: dict[str, int] = {}
    for value in declared:
        shape = getattr(given.get(value.name), "shape", None)
        if isinstance(value.type, TensorType) and value.type.shape is not None and shape is not None:
            sizes.update((dim, size) for dim, size in zip(value.type.shape, shape, strict=False) if isinstance(dim, str))
    return sizes


class StatefulModule:
    """A module that makes sessions."""

    _source: ModelSource
    _engines: EngineList
    _given: Given
    _lock: threading.RLock
    _cache: CompileCache
    _check_open: Callable[[], None]

    def new_session(self, sizes: Mapping[str, int] | None = None) -> Session:
        """Return a session: state of its own over this module's weights and executables.

        ``sizes`` gives named extents of state that no other input has, such as the capacity of a cache. Raises InputError for a
        model without state, DeviceError for a module on a device: state is in memory of the host.
        """
        from xrt.module.session import Session  # for the few who ask

        if (device := self._engines.context.device) != "cpu":
            raise DeviceError(
                f"the module runs on {device}, and the state of a session is in memory of the host; use device='cpu'"
            )
        return Session(self, sizes or {})

    @cached_property
    def _traces(self) -> dict[object, StatefulFunction]:
        """The graphs that were traced for sessions, by the types of their inputs; all sessions share them."""
        return {}

    def _find_declared(self) -> StatefulFunction | None:
        """Return the model with its state; None for a graph that is traced for the inputs of a call."""
        if self._source.is_traced:
            return None
        with self._lock:
            if None not in self._traces:
                self._traces[None] = self._with_state(self, self._source.get_declared_function())
            return self._traces[None]

    def _find_stateful(self, args: Sequence[Any], named: Mapping[str, Any]) -> StatefulFunction:
        """Return the Function with state for the inputs of a call."""
        if (declared := self._traces.get(None) or self._find_declared()) is not None:
            return declared
        if not isinstance(self._source, TracedModel):
            raise InputError("a bundle of traces of a graph makes no sessions; save a module of graph.trace(...)")
        self._check_open()
        bound = zip(self._source.inputs, inputs.bind(self._source.inputs, args, named), strict=True)
        types = tuple(inputs.infer_type(inputs.normalize(value, given)) for value, given in bound)
        with self._lock:
            if types not in self._traces:
                function = StaticModel(self._source.graph.trace(*types)).get_declared_function()
                given = self._given
                module = type(self)(function, given.engine, given.device, cache=self._cache, **given.options)  # type: ignore[call-arg]  # of XRTModule
                self._traces[types] = self._with_state(module, function)
            return self._traces[types]

    def _with_state(self, module: Any, function: Function) -> StatefulFunction:
        found = StatefulFunction(module, function)
        if not found.states:
            raise InputError(
                f"the model {function.name!r} has no state; declare it by self.state(...) in an xrt.Graph, by "
                "xrt.stateful(model), or by the metadata 'xrt.state'"
            )
        return found
