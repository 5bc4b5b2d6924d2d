"""Placement files: one JSON format for lockfiles, stored decisions and cost tables; serving configurations.

Each kind of file fills some sections of the schema, `PlacementFile`; `xrt.formats.documents` describes the text. `xrt.placement`
and `xrt.partition.cost_table` define the meaning of the sections.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from xrt.errors import PlacementFileError
from xrt.formats.calibration_table import CalibrationTable
from xrt.formats.documents import DocumentError, DocumentType
from xrt.formats.output import replace_file
from xrt.measure.statistics import RatioInterval
from xrt.measure.timing import MeasuredCost

__all__ = ["PlacementFile", "PrecisionRecord", "ServingConfiguration", "dumps", "loads", "read_placement", "write_placement"]

MAX_TEXT_LENGTH = 4000  # characters of a name or a version; a note or a reason may be a page of a library's error
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT_LENGTH)]
NonEmptyText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_LENGTH)]
Facts: TypeAlias = Mapping[Text, Text]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10_000_000)]
Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
SelectionOutcome: TypeAlias = Literal["won", "tie", "lost", "late", "wrong", "failed"]
"""How a plan did in the race. ``won``: chosen; ``tie``: not distinguishable from the winner; ``lost``: slower; ``late``: not
compared in time; ``wrong``: its results differ from the reference; ``failed``: it did not compile or run."""
VERDICTS: Mapping[SelectionOutcome, str] = {
    "won": "chosen",
    "tie": "tie",
    "lost": "slower",
    "late": "not compared",
    "wrong": "wrong",
    "failed": "failed",
}
"""The outcomes as reports print them, best first."""
P = TypeVar("P")
Q = TypeVar("Q")


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of the records in the file."""

    def replace(self, **changes: Any) -> Self:
        return msgspec.structs.replace(self, **changes)

    def rounded(self) -> Self:
        """Round each float to six significant digits, so that diffs of a file do not show noise."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return self.replace(**{name: float(f"{value:.6g}") for name, value in values.items() if isinstance(value, float)})

    def to_dict(self) -> dict[str, Any]:
        return {name: msgspec.to_builtins(getattr(self, name)) for name in self.__struct_fields__}


AttemptOutcome: TypeAlias = Literal["won", "tie", "lost", "late", "over", "wrong", "failed"]
"""The outcome of a plan of reduced precision: a `SelectionOutcome`, or ``over``, if its error exceeds the budget."""
FormKind: TypeAlias = Literal["static", "dynamic", "packed8", "stored8"]
"""How a model is quantized: static or dynamic ranges for values, or weights only (as MatMulNBits, or dequantized)."""


class BalancedValue(Record, frozen=True, array_like=True):
    """A value whose channels are divided by powers of two; the weights of its readers are multiplied by them."""

    name: Text
    exponents: tuple[Annotated[int, Meta(ge=-64, le=64)], ...]


class QuantizedForm(Record, frozen=True):
    """How a model is quantized: the kind of quantization, its parameters, and the nodes that stay in float32."""

    table: CalibrationTable | None = None
    """Calibrated ranges of values; required for the kind ``static``, and None for other kinds."""
    exact_nodes: frozenset[Count] = frozenset()
    """Indices of the nodes of the prepared model that stay in float32."""
    kind: FormKind = "static"
    balance: tuple[BalancedValue, ...] = ()
    """Values with balanced channels."""
    reduce_range: bool = False
    """Whether weights in integer products have 7 bits, for processors that accumulate byte products in 16 bits."""

    def __post_init__(self) -> None:
        if self.kind == "static" and self.table is None:
            raise ValueError("needs a table for the kind 'static'")


class ExactNodeRecord(Record, frozen=True):
    """A node that remains in float32."""

    name: Text
    op: Text
    error: Number | None = None
    """Error of the model with only this node in reduced precision; None if it was not measured."""
    why: Text = ""


class AttemptRecord(Record, frozen=True):
    """A plan that a search for reduced precision tried, with its error and time."""

    plan: Text
    """The engines of the plan in execution order."""
    precision: Text
    outcome: AttemptOutcome
    error: Number | None = None
    """Error in the measure of the budget; None if not measured."""
    high: Number | None = None
    """Upper end of the 95 % interval over the items; None if the measure has no interval."""
    worst: Number | None = None
    seconds: Number | None = None
    exact_count: Count = 0
    """Number of nodes that remain in float32 to meet the budget."""
    nodes: tuple[Text, ...] = ()
    """The first of these nodes, largest error first."""
    note: str = ""


class RegionPrecision(Record, frozen=True):
    """The precision that one region of the chosen plan computes in."""

    region: Text
    engine: Text
    precision: Text


class PrecisionRecord(Record, frozen=True, kw_only=True):
    """The precision of a plan within an error budget."""

    measure: Text
    """``relative``, ``cosine``, ``top1``, or the name of the metric."""
    limit: Number
    precision: Text
    """Precision of the chosen plan: ``fp32``, ``bf16``, ``int8``, ``balanced int8 and bf16``."""
    data: Text
    """Hash of the examples for calibration and validation."""
    validation: Text = ""
    items: Count
    """Number of examples for measuring the error."""
    calibrated: Count = 0
    """Number of other examples for measuring ranges."""
    error: Number = 0.0
    high: Number | None = None
    worst: Number | None = None
    form: QuantizedForm | None = None
    """How the model is quantized; None if it is not."""
    exact_nodes: tuple[ExactNodeRecord, ...] = ()
    regions: tuple[RegionPrecision, ...] = ()
    plans: tuple[AttemptRecord, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.precision}: {self.measure} error {self.error:.3g} of at most {self.limit:.3g}, on {self.items} examples"


class NodeRange(Record, frozen=True):
    """Consecutive nodes of the model that belong to one region."""

    region: Count
    engine: Text
    at: Count
    nodes: Count
    first: Text = ""
    """Name of the first node, for readers; only positions are used."""
    last: Text = ""


NodeRanges: TypeAlias = tuple[NodeRange, ...]


class CandidateRecord(Record, Generic[P], frozen=True):
    """A plan in the comparison of plans. ``P`` is the form of the plan: a Plan in a search, node ranges in a file."""

    title: Text
    """The engines of the plan in execution order."""
    verdict: SelectionOutcome
    seconds: Number | None = None
    """Median seconds per call over the rounds; for a plan that did not run, the measured seconds of its only region."""
    low: Number | None = None
    high: Number | None = None
    """Ends of the 95 % interval of ``seconds``."""
    ratio: Number | None = None
    """Median ratio of its time to the baseline's; below 1 is faster. None if it did not run."""
    ratio_low: Number | None = None
    ratio_high: Number | None = None
    note: str = ""
    regions: tuple[Number, ...] = ()
    """Seconds of each region during a call, in the plan's order; empty if not profiled, and in a lockfile."""
    is_baseline: bool = False
    """Whether ratios refer to this plan: the fastest single-engine plan, else the plan by priority."""
    plan: P = ()  # type: ignore[assignment]  # a lockfile has the nodes of the chosen plan only

    @property
    def ratio_interval(self) -> RatioInterval | None:
        """The ratio with its interval; None if the plan did not run, or ran in too few rounds for an interval."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return RatioInterval(self.ratio, self.ratio_low, self.ratio_high)

    def __str__(self) -> str:
        parts = [f"{VERDICTS[self.verdict]}: {self.title}"]
        if self.seconds is not None:
            parts.append(f"{1e3 * self.seconds:.4g} ms")
        if self.is_baseline:
            parts.append("the best single engine")
        elif self.ratio_interval is not None:
            parts.append(f"{self.ratio_interval} of the best single engine")
        elif self.ratio is not None:
            parts.append(f"{self.ratio:.3f} of the best single engine, in too few rounds for an interval")
        if self.note:
            parts.append(self.note)
        return ", ".join(parts)


class SearchRecord(Record, Generic[P], frozen=True, kw_only=True):
    """How a plan was chosen: the comparison of the candidates, and the search around it.

    The result of a search, a stored decision and a lockfile have the same record; only the form of the plans differs.
    """

    candidates: tuple[CandidateRecord[P], ...] = ()
    """Best first."""
    rounds: Count = 0
    budget: Number = 0.0
    """Seconds allowed for the search."""
    spent: Number = 0.0
    notes: tuple[str, ...] = ()
    unmeasured: Mapping[Text, str] = {}
    """Why the whole model was not measured on an engine, by spec of the engine."""
    is_provisional: bool = False
    is_explicit: bool = False
    """Whether the user requested the search. Its decision is then used by modules with a larger budget too."""
    is_checked: bool = True
    """Whether the plan's results were compared with the reference. If not, a module compares the results of its first call."""
    sizes: Mapping[Text, Count] = {}
    """Sizes of the model's symbolic dims at which it was measured."""
    precision: PrecisionRecord | None = None
    """Precision and error of a plan within an error budget; None without a budget."""

    @property
    def winner(self) -> CandidateRecord[P] | None:
        return next((candidate for candidate in self.candidates if candidate.verdict == "won"), None)

    def map_plans(self, convert: Callable[[P], Q]) -> SearchRecord[Q]:
        """Convert the plans of the candidates to another form."""
        candidates: Any = tuple(candidate.replace(plan=convert(candidate.plan)) for candidate in self.candidates)
        return self.replace(candidates=candidates)  # type: ignore[return-value]  # of the new form


class Baseline(Record, frozen=True):
    """The reference for `xrt check`: time of the plan relative to another plan, measured interleaved."""

    plan: Text
    ratio: Number
    low: Number
    high: Number
    rounds: Count
    ranges: NodeRanges = ()

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.ratio <= self.high:
            raise ValueError(f"needs 0 < low <= ratio <= high; it has {self.low:g}, {self.ratio:g} and {self.high:g}")

    @property
    def doubt(self) -> float:
        """Width of the interval, relative to the ratio. A check cannot detect a smaller change."""
        return (self.high - self.low) / self.ratio


class DeclinedNodes(Record, frozen=True):
    """Nodes that an engine does not support, all for the same reason."""

    engine: Text
    reason: str
    nodes: tuple[Count, ...]
    """Positions in the model."""


class RegionRecord(Record, frozen=True):
    """Cost of a region on an engine."""

    region: Key
    """Shape key of its Function."""
    engine: NonEmptyText
    cost: MeasuredCost | NonEmptyText
    """The cost, or the reason why there is none."""
    is_wrong: bool = False  # whether the region ran, but its results differ from the expected ones

    def __post_init__(self) -> None:
        if self.is_wrong and isinstance(self.cost, MeasuredCost):
            raise ValueError("needs a reason if it is wrong")


Quantity: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """How the thread budget is divided."""

    instances: int
    threads: int  # of each instance

    def __str__(self) -> str:
        """Format it in words.

        >>> str(Split(2, 1)), str(Split(1, 4))
        ('2 instances of 1 thread', '1 instance of 4 threads')
        """
        instances = "1 instance" if self.instances == 1 else f"{self.instances} instances"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{instances} of {threads}"


class ServingCandidate(Record, frozen=True):
    """One measured combination of settings; fields of the same name have the meaning and unit of `ServingConfiguration`."""

    batch: PositiveCount
    instances: PositiveCount
    threads: PositiveCount
    concurrency: PositiveCount
    verdict: Literal["chosen", "within", "over", "declined"] = "declined"
    """``within`` or ``over`` the latency bound; ``declined``: not measured, see ``note``."""
    plan: str = ""
    """The engines of the plan at the batch size."""
    rate: Quantity | None = None
    p50: Quantity | None = None
    p99: Quantity | None = None
    memory: Bytes | None = None
    note: str = ""

    @property
    def split(self) -> Split:
        return Split(self.instances, self.threads)


class ServingConfiguration(Record, frozen=True):
    """How to serve a model: the settings of the server, and the throughput and latency measured with them."""

    batch: PositiveCount
    """Maximum number of requests in one call."""
    instances: PositiveCount
    """Number of simultaneous calls. They share one module if ``threads`` is 1; otherwise each has a module with its threads."""
    threads: PositiveCount
    concurrency: PositiveCount
    """Requests in flight when the figures below were measured."""
    rate: Quantity
    """Requests per second."""
    p50: Quantity
    p99: Quantity
    """Seconds from a request to its result."""
    bound: Quantity | None = None
    """Upper bound on the 99th percentile, in seconds; None if latency was not limited."""
    dim: Text = ""
    """The symbolic dim that counts requests; empty if each call is one request."""
    sizes: tuple[PositiveCount, ...] = ()
    """Allowed batch sizes, ascending; smaller batches are padded by repeating a row. Empty: any size up to ``batch``."""
    plans: tuple[Text, ...] = ()
    """Engines of the plan for each entry of ``sizes``, or for ``batch`` if ``sizes`` is empty."""
    memory: Bytes = 0
    """Bytes held by all instances, as reported by their engines."""
    rows: Annotated[tuple[ServingCandidate, ...], Meta(max_length=512)] = ()
    """All measured settings; only stored in files."""

    def __post_init__(self) -> None:
        is_ascending = list(self.sizes) == sorted(set(self.sizes))
        if self.sizes and not (self.sizes[0] == 1 and self.sizes[-1] == self.batch and is_ascending):
            raise ValueError("needs sizes that ascend from 1 to the batch")

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, without the sweep."""
        return {name: value for name, value in super().to_dict().items() if name != "rows"}

    def __str__(self) -> str:
        batch = f"batches of up to {self.batch}" if self.batch > 1 else "no batching"
        figures = f"p50 {format_latency(self.p50)}, p99 {format_latency(self.p99)}"
        flight = f"{self.concurrency} in flight"
        return f"{batch}, {Split(self.instances, self.threads)}, {flight}: {format_rate(self.rate)}, {figures}"


def format_rate(rate: float) -> str:
    """Format requests per second.

    >>> format_rate(1234.5), format_rate(3.456)
    ('1234/s', '3.46/s')
    """
    return f"{rate:.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def format_latency(seconds: float) -> str:
    """Format a latency.

    >>> format_latency(0.0123), format_latency(2.0)
    ('12.3 ms', '2 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


class PlacementFile(Record, frozen=True, kw_only=True):
    """A placement: the chosen plan, its model and machine, the comparison, and the costs.

    A lockfile has everything except ``declined`` and ``costs``; a stored decision has ``engines``, ``search`` and ``declined``;
    a cost table has ``costs``.
    """

    writer: Text = ""
    date: Text = ""
    model: Facts = {}
    """Name, source, fingerprint and number of nodes."""
    inputs: Facts = {}
    """Input names to types, with the extents used for measuring."""
    engines: Facts = {}
    """Specs to versions of the engines of the plan and, in a lockfile, of the baseline plan."""
    machine: Facts = {}
    options: Facts = {}
    """Options of the plan: device, threads, precision, cluster sizes, pins."""
    plan: NodeRanges = ()
    search: SearchRecord[NodeRanges] = SearchRecord()
    declined: tuple[DeclinedNodes, ...] = ()
    """In a stored decision, the nodes that the engines of the plan do not support."""
    baseline: Baseline | None = None
    """None if no other plan was measured."""
    values: Facts = {}
    """Input names to the files with their values, relative to the lockfile. Other inputs use the seed in ``model``."""
    costs: tuple[RegionRecord, ...] | None = None
    serving: ServingConfiguration | None = None


_TYPE = DocumentType("xrt placement", "placement file", PlacementFile, 16 << 20)
dumps = _TYPE.dumps


def loads(data: str | bytes) -> PlacementFile:
    """Parse a document; raises PlacementFileError with the position, and with what is expected there, if it is invalid."""
    try:
        return _TYPE.loads(data)
    except DocumentError as error:
        raise PlacementFileError(str(error), position=error.position) from None


def write_placement(document: PlacementFile, path: str | os.PathLike[str]) -> None:
    """Write a document atomically.

    Raises PlacementFileError if the file cannot be written, or if the document has a value that `loads` would reject.
    """
    data, name = dumps(document).encode(), os.fspath(path)
    try:
        # Verify that the text can be read back before replacing an existing file.
        loads(data)
    except PlacementFileError as error:
        raise PlacementFileError(f"cannot write {name!r}: {error}", file=name, position=error.position) from None
    try:
        replace_file(Path(path), lambda file: file.write(data))
    except OSError as error:
        raise PlacementFileError(f"cannot write {name!r}: {error.strerror}", file=name) from error


def read_placement(path: str | os.PathLike[str]) -> PlacementFile:
    """Read a document; raises PlacementFileError with the path if it is missing or corrupt."""
    name = os.fspath(path)
    try:
        return loads(_TYPE.read_bytes(Path(path)))
    except FileNotFoundError:
        raise PlacementFileError(f"there is no file {name!r}; `xrt lock MODEL -o {name}` writes one", file=name) from None
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        from xrt.formats.bundle import is_bundle  # only errors need it

        reason = error.strerror if isinstance(error, OSError) else error
        remedy = f"repair it, or write it again with `xrt lock MODEL -o {name}`"
        if name.endswith(".onnx") or is_bundle(name):  # never advise to overwrite a model
            reason, remedy = "it is a model, and a lockfile is expected", f"`xrt lock {name}` writes one"
        position = getattr(error, "position", "")
        raise PlacementFileError(f"cannot read {name!r}: {reason}; {remedy}", file=name, position=position) from error
