"""Placement files: one format, of which a lockfile, a stored decision and a cost table are views.

JSON with sorted names and one fact per line, so that a diff shows what changed. msgspec checks the schema, `PlacementFile`;
each view fills some of its sections. The text may have been merged by hand or come from an unknown source: size, syntax, kind and
version are checked first. `xrt.placement` and `xrt.partition.cost_table` define what the sections mean.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Meta, Struct

from xrt.errors import PlacementFileError
from xrt.formats.calibration_table import CalibrationTable
from xrt.formats.output import replace_file
from xrt.formats.serving_record import ServingRecord

__all__ = [
    "FORMAT",
    "MOST_TEXT",
    "BalancedValue",
    "Baseline",
    "BoundaryRecord",
    "CandidateRecord",
    "CostRecords",
    "Count",
    "DeclinedNodes",
    "Facts",
    "FormKind",
    "KeptNodeRecord",
    "Key",
    "LaunchRecord",
    "LoweredOutcome",
    "LoweredPlanRecord",
    "NodeRange",
    "Number",
    "PlacementFile",
    "PrecisionRecord",
    "Record",
    "RegionPrecision",
    "RegionRecord",
    "SearchRecord",
    "SelectionOutcome",
    "Text",
    "TriedForm",
    "Word",
    "dumps",
    "loads",
    "read_placement",
    "write_placement",
]

MOST_TEXT = 4000
"""The most characters of a text: a name, a version, a note."""
Text: TypeAlias = Annotated[str, Meta(max_length=MOST_TEXT)]
Word: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MOST_TEXT)]
Facts: TypeAlias = Mapping[Text, Text]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=10_000_000)]
Number: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
SelectionOutcome: TypeAlias = Literal["won", "tie", "lost", "wrong", "failed"]


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What has a place in the file."""

    def replace(self, **changes: Any) -> Self:
        """Return the record with other values of some fields."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {name: msgspec.to_builtins(getattr(self, name)) for name in self.__struct_fields__}


LoweredOutcome: TypeAlias = Literal["won", "tie", "lost", "over", "wrong", "failed"]
"""As those of candidates; ``over``: its error is over the budget, so it was not raced."""
FormKind: TypeAlias = Literal["static", "dynamic", "packed8", "packed4", "stored8", "stored4"]
"""How a model is quantized: values by calibrated ranges, or by those of a call; weights alone, as MatMulNBits or dequantized."""


class BalancedValue(Record, frozen=True, array_like=True):
    """A value whose channels are divided by powers of two, which the weights behind it are multiplied by."""

    name: Text
    exponents: tuple[Annotated[int, Meta(ge=-64, le=64)], ...]


class KeptNodeRecord(Record, frozen=True):
    """A node that stays in float32."""

    at: Count
    """Its position in the prepared model: that with normalizations and biases in the operators before them."""
    name: Text
    op: Text
    error: Number | None = None
    """Of the model with this node alone in lower precision; None where it stays for another reason."""
    why: Text = ""


class LoweredPlanRecord(Record, frozen=True):
    """A plan whose error was measured; the exact plan is the first."""

    plan: Text
    """Its engines, in the order in which they run."""
    precision: Text
    outcome: LoweredOutcome
    error: Number | None = None
    """By the measure of the budget; None where it has none."""
    high: Number | None = None
    """Upper end of the 95 % interval of the error over the items; None where the measure has no interval."""
    worst: Number | None = None
    """The error of the item with the largest one."""
    seconds: Number | None = None
    kept: Count = 0
    """How many nodes stay in float32 for the sake of the budget."""
    nodes: tuple[Text, ...] = ()
    """The first of these, worst first."""
    note: Text = ""


class TriedForm(Record, frozen=True):
    """A quantized form that was within a budget: a search with a larger budget tries it again."""

    precision: Text
    engine: Text
    kept: tuple[Count, ...]
    """Positions of nodes of the prepared model that stay in float32."""
    bound: Number
    """The error that was within the budget."""
    form: FormKind = "static"
    is_balanced: bool = False


class RegionPrecision(Record, frozen=True):
    """A region of the chosen plan."""

    region: Text
    engine: Text
    precision: Text
    share: Number = 0.0
    """Its share of the squared error, as far as the errors of regions are independent."""
    gained: float | None = None
    """Seconds that the region takes less than in the exact plan; None where that is not known."""


class PrecisionRecord(Record, frozen=True, kw_only=True):
    """The precision of a plan within an error budget."""

    measure: Text
    """``relative``, ``cosine``, ``top1``, or the name of the metric."""
    limit: Number
    """The largest error that is allowed."""
    precision: Text
    """What the chosen plan is computed in: ``fp32``, ``bf16``, ``int8``, ``balanced int8 and bf16``, ``int4 weights``."""
    data: Text
    """A hash of the examples of calibration and of validation."""
    validation: Text = ""
    """A hash of the examples of validation alone."""
    items: Count
    """How many examples the error was measured on."""
    calibrated: Count = 0
    """How many other examples ranges were measured on."""
    error: Number = 0.0
    high: Number | None = None
    worst: Number | None = None
    is_quantized: bool = False
    """Whether the chosen plan is of a quantized form of the model."""
    form: FormKind = "static"
    """The kind of that form."""
    is_balanced: bool = False
    """Whether channels are balanced in it."""
    reduce_range: bool = False
    """Whether its weights have 7 bits, for a processor that adds products of bytes in 16 bits."""
    balance: tuple[BalancedValue, ...] = ()
    """The values whose channels were balanced in some form."""
    kept: tuple[KeptNodeRecord, ...] = ()
    regions: tuple[RegionPrecision, ...] = ()
    plans: tuple[LoweredPlanRecord, ...] = ()
    forms: tuple[TriedForm, ...] = ()
    """The quantized forms that were within the budget."""
    notes: tuple[Text, ...] = ()
    table: CalibrationTable | None = None
    """The ranges by which plans were quantized."""


KIND = "xrt placement"
FORMAT = 1
"""The version of the text that is written, and the only one that is read."""
MOST_BYTES = 16 << 20
MOST_CANDIDATES = 64


class NodeRange(Record, frozen=True):
    """Consecutive nodes of the model that are in one region."""

    region: Count
    """The region's number, in the order in which regions run."""
    engine: Text
    """The spec of its engine."""
    at: Count
    """The position of the first node in the model's order."""
    nodes: Count
    """How many there are."""
    first: Text = ""
    """Name of the first node, for the reader of the file; positions are what counts."""
    last: Text = ""


class CandidateRecord(Record, frozen=True):
    """The result of a plan in the comparison."""

    plan: Text
    """Its engines, in the order in which they run."""
    verdict: SelectionOutcome
    is_baseline: bool = False
    """Whether the ratios are to this one."""
    seconds: Number | None = None
    low: Number | None = None
    high: Number | None = None
    ratio: Number | None = None
    """Its time over the baseline's; with the interval of that ratio."""
    ratio_low: Number | None = None
    ratio_high: Number | None = None
    note: Text = ""
    regions: tuple[Number, ...] = ()
    """Seconds of each region within calls of the whole; empty where it was not profiled, and in a lockfile."""
    ranges: tuple[NodeRange, ...] = ()
    """The nodes of its regions; empty in a lockfile."""


class Baseline(Record, frozen=True):
    """The reference of `xrt check` for a later run: the plan's time over that of another plan, in an interleaved measurement."""

    plan: Text
    """The other plan by its engines."""
    ratio: Number
    low: Number
    high: Number
    rounds: Count
    ranges: tuple[NodeRange, ...] = ()
    """The nodes of the other plan's regions."""

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.ratio <= self.high:
            raise ValueError(f"needs 0 < low <= ratio <= high; it has {self.low:g}, {self.ratio:g} and {self.high:g}")


class DeclinedNodes(Record, frozen=True):
    """The nodes that an engine does not support, for one reason."""

    engine: Text
    reason: Text
    nodes: tuple[Count, ...]
    """Their positions in the model's order."""


class SearchRecord(Record, frozen=True):
    """The search that has led to a decision; `xrt.placement.TuningResult` says what each field means."""

    budget: Number
    spent: Number
    rounds: Count
    searches: Count
    is_provisional: bool = False
    notes: tuple[Text, ...] = ()
    unmeasured: Facts = {}
    declined: tuple[DeclinedNodes, ...] = ()
    is_explicit: bool = False
    is_checked: bool = True


class RegionRecord(Record, frozen=True):
    """What a region costs on an engine."""

    region: Key
    """The shape key of its Function."""
    engine: Word
    seconds: Number | None = None
    low: Number | None = None
    high: Number | None = None
    why_not: Text = ""
    """Why there is no cost; empty where there is one."""

    def __post_init__(self) -> None:
        if self.seconds is None or self.low is None or self.high is None:
            if not self.why_not:
                raise ValueError("needs seconds, low and high, or why_not")
        elif self.why_not or not self.low <= self.seconds <= self.high:
            raise ValueError("needs low <= seconds <= high, and then no why_not")


class LaunchRecord(Record, frozen=True):
    """What a launch with nothing in it costs on an engine."""

    engine: Word
    seconds: Number


class BoundaryRecord(Record, frozen=True):
    """What a value costs that one engine makes and another reads."""

    source: Word
    target: Word
    seconds: Number
    per_byte: Number


class CostRecords(Record, frozen=True):
    """A cost table."""

    regions: tuple[RegionRecord, ...] = ()
    launches: tuple[LaunchRecord, ...] = ()
    boundaries: tuple[BoundaryRecord, ...] = ()


class PlacementFile(Record, frozen=True, kw_only=True):
    """A placement: the plan that was chosen, for which model and machine, by which comparison, and at which costs.

    A lockfile has all but ``search`` and ``costs``; a stored decision has ``engines``, ``candidates`` and ``search``; a cost
    table has ``costs``.
    """

    writer: Text = ""
    """The version of XRT."""
    date: Text = ""
    model: Facts = {}
    """Its name, source, fingerprint, number of nodes."""
    inputs: Facts = {}
    """Name to type, extents as they were when it was measured."""
    engines: Facts = {}
    """Spec to version, of all engines that took part."""
    machine: Facts = {}
    options: Facts = {}
    """What the plan was made for: device, threads, precision, sizes of clusters, pins."""
    plan: tuple[NodeRange, ...] = ()
    candidates: Annotated[tuple[CandidateRecord, ...], Meta(max_length=MOST_CANDIDATES)] = ()
    """Best first."""
    baseline: Baseline | None = None
    """None where no other plan ran."""
    values: Facts = {}
    """Name of an input to the file that its values were in, relative to the folder of the lockfile. Other inputs are random, by
    the seed in ``model``."""
    sizes: Mapping[Text, Count] = {}
    """In the store: the sizes of symbolic dims at which a model was placed; they have a decision of their own."""
    precision: PrecisionRecord | None = None
    """What a plan within an error budget is computed in, and by how much it differs; None where no budget was given."""
    search: SearchRecord | None = None
    costs: CostRecords | None = None
    serving: ServingRecord | None = None
    """How the model is served, where that was tuned."""


# ---------------------------------------------------------------------- written


def dumps(document: PlacementFile) -> str:
    """Return the document as text; equal documents give equal text."""
    return f"{_lay_out({'kind': KIND, 'format': FORMAT, **msgspec.to_builtins(document)}, '')}\n"


def _lay_out(value: Any, indent: str) -> str:
    """Return JSON with a line for each entry; an item of a list is one line."""
    inner = f"{indent}  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(name)}: {_lay_out(value[name], inner)}" for name in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(f"{inner}{json.dumps(row, sort_keys=True)}" for row in value) + f"\n{indent}]"
    return json.dumps(value)


def write_placement(document: PlacementFile, path: str | os.PathLike[str]) -> None:
    """Write a document, whole or not at all.

    Raises PlacementFileError if the file cannot be written, and with the position of a value that could not be read again.
    """
    data, name = dumps(document).encode(), os.fspath(path)
    try:
        loads(data)
    except PlacementFileError as error:
        raise PlacementFileError(f"cannot write {name!r}: {error}", file=name, position=error.position) from None
    try:
        replace_file(Path(path), lambda file: file.write(data))
    except OSError as error:
        raise PlacementFileError(f"cannot write {name!r}: {error.strerror}", file=name) from error


# ---------------------------------------------------------------------- read


def read_placement(path: str | os.PathLike[str]) -> PlacementFile:
    """Return the document in a file; raises PlacementFileError, with the file, for one that is missing, damaged or too new."""
    name = os.fspath(path)
    try:
        return loads(_read_bytes(Path(path)))
    except FileNotFoundError:
        raise PlacementFileError(f"there is no file {name!r}; `xrt lock MODEL -o {name}` writes one", file=name) from None
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        remedy = f"repair it, or write it again with `xrt lock MODEL -o {name}`"
        position = getattr(error, "position", "")
        raise PlacementFileError(f"cannot read {name!r}: {reason}; {remedy}", file=name, position=position) from error


def _read_bytes(path: Path) -> bytes:
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise PlacementFileError("it is not a regular file")  # to open a pipe may take for ever
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def loads(data: str | bytes) -> PlacementFile:
    """Return the document that the text holds; raises PlacementFileError with the position in it and what was expected there."""
    facts = _parse(data)
    kind, version = facts.pop("kind", None), facts.pop("format", None)
    if kind != KIND:
        raise PlacementFileError(f"it is no placement file: its kind is {_show(kind)}, not {KIND!r}", position="kind")
    if type(version) is not int or version != FORMAT:
        writer = facts.get("writer")
        by = f", written by xrt {writer}" if isinstance(writer, str) and len(writer) < 40 and writer.isprintable() else ""
        reads = f"this version of XRT reads {FORMAT}; use the version that wrote it"
        raise PlacementFileError(f"it has format {_show(version)}{by}, and {reads}", position="format")
    if unknown := next((name for name in facts if name not in PlacementFile.__struct_fields__), None):
        raise PlacementFileError(
            f"the document: unknown name {_show(unknown)}"
        )  # msgspec's message may look like one with a path
    try:
        return msgspec.convert(facts, PlacementFile)
    except msgspec.ValidationError as error:
        raise _locate(str(error), facts) from None
    except UnicodeEncodeError as error:  # half of a character, where a name of the schema is expected
        raise PlacementFileError(f"the document: unknown name {_show(error.object)}") from None


def _parse(data: str | bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise PlacementFileError(f"it has more than {MOST_BYTES >> 20} MB, and no placement file has")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        facts = json.loads(text, object_pairs_hook=_check_unique, parse_constant=_Constant)
    except RecursionError:
        raise PlacementFileError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        hint = "; was it merged by hand?" if "<<<<<<<" in text else ""
        raise PlacementFileError(f"line {error.lineno} is not JSON: {error.msg}{hint}") from None
    except UnicodeDecodeError as error:
        raise PlacementFileError(f"byte {error.start} is not UTF-8") from None
    except PlacementFileError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise PlacementFileError(f"it holds a number that cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise PlacementFileError(f"it is {_show(facts)}, and a placement file is an object")
    return facts


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise PlacementFileError(f"it has {_show(twice)} twice; was it merged by hand?")
    return found


class _Constant:
    """NaN or an infinity, which fits no field of the schema."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_ERROR = re.compile(r"(.*) - at (?:`key` in )?`\$(\S*)`", re.DOTALL)
"""A message of msgspec, and the position at its end; a name in the message may look like a position too."""
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def _locate(message: str, facts: Any) -> PlacementFileError:
    """Return the error with the position, the expectation, and the value at the position if that is short."""
    found = _ERROR.fullmatch(message)
    reason, path = found.groups("") if found else (message, "")
    value, position = facts, ""
    with suppress(LookupError, TypeError, ValueError, AttributeError):  # a step that is not there: the position is what precedes
        for name, index in _STEP.findall(path):
            if index == "...":  # msgspec does not name the entry of a map; here all maps are of texts
                step: Any = next((key for key, one in value.items() if not isinstance(one, str) or len(one) > MOST_TEXT), "")
            else:
                step = int(index) if index else name
            value = value[step] if isinstance(value, list) else value.get(step)
            position += f"[{step}]" if index.isdigit() else f".{ascii(step)[1:-1][:40]}"
    position = position.removeprefix(".")
    if isinstance(value, _Constant):
        return PlacementFileError(f"{position}: {value} is no number of a placement file", position=position)
    is_scalar = reason.startswith("Expected") and not isinstance(value, dict | list)
    shown = f"; it is {_show(value)}" if is_scalar else ""
    reason = reason[:1].lower() + (reason if reason.isprintable() else ascii(reason)[1:-1])[1:300]  # it may repeat a name
    return PlacementFileError(f"{position or 'the document'}: {reason}{shown}", position=position)


def _show(value: object) -> str:
    """Return a value as an error shows it: short, whatever it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
