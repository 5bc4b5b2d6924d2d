"""The request queue of a model: join compatible requests into batches, and run calls in a bounded thread pool.

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
_TRIAL_DIMS = (8, 3, 64, 224, 1)
"""Dimensions to try for dynamic axes other than the rows, because a model may not work for every dimension.

1 is last because it can hide that a model mixes rows: for example, transposing a single column changes nothing.
"""


def why_not_batchable(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """Explain why the declared shapes do not allow batching along the first axis; empty if they do."""
    if not inputs or not outputs:
        return "it has no inputs, or no outputs"
    leading_dims = {}
    for value in (*inputs, *outputs):
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if not shape or isinstance(shape[0], int):
            return f"the first axis of {value.name!r} ({value.type}) is not dynamic"
        leading_dims[value.name] = shape[0]
    dims = {dim for dim in leading_dims.values() if dim is not None}
    input_dims = {leading_dims[value.name] for value in inputs}
    if len(input_dims) > 1 or len(dims) > 1:
        # Inputs with different first axes have no common rows, and an output with another first axis cannot be split by rows.
        return f"its first axes differ: {', '.join(f'{name!r} has {dim}' for name, dim in leading_dims.items())}"
    return ""


def count_joinable_rows(values: Values) -> int:
    """Count the rows of a request. Return 0 if its inputs have different numbers of rows, so that it must run alone.

    The model may broadcast an input of one row, and in a batch would combine it with rows of other requests.
    """
    rows = {array.shape[0] if array.ndim else 0 for array in values}
    return rows.pop() if len(rows) == 1 else 0


def explain_mixed_rows(call: Callable[..., Values], function: Function, sizes: Sequence[int], *, rounds_up: bool) -> str:
    """Run a trial of batching; return why requests cannot be joined, or an empty string if they can.

    The trial runs two random requests with different numbers of rows, first alone and then joined, and compares the results. Then
    the second request is full of NaN, which must not reach the results of the first one. With ``rounds_up`` each batch size of
    ``sizes`` is tried, and thereby compiled, otherwise only the largest. If there are other dynamic axes than the rows, the trial
    must work for two dimensions of these axes. ``function`` has the model's inputs; its nodes are optional and restrict the
    random values of an input, for example to categories.
    """
    shapes = [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]
    has_dynamic_axes = any(not isinstance(dim, int) for shape in shapes for dim in shape[1:])
    passed = 0
    failure = ""
    for trial_dim in _TRIAL_DIMS if has_dynamic_axes else _TRIAL_DIMS[:1]:
        # Try the dimension 1, which proves little, only if no other dimension worked.
        if passed == 2 or (passed and trial_dim == 1):
            break
        try:
            for size in sizes if rounds_up else (max(sizes),):
                if reason := _explain_batch_difference(call, function, trial_dim, size, (size,) if rounds_up else ()):
                    return reason
        except (XRTError, ValueError) as error:
            failure = str(error)
        else:
            passed += 1
    return "" if passed else f"requests cannot be joined, since the trial of a batch failed: {failure}; leave batch out"


def _explain_batch_difference(
    call: Callable[..., Values], function: Function, trial_dim: int, size: int, padded_sizes: tuple[int, ...]
) -> str:
    """Run requests alone and joined to a batch of at most ``size`` rows; explain how the results differ, or return "".

    ``trial_dim`` is the dimension of dynamic axes other than the rows. ``padded_sizes`` are the ``sizes`` of `join_and_split`.
    """
    # The rows of each request: two requests, of one and of two rows if the batch has room for them.
    rows = {1: (1,), 2: (1, 1)}.get(size, (1, 2))
    requests = [_sample_request(function, seed, trial_dim, count) for seed, count in enumerate(rows)]
    expected = [call(*values) for values in requests]
    reason = _explain_difference(expected, join_and_split(call, requests, rows, padded_sizes))
    if reason or size == 1:
        return reason
    # NaN reaches every value that depends on it, even if the dependency is too weak for the comparison above.
    nan_request = tuple(np.full_like(array, np.nan) if array.dtype.kind == "f" else array for array in requests[1])
    try:
        return _explain_difference(expected[:1], join_and_split(call, [requests[0], nan_request], rows, padded_sizes)[:1])
    except (XRTError, ValueError):  # harmless: `run_batch` runs the requests of a failed batch one by one
        return ""


def _explain_difference(alone: Sequence[Values], joined: Sequence[Values]) -> str:
    for expected, actual in zip(chain(*alone), chain(*joined), strict=True):
        if not (comparison := compare(actual, expected, tolerance_for(expected.dtype, "network"))):
            return f"the rows of a batch change each other: alone and together, {comparison.message}; leave batch out"
    return ""


def _sample_request(function: Function, seed: int, trial_dim: int, rows: int) -> Values:
    """Generate random inputs with ``rows`` rows. All other dynamic axes have the dimension ``trial_dim``."""
    types = {value.name: value.type for value in function.inputs if isinstance(value.type, TensorType)}
    leading_dims = {type_.shape[0] for type_ in types.values() if type_.shape} - {None}
    static_inputs = []
    for name, type_ in types.items():
        # Another axis may have the same symbolic dimension as the rows.
        dims = [dim if isinstance(dim, int) else rows if dim in leading_dims else trial_dim for dim in (type_.shape or ())[1:]]
        static_inputs.append(Value(name, type_.with_shape((rows, *dims))))
    return tuple(sample_inputs(function.replace(inputs=tuple(static_inputs)), seed).values())


def run_batch(
    call: Callable[..., Values], requests: Sequence[Values], rows: Sequence[int], sizes: Sequence[int] = ()
) -> list[Values | BaseException]:
    """Run requests with these numbers of ``rows``; return the results or the exception of each request.

    Several requests are joined to one call, see `join_and_split`. If this call fails, each request runs alone, so that no request
    fails because of another one.
    """
    needs_padding = bool(sizes) and rows[0] not in sizes and rows[0] < max(sizes)
    if len(requests) > 1 or needs_padding:
        with suppress(Exception):
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
    """Join the requests along the first axis to one call; return the results of each request.

    The batch is padded to the next of ``sizes``, if there are any, by repeating its last row. Raises ValueError if an output does
    not have the rows of the inputs, so that it cannot be split.
    """
    count = sum(rows)
    padding = min((size for size in sizes if size >= count), default=count) - count
    batch = []
    for arrays in zip(*requests, strict=True):
        last_row = arrays[-1][-1:]
        batch.append(np.concatenate([*arrays, np.repeat(last_row, padding, axis=0)]))
    results = call(*batch)
    ends = np.cumsum(rows)
    if any(array.ndim == 0 or array.shape[0] != count + padding for array in results):
        raise ValueError("the outputs do not have the rows of the inputs")
    return [tuple(array[end - size : end] for array in results) for end, size in zip(ends, rows, strict=True)]


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    call: Callable[..., Values]
    values: Values
    key: Any
    """Requests with equal keys can be joined to a batch; None if the request must run alone."""
    rows: int
    future: asyncio.Future[Values]
    on_start: Callable[[], object] | None
    enqueued: float = field(default_factory=time.perf_counter)


class Limit:
    """Limits the number of requests that are processed at once. In the error, ``message`` follows this number."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._count = 0

    @contextmanager
    def admit(self, max_requests: int) -> Iterator[None]:
        """Count a request for the duration of the block; raises RequestRefusal if ``max_requests`` are counted already."""
        if self._count >= max_requests:
            raise RequestRefusal(f"{self._count} {self._message}; try again", Status.BUSY)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class Scheduler:
    """The queue of a model: at most ``instances`` calls run at once, and at most ``max_queue`` requests wait.

    ``sizes`` are the batch sizes in ascending order; if there are none, requests are not joined. With ``rounds_up`` a batch has
    exactly one of these sizes, otherwise any number of rows up to the largest. A request waits up to ``max_wait`` seconds for its
    batch to fill.
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
        """Queue a call of ``call`` with ``values``, which have ``rows`` rows; return the future of its results.

        Requests with equal keys other than None may be joined. ``on_start`` is called on the event loop when the call leaves the
        queue. If the future is cancelled before that, the call never runs. Raises RequestRefusal if the queue is full.
        """
        self.check_room()
        future: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        # A request larger than the largest batch runs alone.
        can_join = key is not None and 0 < rows <= self._max_rows
        self._queue.append(_QueuedRequest(call, values, key if can_join else None, rows, future, on_start))
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

    def _start_calls(self) -> None:
        """Start batches while an instance is free. Set a timer if the first request still waits for its batch to fill."""
        while self._queue and self.running < self._instances:
            if (wait := self._compute_wait()) > 0:
                self._timer = self._timer or asyncio.get_running_loop().call_later(wait, self._on_timer)
                break
            if batch := self._take_batch():
                self._start(batch)
        # Checked here and not only at the end of a call, because cancelled requests leave the queue without a call.
        if self._idle is not None and not self._queue and not self.running:
            self._idle.set()

    def _on_timer(self) -> None:
        self._timer = None
        self._start_calls()

    def _compute_wait(self) -> float:
        """Compute how many seconds the first request still waits for its batch to fill; 0 or less if it can start."""
        first = self._queue[0]
        if self._max_wait == 0 or first.key is None:
            return 0.0
        is_full = sum(request.rows for request in self._queue if request.key == first.key) >= self._max_rows
        return 0.0 if is_full else self._max_wait - (time.perf_counter() - first.enqueued)

    def _take_batch(self) -> list[_QueuedRequest]:
        """Remove the first request and those that fit into its batch from the queue; return them without cancelled requests."""
        first = self._queue.popleft()
        if first.key is None:
            return [] if first.future.cancelled() else [first]
        batch, rows = [first], first.rows
        skipped: list[_QueuedRequest] = []
        while self._queue and rows < self._max_rows:
            request = self._queue.popleft()
            if request.key == first.key and rows + request.rows <= self._max_rows:
                batch.append(request)
                rows += request.rows
            else:
                skipped.append(request)
        # Round down to one of the sizes; the removed requests go to the next batch.
        while self._sizes and len(batch) > 1 and rows not in self._sizes:
            skipped.insert(0, batch.pop())
            rows -= skipped[0].rows
        self._queue.extendleft(reversed(skipped))  # in their old order
        return [request for request in batch if not request.future.cancelled()]

    def _start(self, batch: list[_QueuedRequest]) -> None:
        self.running += 1
        started = time.perf_counter()
        for request in batch:
            self._metrics.note_wait(started - request.enqueued)
            if request.on_start is not None:
                request.on_start()
        sizes = self._sizes if batch[0].key is not None else ()  # a request without a key is not padded
        values, rows = [request.values for request in batch], [request.rows for request in batch]
        call = self._pool.submit(run_batch, batch[0].call, values, rows, sizes)
        loop = asyncio.get_running_loop()
        finish = partial(self._finish, batch, started)
        # `_finish` must run on the event loop, where all fields are changed.
        call.add_done_callback(lambda call: loop.call_soon_threadsafe(finish, call))

    def _finish(self, batch: list[_QueuedRequest], started: float, call: Future[list[Values | BaseException]]) -> None:
        """Pass the results of a finished call to the futures of its requests; then start the next calls."""
        self.running -= 1
        self._metrics.note_batch(len(batch), sum(request.rows for request in batch), time.perf_counter() - started)
        for request, result in zip(batch, call.result(), strict=True):
            if request.future.cancelled():  # while the call ran
                continue
            if isinstance(result, BaseException):
                request.future.set_exception(result)
            else:
                request.future.set_result(result)
        self._start_calls()
