"""What a plan of lower precision rests on: the error budget, the data, the errors that were measured, and the quantized form."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from xrt.formats.calibration_table import CalibrationTable
from xrt.formats.records import Count, Number, Record, Text

__all__ = [
    "BalancedValue",
    "FormKind",
    "KeptNodeRecord",
    "LoweredOutcome",
    "LoweredPlanRecord",
    "PrecisionRecord",
    "RegionPrecision",
    "TriedForm",
]

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
