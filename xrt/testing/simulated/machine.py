"""A machine with simulated devices: work waits on streams, and is done as late, and in as odd an order, as it may be.

Every piece of work declares which memory it reads and writes. In addition to the order in which work is done, the machine keeps
the guaranteed order (a vector clock per stream). Two unordered pieces of work on one memory, one of which writes, are a race,
whatever the result was this time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = ["POISON", "BlockState", "Event", "Order", "SimulatedMachine", "SimulatedMemoryError", "SimulatedStream", "WorkItem"]

Clock: TypeAlias = dict[int, int]
"""How far each stream, by number, is known to have come."""
Order: TypeAlias = Literal["eager", "late", "random"]
POISON = 0xFF
"""The content of memory that is unwritten or freed: NaN as a float, -1 as an integer."""


@dataclass(eq=False, slots=True)
class BlockState:
    """A block of memory: its bytes, and who has touched it. It outlives its arrays where work still needs it."""

    data: np.ndarray[Any, Any]
    device: str
    stream: SimulatedStream
    """On which it was allocated; freed, it is anybody's who comes later there."""
    writes: Clock = field(default_factory=dict)
    reads: Clock = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One piece of work."""

    what: str
    do: Callable[[], None]
    reads: tuple[BlockState, ...] = ()
    writes: tuple[BlockState, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A place in a stream."""

    stream: SimulatedStream
    number: int
    clock: Clock


@dataclass(eq=False, slots=True)
class SimulatedStream:
    """A queue of work."""

    number: int
    device: str
    issued: int = 0
    """How many pieces were put on it."""
    done: int = 0
    """How many of these are done."""
    clock: Clock = field(default_factory=dict)
    queue: deque[tuple[int, Callable[[], None] | None, Event | None]] = field(default_factory=deque)
    """(number, work, what it waits for)."""
    recording: list[WorkItem] | None = None


class SimulatedMachine:
    """Devices' streams and memory, and the counts of what was done. Use it from any thread."""

    def __init__(self, order: Order = "late", seed: int = 0, limit: int = 1 << 30) -> None:
        self.order = order
        self.limit = limit
        """Bytes of memory of each device."""
        self.used: dict[str, int] = {}
        self.races: list[str] = []
        self.kernels: list[str] = []
        """What was put on streams and computes, in order."""
        self.copies: list[str] = []
        """What was copied between memories: ``in``, ``out`` or ``across``, in order."""
        self.waits = 0
        """How often a thread of the host has waited for a stream or an event."""
        self._chance = random.Random(seed)
        self._streams: list[SimulatedStream] = []
        self._host: Clock = {}
        self.lock = threading.RLock()

    # ------------------------------------------------------------------ streams

    def stream(self, device: str) -> SimulatedStream:
        """Return a new stream."""
        with self.lock:
            stream = SimulatedStream(len(self._streams), device)
            self._streams.append(stream)
            return stream

    def put(self, stream: SimulatedStream, piece: WorkItem) -> None:
        """Put work on a stream; a race with other work is noted."""
        with self.lock:
            if stream.recording is not None:
                stream.recording.append(piece)
                return
            self._join(stream.clock, self._host)
            stream.issued += 1
            stream.clock[stream.number] = stream.issued
            self._check(stream, piece)
            stream.queue.append((stream.issued, piece.do, None))
            self._advance()

    def _check(self, stream: SimulatedStream, piece: WorkItem) -> None:
        for state in piece.reads:
            self._expect(state.writes, stream, f"{piece.what} reads what is written")
            state.reads[stream.number] = stream.issued
        for state in piece.writes:
            self._expect(state.writes, stream, f"{piece.what} writes what is written")
            self._expect(state.reads, stream, f"{piece.what} writes what is read", besides=stream.number)
            state.writes, state.reads = {stream.number: stream.issued}, {}

    def _expect(self, touched: Clock, stream: SimulatedStream, what: str, besides: int = -1) -> None:
        for number, place in touched.items():
            if number != besides and stream.clock.get(number, 0) < place:
                self.races.append(f"{what} on stream {number}, and nothing orders stream {stream.number} after that")

    def event(self, stream: SimulatedStream) -> Event:
        """Return the place that a stream has come to."""
        with self.lock:
            self._join(stream.clock, self._host)
            return Event(stream, stream.issued, dict(stream.clock))

    def after(self, stream: SimulatedStream, event: Event) -> None:
        """Let what comes on the stream wait for the event."""
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
        for number, place in other.items():
            clock[number] = max(clock.get(number, 0), place)

    # ------------------------------------------------------------------ doing it

    def _advance(self) -> None:
        """Do as much as this order of things does on its own."""
        if self.order == "eager":
            while self._step(self._ready()):
                pass
        elif self.order == "random":
            for _ in range(self._chance.randrange(3)):
                self._step(self._ready())

    def _ready(self) -> list[SimulatedStream]:
        return [stream for stream in self._streams if stream.queue and self._may_begin(stream)]

    @staticmethod
    def _may_begin(stream: SimulatedStream) -> bool:
        waited = stream.queue[0][2]
        return waited is None or waited.stream.done >= waited.number

    def _step(self, ready: Sequence[SimulatedStream]) -> bool:
        """Do the next piece of some stream; False where there is none. What came last to be made goes first."""
        if not ready:
            return False
        stream = self._chance.choice(ready) if self.order == "random" else ready[-1]
        number, work, _ = stream.queue.popleft()
        if work is not None:
            copy_context().run(work)  # its own: a finalizer may be what does it, within a change of the caller's context
        stream.done = number
        return True

    def wait(self, event: Event) -> None:
        """Let the host wait for an event: as little as possible is done for it, and only what must be in a late order."""
        with self.lock:
            if event.stream.recording is not None:
                raise RuntimeError("the host cannot wait for a stream that is recorded")
            self.waits += 1
            while event.stream.done < event.number:
                if not self._step(self._towards(event) if self.order == "late" else self._ready()):
                    raise RuntimeError(f"stream {event.stream.number} waits for ever")
            self._join(self._host, event.clock)

    def _towards(self, event: Event) -> list[SimulatedStream]:
        """Return the stream whose next piece brings the event nearer."""
        stream = event.stream
        while stream.queue and not self._may_begin(stream):
            waited = stream.queue[0][2]
            assert waited is not None  # otherwise it may begin
            stream = waited.stream
        return [stream] if stream.queue else []

    def is_done(self, event: Event) -> bool:
        """Whether the event has come; that it has is then known to the host."""
        with self.lock:
            came = event.stream.done >= event.number
            if came:
                self._join(self._host, event.clock)
            return came

    # ------------------------------------------------------------------ recordings

    @contextmanager
    def record_work(self, stream: SimulatedStream) -> Iterator[list[WorkItem]]:
        """Let work that is put on the stream be listed instead of done."""
        pieces: list[WorkItem] = []
        stream.recording = pieces
        try:
            yield pieces
        finally:
            stream.recording = None

    def replay(self, stream: SimulatedStream, pieces: Iterable[WorkItem]) -> None:
        """Put recorded work on a stream."""
        with self.lock:
            self.kernels.append("graph")
            for piece in pieces:
                self.put(stream, piece)

    # ------------------------------------------------------------------ memory

    def take(self, device: str, nbytes: int) -> None:
        """Count memory of a device as taken; raises SimulatedMemoryError where it has less."""
        with self.lock:
            used = self.used.get(device, 0)
            if used + nbytes > self.limit:
                raise SimulatedMemoryError(nbytes)
            self.used[device] = used + nbytes

    def free(self, state: BlockState) -> None:
        """Take memory back: later work on its stream may write to it."""
        with self.lock:
            self.used[state.device] -= state.data.nbytes
            data = state.data
            self.put(state.stream, WorkItem("the next owner", lambda: data.fill(POISON), (), (state,)))


class SimulatedMemoryError(MemoryError):
    """A simulated device has less memory than was asked for."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"out of simulated memory: {nbytes} bytes")
        self.nbytes = nbytes
