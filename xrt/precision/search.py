"""The search for plans of lower precision: candidates in the order of what they promise, each judged by its outputs.

Which candidates there are does not depend on the limit of the budget, but for the targets that nodes are kept in float32 for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.placement.race import is_allowed
from xrt.placement.report import format_error
from xrt.precision.budget import MeasuredError, find_fault
from xrt.precision.execution import Attempt, Workbench
from xrt.precision.integer_search import IntegerForms

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.engines.contract.options import Precision
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.graph import Function
    from xrt.precision.budget import Examples, PrecisionTerms

__all__ = ["PrecisionSearch"]

PARTS = (0.75, 0.5, 0.25)
"""Shares of the nodes that the beginnings and the ends of a model have which alone are lowered."""


@dataclass(eq=False)
class PrecisionSearch:
    """One search; what it has found by now is in `attempts`."""

    bench: Workbench
    terms: PrecisionTerms
    function: Function
    exact: Attempt
    calibrate: Examples
    validate: Examples
    is_in_time: Callable[[], bool]
    tell: Callable[[str], object]
    known: PrecisionRecord | None = None
    """What searches for smaller budgets on the same examples have found."""
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_cut_off: bool = False
    """Whether there was not enough time."""

    def run(self) -> None:
        """Judge the candidates in order, as long as there is time."""
        candidates = self._propose()
        while self.is_in_time():
            if (attempt := next(candidates, None)) is None:
                return
            self._judge(attempt)
        self.notes.append("the budget of time ended before all precisions were tried")
        self.is_cut_off = True

    def _propose(self) -> Iterator[Attempt]:
        """Yield the candidates, the simple ones first; later ones depend on what earlier ones were measured to do."""
        yield from self._lower_floats()
        yield from self.integers.propose()
        yield from self._lower_a_part()

    @cached_property
    def expected(self) -> list[list[Any]]:
        """The outputs of the exact plan."""
        assert self.exact.program is not None  # it is compiled before the search
        outputs, self.exact.first_calls = self.bench.run(self.exact.program, self.validate)
        return outputs

    def _judge(self, attempt: Attempt) -> None:
        """Compile a plan, run it on the examples of validation, and record its error and its outcome."""
        self.attempts.append(attempt)
        self.tell(f"measuring the error of {attempt.precision} on {attempt.title}")
        if not is_allowed(attempt.plan, [*self.bench.engines, *attempt.engines], self.bench.request.clustering):
            attempt.outcome, attempt.note = "failed", "the options of clustering or pins do not allow it"
            return
        try:
            attempt.program = self.bench.compile(attempt.plan, attempt.engines)
            expected = self.expected
            found, attempt.first_calls = self.bench.run(attempt.program, self.validate)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            attempt.outcome, attempt.note = "failed", " ".join(str(error).split())
            attempt.close()
            return
        if fault := find_fault(expected, found):
            attempt.outcome, attempt.note, attempt.found = "wrong", fault, MeasuredError(np.inf)
        else:
            attempt.found = measure(self.terms, self.validate, expected, found)
            attempt.outcome = "lost" if attempt.found.bound <= self.terms.budget.limit else "over"
        if not attempt.is_in_budget:
            attempt.close()

    # ------------------------------------------------------------------ floats of 16 bits

    def _list_lowered(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, GraphCompiler]]:
        """Yield what the exact engines offer, the fastest first."""
        for precision in precisions:
            names = {"int8", "int4"} if precision == "int8" else {precision}
            for engine in self.bench.engines if names & {*self.terms.allowed} else ():
                lowered = engine.lower_precision(precision)
                if lowered is None:
                    continue
                if reason := lowered.unsupported_options(self.bench.request.context):
                    self.notes.append(f"{precision} on {engine.spec} was not tried: {reason}")
                else:
                    yield precision, lowered

    @property
    def _exact_names(self) -> set[str]:
        """The nodes that the caller wants in float32."""
        return {node.name for node in self.function.nodes if self.terms.keeps(node.name, self.function)}

    def _lower_floats(self) -> Iterator[Attempt]:
        for precision, engine in self._list_lowered(("bf16", "fp16")):
            kept = self._exact_names
            yield Attempt(self.bench.plan_on(self.function, engine, kept), precision, (engine,))

    def _lower_a_part(self) -> Iterator[Attempt]:
        """Lower only the beginning or only the end of the model."""
        wholes = [one for one in self.attempts if one.form is None and not one.kept and one.outcome in ("over", "lost")]
        names = [node.name for node in self.function.nodes]
        for whole in wholes if not self._exact_names else ():
            for share, is_end in product(PARTS, (True, False)):
                count = round(share * len(names))
                kept = names[: len(names) - count] if is_end else names[count:]
                if not 0 < count < len(names):
                    continue
                plan = self.bench.plan_on(self.function, whole.engines[0], kept)
                yield Attempt(plan, f"{whole.precision} and fp32", whole.engines, kept=tuple(kept))

    # ------------------------------------------------------------------ integers

    @cached_property
    def integers(self) -> IntegerForms:
        """The quantized forms."""
        return IntegerForms(
            *(self.bench, self.terms, self.function, self.calibrate, self.validate),
            is_in_time=self.is_in_time,
            tell=self.tell,
            notes=self.notes,
            engines=sorted(self._list_integer_engines(), key=lambda one: one[1]),
            known=self.known,
        )

    def _list_integer_engines(self) -> Iterator[tuple[GraphCompiler, bool]]:
        """Yield the engines that keep integers, each with whether the rest is in bf16, which gains least."""
        allowed = self.terms.allowed
        for _, engine in self._list_lowered(("int8",)):
            yield engine, False
            halved = engine.lower_precision("bf16") if "bf16" in allowed and not self.terms.exact_nodes else None
            if halved is not None:
                yield halved, True

    # ------------------------------------------------------------------ what came of it

    def describe_nearest(self) -> str:
        """Return how close the plans over the budget came; empty where one is within it, or none was measured."""
        measured = [one for one in self.attempts if one.outcome == "over"]
        if not measured or any(one.is_in_budget for one in self.attempts):
            return ""
        best = min(measured, key=lambda one: one.found.bound)
        name, bound = self.terms.budget.name, best.found.bound
        return (
            f"no lower precision is within the budget: the nearest is {best.precision} on {best.title}, "
            f"{format_error(bound, name)} of {format_error(self.terms.budget.limit, name)}; float32 is kept"
        )


def measure(
    terms: PrecisionTerms, examples: Examples, expected: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]
) -> MeasuredError:
    """Return the error by the budget's measure; rows of one batch are together again for a metric."""
    if not callable(terms.budget.measure):
        return terms.budget.measure_error(expected, found, [item.given for item in examples.items])
    batches: dict[int, list[int]] = {}
    for place, item in enumerate(examples.items):
        batches.setdefault(item.batch, []).append(place)
    given = [examples.items[places[0]].given for places in batches.values()]
    merged = [[_merge([outputs[place] for place in places]) for places in batches.values()] for outputs in (expected, found)]
    return terms.budget.measure_error(merged[0], merged[1], given)


def _merge(outputs: Sequence[Sequence[Any]]) -> Sequence[Any]:
    if len(outputs) == 1:
        return outputs[0]
    return [np.concatenate(column) if column[0].ndim else column[0] for column in zip(*outputs, strict=True)]
