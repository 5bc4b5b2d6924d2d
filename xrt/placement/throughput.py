"""Tuning for throughput: measure serving configurations, and choose the one with the highest request rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xrt.errors import OptionError, XRTError, did_you_mean
from xrt.formats.placement_file import ServingCandidate, ServingConfiguration, Split, format_latency, format_rate
from xrt.graph import TensorType, Value
from xrt.html import views
from xrt.measure.timing import Clock, LoadResult
from xrt.placement.sizes import list_open_axes

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MAX_LISTED_VALUES = 16
MAX_VALUE = 1 << 16


@dataclass(frozen=True, slots=True)
class ThroughputRequest:
    splits: tuple[Split, ...]
    batches: tuple[int, ...] = BATCH_SIZES
    bound: float = math.inf
    """Limit on the 99th percentile of the latency, in seconds."""
    budget: float = 60.0


def list_splits(threads: int, instances: Sequence[int] | int | None = None) -> tuple[Split, ...]:
    """List divisions of ``threads`` among numbers of instances, with an equal share for each instance.

    By default, the numbers of instances are the powers of two up to ``threads``, and ``threads``. Raises OptionError for a number
    larger than ``threads``.

    >>> [str(split) for split in list_splits(6)]
    ['1 instance of 6 threads', '2 instances of 3 threads', '4 instances of 1 thread', '6 instances of 1 thread']
    """
    if instances is None:
        powers = [1 << exponent for exponent in range(threads.bit_length()) if 1 << exponent <= threads]
        instances = sorted({*powers, threads})
    numbers = _parse_numbers("instances", instances)
    if numbers[-1] > threads:
        raise OptionError(
            f"instances={numbers[-1]} needs a thread for each, and the thread budget is {threads}; ask for at most {threads} "
            f"instances, or raise threads="
        )
    return tuple(Split(number, threads // number) for number in numbers)


def parse_batches(sizes: Sequence[int]) -> tuple[int, ...]:
    """Validate and sort the batch sizes; size 1 is added, for single requests. Raises OptionError for an invalid size."""
    return tuple(sorted({1, *_parse_numbers("batches", sizes)}))


def _parse_numbers(name: str, value: Any) -> tuple[int, ...]:
    """Sort the distinct integers of option ``name``; raises OptionError if one is invalid, or there are too many."""
    numbers = tuple(value) if isinstance(value, list | tuple | range | set) else (value,)
    if not numbers or not all(type(number) is int and 0 < number <= MAX_VALUE for number in numbers):
        raise OptionError(f"{name} must be positive integers, such as {name}=(1, 2, 4); got {value!r}")
    # Each number multiplies the points of the sweep, which share the budget.
    if len(set(numbers)) > MAX_LISTED_VALUES:
        raise OptionError(
            f"{name} has {len(set(numbers))} numbers, each of which is measured; at most {MAX_LISTED_VALUES} can be"
        )
    return tuple(sorted(set(numbers)))


def parse_bound(value: Any) -> float:
    """Convert the option ``p99`` to a latency bound in seconds, infinite for None. Raises OptionError for an invalid value."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"p99 must be a positive number of seconds, such as p99=0.020, or None; got {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """The result of a sweep. Prints as text."""

    configuration: ServingConfiguration | None
    """The chosen configuration; None if no candidate stayed within the latency bound."""
    candidates: tuple[ServingCandidate, ...]
    bound: float
    """Limit on the 99th percentile of the latency, in seconds; infinite for none."""
    budget: float
    spent: float
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False

    def to_record(self) -> ServingConfiguration | None:
        """Convert to the record that files store: the configuration with all candidates; None if no candidate was chosen."""
        return None if self.configuration is None else self.configuration.replace(rows=self.candidates)

    def to_dict(self) -> dict[str, Any]:
        chosen = None if self.configuration is None else self.configuration.to_dict()
        return {
            "configuration": chosen,
            "bound": None if math.isinf(self.bound) else self.bound,
            **{name: getattr(self, name) for name in ("budget", "spent", "is_interrupted")},
            "notes": list(self.notes),
            "candidates": [point.to_dict() for point in self.candidates],
        }

    def _repr_html_(self) -> str:
        return views.render_cell("throughput.html", title="Throughput", **_describe_page(self))

    @property
    def headline(self) -> str:
        bound_text = "" if math.isinf(self.bound) else f" within a p99 of {format_latency(self.bound)}"
        if self.configuration is not None:
            return f"most requests per second{bound_text}: {self.configuration}"
        fastest = min((point.p50 for point in self.candidates if point.p50 is not None), default=None)
        fastest_text = "" if fastest is None else f"; the fastest request takes {format_latency(fastest)}"
        return f"nothing serves requests{bound_text}{fastest_text}"

    @property
    def summary(self) -> str:
        return f"{views.format_count(len(self.candidates), 'point')}, {self.spent:.1f} of {self.budget:g} s"

    def __str__(self) -> str:
        lines = (self.summary, *map(_describe_point, self.candidates), *self.notes)
        return "\n  ".join((self.headline, *lines))


def _describe_point(point: ServingCandidate) -> str:
    rate, p50, p99 = _format_figures(point)
    parts = [f"{point.verdict}: batch {point.batch}, {point.split}, {point.concurrency} in flight"]
    if point.plan:
        parts.append(f"on {point.plan}")
    if rate:
        parts += [rate, f"p50 {p50}, p99 {p99}"]
    if point.note:
        parts.append(point.note)
    return ", ".join(parts)


def _format_figures(point: ServingCandidate) -> tuple[str, str, str]:
    """Format rate, median latency and 99th percentile; three empty strings if the point was not measured."""
    if point.rate is None or point.p50 is None or point.p99 is None:
        return "", "", ""
    return format_rate(point.rate), format_latency(point.p50), format_latency(point.p99)


COLUMNS = ("verdict", "batch", "instances", "threads", "in flight", "plan", "requests/s", "p50", "p99", "memory", "note")
NUMERIC_COLUMNS = ("batch", "instances", "threads", "in flight", "requests/s", "p50", "p99", "memory")


def list_cells(point: ServingCandidate) -> tuple[str, ...]:
    memory = "" if point.memory is None else views.format_bytes(point.memory)
    numbers = (str(number) for number in (point.batch, point.instances, point.threads, point.concurrency))
    return (point.verdict, *numbers, point.plan, *_format_figures(point), memory, point.note)


def find_batch_dim(inputs: Sequence[Value], outputs: Sequence[Value], name: str | None = None) -> tuple[str, str]:
    """Find the symbolic dim along which requests are joined to a batch: (name, ""), or ("", reason) if there is none.

    The dim must be the first one of every input and output. If the caller passes ``name``, an input without this dim is shared by
    all requests; OptionError is raised if no input has the dim, if an input has it on another axis than 0, or if an output's
    axis 0 is another symbolic dim.
    """
    if name is not None:
        _check_batch_dim(name, inputs, outputs)
        return name, ""
    if not inputs:
        return "", "the model has no input"
    first = _find_first_dim(inputs[0])
    if first is None:
        return "", f"the first extent of input {inputs[0].name!r} is not a symbolic dim"
    for kind, values in (("input", inputs), ("output", outputs)):
        for value in values:
            if _find_first_dim(value) != first:
                reason = f"dim {first!r} is the first extent of input {inputs[0].name!r} and not of {kind} {value.name!r}"
                return "", f"{reason}; pass batch_dim={first!r} (--batch-dim) to use this dim"
    for input_index, axis, dim in list_open_axes(inputs):
        if axis and dim == first:
            return "", f"dim {first!r} is also extent {axis} of input {inputs[input_index].name!r}"
    return first, ""


def _check_batch_dim(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    axes = list(list_open_axes(inputs))
    names = list(dict.fromkeys(dim for _, _, dim in axes))
    if name not in names:
        raise OptionError(f"batch_dim names {name!r}, which is not a symbolic dim of the inputs.{did_you_mean(name, names)}")
    for input_index, axis, dim in axes:
        if dim == name and axis:
            raise OptionError(
                f"batch_dim={name!r} is extent {axis} of input {inputs[input_index].name!r}; requests are joined on extent 0"
            )
    for value in outputs:
        first = _find_first_dim(value)
        if first is not None and first != name:
            raise OptionError(
                f"batch_dim={name!r} is not the first extent of output {value.name!r}, which is {first!r}: the output has no row "
                f"for each request"
            )


def _find_first_dim(value: Value) -> str | None:
    """Find the name of a value's first dim; None if the value has no dims, or its first one is an integer or unnamed."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape[0] if shape and isinstance(shape[0], str) else None


BADGES = {"chosen": "best", "within": "tie", "over": "slower", "declined": "slower"}


def render_throughput_page(result: ThroughputResult, model: str) -> str:
    return views.render_page("throughput.html", f"Throughput of {model}", **_describe_page(result))


def _describe_page(result: ThroughputResult) -> dict[str, Any]:
    rows = [
        (f"batch {point.batch}, {point.split}", {"text": point.verdict, "verdict": BADGES[point.verdict]}, *list_cells(point)[1:])
        for point in result.candidates
    ]
    return {
        "summary": f"{result.headline[:1].upper()}{result.headline[1:]}.",
        "columns": {"candidate": "", **{name: "number" if name in NUMERIC_COLUMNS else "" for name in COLUMNS}},
        "rows": rows,
        "notes": [result.summary, *result.notes],
    }


BATCHES_IN_FLIGHT = (1, 2)
"""Numbers of full batches in flight per instance to measure. With two, each request waits while another batch is computed, as in
a service at full load."""
EQUAL_RATE_SHARE = 0.03
"""Rates that differ by less than this share count as equal, because runs of one configuration vary as much."""
MAX_LOAD_SECONDS = 5.0


class ServingBench(Protocol):
    dim: str
    """The symbolic dim along which requests are joined; empty if each call is one request."""
    is_exact: bool
    """Whether calls have only the batch sizes of the sweep. Otherwise a call joins any number of requests up to the batch."""

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        """Measure throughput and latency for ``seconds`` with ``concurrency`` requests in flight."""

    def describe_plan(self, split: Split, size: int) -> str:
        """Return the title of the plan for calls of ``size`` requests. Chooses the plan if there is none for this size."""

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        """Measure the bytes of all instances for calls of these sizes; None if the engines do not report it."""


@dataclass(eq=False, slots=True)
class ThroughputSweep:
    """Measures the serving configurations of a request, which are the points of the sweep, and chooses the best one."""

    bench: ServingBench
    request: ThroughputRequest
    clock: Clock = time.perf_counter
    report: Callable[[str], object] = lambda text: None
    notes: tuple[str, ...] = ()
    _points: list[ServingCandidate] = field(default_factory=list)

    def run(self) -> ThroughputResult:
        began, is_interrupted = self.clock(), False
        try:
            self._list_candidates()
            self._measure(began + self.request.budget)
        except KeyboardInterrupt:
            is_interrupted = True
        index, configuration = self._find_best(), None
        if index is not None:
            self._points[index] = self._points[index].replace(verdict="chosen")
            configuration = self._configure(self._points[index])
        ordered = tuple(sorted(self._points, key=lambda x: (x.verdict != "chosen", -(x.rate or 0.0), x.batch, x.concurrency)))
        bound, budget, spent = self.request.bound, self.request.budget, self.clock() - began
        return ThroughputResult(configuration, ordered, bound, budget, spent, self.notes, is_interrupted)

    def _list_candidates(self) -> None:
        """Add the points of the sweep, and choose their plans: a later search for a plan would disturb a measurement."""
        for split in self.request.splits:
            for batch in self.request.batches:
                self.report(f"plan for calls of {batch}, {split}")
                plan = self.bench.describe_plan(split, batch)
                for depth in BATCHES_IN_FLIGHT:
                    concurrency = depth * batch * split.instances
                    self._points.append(ServingCandidate(batch, split.instances, split.threads, concurrency, plan=plan))

    def _measure(self, until: float) -> None:
        """Measure the points until the clock shows ``until``, at least one; raises the first error if all of them failed."""
        memory: dict[tuple[Split, int], int | None] = {}
        errors: list[XRTError] = []
        for index, point in enumerate(self._points):
            if note := self._why_not_measure(point, is_late=index > 0 and self.clock() >= until):
                self._points[index] = point.replace(note=note)
                continue
            self.report(f"{point.concurrency} requests in flight, batches of {point.batch}, {point.split}")
            seconds = min(max(until - self.clock(), 0.0) / (len(self._points) - index), MAX_LOAD_SECONDS)
            memory_key = point.split, point.batch
            try:
                load = self.bench.run_load(point.split, point.batch, point.concurrency, seconds)
                # The memory does not depend on the requests in flight.
                if memory_key not in memory:
                    memory[memory_key] = self.bench.measure_memory(point.split, self._list_sizes(point.batch) or (point.batch,))
            except XRTError as error:  # such as out of memory: keep the other points
                errors.append(error)
                self._points[index] = point.replace(note=str(error))
                continue
            verdict = "within" if load.p99 <= self.request.bound else "over"
            measured = point.replace(verdict=verdict, memory=memory[memory_key], rate=load.rate, p50=load.p50, p99=load.p99)
            self._points[index] = measured.rounded()
        if errors and all(point.rate is None for point in self._points):
            raise errors[0]

    def _why_not_measure(self, point: ServingCandidate, *, is_late: bool) -> str:
        if is_late:
            return f"no time was left of budget={self.request.budget:g} s"
        for measured in self._points:
            if measured.split != point.split or measured.verdict != "over" or measured.p99 is None:
                continue
            # With one batch in flight per instance, the latency is the time of a call, which is longer for larger batches.
            is_call_time = measured.concurrency == measured.batch * measured.split.instances
            if measured.batch == point.batch or (is_call_time and measured.batch < point.batch):
                return f"batches of {measured.batch} already take {format_latency(measured.p99)}"
        return ""

    def _list_sizes(self, batch: int) -> tuple[int, ...]:
        """List the batch sizes that calls may have, up to ``batch``; empty if they may have any size."""
        return tuple(size for size in self.request.batches if size <= batch) if self.bench.is_exact else ()

    def _find_best(self) -> int | None:
        """Find the index of the highest rate within the bound; of equal rates, the smallest batch and concurrency."""
        rates = {index: point.rate or 0.0 for index, point in enumerate(self._points) if point.verdict == "within"}
        best_rate = max(rates.values(), default=0.0)
        equal = [index for index, rate in rates.items() if rate >= (1 - EQUAL_RATE_SHARE) * best_rate]
        return min(equal, key=lambda i: (self._points[i].batch, self._points[i].concurrency, -rates[i]), default=None)

    def _configure(self, point: ServingCandidate) -> ServingConfiguration:
        sizes = self._list_sizes(point.batch)
        return ServingConfiguration(
            point.batch,
            point.instances,
            point.threads,
            point.concurrency,
            point.rate or 0.0,
            point.p50 or 0.0,
            point.p99 or 0.0,
            bound=None if math.isinf(self.request.bound) else self.request.bound,
            dim=self.bench.dim,
            sizes=sizes,
            plans=tuple(self.bench.describe_plan(point.split, size) for size in sizes or (point.batch,)),
            memory=point.memory or 0,
        )
