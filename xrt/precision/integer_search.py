"""The search for plans in integers: the forms of the whole model first, then those with nodes in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.graph import hash_values
from xrt.passes.quantize import why_not_quantized
from xrt.placement.byte_sums import needs_reduced_range
from xrt.placement.quantized_form import (
    OPTIONS,
    QuantizedForm,
    balance_values,
    find_balance,
    fit_balanced_table,
    fit_table,
    list_quantizable_nodes,
    prepare_for_quantization,
)
from xrt.precision.attempts import Attempt
from xrt.precision.choice import list_targets
from xrt.precision.execution import Workbench, run_once
from xrt.precision.forms import describe_form, list_product_forms, measure_products
from xrt.precision.ranges import ObservedValues
from xrt.precision.sensitivity import choose_kept_nodes, find_node_errors, make_switchable_model

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.precision_record import BalancedValue, PrecisionRecord
    from xrt.graph import Function
    from xrt.precision.examples import Examples
    from xrt.precision.terms import PrecisionTerms

__all__ = ["IntegerSearch"]

MOST_ATTEMPTS = 3
"""Quantized forms that are measured to come within a target, on each engine."""
MOST_KEPT = 0.75
"""Share of the nodes that may stay in float32: with more there is little left to gain."""
METRIC_TARGETS = (0.05, 0.02, 0.005)
"""Relative errors that forms are made for where the budget is in a metric."""
SENSED_ITEMS = 2
"""Examples on which the error of each node is measured."""

_Key = tuple[str, str, bool, frozenset[int]]


@dataclass(eq=False)
class IntegerSearch:
    """What is tried in integers. Nothing depends on the limit of the budget but which targets nodes are kept for."""

    bench: Workbench
    terms: PrecisionTerms
    function: Function
    calibrate: Examples
    validate: Examples
    judge: Callable[[Attempt], Attempt]
    """Compiles a plan and measures its error and its first calls."""
    is_in_time: Callable[[], bool]
    tell: Callable[[str], object]
    notes: list[str]
    engines: Sequence[tuple[GraphCompiler, bool]]
    """Those that keep integers, each with whether the rest is in bf16."""
    known: PrecisionRecord | None = None
    """What searches with other budgets on the same examples have found."""
    is_cut_off: bool = False
    _tried: dict[_Key, Attempt] = field(default_factory=dict)
    _sensed: dict[bool, dict[str, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Try the forms of the whole model, what is known to be within budgets, and forms with nodes in float32."""
        if reason := self._why_not_quantized():
            self.notes.append(reason)
            return
        wholes = [self._try(engine, is_halved, form) for engine, is_halved, form in self._list_static() if self._may_go_on()]
        self._try_products()
        self._note_other_products()
        self._try_known()
        if not self.terms.is_strict:
            self._keep_nodes(wholes)

    def _may_go_on(self) -> bool:
        if not self.is_in_time() and not self.is_cut_off:
            self.is_cut_off = True
            self.notes.append("the budget of time ended before all quantized forms were tried")
        return not self.is_cut_off

    # ------------------------------------------------------------------ the model

    @cached_property
    def prepared(self) -> Function:
        """The model in the form that is quantized."""
        return prepare_for_quantization(self.function)

    @cached_property
    def _choices(self) -> list[tuple[int, str]]:
        """The nodes that may be quantized."""
        return [one for one in list_quantizable_nodes(self.prepared) if not self.terms.keeps(one[1], self.prepared)]

    @cached_property
    def fixed(self) -> frozenset[int]:
        """Positions of nodes that could be quantized, and that the caller wants in float32."""
        return frozenset(at for at, _ in list_quantizable_nodes(self.prepared)) - {at for at, _ in self._choices}

    @cached_property
    def _products(self) -> Any:
        return measure_products(self.prepared, [name for _, name in self._choices])

    def _why_not_quantized(self) -> str:
        """Return why there is no quantized form; empty where there is one."""
        if not {"int8", "int4"} & {*self.terms.allowed}:
            return "int8 is not among the precisions that are allowed"
        if any("quantize" in node.op.lower() or "QLinear" in node.op for node in self.function.nodes):
            return "int8 was not tried: the model is quantized already"
        if not self._choices:
            return "int8 was not tried: no product or convolution with constant weights may be quantized"
        return ""

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

    # ------------------------------------------------------------------ ranges

    @cached_property
    def _observed(self) -> ObservedValues:
        return ObservedValues(self.bench, self.prepared, self.calibrate, self.tell)

    @cached_property
    def table(self) -> CalibrationTable:
        """The ranges: given, or measured on the examples of calibration; those of the balanced model too."""
        if self.terms.table is not None:
            original = self.terms.original() if self.terms.original is not None else self.function
            table = fit_table(self.terms.table, self.prepared, original)
        elif self.known is not None and self.known.table is not None:
            table = self.known.table
        else:
            table = self._observed.measure_ranges()
        if not self.balance:
            return table
        factors = {one.name: np.exp2(np.array(one.exponents, np.float32)) for one in self.balance}
        keys = hash_values(self.balanced)
        channels = {}
        if any(table.find(keys[name]) is None for name in factors):
            channels = self._observed.measure_channels()
        divided = {name: (low / factors[name], high / factors[name]) for name, (low, high) in channels.items() if name in factors}
        return fit_balanced_table(table, self.prepared, self.balanced, divided)

    @cached_property
    def balance(self) -> tuple[BalancedValue, ...]:
        """What channels are divided by; nothing where there are no examples of calibration, or no value that can be balanced."""
        if self.known is not None and self.known.balance:
            return self.known.balance
        if not self.calibrate.items:
            return ()
        channels = self._observed.measure_channels()
        return find_balance(self.prepared, {name: np.maximum(-low, high) for name, (low, high) in channels.items()})

    @cached_property
    def balanced(self) -> Function:
        """The prepared model with balanced channels."""
        return balance_values(self.prepared, self.balance)

    # ------------------------------------------------------------------ forms of the whole

    def _list_static(self) -> Iterator[tuple[GraphCompiler, bool, QuantizedForm]]:
        if "int8" not in self.terms.allowed:
            return
        if not self.calibrate.items and self.terms.table is None:
            self.notes.append("static int8 was not tried: it needs calibrate=, examples to measure ranges on")
            return
        for engine, is_halved in self.engines:
            yield engine, is_halved, QuantizedForm(self.table, self.fixed, reduce_range=needs_reduced_range([engine]))
        for engine, is_halved in self.engines if self.balance else ():
            yield (
                engine,
                is_halved,
                QuantizedForm(self.table, self.fixed, balance=self.balance, reduce_range=needs_reduced_range([engine])),
            )

    def _try_products(self) -> None:
        """Try the forms of products alone, which leave convolutions in float32 and so are none for strict types."""
        exact = {engine.spec for engine in self.bench.engines}
        for engine, is_halved in () if self.terms.is_strict else self.engines:
            given = self.prepared, self._products, self.fixed, self.terms.allowed, engine
            for form, made in list_product_forms(*given, has_kernels=engine.spec in exact):
                if self._may_go_on():
                    self._try(engine, is_halved, form, made=made)

    def _try(
        self,
        engine: GraphCompiler,
        is_halved: bool,
        form: QuantizedForm,
        kept: Sequence[str] = (),
        made: Function | None = None,
    ) -> Attempt:
        """Measure a form, once."""
        form = replace(form, kept=form.kept | {at for at, name in self._choices if name in set(kept)})
        key = engine.spec, form.kind, bool(form.balance), form.kept
        if key not in self._tried:
            self.tell(f"quantizing, with {len(form.kept)} nodes in float32")
            plan = self.bench.plan_on(form.apply(self.prepared) if made is None else made, engine)
            words = describe_form(form, is_halved=is_halved)
            self._tried[key] = self.judge(Attempt(plan, words, (engine,), form, kept=tuple(kept)))
        return self._tried[key]

    def _try_known(self) -> None:
        """Try what searches with other budgets have found: more budget is then never slower."""
        names = dict(self._choices)
        for one in self.known.forms if self.known is not None else ():
            kept = [names[at] for at in one.kept if at in names]
            plain = QuantizedForm(None, self.fixed, one.form, self.balance if one.is_balanced else ())
            for engine, is_halved in self.engines:
                form = replace(plain, reduce_range=one.form in ("static", "dynamic") and needs_reduced_range([engine]))
                words = describe_form(form, is_halved=is_halved)
                is_it = (words, engine.spec) == (one.precision, one.engine) and one.is_balanced == bool(form.balance)
                if is_it and kept and one.bound <= self.terms.budget.limit and self._may_go_on():
                    own = replace(form, table=self.table) if one.form == "static" else form
                    self._try(engine, is_halved, own, kept)

    # ------------------------------------------------------------------ which nodes stay in float32

    def _keep_nodes(self, wholes: Sequence[Attempt]) -> None:
        """Keep the nodes that cost most in float32 until the error is within each target."""
        bases, is_metric = self._choose_bases(wholes), callable(self.terms.budget.measure)
        targets = METRIC_TARGETS if is_metric else list_targets(self.terms.budget.limit, self.terms.budget.name)
        for target in targets if bases else ():
            for base in bases:
                if self._may_go_on() and (is_metric or base.found.bound > target):
                    self._keep_on(base, target, is_metric=is_metric)

    def _choose_bases(self, wholes: Sequence[Attempt]) -> list[Attempt]:
        """Return the fastest engine with the rest in float32, and that with the rest in bf16: each with its more exact form."""
        best: dict[str, Attempt] = {}
        for one in sorted(wholes, key=lambda one: one.found.bound):
            if one.outcome != "failed":
                best.setdefault(one.engines[0].spec, one)
        fastest: dict[bool, Attempt] = {}
        for one in sorted(best.values(), key=lambda one: one.first_calls):
            fastest.setdefault(one.precision.endswith("bf16"), one)
        return list(fastest.values())

    def find_errors(self, form: QuantizedForm) -> Mapping[str, float]:
        """Return by name of a node the error of quantizing it alone, as far as that was measured."""
        return self._sensed.get(bool(form.balance), {})

    def _sense(self, *, is_balanced: bool) -> Mapping[str, float]:
        """Return the error of quantizing each node alone, measured once."""
        if is_balanced in self._sensed:
            return self._sensed[is_balanced]
        examples = self.calibrate if self.calibrate.items else self.validate
        items, names = examples.items[:SENSED_ITEMS], [name for _, name in self._choices]
        model = make_switchable_model(self.balanced if is_balanced else self.prepared, self.table, names)
        program = self.bench.compile(self.bench.plan_exact(model), is_kept=False)
        off = np.zeros(len(names), bool)
        exact = [run_once(program, (*item.values, off)) for item in items]
        relative = self.terms.relative

        def measure_switches(switches: np.ndarray[Any, Any]) -> float:
            self.tell(f"measuring the error of {int(switches.sum())} of {len(names)} nodes alone")
            return relative.measure_error(exact, [run_once(program, (*item.values, switches)) for item in items], []).error

        try:
            self._sensed[is_balanced] = find_node_errors(names, measure_switches, self.is_in_time).errors
        finally:
            program.close()
        return self._sensed[is_balanced]

    def _keep_on(self, whole: Attempt, target: float, *, is_metric: bool) -> None:
        """Measure forms of an engine that keep more and more nodes until one is within a target."""
        form = whole.form
        assert form is not None  # it is quantized
        errors = self._sense(is_balanced=bool(form.balance))
        predicted = float(np.sqrt(sum(error**2 for error in errors.values() if np.isfinite(error))))
        bound, is_halved = whole.found.bound, whole.precision.endswith("bf16")
        factor = max(0.5, bound / predicted) if predicted and np.isfinite(bound) and not is_metric else 1.0
        floor = 0
        for _ in range(1 if is_metric else MOST_ATTEMPTS):
            if not self._may_go_on():
                return
            listed = choose_kept_nodes(errors, target / factor)
            listed = sorted(errors, key=lambda name: -errors[name])[: max(len(listed), floor)]
            if not listed or len(listed) > MOST_KEPT * len(errors):
                return
            found = self._try(whole.engines[0], is_halved, form, listed)
            if found.outcome == "failed" or found.found.bound <= target:
                return
            floor = 2 * len(listed) + 1
            factor *= max(1.2, found.found.bound / target) if np.isfinite(found.found.bound) else 2
