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

ACCESS_LOGGER = "xrt.serve.access"
"""The name of the logger that logs each request at level INFO."""
BUSY_LOG_SECONDS = 1.0
"""Status 503 is logged at most once in this time, since an overloaded server sends it thousands of times per second."""

_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LABELS = ("model", "version")

_HISTOGRAMS = {
    "request_seconds": ("From request to response", _SECONDS_BUCKETS),
    "queue_seconds": ("In the queue", _SECONDS_BUCKETS),
    "call_seconds": ("In the model", _SECONDS_BUCKETS),
    "batch_requests": ("Requests per call", _ROW_BUCKETS),
    "batch_rows": ("Rows per call", _ROW_BUCKETS),
}
_GAUGES = {
    "queued_requests": "Requests in the queue",
    "running_calls": "Running calls",
    "sessions": "Sessions with state",
    "model_ready": "1 if the model is in service, else 0",
    "fallback_nodes": "Nodes that are not on the engine of the highest priority",
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
        """Writes all metrics in Prometheus' text format."""
        self.requests = prometheus.Counter(
            "xrt_requests", "Requests for inference", (*_LABELS, "protocol", "status"), registry=registry
        )
        operations = prometheus.Counter(
            "xrt_operations", "Requests of every operation", ("protocol", "operation", "status"), registry=registry
        )
        self.operations: Any = cache(lambda protocol, operation, status: operations.labels(protocol, operation, str(status)))
        """Returns the counter of an operation, such as "ModelMetadata", with a protocol ("http" or "grpc") and an HTTP status."""
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
        # Cached, because looking up the labels takes longer than the increment.
        self._count: Any = cache(lambda protocol, status: metrics.requests.labels(*labels, protocol, str(status)).inc)
        # Count and total seconds of each event. The key is Triton's name of the event, or the number of rows of a call.
        self._durations: dict[str | int, tuple[int, float]] = {}
        self._last_request = 0.0  # in Unix time

    def show(self, **gauges: Callable[[], float]) -> None:
        """Set the function whose result each gauge reports. After a reload, it replaces the function of the old model."""
        for name, function in gauges.items():
            self._gauges[name].set_function(function)

    def note_batch(self, requests: int, rows: int, seconds: float) -> None:
        """Count a call of the model with a batch of ``requests`` requests, which have ``rows`` rows in total."""
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
        """Count a request that has been answered with this HTTP status. ``error`` is unused; `time_request` passes it."""
        self._count(protocol, status)()
        self._histograms["request_seconds"].observe(seconds)
        self._add("success" if status == Status.OK else "fail", seconds)
        self._last_request = time.time()

    def _add(self, event: str | int, seconds: float) -> None:
        count, total = self._durations.get(event, (0, 0.0))
        self._durations[event] = count + 1, total + seconds

    def describe_statistics(self) -> dict[str, Any]:
        """Describe the counters as JSON of Triton's statistics extension, with times in nanoseconds."""

        def describe(event: str | int) -> dict[str, int]:
            count, seconds = self._durations.get(event, (0, 0.0))
            return {"count": count, "ns": round(1e9 * seconds)}

        # Clients require these fields, but XRT does not time the conversion of tensors: they are zero.
        untimed = {event: describe(event) for event in ("compute_input", "compute_output")}
        # An event that is a number stands for the calls with so many rows.
        batches = {rows: describe(rows) for rows in sorted(event for event in self._durations if isinstance(event, int))}
        model, version = self._labels
        return {
            "name": model,
            "version": version,
            "last_inference": round(1e3 * self._last_request),
            "inference_count": sum(rows * calls["count"] for rows, calls in batches.items()),
            "execution_count": describe("compute_infer")["count"],
            "inference_stats": {event: describe(event) for event in ("success", "fail", "queue", "compute_infer")} | untimed,
            "batch_stats": [{"batch_size": rows, "compute_infer": calls, **untimed} for rows, calls in batches.items()],
        }


@contextmanager
def time_request(note: Callable[[int, float, BaseException | None], object]) -> Iterator[None]:
    """Time a block that answers a request. At its end call ``note(status, seconds, error)``.

    ``status`` is the HTTP status, and ``error`` the exception that the block raised or None.
    """
    start, error, status = time.perf_counter(), None, Status.OK
    try:
        yield
    except BaseException as raised:
        error = raised
        if isinstance(error, asyncio.CancelledError):
            status = Status.CANCELLED
        else:
            status = error.status if isinstance(error, RequestRefusal) else Status.FAILED
        raise
    finally:
        note(status, time.perf_counter() - start, error)


class RequestLog:
    """Counts requests and logs server errors with their reason. Logs every request if `ACCESS_LOGGER` is enabled for INFO."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._error_log = logging.getLogger("xrt.serve")
        self._access_log = logging.getLogger(ACCESS_LOGGER)
        # When status 503 was last logged (by `time.monotonic`), and the number of requests with this status since then.
        self._last_busy_log = 0.0
        self._busy_count = 0

    def note_request(
        self, protocol: str, operation: str, client: str, request: str, status: int, seconds: float, error: BaseException | None
    ) -> None:
        """Count and log a request that has been answered with this HTTP status.

        ``operation`` is empty for a path that the protocol does not have. The log shows ``client`` and ``request``. An ``error``
        other than a RequestRefusal is not logged here: `convert_exception` logs it with its traceback.
        """
        self._metrics.operations(protocol, operation or "unknown", status).inc()
        if self._access_log.isEnabledFor(logging.INFO):
            self._access_log.info("%s %r %d %.1f ms", client, request, status, 1e3 * seconds)
        if not isinstance(error, RequestRefusal) or status < Status.FAILED:
            return
        if status != Status.BUSY:
            self._error_log.error("%r: status %d: %s", request, status, error)
            return
        self._busy_count += 1
        if (now := time.monotonic()) - self._last_busy_log >= BUSY_LOG_SECONDS:
            count = f" ({self._busy_count} such requests since the last such line)" if self._busy_count > 1 else ""
            self._error_log.warning("%r: status %d: %s%s", request, status, error, count)
            self._last_busy_log = now
            self._busy_count = 0
