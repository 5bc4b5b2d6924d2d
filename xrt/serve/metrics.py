"""Prometheus metrics, Triton statistics, and the request log of an application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from xrt.errors import OptionError
from xrt.serve.protocol import RequestRefusal, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ACCESS = "xrt.serve.access"
"""The logger that logs each request at level INFO."""
BUSY_INTERVAL = 1.0
"""Minimum seconds between log lines about requests with status 503."""

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LABELS = ("model", "version")

_HISTOGRAMS = {
    "request_seconds": ("From request to response", _SECONDS),
    "queue_seconds": ("In the queue", _SECONDS),
    "call_seconds": ("In the model", _SECONDS),
    "batch_requests": ("Requests of a call", _ROWS),
    "batch_rows": ("Rows of a call", _ROWS),
}
_GAUGES = {
    "queued_requests": "Requests in the queue",
    "running_calls": "Calls that run",
    "sessions": "Sessions with state",
    "model_ready": "1 where the model is in service",
    "fallback_nodes": "Nodes on another engine than the first choice",
}


class Metrics:
    """The Prometheus counters, histograms and gauges of an application, by model and version."""

    def __init__(self) -> None:
        try:
            import prometheus_client as prometheus
        except ModuleNotFoundError as error:
            raise OptionError(
                "a server needs the package prometheus_client, which is missing: pip install 'xrt-engine[serve]'"
            ) from error
        registry = prometheus.CollectorRegistry()
        self.write: Callable[[], bytes] = partial(prometheus.generate_latest, registry)
        """All metrics in Prometheus' text format."""
        self.requests = prometheus.Counter(
            "xrt_requests", "Requests for inference", (*_LABELS, "protocol", "status"), registry=registry
        )
        operations = prometheus.Counter(
            "xrt_operations", "Requests of every operation", ("protocol", "operation", "status"), registry=registry
        )
        self.operations: Any = cache(lambda protocol, operation, status: operations.labels(protocol, operation, str(status)))
        """The counter of an operation, such as ModelMetadata, by protocol and HTTP status."""
        self.histograms = {
            name: prometheus.Histogram(f"xrt_{name}", text, _LABELS, registry=registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self.gauges = {name: prometheus.Gauge(f"xrt_{name}", text, _LABELS, registry=registry) for name, text in _GAUGES.items()}


class ModelMetrics:
    """The Prometheus metrics of one version of a model, and its counters for Triton's statistics extension of the protocol."""

    def __init__(self, metrics: Metrics, model: str, version: str) -> None:
        self._labels = labels = (model, version)
        self._histograms = {name: histogram.labels(*labels) for name, histogram in metrics.histograms.items()}
        self._gauges = {name: gauge.labels(*labels) for name, gauge in metrics.gauges.items()}
        # Looking up the labels costs more than the increment, and there are few pairs of protocol and status.
        self._count: Any = cache(lambda protocol, status: metrics.requests.labels(*labels, protocol, str(status)).inc)
        # Count and total seconds of each kind of event: by Triton's name, and for calls also by their number of rows.
        self._durations: dict[str | int, tuple[int, float]] = {}
        self._last_request = 0.0  # in Unix time

    def show(self, **gauges: Callable[[], float]) -> None:
        """Make the gauges report the results of these functions, in place of those of a model that was replaced."""
        for name, function in gauges.items():
            self._gauges[name].set_function(function)

    def note_batch(self, requests: int, rows: int, seconds: float) -> None:
        """Count a call of the model, which may have joined several requests."""
        self._histograms["call_seconds"].observe(seconds)
        self._histograms["batch_requests"].observe(requests)
        self._histograms["batch_rows"].observe(rows)
        self._add("compute_infer", seconds)
        self._add(rows, seconds)

    def note_wait(self, seconds: float) -> None:
        """Count a request that has left the queue after this time."""
        self._histograms["queue_seconds"].observe(seconds)
        self._add("queue", seconds)

    def note_request(self, protocol: str, status: int, seconds: float, error: BaseException | None) -> None:
        """Count an answered request with its HTTP status; ``error``, which `time_request` passes, is not used."""
        self._count(protocol, status)()
        self._histograms["request_seconds"].observe(seconds)
        self._add("success" if status == Status.OK else "fail", seconds)
        self._last_request = time.time()

    def _add(self, event: str | int, seconds: float) -> None:
        count, total = self._durations.get(event, (0, 0.0))
        self._durations[event] = count + 1, total + seconds

    def describe_statistics(self) -> dict[str, Any]:
        """The statistics in Triton's form, with times in nanoseconds."""

        def show(event: str | int) -> dict[str, int]:
            count, seconds = self._durations.get(event, (0, 0.0))
            return {"count": count, "ns": round(1e9 * seconds)}

        # Triton reports how long tensors are read and written. XRT does not time it: zeros, as clients require the fields.
        tensors = {event: show(event) for event in ("compute_input", "compute_output")}
        batches = {rows: show(rows) for rows in sorted(event for event in self._durations if isinstance(event, int))}
        model, version = self._labels
        return {
            "name": model,
            "version": version,
            "last_inference": round(1e3 * self._last_request),
            "inference_count": sum(rows * calls["count"] for rows, calls in batches.items()),
            "execution_count": show("compute_infer")["count"],
            "inference_stats": {event: show(event) for event in ("success", "fail", "queue", "compute_infer")} | tensors,
            "batch_stats": [{"batch_size": rows, "compute_infer": calls, **tensors} for rows, calls in batches.items()],
        }


@contextmanager
def time_request(note: Callable[[int, float, BaseException | None], object]) -> Iterator[None]:
    """Time the block, which answers a request; then call ``note`` with HTTP status, the seconds, and the exception or None."""
    start, error, status = time.perf_counter(), None, Status.OK
    try:
        yield
    except BaseException as raised:
        error = raised
        cancelled = isinstance(error, asyncio.CancelledError)
        status = Status.CANCELLED if cancelled else error.status if isinstance(error, RequestRefusal) else Status.FAILED
        raise
    finally:
        note(status, time.perf_counter() - start, error)


class RequestLog:
    """Counts requests, and logs server errors with their reason, and every request if `ACCESS` is enabled for INFO."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failures, self._access = logging.getLogger("xrt.serve"), logging.getLogger(ACCESS)
        # When status 503 was logged last, and how many requests have got it since.
        self._busy_since, self._busy = 0.0, 0

    def note_request(
        self, protocol: str, operation: str, client: str, request: str, status: int, seconds: float, error: BaseException | None
    ) -> None:
        """Count and log an answered request; ``operation`` is empty for a path that the protocol does not have.

        Unexpected exceptions are logged by `make_refusal`, with their traceback.
        """
        self._metrics.operations(protocol, operation or "unknown", status).inc()
        if self._access.isEnabledFor(logging.INFO):
            self._access.info("%s %r %d %.1f ms", client, request, status, 1e3 * seconds)
        if not isinstance(error, RequestRefusal) or status < Status.FAILED:
            return
        if status != Status.BUSY:
            self._failures.error("%r: status %d: %s", request, status, error)
            return
        # An overloaded server refuses thousands of requests per second: log one of them, with the number of the others.
        self._busy += 1
        if (now := time.monotonic()) - self._busy_since >= BUSY_INTERVAL:
            count = f" ({self._busy} such requests since the last such line)" * (self._busy > 1)
            self._failures.warning("%r: status %d: %s%s", request, status, error, count)
            self._busy_since, self._busy = now, 0
