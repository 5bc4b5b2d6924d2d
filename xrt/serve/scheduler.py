"""The queue of a model: calls run in a bounded pool next to the event loop, and those that fit together become one.

All of it is used on the thread of the event loop, so that nothing is locked; only the calls themselves run elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from xrt.serve.batches import Values, run_batch
from xrt.serve.refusal import BUSY, RequestRefusal

__all__ = ["CallObserver", "Scheduler"]


class CallObserver(Protocol):
    """What a scheduler reports to."""

    def note_batch(self, requests: int, rows: int, seconds: float) -> None:
        """Note a call that ended."""

    def note_wait(self, seconds: float) -> None:
        """Note how long a request was queued."""

    def note_queue(self, queued: int, running: int) -> None:
        """Note the requests that wait and the calls that run."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in the queue."""

    call: Callable[..., Values]
    values: Values
    key: Any
    """What requests of one batch have in common; None for one that runs alone."""
    rows: int
    future: asyncio.Future[Values]
    since: float = field(default_factory=time.perf_counter)


class Scheduler:
    """A queue in front of a number of instances."""

    def __init__(
        self, instances: int, max_queue: int, observer: CallObserver, *, sizes: Sequence[int] = (), rounds_up: bool = False,
        max_wait: float = 0.0,
    ) -> None:  # fmt: skip
        self._queue: deque[_Waiting] = deque()
        self._instances, self._running = instances, 0
        self._max_queue = max_queue
        self._observer = observer
        self._most = max(sizes, default=0)
        self._sizes = tuple(sizes) if rounds_up else ()
        self._max_wait = max_wait
        self._timer: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(instances, thread_name_prefix="xrt-serve")
        self._idle: asyncio.Event | None = None

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def check_room(self) -> None:
        """Raise RequestRefusal where the queue is full."""
        if len(self._queue) >= self._max_queue:
            raise RequestRefusal(
                f"{self._max_queue} requests are waiting, and no more are queued; try again", BUSY, retry_after=1
            )

    def submit(self, call: Callable[..., Values], values: Values, key: Any = None, rows: int = 1) -> asyncio.Future[Values]:
        """Queue a call; requests with equal keys, which are not None, may become one. Raises RequestRefusal for a full queue."""
        self.check_room()
        future: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        joins = key is not None and 0 < rows <= self._most
        self._queue.append(_Waiting(call, values, key if joins else None, rows, future))
        self._start_calls()
        return future

    async def drain(self) -> None:
        """Wait until nothing is queued and nothing runs."""
        while self._queue or self._running:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """End the threads; a call in progress ends normally."""
        self._pool.shutdown(wait=False)

    # ------------------------------------------------------------------ on the thread of the event loop

    def _start_calls(self) -> None:
        while self._queue and self._running < self._instances:
            if (delay := self._find_delay()) > 0:
                self._timer = self._timer or asyncio.get_running_loop().call_later(delay, self._end_wait)
                break
            batch = self._take_batch()
            if batch:
                self._start(batch)
        self._observer.note_queue(len(self._queue), self._running)

    def _end_wait(self) -> None:
        self._timer = None
        self._start_calls()

    def _find_delay(self) -> float:
        """Return how long the first request waits for others: until its batch is full, at most the time that is admitted."""
        first = self._queue[0]
        if self._max_wait == 0 or first.key is None:
            return 0.0
        if sum(one.rows for one in self._queue if one.key == first.key) >= self._most:
            return 0.0
        return self._max_wait - (time.perf_counter() - first.since)

    def _take_batch(self) -> list[_Waiting]:
        """Remove the first request from the queue, and those after it that fit; without those whose client is gone."""
        first = self._queue.popleft()
        if first.key is None:
            return [] if first.future.cancelled() else [first]
        batch, rows, rest = [first], first.rows, []
        while self._queue and rows < self._most:
            other = self._queue.popleft()
            if other.key == first.key and rows + other.rows <= self._most:
                batch.append(other)
                rows += other.rows
            else:
                rest.append(other)
        while self._sizes and len(batch) > 1 and rows not in self._sizes:  # rounded down: what is left is the next batch
            rest.insert(0, batch.pop())
            rows -= rest[0].rows
        self._queue.extendleft(reversed(rest))
        return [one for one in batch if not one.future.cancelled()]

    def _start(self, batch: list[_Waiting]) -> None:
        self._running += 1
        started = time.perf_counter()
        for one in batch:
            self._observer.note_wait(started - one.since)
        loop = asyncio.get_running_loop()
        call = batch[0].call
        running = self._pool.submit(run_batch, call, [one.values for one in batch], [one.rows for one in batch], self._sizes)
        finish = partial(self._finish, batch, started)
        running.add_done_callback(lambda done: loop.call_soon_threadsafe(finish, done))

    def _finish(self, batch: list[_Waiting], started: float, done: Future[list[Values | BaseException]]) -> None:
        self._running -= 1
        self._observer.note_batch(len(batch), sum(one.rows for one in batch), time.perf_counter() - started)
        results = done.result()
        for one, result in zip(batch, results, strict=True):
            if one.future.cancelled():
                continue
            if isinstance(result, BaseException):
                one.future.set_exception(result)
            else:
                one.future.set_result(result)
        self._start_calls()
        if self._idle is not None and not self._queue and not self._running:
            self._idle.set()
