"""The search for plans of lower precision: candidates in the order of what they promise, each judged by its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.calibration.grouping import group_by_bytes
from xrt.calibration.observer import Observer
from xrt.graph import hash_values
from xrt.passes.quantize import list_calibrated_values, why_not_quantized
from xrt.placement.plans import is_allowed
from xrt.placement.precision_report import format_error
from xrt.placement.quantized_form import OPTIONS, QuantizedForm, fit_table, list_quantizable_nodes, prepare_for_quantization
from xrt.precision.attempts import Attempt
from xrt.precision.budget import MeasuredError, find_fault
from xrt.precision.execution import Workbench, run_once
from xrt.precision.sensitivity import choose_kept_nodes, find_node_errors, make_switchable_model

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.engines.contract.options import Precision
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.precision_record import PrecisionRecord
    from xrt.graph import Function
    from xrt.precision.examples import Examples
    from xrt.precision.terms import PrecisionTerms

__all__ = ["PrecisionSearch"]

MOST_ATTEMPTS = 4
"""Quantized forms that are measured to come within a budget, on each engine."""
STEPS = (0.01, 0.001)
"""Smaller errors for which a form is made too: what keeps more nodes is slower as a rule, and not always."""
SENSED_ITEMS = 2
"""Examples on which the error of each node is measured."""


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
    errors: dict[str, float] = field(default_factory=dict)
    """By name of a node of the prepared model: the error of quantizing it alone."""

    # ------------------------------------------------------------------ the way

    def run(self) -> None:
        """Try what is allowed, the simple candidates first, as long as there is time."""
        for step in (self._lower_floats, self._quantize, self._lower_a_part):
            if not self.is_in_time():
                self.notes.append("the budget of time ended before all precisions were tried")
                self.is_cut_off = True
                return
            step()

    @cached_property
    def expected(self) -> list[list[Any]]:
        """The outputs of the exact plan."""
        assert self.exact.program is not None  # it is compiled before the search
        outputs, self.exact.first_calls = self.bench.run(self.exact.program, self.validate)
        return outputs

    def _judge(self, attempt: Attempt) -> Attempt:
        """Compile a plan, run it on the examples of validation, and say what comes of it."""
        self.attempts.append(attempt)
        self.tell(f"measuring the error of {attempt.precision} on {attempt.title}")
        if not is_allowed(attempt.plan, [*self.bench.engines, *attempt.engines], self.bench.request.clustering):
            attempt.outcome, attempt.note = "failed", "the options of clustering or pins do not allow it"
            return attempt
        try:
            attempt.program = self.bench.compile(attempt.plan, attempt.engines)
            expected = self.expected
            found, attempt.first_calls = self.bench.run(attempt.program, self.validate)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            attempt.outcome, attempt.note = "failed", " ".join(str(error).split())
            attempt.close()
            return attempt
        if fault := find_fault(expected, found):
            attempt.outcome, attempt.note, attempt.found = "wrong", fault, MeasuredError(np.inf)
        else:
            attempt.found = measure(self.terms, self.validate, expected, found)
            attempt.outcome = "lost" if attempt.found.bound <= self.terms.budget.limit else "over"
        if not attempt.is_in_budget:
            attempt.close()
        return attempt

    # ------------------------------------------------------------------ floats of 16 bits

    def _list_lowered(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, GraphCompiler]]:
        """Yield what the exact engines offer, the fastest first."""
        for precision in precisions:
            for engine in self.bench.engines if precision in self.terms.allowed else ():
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

    def _lower_floats(self) -> None:
        for precision, engine in self._list_lowered(("bf16", "fp16")):
            kept = self._exact_names
            if self.terms.is_strict:
                self.notes.append(f"{precision} on {engine.spec} was not tried: it keeps float32 in places, strict_types=True")
                continue
            self._judge(Attempt(self.bench.plan_on(self.function, engine, kept), precision, (engine,)))

    def _lower_a_part(self) -> None:
        """Where a whole in 16 bits is over the budget, look for the longest end or beginning of the model that is within it."""
        over = [one for one in self.attempts if one.outcome == "over" and one.form is None and not self._exact_names]
        for whole in over:
            for is_end in (True, False):
                self._bisect(whole, is_end=is_end)

    def _bisect(self, whole: Attempt, *, is_end: bool) -> None:
        names = [node.name for node in self.function.nodes]
        low, high = 0, len(names)  # how many nodes are lowered: within the budget, and over it
        for _ in range(3):
            count = (low + high) // 2
            if count == low or not self.is_in_time():
                return
            kept = names[: len(names) - count] if is_end else names[count:]
            plan = self.bench.plan_on(self.function, whole.engines[0], kept)
            found = self._judge(Attempt(plan, f"{whole.precision} and fp32", whole.engines, kept=tuple(kept)))
            low, high = (count, high) if found.is_in_budget else (low, count)

    # ------------------------------------------------------------------ integers

    @cached_property
    def prepared(self) -> Function:
        """The model in the form that is quantized."""
        return prepare_for_quantization(self.function)

    @cached_property
    def table(self) -> CalibrationTable:
        """The ranges: given, or measured on the examples of calibration."""
        if self.terms.table is None:
            return self.known.table if self.known is not None and self.known.table is not None else self._measure_ranges()
        original = self.terms.original() if self.terms.original is not None else self.function
        return fit_table(self.terms.table, self.prepared, original)

    def _measure_ranges(self) -> CalibrationTable:
        names, keys = list_calibrated_values(self.prepared, OPTIONS), hash_values(self.prepared)
        given, outputs = [value.name for value in self.prepared.inputs], self.prepared.outputs
        observer = Observer()
        programs = []
        for group in group_by_bytes([name for name in names if name not in given], self.prepared) or [()]:
            observed = self.prepared.replace(outputs=tuple(self.prepared.value(name) for name in group) or outputs)
            program = self.bench.compile(self.bench.plan_exact(observed), is_kept=False)
            programs.append((group, program))
        for number, item in enumerate(self.calibrate.items):
            self.tell(f"calibrating on batch {number + 1} of {len(self.calibrate)}")
            found = {name: value for name, value in zip(given, item.values, strict=True) if name in names}
            for group, program in programs:
                found.update(zip(group, run_once(program, item.values), strict=False))
            observer.add({keys[name]: (name, np.asarray(found[name])) for name in names})
        for _, program in programs:
            program.close()
        return observer.make_table()

    def _why_not_quantized(self) -> str:
        """Return why there is no quantized form; empty where there is one."""
        if "int8" not in self.terms.allowed:
            return "int8 is not among the precisions that are allowed"
        if not self.calibrate.items and self.terms.table is None:
            return "int8 was not tried: it needs calibrate=, examples to measure ranges on"
        if any("quantize" in node.op.lower() or "QLinear" in node.op for node in self.function.nodes):
            return "int8 was not tried: the model is quantized already"
        if not self._choices:
            return "int8 was not tried: no product or convolution with constant weights may be quantized"
        return ""

    @cached_property
    def _choices(self) -> list[tuple[int, str]]:
        """The nodes that may be quantized."""
        return [one for one in list_quantizable_nodes(self.prepared) if not self.terms.keeps(one[1], self.prepared)]

    @cached_property
    def fixed(self) -> frozenset[int]:
        """Positions of nodes that could be quantized, and that the caller wants in float32."""
        return frozenset(at for at, _ in list_quantizable_nodes(self.prepared)) - {at for at, _ in self._choices}

    def _quantize(self) -> None:
        if reason := self._why_not_quantized():
            self.notes.append(reason)
            return
        engines = list(self._list_integer_engines())
        over = [one for one in (self._quantize_on(*engine, ()) for engine in engines) if one.outcome in ("over", "wrong")]
        self._note_other_products()
        self._try_known(engines)
        if self.terms.is_strict or not over or not self.is_in_time() or callable(self.terms.budget.measure):
            if over and callable(self.terms.budget.measure) and self.is_in_time():
                self._keep_by_error(over)
            return
        self._keep_within(over, self.terms.budget.limit)
        for step in STEPS:
            if step < self.terms.budget.limit and self.is_in_time():
                self._keep_within([one for one in over if one.outcome == "over"][:1], step)

    def _list_integer_engines(self) -> Iterator[tuple[str, GraphCompiler]]:
        for _, engine in self._list_lowered(("int8",)):
            yield "int8", engine
            halved = engine.lower_precision("bf16") if "bf16" in self.terms.allowed and not self.terms.exact_nodes else None
            if halved is not None:
                yield "int8 and bf16", halved

    def _quantize_on(self, precision: str, engine: GraphCompiler, kept: Sequence[str]) -> Attempt:
        positions = frozenset(at for at, name in self._choices if name in set(kept))
        form = QuantizedForm(self.table, positions | self.fixed)
        plan = self.bench.plan_on(self._apply(form), engine)
        return self._judge(Attempt(plan, precision, (engine,), form, kept=tuple(kept)))

    def _try_known(self, engines: Sequence[tuple[str, GraphCompiler]]) -> None:
        """Try what smaller budgets have found: more budget is then never slower."""
        names = dict(self._choices)
        for form in self.known.forms if self.known is not None else ():
            kept = [names[at] for at in form.kept if at in names]
            for precision, engine in engines:
                is_it = (precision, engine.spec) == (form.precision, form.engine)
                if is_it and kept and form.bound <= self.terms.budget.limit and self.is_in_time():
                    self._quantize_on(precision, engine, kept)

    def _apply(self, form: QuantizedForm) -> Function:
        self.tell(f"quantizing, with {len(form.kept)} nodes in float32")
        return form.apply(self.prepared)

    def _note_other_products(self) -> None:
        """Say which products and convolutions have no quantized form."""
        reasons = [
            (node.op, reason)
            for node in self.prepared.nodes
            if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul")
            and (reason := why_not_quantized(node, self.prepared, OPTIONS)) is not None
        ]
        for (op, reason), count in Counter(reasons).items():
            self.notes.append(f"float32 in any plan: {count} {op}, {reason}")

    # ------------------------------------------------------------------ which nodes stay in float32

    def _sense(self, largest: float) -> dict[str, float]:
        """Return the error of quantizing each node alone, measured once."""
        if self.errors:
            return self.errors
        examples = self.calibrate if self.calibrate.items else self.validate
        items, names = examples.items[:SENSED_ITEMS], [name for _, name in self._choices]
        model = make_switchable_model(self.prepared, self.table, names)
        program = self.bench.compile(self.bench.plan_exact(model), is_kept=False)
        off = np.zeros(len(names), bool)
        exact = [run_once(program, (*item.values, off)) for item in items]
        relative = self.terms.relative

        def measure_switches(switches: np.ndarray[Any, Any]) -> float:
            self.tell(f"measuring the error of {int(switches.sum())} of {len(names)} nodes alone")
            return relative.measure_error(exact, [run_once(program, (*item.values, switches)) for item in items], []).error

        try:
            self.errors = find_node_errors(names, measure_switches, self.is_in_time, largest).errors
        finally:
            program.close()
        return self.errors

    def _keep_within(self, over: Sequence[Attempt], limit: float) -> None:
        """Keep the nodes that cost most in float32 until the error is within a limit, on each of these engines."""
        if not over:
            return
        errors = self._sense(limit / 4)
        predicted = float(np.sqrt(sum(error**2 for error in errors.values() if np.isfinite(error))))
        for whole in over:
            self._keep_on(whole, errors, limit, predicted)

    def _keep_on(self, whole: Attempt, errors: Mapping[str, float], limit: float, predicted: float) -> None:
        bound = whole.found.bound
        factor = max(0.5, bound / predicted) if predicted and np.isfinite(bound) else 1.0
        floor = 0
        for _ in range(MOST_ATTEMPTS):
            if not self.is_in_time():
                self.is_cut_off = True
                self.notes.append(f"the budget of time ended while nodes of {whole.precision} on {whole.title} were being kept")
                return
            listed = choose_kept_nodes(errors, limit / factor)
            listed = sorted(errors, key=lambda name: -errors[name])[: max(len(listed), floor)]
            if len(listed) >= len(errors):
                return
            found = self._quantize_on(whole.precision, whole.engines[0], listed)
            if found.outcome == "failed" or (found.is_in_budget and found.found.bound <= limit):
                return
            floor, factor = (
                2 * len(listed) + 1,
                factor * max(1.2, found.found.bound / limit) if found.outcome == "over" else 2 * factor,
            )

    def _keep_by_error(self, over: Sequence[Attempt]) -> None:
        """Lower the relative error step by step until a metric is within its budget."""
        for limit in (0.05, 0.02, 0.005):
            if any(one.form is not None and one.is_in_budget for one in self.attempts) or not self.is_in_time():
                return
            self._keep_within(over[:1], limit)

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
