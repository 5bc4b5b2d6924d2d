"""What tuning for throughput gives: the configuration that was chosen, and the candidates, as values that print as text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from xrt.errors import OptionError, XRTError, did_you_mean
from xrt.formats.placement_file import ServingRecord, ServingRow
from xrt.graph import TensorType, Value
from xrt.measure.closed_loop import LoadResult
from xrt.measure.timing import Clock
from xrt.placement.result import format_count
from xrt.placement.sizes import list_open_axes

__all__ = [
    "BATCHES",
    "ServingBench",
    "ServingCandidate",
    "ServingConfiguration",
    "ServingVerdict",
    "Split",
    "Tell",
    "ThroughputRequest",
    "ThroughputResult",
    "ThroughputSweep",
    "find_batch_dim",
    "format_latency",
    "format_rate",
    "list_splits",
    "parse_batches",
    "parse_bound",
    "render_throughput_page",
    "render_throughput_result",
]

BATCHES = (1, 2, 4, 8, 16, 32)
MOST_SIZES = 16
LARGEST = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """How the thread budget is divided."""

    instances: int
    threads: int
    """Of each instance."""

    def __str__(self) -> str:
        """Return it in words.

        >>> str(Split(2, 1)), str(Split(1, 4))
        ('2 instances of 1 thread', '1 instance of 4 threads')
        """
        return f"{self.instances} instance{'s' * (self.instances != 1)} of {self.threads} thread{'s' * (self.threads != 1)}"


@dataclass(frozen=True, slots=True)
class ThroughputRequest:
    """A sweep for the configuration with the highest rate within a bound."""

    splits: tuple[Split, ...]
    batches: tuple[int, ...] = BATCHES
    """Batch sizes, ascending from 1."""
    bound: float = math.inf
    """Seconds that the 99th percentile of the latency may take."""
    budget: float = 60.0


def list_splits(threads: int, instances: Sequence[int] | None = None) -> tuple[Split, ...]:
    """Return the ways to divide a thread budget: each number of instances with all the threads that it leaves for each.

    Without numbers these are 1, 2, 4 and so on, and as many as there are threads. Raises OptionError for a number that the budget
    does not allow.

    >>> [str(one) for one in list_splits(6)]
    ['1 instance of 6 threads', '2 instances of 3 threads', '4 instances of 1 thread', '6 instances of 1 thread']
    """
    if instances is None:
        powers = [1 << number for number in range(threads.bit_length()) if 1 << number <= threads]
        instances = sorted({*powers, threads})
    numbers = _parse_numbers("instances", instances)
    if numbers[-1] > threads:
        raise OptionError(
            f"instances={numbers[-1]} needs a thread for each, and the thread budget is {threads}; ask for at most {threads} "
            f"instances, or raise threads="
        )
    return tuple(Split(number, threads // number) for number in numbers)


def parse_batches(asked: Sequence[int]) -> tuple[int, ...]:
    """Return batch sizes, ascending; 1 is always among them, for the request that comes alone. Raises OptionError."""
    return tuple(sorted({1, *_parse_numbers("batches", asked)}))


def _parse_numbers(name: str, asked: Any) -> tuple[int, ...]:
    several = tuple(asked) if isinstance(asked, list | tuple | range | set) else (asked,)
    if not several or not all(type(one) is int and 0 < one <= LARGEST for one in several):
        raise OptionError(f"{name} must be positive integers, such as {name}=(1, 2, 4); got {asked!r}")
    if len(set(several)) > MOST_SIZES:
        raise OptionError(f"{name} has {len(set(several))} numbers, each of which is measured; at most {MOST_SIZES} can be")
    return tuple(sorted(set(several)))


def parse_bound(asked: Any) -> float:
    """Return the bound on the latency in seconds, infinite for None; raises OptionError for no positive number."""
    if asked is None:
        return math.inf
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked > 0:
        raise OptionError(f"p99 must be a positive number of seconds, such as p99=0.020, or None; got {asked!r}")
    return float(asked)


ServingVerdict: TypeAlias = Literal["chosen", "within", "over", "declined"]
"""``chosen``; ``within`` the bound; ``over`` it; ``declined``: not measured, for a reason."""


@dataclass(frozen=True, slots=True)
class ServingConfiguration:
    """How to serve a model: what to give a server, and what it was measured to do then."""

    batch: int
    """Requests of one call, at most."""
    instances: int
    """Calls that run at a time, on modules with so many ``threads``: with one thread on one module, otherwise each on its own."""
    threads: int
    concurrency: int
    """Requests in flight when the figures below were measured."""
    rate: float
    """Requests per second."""
    p50: float
    p99: float
    """Seconds from a request to its result."""
    bound: float = math.inf
    """Seconds that the 99th percentile may take."""
    dim: str = ""
    """The symbolic dim that counts requests; empty where each call is one request."""
    sizes: tuple[int, ...] = ()
    """Rows that a call may have, ascending: fewer requests are filled up with a repeated row. Empty: any up to ``batch``."""
    plans: tuple[str, ...] = ()
    """The engines of the plan at each of the ``sizes``; where these are empty, at the batch size."""
    memory: int = 0
    """Bytes that all instances hold, as far as engines report them."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; a bound that is infinite is None."""
        return {**asdict(self), "bound": _finite(self.bound)}

    def round(self) -> ServingConfiguration:
        """Return it with six digits of each measured number, as files hold it."""
        return replace(self, **{name: _round(getattr(self, name)) for name in ("rate", "p50", "p99")})

    def to_record(self, rows: tuple[ServingRow, ...] = ()) -> ServingRecord:
        """Return what files hold of it."""
        return ServingRecord(**self.to_dict(), rows=rows)

    @classmethod
    def from_record(cls, record: ServingRecord) -> ServingConfiguration:
        """Return the configuration in a file."""
        fields = {name: getattr(record, name) for name in cls.__dataclass_fields__}
        return cls(**{**fields, "bound": math.inf if record.bound is None else record.bound})

    def __str__(self) -> str:
        batch = f"batches of up to {self.batch}" if self.batch > 1 else "no batching"
        figures = f"p50 {format_latency(self.p50)}, p99 {format_latency(self.p99)}"
        flight = f"{self.concurrency} in flight"
        return f"{batch}, {Split(self.instances, self.threads)}, {flight}: {format_rate(self.rate)}, {figures}"


@dataclass(frozen=True, slots=True)
class ServingCandidate:
    """A point of the sweep, and its measurement."""

    batch: int
    split: Split
    concurrency: int
    """Requests in flight."""
    verdict: ServingVerdict = "declined"
    plan: str = ""
    """The engines of the plan at the batch size."""
    load: LoadResult | None = None
    memory: int | None = None
    note: str = ""

    @property
    def rate(self) -> float:
        """Requests per second; 0 if it was not measured."""
        return self.load.rate if self.load else 0.0

    def to_row(self) -> ServingRow:
        """The form that files hold."""
        rate, p50, p99 = (self.load.rate, self.load.p50, self.load.p99) if self.load else (None, None, None)
        return ServingRow(
            self.batch,
            self.split.instances,
            self.split.threads,
            self.concurrency,
            self.verdict,
            self.plan[:4000],
            _round(rate),
            _round(p50),
            _round(p99),
            self.memory,
            self.note[:4000],
        )

    def to_dict(self) -> dict[str, Any]:
        """The point as plain data."""
        return self.to_row().to_dict()


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """The outcome of a search. Prints as text."""

    configuration: ServingConfiguration | None
    """None where no candidate kept the latency within the bound."""
    candidates: tuple[ServingCandidate, ...]
    """The chosen one first, then by their rate."""
    bound: float
    budget: float
    spent: float
    notes: tuple[str, ...] = ()
    is_interrupted: bool = False

    def to_record(self) -> ServingRecord | None:
        """Return what files hold of it; None where nothing was chosen."""
        if self.configuration is None:
            return None
        return self.configuration.to_record(tuple(one.to_row() for one in self.candidates))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        chosen = None if self.configuration is None else self.configuration.to_dict()
        facts: Mapping[str, Any] = {
            "bound": _finite(self.bound),
            "budget": self.budget,
            "spent": self.spent,
            "notes": list(self.notes),
            "is_interrupted": self.is_interrupted,
        }
        return {"configuration": chosen, **facts, "candidates": [one.to_dict() for one in self.candidates]}

    def _repr_html_(self) -> str:
        """The table and the curves of latency for a notebook."""
        return render_throughput_result(self)

    @property
    def headline(self) -> str:
        """What was chosen, in one line."""
        within = "" if math.isinf(self.bound) else f" within a p99 of {format_latency(self.bound)}"
        if self.configuration is not None:
            return f"most requests per second{within}: {self.configuration}"
        quickest = min((one.load.p50 for one in self.candidates if one.load is not None), default=None)
        took = "" if quickest is None else f"; the fastest request takes {format_latency(quickest)}"
        return f"nothing serves requests{within}{took}"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


COLUMNS = ("verdict", "batch", "instances", "threads", "in flight", "plan", "requests/s", "p50", "p99", "memory", "note")
"""The heads of the table."""


def _lines(found: ThroughputResult) -> Iterator[str]:
    yield found.headline
    yield f"  {format_count(len(found.candidates), 'point')}, {found.spent:.1f} of {found.budget:g} s"
    for one in found.candidates:
        yield f"  {_describe(one)}"
    yield from (f"  {note}" for note in found.notes)


def _describe(one: ServingCandidate) -> str:
    parts = [f"{one.verdict}: batch {one.batch}, {one.split}, {one.concurrency} in flight"]
    if one.plan:
        parts.append(f"on {one.plan}")
    if one.load is not None:
        p50, p99 = format_latency(one.load.p50), format_latency(one.load.p99)
        parts += [format_rate(one.load.rate), f"p50 {p50}, p99 {p99}"]
    if one.note:
        parts.append(one.note)
    return ", ".join(parts)


def format_rate(rate: float) -> str:
    """Return requests per second as text.

    >>> format_rate(1234.5), format_rate(3.456)
    ('1234/s', '3.46/s')
    """
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def format_latency(seconds: float) -> str:
    """Return a latency as text.

    >>> format_latency(0.0123), format_latency(2.0), format_latency(float("inf"))
    ('12.3 ms', '2 s', 'no end')
    """
    if math.isinf(seconds):
        return "no end"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _round(value: float | None) -> Any:
    """Return a number with six digits: more say nothing, and the diff of a lockfile would show them. None where it has no end."""
    return None if value is None or math.isinf(value) else float(f"{value:.6g}")


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def find_batch_dim(inputs: Sequence[Value], outputs: Sequence[Value], name: str | None = None) -> tuple[str, str]:
    """Return the dim that counts requests, and why there is none where it is empty.

    A dim that is named must be the first axis of each input that has it, and of each output whose extents are known; an input
    that lacks it is shared by all requests. Raises OptionError where that is not so.
    """
    if name is not None:
        _check_named(name, inputs, outputs)
        return name, ""
    if not inputs:
        return "", "the model has no input"
    first = _find_first(inputs[0])
    if first is None:
        return "", f"the first extent of input {inputs[0].name!r} is no symbolic dim"
    for kind, values in (("input", inputs), ("output", outputs)):
        for value in values:
            if _find_first(value) != first:
                found = f"dim {first!r} is the first extent of input {inputs[0].name!r} and not of {kind} {value.name!r}"
                return "", f"{found}; batch_dim={first!r} (--batch-dim) asks for it all the same"
    for place, axis, other in list_open_axes(inputs):
        if axis and other == first:
            return "", f"dim {first!r} is another extent of input {inputs[place].name!r} too"
    return first, ""


def _check_named(name: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    axes = list(list_open_axes(inputs))
    names = list(dict.fromkeys(one for _, _, one in axes))
    if name not in names:
        raise OptionError(f"batch_dim names {name!r}, which is no symbolic dim of the inputs.{did_you_mean(name, names)}")
    for place, axis, one in axes:
        if one == name and axis:
            raise OptionError(
                f"batch_dim={name!r} is extent {axis} of input {inputs[place].name!r}; requests are joined on extent 0"
            )
    for value in outputs:
        first = _find_first(value)
        if first is not None and first != name:
            raise OptionError(
                f"batch_dim={name!r} is not the first extent of output {value.name!r}, which is {first!r}: its rows are not "
                f"those of the requests"
            )


def _find_first(value: Value) -> str | None:
    """Return the first extent of a value where that is a named symbolic dim."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape[0] if shape and isinstance(shape[0], str) else None


# ---------------------------------------------------------------------- in a notebook

NUMBERS = ("batch", "instances", "threads", "in flight", "requests/s", "p50", "p99", "memory")
KINDS = {"chosen": "best", "within": "tie", "over": "slower", "declined": "slower"}


def render_throughput_result(found: ThroughputResult) -> str:
    """Return the cell of a ThroughputResult."""
    from xrt.html.views import render_cell

    return render_cell("throughput.html", title="Throughput", **_describe_page(found))


def render_throughput_page(found: ThroughputResult, model: str) -> str:
    """Return the text of a page about a model, which is called so."""
    from xrt.html.views import render_page

    return render_page("throughput.html", f"Throughput of {model}", **_describe_page(found))


def _describe_page(found: ThroughputResult) -> dict[str, Any]:
    head = found.headline
    return {
        "summary": f"{head[:1].upper()}{head[1:]}.",
        "columns": {"candidate": "", **{name: "number" if name in NUMBERS else "" for name in COLUMNS}},
        "rows": [_make_row(one) for one in found.candidates],
        "notes": [f"{format_count(len(found.candidates), 'point')} in {found.spent:.1f} of {found.budget:g} s", *found.notes],
    }


def _make_row(one: ServingCandidate) -> tuple[object, ...]:
    from xrt.html.views import size

    load, verdict = one.load, {"text": one.verdict, "verdict": KINDS[one.verdict]}
    known = (format_rate(load.rate), format_latency(load.p50), format_latency(load.p99)) if load else ("", "", "")
    memory = "" if one.memory is None else size(one.memory)
    name = f"batch {one.batch}, {one.split}"
    place = (one.batch, one.split.instances, one.split.threads, one.concurrency)
    return (name, verdict, *place, one.plan, *known, memory, one.note)


Tell: TypeAlias = Callable[[str], object]
"""Receives the state of the sweep in a few words."""

DEPTHS = (1, 2)
"""Full batches in flight per instance. With two, a request waits for one call before its own, as in a service at full load."""
EQUAL = 0.03
"""Rates that differ by less than this part count as equal: runs of the same configuration differ by as much."""
LONGEST = 5.0
"""Seconds of one measurement at most."""


class ServingBench(Protocol):
    """Measures configurations. Tests have one that simulates."""

    dim: str
    """The symbolic dim that counts requests; empty where a call is one request."""
    is_exact: bool
    """Whether calls have the tuned sizes only; otherwise any number of requests up to the batch."""

    def run_load(self, split: Split, batch: int, concurrency: int, seconds: float) -> LoadResult:
        """Measure throughput and latency with that many requests in flight."""

    def describe_plan(self, split: Split, size: int) -> str:
        """Return the engines of the plan for that many requests; the plan is chosen at the first question."""

    def measure_memory(self, split: Split, sizes: Sequence[int]) -> int | None:
        """Return the bytes that all instances hold for calls of these sizes, as far as engines report them."""


@dataclass(eq=False, slots=True)
class ThroughputSweep:
    """One sweep."""

    bench: ServingBench
    request: ThroughputRequest
    clock: Clock = time.perf_counter
    tell: Tell = lambda text: None
    notes: tuple[str, ...] = ()
    _found: list[ServingCandidate] = field(default_factory=list)

    def run(self) -> ThroughputResult:
        """Measure all points; Ctrl-C ends the sweep with the points measured so far."""
        began, is_interrupted = self.clock(), False
        try:
            self._list_candidates()
            self._measure(began + self.request.budget)
        except KeyboardInterrupt:
            is_interrupted = True
        number, configuration = self._find_best(), None
        if number is not None:
            one = self._found[number] = replace(self._found[number], verdict="chosen")
            configuration = self._configure(one)
        ordered = tuple(sorted(self._found, key=lambda one: (one.verdict != "chosen", -one.rate, one.batch, one.concurrency)))
        bound, budget, spent = self.request.bound, self.request.budget, self.clock() - began
        return ThroughputResult(configuration, ordered, bound, budget, spent, self.notes, is_interrupted)

    def _list_candidates(self) -> None:
        """List the points of the sweep. Plans are searched for here, so that their searches take no time of a measurement."""
        for split in self.request.splits:
            for batch in self.request.batches:
                self.tell(f"plan for calls of {batch}, {split}")
                plan = self.bench.describe_plan(split, batch)
                for depth in DEPTHS:
                    self._found.append(ServingCandidate(batch, split, depth * batch * split.instances, plan=plan))

    def _measure(self, until: float) -> None:
        memory: dict[tuple[Split, int], int | None] = {}
        errors: list[XRTError] = []
        for number, one in enumerate(self._found):
            if note := self._find_reason_against(one, is_late=number > 0 and self.clock() >= until):
                self._found[number] = replace(one, note=note)
                continue
            self.tell(f"{one.concurrency} requests in flight, batches of {one.batch}, {one.split}")
            seconds = min(max(until - self.clock(), 0.0) / (len(self._found) - number), LONGEST)
            place = one.split, one.batch
            try:
                load = self.bench.run_load(one.split, one.batch, one.concurrency, seconds)
                if place not in memory:
                    memory[place] = self.bench.measure_memory(one.split, self._list_sizes(one.batch) or (one.batch,))
            except XRTError as error:  # a batch that needs too much memory, for example: the other points stay
                errors.append(error)
                self._found[number] = replace(one, note=str(error))
                continue
            verdict = "within" if load.p99 <= self.request.bound else "over"
            self._found[number] = replace(one, verdict=verdict, load=load, memory=memory[place])  # type: ignore[arg-type]
        if errors and all(one.load is None for one in self._found):
            raise errors[0]

    def _find_reason_against(self, one: ServingCandidate, *, is_late: bool) -> str:
        """Explain why a point is not measured; empty if it is."""
        if is_late:
            return f"no time was left of budget={self.request.budget:g} s"
        for other in self._found:
            if other.split == one.split and other.verdict == "over" and other.load is not None and other.batch <= one.batch:
                is_call = other.concurrency == other.batch * other.split.instances
                if is_call or other.batch == one.batch:
                    return f"batches of {other.batch} already take {format_latency(other.load.p99)}"
        return ""

    def _list_sizes(self, batch: int) -> tuple[int, ...]:
        return tuple(size for size in self.request.batches if size <= batch) if self.bench.is_exact else ()

    def _find_best(self) -> int | None:
        """The point of the highest rate within the bound; of rates that are equal, the smallest batch and concurrency."""
        within = [number for number, one in enumerate(self._found) if one.verdict == "within"]
        most = max((self._found[number].rate for number in within), default=0.0)
        equal = [number for number in within if self._found[number].rate >= (1 - EQUAL) * most]
        return min(equal, key=lambda n: (self._found[n].batch, self._found[n].concurrency, -self._found[n].rate), default=None)

    def _configure(self, one: ServingCandidate) -> ServingConfiguration:
        assert one.load is not None
        sizes, load = self._list_sizes(one.batch), one.load
        made = ServingConfiguration(
            one.batch,
            one.split.instances,
            one.split.threads,
            one.concurrency,
            load.rate,
            load.p50,
            load.p99,
            self.request.bound,
            self.bench.dim,
            sizes,
            tuple(self.bench.describe_plan(one.split, size) for size in sizes or (one.batch,)),
            one.memory or 0,
        )
        return made.round()
