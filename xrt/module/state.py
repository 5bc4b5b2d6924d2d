"""Models with state: `stateful` declares the state of a model, and sessions run it."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from xrt.errors import DeviceError, InputError, ModelError, OptionError, XRTError, did_you_mean
from xrt.forking import get_generation, renew_after_fork
from xrt.graph import Function, State, TensorType, Value, declare_states, list_states
from xrt.graph.constants import make_aligned_array
from xrt.graph.state import Capacity, find_capacity
from xrt.graph.types import infer_type
from xrt.module.model_source import StaticModel, TracedGraph, make_source
from xrt.runtime import inputs

if TYPE_CHECKING:
    from xrt.engines import RunOptions
    from xrt.module.module import XRTModule

Array: TypeAlias = np.ndarray[Any, Any]
INITIAL_CAPACITY = 16
"""Initial number of entries in a buffer that a session enlarges as it fills."""
_log = logging.getLogger(__name__)
_PAST, _PRESENT = re.compile(r"past(_key_values)?(?=[._])"), re.compile(r"present(_key_values)?(?=[._])")
"""Name prefixes of state inputs and outputs: ``present.0.key`` is the next value of ``past_key_values.0.key``."""


def stateful(
    model: Any,
    pairs: Mapping[str, str] | None = None,
    *,
    capacity: int | Literal["double"] | None = None,
) -> Function:
    """Convert a model to a Function with state, for ``XRTModule(...).new_session()``.

    ``pairs`` maps each state input to the output that is its next value. Without it, inputs and outputs are paired by the names
    that exporters use: ``past_key_values.*`` or ``past*`` with ``present*``. The pairs are logged, and ``xrt.graph.list_states``
    returns them. The model is an `xrt.Graph` without inputs, a Function, or ONNX as a path, bytes or ModelProto.

    With ``capacity``, caches that grow by Concat become buffers of that many entries, and a call writes only the new entries.
    With ``"double"``, a session enlarges the buffers as they fill. Attention masks the entries beyond the current length.

    Raises ModelError if an input has no matching output, if there is no state, if the types of a pair differ, or if it cannot be
    proved that ``capacity`` changes no results.
    """
    if capacity is not None and capacity != "double" and (type(capacity) is not int or capacity < 1):
        raise OptionError(f"capacity must be a positive integer, 'double' or None; got {capacity!r}")
    function = make_source(model).get_declared_function()
    states = tuple(State(*pair) for pair in pairs.items()) if pairs is not None else tuple(_pair_by_name(function))
    if capacity is not None:
        from xrt.module.programs import optimize
        from xrt.passes.padding.caches import make_static_caches

        declared = make_static_caches(optimize(function, fold=True), states, None if capacity == "double" else capacity)
    else:
        declared = declare_states(function, states)
    _log.info("state of %s: %s", function.name, "; ".join(map(str, list_states(declared))))
    return declared


def _pair_by_name(function: Function) -> Iterator[State]:
    """Pair inputs ``past*`` with outputs ``present*`` of the same suffix. Raises ModelError for an input without an output."""
    before = {_PAST.sub("", v.name, count=1): v.name for v in function.inputs if _PAST.match(v.name)}
    after = {_PRESENT.sub("", v.name, count=1): v.name for v in function.outputs if _PRESENT.match(v.name)}
    if not before:
        names = ", ".join(value.name for value in function.inputs)
        raise ModelError(f"no input of {function.name!r} is named past* ({names}); pass the pairs: xrt.stateful(model, {{...}})")
    for key, name in before.items():
        if key not in after:
            candidates = ", ".join(after.values()) or "none"
            raise ModelError(
                f"input {name!r} has no matching output named present*{key} (there are: {candidates}); pass the pairs"
            )
        yield State(name, after[key])


class StatefulFunction:
    """A Function with state, and the module that runs it. For the module, states are normal inputs and outputs."""

    def __init__(self, module: XRTModule, function: Function) -> None:
        self.module, self.function = module, function
        self.states = {state.input: state for state in list_states(function)}
        if not self.states:
            raise InputError(
                f"the model {function.name!r} has no state; declare it by self.state(...) in an xrt.Graph, by "
                "xrt.stateful(model), or by the metadata 'xrt.state'"
            )
        self.other_inputs = tuple(value for value in function.inputs if value.name not in self.states)
        output_indices = {value.name: index for index, value in reversed(list(enumerate(function.outputs)))}
        self.next_values = {name: output_indices[state.output] for name, state in self.states.items()}
        """For each state, the index of the output that is its next value."""
        self.returned = tuple(index for index in range(len(function.outputs)) if index not in self.next_values.values())
        self.in_place = frozenset(before for before, _ in function.aliases if before in self.states)
        self.capacity: Capacity | None = find_capacity(function)

    def reserve(self, arrays: Mapping[str, Array], call_inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Enlarge the states ``arrays`` if they are too small for the entries that a call adds.

        The new size is a power of two, at most the model's capacity. Raises InputError if the capacity is exceeded.
        """
        capacity, reserved = self.capacity, dict(arrays)
        if capacity is None or capacity.length not in arrays:
            return reserved
        shape = getattr(call_inputs.get(capacity.input), "shape", ())
        used = int(arrays[capacity.length].max(initial=0))
        added = shape[capacity.axis] if capacity.axis < len(shape) else 0
        if (needed := used + added) > capacity.size:
            raise InputError(
                f"the state holds {used:,} of {capacity.size:,} entries, and this call adds {added:,} by input "
                f"{capacity.input!r}; call session.reset(), or make the model with a larger capacity"
            )
        if not capacity.dim:  # the buffers have the full capacity
            return reserved
        for name, array in arrays.items():
            dims = self._get_type(name).shape or ()
            if capacity.dim in dims and array.shape[dims.index(capacity.dim)] < needed:
                # Powers of two limit the number of sizes, and so of copies and compiles.
                size = min(1 << (needed - 1).bit_length(), max(capacity.size, needed))
                larger = tuple(size if dim == capacity.dim else n for dim, n in zip(dims, array.shape, strict=True))
                reserved[name] = self._make_array(name, larger, array.dtype)
                reserved[name][tuple(map(slice, array.shape))] = array
        return reserved

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise InputError for a name that is not a symbolic dim of an input, or an invalid size."""
        dims = {dim for value in self.function.inputs for dim in _list_dims(value)}
        for name, size in sizes.items():
            if name not in dims:
                raise InputError(f"no input of the model has a symbolic dim {name!r}.{did_you_mean(name, dims)}")
            if not isinstance(size, int) or size < 0:
                raise InputError(f"sizes has {size!r} for {name!r}; a size is an integer of at least 0")

    def make(self, name: str, sizes: Mapping[str, int], call_inputs: Mapping[str, Any] | None) -> Array:
        """Create the array of a new state. ``call_inputs`` are the other inputs of the current call; None if there is no call.

        Raises InputError if a size is unknown.
        """
        type_ = self._get_type(name)
        known_sizes: dict[str, int] = {}
        for value in self.other_inputs:
            dims = getattr(value.type, "shape", None) or ()
            input_shape = getattr((call_inputs or {}).get(value.name), "shape", ())
            # The module checks later that the shapes fit, and that inputs agree on the sizes.
            known_sizes.update((dim, size) for dim, size in zip(dims, input_shape, strict=False) if isinstance(dim, str))
        known_sizes.update(sizes)
        if self.capacity is not None and self.capacity.dim:
            known_sizes.setdefault(self.capacity.dim, INITIAL_CAPACITY)
        shape = tuple(self._find_size(name, dim, known_sizes, call_inputs is None) for dim in type_.shape or ())
        return self._make_array(name, shape, type_.dtype.numpy)

    def _make_array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = make_aligned_array(shape, dtype)
        array.fill(self.states[name].fill)
        return array

    def _find_size(self, name: str, dim: Any, sizes: Mapping[str, int], is_before_call: bool) -> int:
        """Find the size of a dim (a size, a name or None) of a new state. Raises InputError if it is unknown."""
        if isinstance(dim, int):
            return dim
        if dim in sizes:
            return sizes[dim]
        is_dim_of_input = any(dim in _list_dims(value) for value in self.other_inputs)
        if name not in self.in_place and not is_dim_of_input and dim is not None:
            return 0  # each call returns a larger state
        advice = f"call m.new_session(sizes={{{dim!r}: ...}})" if dim is not None else f"set session.state[{name!r}] to an array"
        why = "is known only in a call" if is_before_call and is_dim_of_input else "is the size of no input"
        raise InputError(f"state {name!r} is {self._get_type(name)}, whose dim {dim or '?'!r} {why}; {advice}")

    def copy_value(self, name: str, value: Any) -> Array:
        """Copy an array for the state ``name``. Raises InputError if there is no such state or its type differs."""
        declared = Value(name, self._get_type(name))
        array = inputs.normalize(declared, value)
        inputs.check((declared,), (array,))
        copy = make_aligned_array(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy

    def _get_type(self, name: str) -> TensorType:
        """Return the declared type of a state. Raises InputError if there is no such state, or its rank is unknown."""
        if name not in self.states:
            raise InputError(
                f"the model has no state {name!r}.{did_you_mean(name, self.states)} It has: {', '.join(self.states)}"
            )
        type_ = self.function.get_type(name)
        if not isinstance(type_, TensorType) or type_.shape is None:
            raise InputError(f"state {name!r} is {type_ or 'of unknown type'}; its model must declare a tensor of known rank")
        return type_


def _list_dims(value: Value) -> list[str]:
    """List the names of a tensor's symbolic dims. Unnamed dims are omitted."""
    return [dim for dim in getattr(value.type, "shape", None) or () if isinstance(dim, str)]


@dataclass(frozen=True, slots=True)
class StatefulFunctions:
    """The Functions with state of a module, which all its sessions share."""

    by_types: dict[object, StatefulFunction] = field(default_factory=dict)
    """For an `xrt.Graph`, the Functions by input types; for other models, the only Function under the key None."""

    def find_declared(self, module: XRTModule) -> StatefulFunction | None:
        """Return the model's Function with state; None for an `xrt.Graph`, which is traced in a call."""
        if module.source.is_traced:
            return None
        with module.dispatcher.planning_lock:
            if None not in self.by_types:
                self.by_types[None] = StatefulFunction(module, module.source.get_declared_function())
            return self.by_types[None]

    def find(self, module: XRTModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StatefulFunction:
        """Return the Function with state for the inputs of a call. An `xrt.Graph` is traced once for each set of input types."""
        if (declared := self.by_types.get(None) or self.find_declared(module)) is not None:
            return declared
        source = module.source
        # Saved traces were made without the state as inputs, and cannot be made again.
        if not isinstance(source, TracedGraph):
            raise InputError("a bundle with traces of a graph has no sessions; save a module of graph.trace(...)")
        module.dispatcher.check_open()
        bound = zip(source.inputs, inputs.bind(source.inputs, args, kwargs), strict=True)
        types = tuple(infer_type(inputs.normalize(value, argument)) for value, argument in bound)
        with module.dispatcher.planning_lock:
            if types not in self.by_types:
                function = StaticModel(source.graph.trace(*types)).get_declared_function()
                construction = replace(module.construction, cache=module.programs.cache)
                self.by_types[types] = StatefulFunction(construction.create_module(type(module), function), function)
            return self.by_types[types]


@contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delay the first Ctrl-C to the end of the block, which updates the state. A second Ctrl-C interrupts the block."""
    # Python delivers signals to the main thread only.
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        yield
        return
    delayed: list[int] = []

    def delay(number: int, frame: FrameType | None) -> None:
        delayed.append(number)
        if len(delayed) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(delayed) == 1:
            handler(signal.SIGINT, None)


class Session:
    """Runs a module step by step, and passes the state from each call to the next. Create it with `XRTModule.new_session`.

    A call takes the inputs that are not state, and returns the outputs that are not state: a single output as is, several as a
    tuple, and None if there are none. The state is created by the first call, or when it is read. Its sizes come from the model,
    the inputs of the call, and ``sizes``; a dim that grows starts at 0. Several threads may use different sessions of a module at
    once, but not the same session.

    If a call updates the state in place, Ctrl-C takes effect when the call ends. A second Ctrl-C interrupts the call. The state
    is then lost, and the next use raises InputError.
    """

    def __init__(self, module: XRTModule, sizes: Mapping[str, int]) -> None:
        self._module = module
        self._sizes = dict(sizes)
        if (device := module.programs.engines.context.device) != "cpu":
            raise DeviceError(f"the module runs on {device}, and the state of a session is in host memory; use device='cpu'")
        self._stateful: StatefulFunction | None = module.stateful_functions.find_declared(module)
        self._arrays: dict[str, Array] = {}
        self._lost: frozenset[str] = frozenset()
        """Names of states that a failed or interrupted call may have partially updated."""
        self._generation = get_generation()
        """Fork generation of the last call. In a forked child it differs, and the call may have been running at the fork."""
        self._compiled: StatefulFunction | None = None
        self._busy = renew_after_fork(threading.Lock())
        if self._stateful is not None:
            self._stateful.check_sizes(self._sizes)

    def __call__(self, *args: Any, options: RunOptions | None = None, **kwargs: Any) -> Any:
        """Run one step, and store the next state. ``options`` are those of a call of the module, without buffers.

        Raises the errors of a call of the module. Raises InputError if another call of this session is running, or if the state
        is lost, because an earlier call failed or was interrupted while it updated the state.
        """
        if options is not None and options.out is not None:
            raise InputError("options.out must be None in a session, since some outputs are its state; copy the results")
        with self._require_idle("called"):
            self._check_not_lost("call session.reset(), session.restore(path), or set the state")
            self._stateful = stateful = self._module.stateful_functions.find(self._module, args, kwargs)
            call_inputs = dict(
                zip((v.name for v in stateful.other_inputs), inputs.bind(stateful.other_inputs, args, kwargs), strict=True)
            )
            return self._step(stateful, call_inputs, options)

    def _step(self, stateful: StatefulFunction, call_inputs: Mapping[str, Any], options: RunOptions | None) -> Any:
        """Call the module with the state and these inputs. Store the next state, and return the outputs that are not state."""
        arrays = {name: self._get_or_create(stateful, name, call_inputs) for name in stateful.states}
        self._arrays = arrays = stateful.reserve(arrays, call_inputs)
        values = [arrays[v.name] if v.name in arrays else call_inputs[v.name] for v in stateful.function.inputs]
        if self._compiled is not stateful:  # separately, because an interrupted compile does not lose the state
            stateful.module.compile(*values)
            self._compiled = stateful

        with _delay_interrupt() if stateful.in_place else nullcontext():
            # An exception may leave some states updated and others not. Until the call has ended, all states that are updated in
            # place count as lost.
            self._lost, self._generation = stateful.in_place, get_generation()
            try:
                results = stateful.module(*values) if options is None else stateful.module(*values, options=options)
            except XRTError as error:
                self._lost = frozenset(name for name in stateful.in_place if error.updated is None or name in error.updated)
                raise
            results = (results,) if len(stateful.function.outputs) == 1 else results
            self._arrays, self._lost = {name: results[index] for name, index in stateful.next_values.items()}, frozenset()
        returned = tuple(results[index] for index in stateful.returned)
        if len(returned) == 1:
            return returned[0]
        return returned or None

    def _require_idle(self, action: str) -> threading.Lock:
        """Return the lock of the session, for a ``with`` statement. Raises InputError if the session is in use.

        ``action`` names in the text what was tried.
        """
        if self._busy.locked():
            raise InputError(
                f"the session is {action} while a call of it is running; a session runs one call at a time: "
                "create a session for each thread, by m.new_session() or session.fork()"
            )
        return self._busy

    def _check_not_lost(self, advice: str) -> None:
        """Raise InputError if a state is lost. The error text ends with ``advice``."""
        if self._lost:
            names = ", ".join(map(repr, sorted(self._lost)))
            call = "a call that failed or was interrupted"
            if self._generation != get_generation():
                call = "a call that failed, was interrupted, or ran in another thread when the process was forked"
            raise InputError(f"the state {names} may have been partially updated by {call}; {advice}")

    @property
    def state(self) -> SessionState:
        """The state, as a mapping by input name. Reads return copies, writes copy the value."""
        return SessionState(self)

    @contextmanager
    def borrow(self) -> Iterator[Mapping[str, Array]]:
        """Within a ``with`` block, give read access to the arrays of the state without a copy. Calls then raise InputError."""
        with self._require_idle("read"):
            yield self._get_or_create_all("there is nothing to read")

    @property
    def lost(self) -> frozenset[str]:
        """Names of states that a failed call may have partially updated. Set, restore or reset them before the next call."""
        return self._lost

    def reset(self) -> None:
        with self._require_idle("reset"):
            self._arrays, self._lost = {}, frozenset()

    def fork(self) -> Session:
        """Create an independent session that continues from this state."""
        with self._require_idle("forked"):
            in_place = self._stateful.in_place if self._stateful is not None else frozenset()
            # Only states that are updated in place are copied. A call replaces the arrays of the other states.
            arrays = {name: array.copy() if name in in_place else array for name, array in self._arrays.items()}
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__, _busy=renew_after_fork(threading.Lock()), _arrays=arrays)
            return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, for `restore`. Raises InputError if it is lost, or its sizes are known only after a call."""
        from xrt.formats.arrays import write_session

        with self._require_idle("saved"):
            arrays = self._get_or_create_all("there is nothing to save")
            write_session(path, self._require_stateful().function.fingerprint, arrays)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Load the state from a file that `save` wrote. Raises InputError for another file, or the state of another model."""
        from xrt.formats.arrays import read_session

        with self._require_idle("restored"):
            stateful, (model, arrays) = self._require_stateful(), read_session(path)
            if model != stateful.function.fingerprint:
                raise InputError(f"{os.fspath(path)!r} has the state of another model; restore it in a session of that model")
            self._arrays, self._lost = {name: stateful.copy_value(name, value) for name, value in arrays.items()}, frozenset()

    def _require_stateful(self) -> StatefulFunction:
        if self._stateful is None:
            raise InputError("the graph is traced by the first call, and there was none yet; call the session first")
        return self._stateful

    def _get_or_create_all(self, advice: str) -> dict[str, Array]:
        """Return the arrays of all states, created on first use. Raises InputError, with ``advice``, if a state is lost."""
        stateful = self._require_stateful()
        self._check_not_lost(advice)
        return {name: self._get_or_create(stateful, name) for name in stateful.states}

    def _get_or_create(self, stateful: StatefulFunction, name: str, call_inputs: Mapping[str, Any] | None = None) -> Array:
        """Return the array of a state. It is created on first use, with the sizes of the inputs of a running call."""
        if name not in self._arrays:
            self._arrays[name] = stateful.make(name, self._sizes, call_inputs)
        return self._arrays[name]

    def __repr__(self) -> str:
        shown = "not traced yet" if self._stateful is None else ", ".join(map(str, self._stateful.states.values()))
        return f"<Session of {self._module!r}: {shown}>"


class SessionState(MutableMapping[str, Any]):
    """The state of a session by name. Reads return copies, writes copy the value; entries cannot be removed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getitem__(self, name: str) -> Array:
        session = self._session
        with session._require_idle("read"):
            stateful = session._require_stateful()
            if name in session._lost:
                session._check_not_lost("there is nothing to read")
            return session._get_or_create(stateful, name).copy()

    def __setitem__(self, name: str, value: Any) -> None:
        session = self._session
        with session._require_idle("written to"):
            session._arrays[name] = session._require_stateful().copy_value(name, value)
            session._lost -= {name}

    def __delitem__(self, name: str) -> None:
        raise InputError(f"state {name!r} cannot be removed; session.reset() discards all state")

    def __contains__(self, name: object) -> bool:
        return name in self._session._require_stateful().states

    def get(self, name: str, default: Any = None) -> Any:
        """Return a copy of the state with this name, or ``default`` if the model has no such state."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._session._require_stateful().states)

    def __len__(self) -> int:
        return len(self._session._require_stateful().states)
