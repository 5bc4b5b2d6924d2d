"""Plans of lower precision, each with what was measured of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xrt.formats.placement_file import LoweredOutcome, LoweredPlanRecord, TriedForm
from xrt.placement.result import describe_plan
from xrt.precision.budget import MeasuredError

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.partition import Plan
    from xrt.placement.lockfile import QuantizedForm
    from xrt.runtime import Program

__all__ = ["Attempt"]

MOST_NAMED = 32
"""Nodes in float32 that the record of a plan names."""


@dataclass(eq=False)
class Attempt:
    """A plan of lower precision, or the exact one."""

    plan: Plan
    precision: str
    engines: tuple[GraphCompiler, ...] = ()
    """The engines that only plans of lower precision have."""
    form: QuantizedForm | None = None
    """How the model is quantized; None where it is not."""
    program: Program | None = None
    found: MeasuredError = field(default_factory=lambda: MeasuredError(0.0))
    outcome: LoweredOutcome = "lost"
    note: str = ""
    seconds: float | None = None
    first_calls: float = 0.0
    """Seconds of the fastest call on an example of validation."""
    kept: tuple[str, ...] = ()
    """The nodes that stay in float32 for the sake of the budget, worst first."""

    @property
    def bound(self) -> float:
        """What must be within the budget."""
        return self.found.bound

    @property
    def is_in_budget(self) -> bool:
        """Whether it may race."""
        return self.program is not None and self.outcome not in ("over", "wrong", "failed")

    @property
    def title(self) -> str:
        """The plan by its engines."""
        return describe_plan(self.plan)

    def close(self) -> None:
        """Let go of the program."""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def to_form(self) -> TriedForm | None:
        """Return its quantized form, where its error was in the budget."""
        if self.form is None or self.outcome not in ("won", "tie", "lost"):
            return None
        kept, form = tuple(sorted(self.form.kept)), self.form
        return TriedForm(self.precision, self.engines[0].spec, kept, self.found.bound, form.kind, bool(form.balance))

    def to_record(self) -> LoweredPlanRecord:
        """Return what is kept of it."""
        return LoweredPlanRecord(
            self.title,
            self.precision,
            self.outcome,
            error=_finite(self.found.error),
            high=_finite(self.found.high),
            worst=_finite(self.found.worst),
            seconds=self.seconds,
            kept=len(self.kept),
            nodes=tuple(name[:400] for name in self.kept[:MOST_NAMED]),
            note=self.note[:1000],
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
