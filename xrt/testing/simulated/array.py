"""Arrays in simulated device memory, and the streams that execute work on them. The host cannot read the arrays directly."""

from __future__ import annotations

import operator
import random
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from xrt.testing.simulated.device import SimulatedDevice


TYPE_CODES = frozenset("?bhilqBHILQefdFD")
"""NumPy type codes that CuPy's arrays support, besides bfloat16."""


def is_supported(dtype: np.dtype[Any]) -> bool:
    return dtype.char in TYPE_CODES or dtype == ml_dtypes.bfloat16


class Block:
    """A block of device memory. It is freed when no array refers to it."""

    def __init__(self, device: SimulatedDevice, nbytes: int) -> None:
        device.machine.take(device.name, nbytes)
        self.device = device
        self.state = BlockState(np.full(nbytes, POISON, np.uint8), device.name, device.current_stream())
        # Not at exit, when other modules may be deleted already.
        weakref.finalize(self, device.machine.free, self.state).atexit = False


class SimulatedArray(NDArrayOperatorsMixin):
    """An array like CuPy's, which the host must copy to read it."""

    __hash__ = object.__hash__
    __slots__ = ("__weakref__", "_view", "base", "block")

    def __init__(self, block: Block, view: np.ndarray[Any, Any], base: SimulatedArray | None = None) -> None:
        self.block = block
        self._view = view
        self.base = base

    @classmethod
    def empty(cls, device: SimulatedDevice, shape: Sequence[int], dtype: np.dtype[Any]) -> SimulatedArray:
        """Allocate an uninitialized array; raises TypeError for a dtype that devices do not support."""
        if not is_supported(dtype):
            raise TypeError(f"Unsupported dtype {dtype}")
        block = Block(device, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        return cls(block, block.state.data.view(dtype).reshape(tuple(shape)))

    dtype = property(lambda self: self._view.dtype)
    shape = property(lambda self: self._view.shape)
    ndim = property(lambda self: self._view.ndim)
    size = property(lambda self: self._view.size)
    itemsize = property(lambda self: self._view.itemsize)
    nbytes = property(lambda self: self._view.nbytes)
    strides = property(lambda self: self._view.strides)
    flags = property(lambda self: self._view.flags)

    @property
    def device(self) -> SimulatedDevice:
        return self.block.device

    T = property(lambda self: self.transpose())
    real = property(lambda self: apply("real", np.real, (self,)))
    imag = property(lambda self: apply("imag", np.imag, (self,)))

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[SimulatedArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<array {self.dtype}{list(self.shape)} on {self.device.name}>"

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct one explicitly.")

    def get(self) -> np.ndarray[Any, Any]:
        return self.device.download(self)

    def tolist(self) -> Any:
        return self.get().tolist()

    def item(self) -> Any:
        return self.get().item()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __index__(self) -> int:
        return operator.index(self.get().item())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.index

    def __dlpack__(self, **_: object) -> SimulatedArray:
        return self

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any) -> Any:
        """Implement operators such as ``+``. Refuse calls such as ``numpy.exp(array)``: kernels must call functions of `xp`."""
        is_unary_operator = function in (np.negative, np.positive, np.absolute, np.invert)
        if method != "__call__" or (function.nin == 1 and not is_unary_operator):
            return NotImplemented
        if not out:
            return apply(function.__name__, function, inputs, options)
        enqueue_write(function.__name__, lambda target, *args: function(*args, out=target), out[0], inputs)
        return out[0]

    def __getitem__(self, key: Any) -> SimulatedArray:
        indices = _find_arrays_in_key(key)
        has_mask = any(index.dtype == np.bool_ for index in indices)
        return apply("getitem", lambda array, *contents: array[_fill(key, contents)], (self, *indices), waits=has_mask)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        def put(target: np.ndarray[Any, Any], *args: Any) -> None:
            target[_fill(key, args[:-1])] = args[-1]

        enqueue_write("setitem", put, self, (*_find_arrays_in_key(key), value))

    def reshape(self, *shape: Any, **options: Any) -> SimulatedArray:
        return apply("reshape", lambda array: array.reshape(*shape, **options), (self,))  # type: ignore[no-any-return]


def _find_arrays_in_key(key: Any) -> list[Any]:
    """List the arrays in an index, in the order in which `_fill` replaces them; raises TypeError for NumPy arrays, as CuPy."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, np.ndarray) for part in parts):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return [part for part in parts if isinstance(part, SimulatedArray)]


def _fill(key: Any, contents: Sequence[Any]) -> Any:
    """Replace the simulated arrays in an index by ``contents``, which are NumPy arrays."""
    if not isinstance(key, tuple):
        return contents[0] if isinstance(key, SimulatedArray) else key
    replacements = iter(contents)
    return tuple(next(replacements) if isinstance(part, SimulatedArray) else part for part in key)


def _check_device(arrays: Sequence[SimulatedArray]) -> SimulatedDevice:
    device = arrays[0].device
    current = device.world.current()
    # CuPy would start the kernel on the current device, which could not read the memory of another device.
    for array in arrays:
        if array.device is not current:
            raise ValueError(f"an array of {array.device.name} is used while {current.name} is current")
    return current


def _replace_arrays(value: Any, as_view: Callable[[SimulatedArray], Any]) -> Any:
    """Replace arrays in lists, tuples and dictionaries by ``as_view(array)``; raises TypeError for NumPy arrays, as CuPy does."""
    if isinstance(value, SimulatedArray):
        return as_view(value)
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, list | tuple):
        return type(value)(_replace_arrays(item, as_view) for item in value)
    if isinstance(value, dict):
        return {name: _replace_arrays(item, as_view) for name, item in value.items()}
    return value


def find_arrays(value: Any) -> list[SimulatedArray]:
    """List the arrays in lists, tuples and dictionaries."""
    if isinstance(value, SimulatedArray):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [array for item in items for array in find_arrays(item)]


def apply(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any] | None = None, waits: bool = False
) -> Any:
    """Enqueue a NumPy function on the current stream, and return the arrays that will have its results.

    With ``waits``, the host first waits for the stream, because the size of the result depends on the elements of an argument.
    """
    call = (args, options or {})
    arrays = find_arrays(call)
    device = _check_device(arrays)
    if waits:
        device.wait([device.current_stream()])
    # Run the function now on stand-ins for the arrays, since the types and shapes of the results must be known.
    stand_ins = {id(a): a._view if waits else _make_stand_in(a._view) for a in arrays}
    example = _call_quietly(function, *_replace_arrays(call, lambda a: stand_ins[id(a)]))
    for array in arrays:
        if example is stand_ins[id(array)]:
            return array  # the function returns its argument
    outputs = _as_list(example)
    sources = [_find_base(output, arrays, stand_ins) for output in outputs]
    if all(source is not None for source in sources):
        # Views share memory with their base, so that nothing is enqueued.
        views = _as_list(_call_quietly(function, *_replace_arrays(call, _get_view)))
        results = [SimulatedArray(s.block, v, s) for s, v in zip(sources, views, strict=True) if s is not None]
    else:
        results = [SimulatedArray.empty(device, np.shape(output), np.asarray(output).dtype) for output in outputs]
        contents, targets = _replace_arrays(call, _get_view), [array._view for array in results]

        def work() -> None:
            for target, result in zip(targets, _as_list(_call_quietly(function, *contents)), strict=True):
                target[...] = result

        _enqueue(name, work, arrays, results)
    return type(example)(results) if isinstance(example, list | tuple) else results[0]


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _get_view(array: SimulatedArray) -> np.ndarray[Any, Any]:
    return array._view


def _make_stand_in(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Make zeros with the type, shape and order of axes in memory of a view."""
    # The order matters, because NumPy and CuPy choose the strides of results by those of the operands.
    order = np.argsort([-abs(stride) for stride in view.strides], kind="stable")
    return np.zeros([view.shape[i] for i in order], view.dtype).transpose(np.argsort(order))


def _find_base(output: Any, arrays: Sequence[SimulatedArray], stand_ins: dict[int, Any]) -> SimulatedArray | None:
    """Find the array of which an output is a view; None if there is none. ``stand_ins`` maps ids of arrays to stand-ins."""
    if not isinstance(output, np.ndarray) or not output.size:
        return None  # empty arrays overlap nothing
    return next((a for a in arrays if np.may_share_memory(output, stand_ins[id(a)])), None)


def _call_quietly(function: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


def _enqueue(name: str, work: Callable[[], None], reads: Sequence[SimulatedArray], writes: Sequence[SimulatedArray]) -> None:
    device = reads[0].device
    read_blocks = tuple(dict.fromkeys(array.block.state for array in reads))
    device.machine.kernels.append(name)
    item = WorkItem(name, work, read_blocks, tuple(array.block.state for array in writes))
    device.machine.put(device.current_stream(), item)


def enqueue_write(name: str, function: Callable[..., None], target: SimulatedArray, args: tuple[Any, ...]) -> None:
    """Enqueue ``function(target, *args)``, which writes to ``target``, on the current stream; it gets NumPy views of arrays."""
    arrays = [target, *find_arrays(args)]
    _check_device(arrays)
    contents = (target._view, *_replace_arrays(args, _get_view))
    _enqueue(name, lambda: _call_quietly(function, contents, {}), arrays, [target])


Clock: TypeAlias = dict[int, int]
"""A vector clock: maps the number of a stream to the number of its last work item that is certain to be complete."""
Order: TypeAlias = Literal["eager", "late", "random"]
POISON = 0xFF
"""The byte in uninitialized and freed memory: NaN as a float, -1 as an integer."""


@dataclass(eq=False, slots=True)
class BlockState:
    """The bytes of a memory block and its last accesses. Queued work may need them after the arrays are deleted."""

    data: np.ndarray[Any, Any]
    device: str
    stream: SimulatedStream
    """The stream of the allocation. When the block is free, later allocations on this stream may reuse it."""
    writes: Clock = field(default_factory=dict)
    reads: Clock = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkItem:
    name: str
    do: Callable[[], None]
    reads: tuple[BlockState, ...] = ()
    writes: tuple[BlockState, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A position in a stream, and the vector clock of the stream at this position."""

    stream: SimulatedStream
    number: int
    clock: Clock


@dataclass(eq=False, slots=True)
class SimulatedStream:
    """A queue of work on one device, executed in order."""

    number: int
    device: str
    issued: int = 0
    """Number of items enqueued so far."""
    done: int = 0
    """Number of items executed so far."""
    clock: Clock = field(default_factory=dict)
    queue: deque[tuple[int, Callable[[], None] | None, Event | None]] = field(default_factory=deque)
    """(number, work or None, event to wait for or None)."""
    recording: list[WorkItem] | None = None


class SimulatedMachine:
    """The streams and memory of all devices, and a log of kernels, copies, waits and races. Thread-safe."""

    def __init__(self, order: Order = "late", seed: int = 0, limit: int = 1 << 30) -> None:
        self.order = order
        self.limit = limit
        """Memory per device, in bytes."""
        self.used: dict[str, int] = {}
        self.races: list[str] = []
        self.kernels: list[str] = []
        """Names of the kernels, in the order in which they were enqueued."""
        self.copies: list[str] = []
        """Directions of the copies, in the order in which they were enqueued: ``in``, ``out`` or ``across``."""
        self.waits = 0
        """How often the host has waited for a stream or an event."""
        self._chance = random.Random(seed)
        self._streams: list[SimulatedStream] = []
        self._host: Clock = {}
        self.lock = threading.RLock()

    def stream(self, device: str) -> SimulatedStream:
        with self.lock:
            stream = SimulatedStream(len(self._streams), device)
            self._streams.append(stream)
            return stream

    def put(self, stream: SimulatedStream, item: WorkItem) -> None:
        """Enqueue work on a stream, or add it to the stream's recording. Log races with other work in `races`."""
        with self.lock:
            if stream.recording is not None:
                stream.recording.append(item)
                return
            # Work for which the host has waited is complete before all work that it enqueues now.
            self._join(stream.clock, self._host)
            stream.issued += 1
            stream.clock[stream.number] = stream.issued
            self._check(stream, item)
            stream.queue.append((stream.issued, item.do, None))
            self._advance()

    def _check(self, stream: SimulatedStream, item: WorkItem) -> None:
        """Log races of the item with earlier accesses by the clocks, not by the order of execution; then record its accesses."""
        for state in item.reads:
            self._check_ordered(state.writes, stream, f"{item.name} reads what is written")
            state.reads[stream.number] = stream.issued
        for state in item.writes:
            self._check_ordered(state.writes, stream, f"{item.name} writes what is written")
            # The reads of the item, which were recorded above, are not a race with its writes.
            self._check_ordered(state.reads, stream, f"{item.name} writes what is read", besides=stream.number)
            state.writes, state.reads = {stream.number: stream.issued}, {}

    def _check_ordered(self, accesses: Clock, stream: SimulatedStream, access: str, besides: int = -1) -> None:
        """Log a race for each of ``accesses`` that is not certain to be complete, except those of the stream ``besides``."""
        for number, item in accesses.items():
            if number != besides and stream.clock.get(number, 0) < item:
                self.races.append(f"{access} on stream {number}, and nothing orders stream {stream.number} after that")

    def event(self, stream: SimulatedStream) -> Event:
        with self.lock:
            self._join(stream.clock, self._host)
            return Event(stream, stream.issued, dict(stream.clock))

    def after(self, stream: SimulatedStream, event: Event) -> None:
        """Make later work on the stream wait for the event."""
        with self.lock:
            if stream.recording is not None:
                raise RuntimeError("a stream that is recorded cannot wait for one that is not")
            self._join(stream.clock, event.clock)
            stream.issued += 1
            stream.clock[stream.number] = stream.issued
            stream.queue.append((stream.issued, None, event))
            self._advance()

    @staticmethod
    def _join(clock: Clock, other: Clock) -> None:
        for number, item in other.items():
            clock[number] = max(clock.get(number, 0), item)

    def _advance(self) -> None:
        """After an enqueue, execute all ready work (``eager``), up to two items (``random``), or nothing (``late``)."""
        if self.order == "eager":
            while self._step(self._list_ready()):
                pass
        elif self.order == "random":
            for _ in range(self._chance.randrange(3)):
                self._step(self._list_ready())

    def _list_ready(self) -> list[SimulatedStream]:
        return [stream for stream in self._streams if stream.queue and self._may_begin(stream)]

    @staticmethod
    def _may_begin(stream: SimulatedStream) -> bool:
        event = stream.queue[0][2]
        return event is None or event.stream.done >= event.number

    def _step(self, ready: Sequence[SimulatedStream]) -> bool:
        """Execute the next item of a ready stream, the newest unless in random order; return False if no stream is ready."""
        if not ready:
            return False
        # The newest stream first, so that its work overtakes all work that nothing orders before it.
        stream = self._chance.choice(ready) if self.order == "random" else ready[-1]
        number, work, _ = stream.queue.popleft()
        if work is not None:
            copy_context().run(work)  # in a copy, because a finalizer may call this while its thread changes the context
        stream.done = number
        return True

    def wait(self, event: Event) -> None:
        """Block the host until the event; in ``late`` order, execute only the work that the event depends on."""
        with self.lock:
            if event.stream.recording is not None:
                raise RuntimeError("the host cannot wait for a stream that is recorded")
            self.waits += 1
            while event.stream.done < event.number:
                if not self._step(self._find_blocking(event) if self.order == "late" else self._list_ready()):
                    raise RuntimeError(f"stream {event.stream.number} waits forever")
            self._join(self._host, event.clock)

    def _find_blocking(self, event: Event) -> list[SimulatedStream]:
        """Find the stream whose next item must be executed before the event; return it in a list, or an empty list."""
        stream = event.stream
        while stream.queue and not self._may_begin(stream):
            blocking = stream.queue[0][2]
            assert blocking is not None  # otherwise _may_begin is true
            stream = blocking.stream
        return [stream] if stream.queue else []

    def is_done(self, event: Event) -> bool:
        """Whether the event has occurred. If it has, later work of the host is ordered after the event."""
        with self.lock:
            occurred = event.stream.done >= event.number
            if occurred:
                self._join(self._host, event.clock)
            return occurred

    @contextmanager
    def record_work(self, stream: SimulatedStream) -> Iterator[list[WorkItem]]:
        """Collect the work that is enqueued on the stream instead of executing it."""
        items: list[WorkItem] = []
        stream.recording = items
        try:
            yield items
        finally:
            stream.recording = None

    def replay(self, stream: SimulatedStream, items: Iterable[WorkItem]) -> None:
        with self.lock:
            self.kernels.append("graph")
            for item in items:
                self.put(stream, item)

    def take(self, device: str, nbytes: int) -> None:
        """Reserve memory on a device; raises SimulatedMemoryError if there is not enough."""
        with self.lock:
            used = self.used.get(device, 0)
            if used + nbytes > self.limit:
                raise SimulatedMemoryError(nbytes)
            self.used[device] = used + nbytes

    def free(self, state: BlockState) -> None:
        """Free a block, and enqueue a write of `POISON` on its stream, as if the memory were allocated again."""
        with self.lock:
            self.used[state.device] -= state.data.nbytes
            # A later access, or one that is not ordered before this write, is a race.
            data = state.data
            self.put(state.stream, WorkItem("the next owner", lambda: data.fill(POISON), (), (state,)))


class SimulatedMemoryError(MemoryError):
    def __init__(self, nbytes: int) -> None:
        super().__init__(f"out of simulated memory: {nbytes} bytes")
        self.nbytes = nbytes
