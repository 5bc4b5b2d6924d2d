"""What a caller allows of lower precision, and the data that it is judged by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from xrt.engines.contract.options import LOWER_PRECISIONS, Precision
from xrt.graph import Function, NodePattern, Value
from xrt.precision.budget import ErrorBudget
from xrt.precision.examples import Examples

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

__all__ = ["LowerPrecision", "PrecisionTerms"]

LowerPrecision: TypeAlias = Precision | Literal["int4"]
"""What a plan within an error budget may compute in: weights alone can have 4 bits."""


@dataclass(frozen=True)
class PrecisionTerms:
    """What a module is asked for."""

    budget: ErrorBudget
    validate: Examples
    calibrate: Examples = field(default_factory=lambda: Examples("calibrate"))
    allowed: tuple[LowerPrecision, ...] = (*LOWER_PRECISIONS, "int4")
    """The lower precisions that plans may compute in."""
    exact_nodes: tuple[NodePattern, ...] = ()
    """Nodes that stay in float32."""
    table: CalibrationTable | None = None
    """Ranges, where they need not be measured."""
    original: Callable[[], Function] | None = field(default=None, compare=False)
    """Gives the model as it was declared, of which the table may be; None where there is none before a call."""
    declared: tuple[Value, ...] = ()
    """The inputs of the model as it was declared, with its symbolic dims."""

    @property
    def relative(self) -> ErrorBudget:
        """The budget by the measure that adds up over nodes."""
        return self.budget if self.budget.measure == "relative" else ErrorBudget(self.budget.limit)

    def keeps(self, name: str, function: Function) -> bool:
        """Whether the caller wants a node to stay in float32."""
        return any(one.matches(function.node(name)) for one in self.exact_nodes)

    @property
    def digest(self) -> str:
        """A hash of the data, and of the table that was given."""
        parts = [self.calibrate.digest, self.validate.digest, self.table.dumps() if self.table is not None else ""]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def fit(self, function: Function) -> tuple[Examples, Examples]:
        """Return the examples of calibration and of validation for a Function whose extents are known."""
        declared: Sequence[Value] = self.declared if len(self.declared) == len(function.inputs) else function.inputs
        return self.calibrate.fit(function, declared), self.validate.fit(function, declared)

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """What a decision rests on; None where a metric's code is unknown, so that nothing can be kept."""
        measure = hash_metric(self.budget.measure) if callable(self.budget.measure) else self.budget.measure
        if measure is None:
            return None
        own = ("measure", f"{measure} {self.budget.higher_is_better}"), ("limit", repr(float(self.budget.limit)))
        allowed = f"{','.join(self.allowed)} but {'; '.join(map(str, self.exact_nodes))}"
        return (*own, ("precisions", allowed), ("data", self.digest))


def hash_metric(metric: object) -> str | None:
    """Return a hash of a function's code and of the constants in it; None for what has variables of its own, which may change."""
    code = getattr(metric, "__code__", None)
    if code is None or getattr(metric, "__closure__", None) or getattr(metric, "__defaults__", None):
        return None
    text = f"{code.co_code!r} {code.co_names} {[one for one in code.co_consts if isinstance(one, str | int | float | bool)]}"
    return hashlib.sha256(text.encode()).hexdigest()
