"""What tuning for throughput gives: the configuration that was chosen, and the candidates, as values that print as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from xrt.formats.serving_record import ServingRecord, ServingRow
from xrt.measure.closed_loop import LoadResult
from xrt.placement.result import format_count
from xrt.placement.throughput.request import Split

__all__ = ["ServingCandidate", "ServingConfiguration", "ServingVerdict", "ThroughputResult", "format_latency", "format_rate"]

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
        from xrt.placement.throughput.html import render_throughput_result  # for notebooks alone

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
