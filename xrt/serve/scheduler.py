"""The request queue of a model: compatible requests are joined into batches, and calls run in a bounded thread pool.

Everything except the calls runs on the event loop, so no locks are needed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.comparison import compare, tolerance_for
from xrt.errors import XRTError
from xrt.graph import Function, TensorType, Value
from xrt.operators.sample_inputs import sample_inputs
from xrt.serve.protocol import Array, RequestRefusal, Status

if TYPE_CHECKING:
    from xrt.serve.metrics import ModelMetrics

Values = tuple[Array, ...]
"""Inputs or outputs of a call, in order."""
_EXTENTS = (8, 3, 64, 224, 1)
"""Extents to try for dynamic axes other than the rows: a model may work for some of them only.

1 comes last, as it can hide that rows are mixed: transposing one column changes nothing.
"""


def find_reason_against_batches(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Explain why the declared shapes do not allow batching along the first axis; empty if they do."""
    if not inputs or not outputs:
        return "it has no inputs, or no outputs"
    leading_dims = {}
    for value in (*inputs, *outputs):
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if not shape or isinstance(shape[0], int):
            return f"the first axis of {value.name!r} ({value.type}) is not open"
        leading_dims[value.name] = shape[0]
    dims = {dim for dim in leading_dims.values() if dim is not None}
    input_dims = {leading_dims[value.name] for value in inputs}
    if len(input_dims) > 1 or len(dims) > 1:
        # Inputs of different extents have no common rows; an output of another extent than the inputs cannot be split by rows.
        return f"its first axes differ: {', '.join(f'{name!r} has {dim}' for name, dim in leading_dims.items())}"
    return ""


def count_joinable_rows(values: Values) -> int:
    """The number of rows of a request if it is the same in all inputs; 0 otherwise, and the request must run alone.

    A model may broadcast a one-row input over another input: in a batch it would meet rows of other requests.
    """
    rows = {array.shape[0] if array.ndim else 0 for array in values}
    return rows.pop() if len(rows) == 1 else 0


def explain_mixed_rows(call: Callable[..., Values], function: Function, sizes: Sequence[int], *, rounds_up: bool) -> str:
    """Explain why the rows of a batch influence each other; empty if a trial shows that they do not.

    The trial compares the results of two random requests, with different numbers of rows, alone and joined, and again with the
    second one full of NaN. ``sizes`` are the sizes of batches: with ``rounds_up`` each is tried, and thereby compiled, otherwise
    the largest. A model with further dynamic axes is tried at two extents, if two work. ``function`` has the inputs; its nodes
    are only read for the valid values of inputs, such as categories, and may be missing.
    """
    shapes = [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]
    has_open_axes = any(not isinstance(dim, int) for shape in shapes for dim in shape[1:])
    passed, failure = 0, ""
    for extent in _EXTENTS if has_open_axes else _EXTENTS[:1]:
        # An extent of 1 proves little: it only counts if no other one worked.
        if passed == 2 or (passed and extent == 1):
            break
        try:
            for size in sizes if rounds_up else (max(sizes),):
                if reason := _compare_batch(call, function, extent, size, (size,) if rounds_up else ()):
                    return reason
        except (XRTError, ValueError) as error:
            failure = str(error)
        else:
            passed += 1
    return "" if passed else f"requests cannot be joined, since the trial of a batch failed: {failure}; leave batch out"


def _compare_batch(call: Callable[..., Values], function: Function, extent: int, size: int, padded: tuple[int, ...]) -> str:
    """Compare requests alone and joined to one batch of ``size`` rows; explain a difference, or return an empty text."""
    rows = (1, 2) if size > 2 else (1,) * size
    requests = [_sample(function, seed, extent, count) for seed, count in enumerate(rows)]
    expected = [call(*values) for values in requests]
    reason = _compare(expected, join_and_split(call, requests, rows, padded))
    if reason or size == 1:
        return reason
    # NaN reaches every value that depends on it, however small its weight.
    nan_request = tuple(np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in requests[1])
    try:
        return _compare(expected[:1], join_and_split(call, [requests[0], nan_request], rows, padded)[:1])
    except (XRTError, ValueError):  # a failing batch is repeated request by request, so nothing is mixed
        return ""


def _compare(expected: Sequence[Values], joined: Sequence[Values]) -> str:
    for before, after in zip(chain(*expected), chain(*joined), strict=True):
        if not (comparison := compare(after, before, tolerance_for(before.dtype, "network"))):
            return f"the rows of a batch change each other: alone and together, {comparison.message}; leave batch out"
    return ""


def _sample(function: Function, seed: int, extent: int, rows: int) -> Values:
    """Random inputs with ``rows`` rows, whose other dynamic axes have the extent ``extent``."""
    types = {value.name: value.type for value in function.inputs if isinstance(value.type, TensorType)}
    leading_dims = {type_.shape[0] for type_ in types.values() if type_.shape} - {None}
    sized = []
    for name, type_ in types.items():
        # A symbol of the first axis may occur in another one, and has the same extent there.
        extents = [dim if isinstance(dim, int) else rows if dim in leading_dims else extent for dim in (type_.shape or ())[1:]]
        sized.append(Value(name, type_.with_shape((rows, *extents))))
    return tuple(sample_inputs(function.replace(inputs=tuple(sized)), seed).values())


# ---------------------------------------------------------------------- on a thread of the pool


def run_batch(
    call: Callable[..., Values], requests: Sequence[Values], rows: Sequence[int], sizes: Sequence[int] = ()
) -> list[Values | BaseException]:
    """The results of each request, or its exception. ``rows`` has the number of rows of each.

    Several requests are joined along the first axis to one call, padded to the next of ``sizes`` by repeating the last row. If
    that call fails, each request runs alone, so that none fails because of another.
    """
    if len(requests) > 1 or (sizes and rows[0] not in sizes and rows[0] < max(sizes)):
        with suppress(Exception):  # each request is then run alone and gets its own error
            return list(join_and_split(call, requests, rows, sizes))
    results: list[Values | BaseException] = []
    for values in requests:
        try:
            results.append(call(*values))
        except Exception as error:  # noqa: BLE001  # becomes the response to this request
            results.append(error)
    return results


def join_and_split(
    call: Callable[..., Values], requests: Sequence[Values], rows: Sequence[int], sizes: Sequence[int] = ()
) -> list[Values]:
    """Run all requests as one call, padded as in `run_batch`, and split the results; ValueError if outputs lack rows."""
    count = sum(rows)
    padding = min((size for size in sizes if size >= count), default=count) - count
    columns = [list(arrays) for arrays in zip(*requests, strict=True)]
    last = [[np.repeat(arrays[-1][-1:], padding, axis=0)] if padding else [] for arrays in columns]
    results = call(*(np.concatenate([*arrays, *more]) for arrays, more in zip(columns, last, strict=True)))
    ends = np.cumsum(rows)
    if any(array.ndim == 0 or array.shape[0] != count + padding for array in results):
        raise ValueError("the outputs do not have the rows of the inputs")
    return [tuple(array[end - size : end] for array in results) for end, size in zip(ends, rows, strict=True)]


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A request in the queue, or in a running call."""

    call: Callable[..., Values]
    values: Values
    key: Any
    """Requests with equal keys can be batched; None for one that runs alone."""
    rows: int
    future: asyncio.Future[Values]
    on_start: Callable[[], object] | None
    enqueued: float = field(default_factory=time.perf_counter)


class Limit:
    """A limit on the requests in one stage of their processing."""

    def __init__(self, stage: str) -> None:
        self._stage, self._count = stage, 0

    @contextmanager
    def admit(self, most: int) -> Iterator[None]:
        """Count a request for the duration of the block; raises RequestRefusal if there are ``most`` already."""
        if self._count >= most:
            raise RequestRefusal(f"{self._count} {self._stage}; try again", Status.BUSY)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Scheduler:
    """The queue of a model: at most ``instances`` calls run at once, and at most ``max_queue`` requests wait.

    ``sizes`` are the sizes of batches in ascending order; empty: requests are not joined. With ``rounds_up`` a call has exactly
    one of these sizes, otherwise any number of rows up to the largest. A request waits up to ``max_wait`` seconds for its batch
    to fill.
    """

    def __init__(
        self, instances: int, max_queue: int, metrics: ModelMetrics, *, sizes: Sequence[int] = (), rounds_up: bool = False,
        max_wait: float = 0.0,
    ) -> None:  # fmt: skip
        self._queue: deque[_QueuedRequest] = deque()
        self.running = 0
        """Number of running calls."""
        self._instances, self._max_queue, self._metrics = instances, max_queue, metrics
        self._max_rows = max(sizes, default=0)
        self._sizes = tuple(sizes) if rounds_up else ()
        self._max_wait = max_wait
        self._timer: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(instances, thread_name_prefix="xrt-serve")
        self._idle: asyncio.Event | None = None

    @property
    def queued(self) -> int:
        """Number of queued requests."""
        return len(self._queue)

    def check_room(self) -> None:
        """Raise RequestRefusal if the queue is full."""
        if len(self._queue) >= self._max_queue:
            raise RequestRefusal(f"{self._max_queue} requests are waiting, and no more are queued; try again", Status.BUSY)

    def submit(
        self,
        call: Callable[..., Values],
        values: Values,
        key: Any = None,
        rows: int = 1,
        on_start: Callable[[], object] | None = None,
    ) -> asyncio.Future[Values]:
        """Queue a call of ``call`` with ``values``, which have ``rows`` rows; raises RequestRefusal if the queue is full.

        Requests with equal keys other than None may be joined. ``on_start`` is called on the event loop when the call leaves the
        queue; a call whose future is cancelled before never runs.
        """
        self.check_room()
        future: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        # A request larger than the largest batch runs alone.
        joins = key is not None and 0 < rows <= self._max_rows
        self._queue.append(_QueuedRequest(call, values, key if joins else None, rows, future, on_start))
        self._start_calls()
        return future

    async def drain(self) -> None:
        """Wait until nothing is queued or running."""
        while self._queue or self.running:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """Stop the threads; running calls finish normally."""
        self._pool.shutdown(wait=False)

    # ------------------------------------------------------------------ on the thread of the event loop

    def _start_calls(self) -> None:
        """Start as many calls as instances are free, unless the first request still waits for its batch to fill."""
        while self._queue and self.running < self._instances:
            if (delay := self._find_delay()) > 0:
                self._timer = self._timer or asyncio.get_running_loop().call_later(delay, self._end_wait)
                break
            if batch := self._take_batch():
                self._start(batch)
        # Here and not only at the end of a call: requests that were cancelled leave the queue without one.
        if self._idle is not None and not self._queue and not self.running:
            self._idle.set()

    def _end_wait(self) -> None:
        self._timer = None
        self._start_calls()

    def _find_delay(self) -> float:
        """How long the first request still waits for others: until its batch is full, at most ``max_wait``."""
        first = self._queue[0]
        if self._max_wait == 0 or first.key is None:
            return 0.0
        is_full = sum(request.rows for request in self._queue if request.key == first.key) >= self._max_rows
        return 0.0 if is_full else self._max_wait - (time.perf_counter() - first.enqueued)

    def _take_batch(self) -> list[_QueuedRequest]:
        """Remove the first request and those that fit into its batch from the queue; the result omits cancelled ones."""
        first = self._queue.popleft()
        if first.key is None:
            return [] if first.future.cancelled() else [first]
        # Requests that do not fit keep their order in the queue.
        batch, rows, rest = [first], first.rows, []
        while self._queue and rows < self._max_rows:
            other = self._queue.popleft()
            if other.key == first.key and rows + other.rows <= self._max_rows:
                batch.append(other)
                rows += other.rows
            else:
                rest.append(other)
        while self._sizes and len(batch) > 1 and rows not in self._sizes:  # round down; the rest forms the next batch
            rest.insert(0, batch.pop())
            rows -= rest[0].rows
        self._queue.extendleft(reversed(rest))
        return [request for request in batch if not request.future.cancelled()]

    def _start(self, batch: list[_QueuedRequest]) -> None:
        """Run a batch in a thread of the pool."""
        self.running += 1
        started = time.perf_counter()
        for request in batch:
            self._metrics.note_wait(started - request.enqueued)
            if request.on_start is not None:
                request.on_start()
        sizes = self._sizes if batch[0].key is not None else ()  # a request without a key is not padded
        values, rows = [request.values for request in batch], [request.rows for request in batch]
        running = self._pool.submit(run_batch, batch[0].call, values, rows, sizes)
        loop, finish = asyncio.get_running_loop(), partial(self._finish, batch, started)
        # Results return to the event loop, where all state is changed.
        running.add_done_callback(lambda done: loop.call_soon_threadsafe(finish, done))

    def _finish(self, batch: list[_QueuedRequest], started: float, done: Future[list[Values | BaseException]]) -> None:
        """Set the results of a batch in the futures of its requests, and start the next call."""
        self.running -= 1
        self._metrics.note_batch(len(batch), sum(request.rows for request in batch), time.perf_counter() - started)
        for request, result in zip(batch, done.result(), strict=True):
            if request.future.cancelled():  # while the call ran
                continue
            if isinstance(result, BaseException):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)
        self._start_calls()
