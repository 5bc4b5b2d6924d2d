"""Sessions: state of their own over the weights and executables of a module."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from xrt.errors import InputError, XRTError
from xrt.forking import renew_after_fork
from xrt.runtime import inputs

if TYPE_CHECKING:
    import numpy as np

    from xrt.engines import RunOptions
    from xrt.module.state import StatefulFunction, StatefulModule

__all__ = ["Session", "SessionState"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class _Held:
    """An array of state, which forks of a session share until one of them writes to it."""

    __slots__ = ("__weakref__", "array", "lock", "owners")

    def __init__(self, array: Array, owner: Session) -> None:
        self.array = array
        self.owners: weakref.WeakSet[Session] = weakref.WeakSet([owner])
        self.lock = renew_after_fork(threading.Lock())

    def share(self, other: Session) -> None:
        with self.lock:
            self.owners.add(other)

    def own(self, session: Session) -> _Held:
        """Return what holds the same for that session alone: itself, or a copy where others read it."""
        with self.lock:
            if len(self.owners) == 1:
                return self
        copied = _Held(self.array.copy(), session)
        with self.lock:  # not before it is copied: the last owner may write to it
            self.owners.discard(session)
        return copied


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Delay the first Ctrl-C to the end of the block, so that it loses no state. A second one interrupts the block."""
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
    """One state over the weights and executables of a module: `XRTModule.new_session` makes it.

    A call takes the inputs of the model that are no state and returns the outputs that are no state: one output as it is, several
    as a tuple, and None where there is none. State is made by the first call, or when it is read. Its sizes are those of the
    model, of the call's inputs, and ``sizes``; an extent that grows is 0 at first. Sessions of one module may be called at once
    from several threads, one session may not.

    Ctrl-C in a call that writes the state in place takes effect when the call ends. A second one interrupts the call; its state
    is then lost, and the next use says so.
    """

    def __init__(self, module: StatefulModule, sizes: Mapping[str, int]) -> None:
        self._module = module
        self._sizes = dict(sizes)
        self._of: StatefulFunction | None = module._find_declared()
        self._held: dict[str, _Held] = {}
        self._lost: frozenset[str] = frozenset()
        """The states that a call may have written in part, since it failed or was interrupted."""
        self._compiled: StatefulFunction | None = None
        self._busy = renew_after_fork(threading.Lock())
        if self._of is not None:
            self._of.check_sizes(self._sizes)

    # ------------------------------------------------------------------ calls

    def __call__(self, *args: Any, options: RunOptions | None = None, **named: Any) -> Any:
        """Make one step: read the state, compute, keep the next state.

        ``options`` are those of a call of the module, without buffers. Raises what a call of the module does, and InputError for
        a call while another one is under way, or where the state is lost because an earlier call failed, or was interrupted,
        while the state was written in place.
        """
        if options is not None and options.out is not None:
            raise InputError("a session keeps some of the outputs: options.out must be None; copy what the call returns")
        with self._turn("called"):
            self._check_kept("call session.reset(), session.restore(path), or set the state")
            self._of = of = self._module._find_stateful(args, named)
            given = dict(zip((v.name for v in of.others), inputs.bind(of.others, args, named), strict=True))
            return self._step(of, given, options)

    def _step(self, of: StatefulFunction, given: Mapping[str, Any], options: RunOptions | None) -> Any:
        held = {name: self._make(of, name, given) for name in of.states}
        if of.capacity is not None:
            arrays = {name: one.array for name, one in held.items()}
            of.check_capacity(arrays, given)
            held |= {name: _Held(array, self) for name, array in of.enlarge(arrays, given).items()}
        self._held = held = {name: one.own(self) if name in of.fixed else one for name, one in held.items()}
        values = [held[v.name].array if v.name in held else given[v.name] for v in of.function.inputs]
        if self._compiled is not of:  # an interrupted compile or search loses nothing
            of.module.compile(*values)
            self._compiled = of

        with _interrupted_afterwards() if of.fixed else nullcontext():
            # Whatever leaves the call may leave some of the arrays written and others not. Until the next state is complete,
            # all that is written in place counts as lost.
            self._lost = of.fixed
            try:
                results = of.module(*values) if options is None else of.module(*values, options=options)
            except XRTError as error:
                self._lost = frozenset(name for name in of.fixed if error.updated is None or name in error.updated)
                raise
            results = (results,) if len(of.function.outputs) == 1 else results
            following = {
                name: held[name] if results[place] is held[name].array else _Held(results[place], self)
                for name, place in of.next_values.items()
            }
            self._held, self._lost = {**held, **following}, frozenset()
        returned = tuple(results[place] for place in of.returned)
        return returned[0] if len(returned) == 1 else returned or None

    def _turn(self, what: str) -> threading.Lock:
        """Return the lock to hold for one use; raises InputError if the session is in use.

        The lock is to be entered by a ``with`` statement, which an interrupt cannot leave locked.
        """
        if self._busy.locked():
            raise InputError(
                f"the session is {what} while a call of it is under way; a session makes one call at a time: "
                "give each thread a session, by m.new_session() or session.fork()"
            )
        return self._busy

    def _check_kept(self, advice: str) -> None:
        if self._lost:
            names = ", ".join(map(repr, sorted(self._lost)))
            raise InputError(
                f"the state {names} may have been written in part by a call that failed or was interrupted; {advice}"
            )

    # ------------------------------------------------------------------ state

    @property
    def state(self) -> SessionState:
        """The values that stay, by the names of the inputs: read and set them like the entries of a dict."""
        return SessionState(self)

    @contextmanager
    def borrow(self) -> Iterator[Mapping[str, Array]]:
        """Give the arrays of the state themselves, to be read: until the block ends no call can write to them."""
        with self._turn("read"):
            of = self._known()
            self._check_kept("there is nothing to read")
            yield {name: self._make(of, name).array for name in of.states}

    @property
    def lost(self) -> frozenset[str]:
        """Names of the states that a failed call may have written in part. Set, restore or reset them before the next call."""
        return self._lost

    def reset(self) -> None:
        """Forget the state; the next call begins with a new one."""
        with self._turn("reset"):
            self._held, self._lost = {}, frozenset()

    def fork(self) -> Session:
        """Return a session that goes on from this state on its own. An array is copied when one of the two writes to it."""
        with self._turn("forked"):
            other = object.__new__(type(self))
            other.__dict__.update(self.__dict__, _busy=renew_after_fork(threading.Lock()), _held=dict(self._held))
            for held in self._held.values():
                held.share(other)
            return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, for `restore`; raises InputError where that cannot be."""
        from xrt.formats.session_file import write_session

        with self._turn("saved"):
            of = self._known()
            self._check_kept("there is nothing to save")
            write_session(path, of.function.fingerprint, {name: self._make(of, name).array for name in of.states})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state of a file that `save` wrote; raises InputError for another file, and for a state of another model."""
        from xrt.formats.session_file import read_session

        with self._turn("restored"):
            of, (model, arrays) = self._known(), read_session(path)
            if model != of.function.fingerprint:
                raise InputError(f"{os.fspath(path)!r} holds the state of another model; restore it where it was saved")
            held = {name: _Held(of.take(name, value), self) for name, value in arrays.items()}
            self._held, self._lost = held, frozenset()

    def _known(self) -> StatefulFunction:
        if self._of is None:
            raise InputError("the graph is traced for the inputs of a call, and there was none; call the session first")
        return self._of

    def _make(self, of: StatefulFunction, name: str, given: Mapping[str, Any] | None = None) -> _Held:
        """Return what holds the state; a new one where there is none yet."""
        if name not in self._held:
            self._held[name] = _Held(of.make(name, self._sizes, given), self)
        return self._held[name]

    def __repr__(self) -> str:
        shown = "not traced yet" if self._of is None else ", ".join(map(str, self._of.states.values()))
        return f"<Session of {self._module!r}: {shown}>"


class SessionState(MutableMapping[str, Any]):
    """The state of a session by name. Reading gives a copy, setting takes one; an entry cannot be removed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getitem__(self, name: str) -> Array:
        session = self._session
        with session._turn("read"):
            of = session._known()
            if name in session._lost:
                session._check_kept("there is nothing to read")
            return session._make(of, name).array.copy()

    def __setitem__(self, name: str, value: Any) -> None:
        session = self._session
        with session._turn("written to"):
            session._held[name] = _Held(session._known().take(name, value), session)
            session._lost -= {name}

    def __delitem__(self, name: str) -> None:
        raise InputError(f"state {name!r} cannot be removed; session.reset() forgets all state")

    def __contains__(self, name: object) -> bool:
        return name in self._session._known().states

    def get(self, name: str, default: Any = None) -> Any:
        """Return a copy of the state of that name; ``default`` where the model has none."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._session._known().states)

    def __len__(self) -> int:
        return len(self._session._known().states)
