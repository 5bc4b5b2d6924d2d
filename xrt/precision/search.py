"""Search for plans of reduced precision: try precisions and quantized forms, largest expected gain first, and measure errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from xrt.cache import CompileCache
from xrt.errors import CompileRefused, LockError
from xrt.formats.placement_file import AttemptOutcome, AttemptRecord, QuantizedForm
from xrt.graph import Function, Node, TensorType, hash_values
from xrt.measure.timing import time_call
from xrt.partition import partition
from xrt.partition.partitioner import plan_from_assignment
from xrt.passes.quantize import list_balanced_values, list_calibrated_values, why_not_quantized
from xrt.passes.quantize.form import (
    DEFAULT_OPTIONS,
    balance_values,
    find_balance,
    fit_balanced_table,
    fit_table,
    list_quantizable_nodes,
    prepare_for_quantization,
    quantize_form,
)
from xrt.passes.quantize.packed import why_not_matrix
from xrt.placement.profiler import run_once
from xrt.placement.race import is_allowed
from xrt.placement.report import format_error
from xrt.placement.result import describe_plan
from xrt.precision.budget import ErrorBudget, Measure, MeasuredError, find_fault, measure_relative_error, read_examples
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.collectors import Observer, read_values
from xrt.precision.sensitivity import NodeSelection, find_node_errors, make_switchable_model
from xrt.processes.background import OutOfTime
from xrt.runtime import Program, compile_plan

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.engines.contract.options import Precision
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import BalancedValue, FormKind, PrecisionRecord
    from xrt.graph import Value
    from xrt.partition import Plan
    from xrt.placement.race import RegressionSetup
    from xrt.placement.result import PlacementRequest
    from xrt.precision.budget import Examples, PrecisionOptions

MAX_NAMED_NODES = 32
"""The record of a plan names at most this many of its float32 nodes."""


@dataclass(eq=False)
class Attempt:
    """A plan that the search tried, with its error and its time. The exact plan is an attempt too."""

    plan: Plan
    precision: str
    engines: tuple[GraphCompiler, ...] = ()
    """The engines of reduced precision, in addition to the exact engines."""
    form: QuantizedForm | None = None
    has_bf16: bool = False
    """Whether nodes that are not quantized are computed in bf16."""
    exact_nodes: tuple[str, ...] = ()
    """The nodes that stay in float32 to meet the budget, largest error first."""
    program: Program | None = None
    error: MeasuredError = field(default_factory=lambda: MeasuredError(0.0))
    outcome: AttemptOutcome = "lost"
    note: str = ""
    seconds: float | None = None
    first_calls: float = 0.0
    """Seconds of the fastest call on a validation example."""

    @property
    def is_in_budget(self) -> bool:
        """Whether the plan may be timed: it ran, and its error is within the budget."""
        return self.program is not None and self.outcome not in ("over", "wrong", "failed")

    def close(self) -> None:
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def to_record(self) -> AttemptRecord:
        def get_finite(value: float | None) -> float | None:
            return value if value is not None and math.isfinite(value) else None

        return AttemptRecord(
            describe_plan(self.plan),
            self.precision,
            self.outcome,
            error=get_finite(self.error.error),
            high=get_finite(self.error.high),
            worst=get_finite(self.error.worst),
            seconds=self.seconds,
            exact_count=len(self.exact_nodes),
            nodes=tuple(name[:400] for name in self.exact_nodes[:MAX_NAMED_NODES]),  # to keep the record short
            note=self.note,
        )


@dataclass
class Workbench:
    request: PlacementRequest
    cache: CompileCache
    """The cache for plans that may be chosen."""
    engines: Sequence[GraphCompiler]
    """The exact engines, fastest first, the implicit engine last."""
    scratch: CompileCache = field(default_factory=CompileCache)
    """The cache for models that only serve to measure ranges and errors."""

    def plan_exact(self, function: Function) -> Plan:
        """Place the Function on the fastest engine that supports all its nodes, or on several engines by priority."""
        for engine in self.engines:
            # A single region compiles fastest and needs no transfers.
            if all(engine.why_not(node, function) is None for node in function.nodes):
                return self._partition(function, [engine])
        return self._partition(function, self.engines)

    def plan_on(self, function: Function, engine: GraphCompiler, exact_nodes: Collection[str] = ()) -> Plan:
        """Place the nodes that ``engine`` supports on it, except ``exact_nodes``. Other nodes run on the exact engines."""
        supported = {node.name for node in function.nodes if engine.why_not(node, function) is None}
        other_engines = [other for other in self.engines if other.spec != engine.spec]
        if not exact_nodes:
            is_whole = len(supported) == len(function.nodes)
            return self._partition(function, [engine] if is_whole else [engine, *other_engines])
        # Assign each node explicitly: `partition` would also place `exact_nodes` on `engine` if it supports them.
        by_priority = self._partition(function, other_engines)
        assignment = {name: launch.engine for launch in by_priority.launches for name in launch.nodes}
        assignment |= dict.fromkeys(supported - set(exact_nodes), engine.spec)
        implicit, device_map = self._find_implicit(other_engines), self.request.device_map
        return plan_from_assignment(function, [engine, *other_engines], assignment, implicit=implicit, device_map=device_map)

    def _partition(self, function: Function, engines: Sequence[GraphCompiler]) -> Plan:
        request = self.request
        return partition(
            function,
            engines,
            # `CandidateSearch._try` checks limits and pins, and adds a note instead of an error.
            replace(request.clustering, minimum_nodes=1, maximum_nodes=None, pins=()),
            implicit=self._find_implicit(engines),
            device_map=request.device_map,
        )

    def _find_implicit(self, engines: Sequence[GraphCompiler]) -> str | None:
        implicit = self.request.implicit
        is_listed = any(engine.spec == implicit for engine in engines)
        return implicit if is_listed and len(engines) > 1 else None  # a single engine was chosen for the whole Function

    def compile(self, plan: Plan, extra: Sequence[GraphCompiler] = (), *, is_scratch: bool = False) -> Program:
        engines = {engine.spec: engine for engine in (*self.engines, *extra)}
        compiled = compile_plan(plan, engines, self.request.context, self.scratch if is_scratch else self.cache)
        if not isinstance(compiled, Program):
            raise CompileRefused("; ".join(dict.fromkeys(refusal.reason for refusal in compiled)))
        return compiled

    def run(self, program: Program, examples: Examples) -> tuple[list[list[Any]], float]:
        timed = [time_call(partial(run_once, program, item.values)) for item in examples.items]
        fastest = min((seconds for _, seconds in timed), default=0.0)
        return [outputs for outputs, _ in timed], fastest


def observe_values(
    bench: Workbench, function: Function, examples: Examples, names: Collection[str], report: Callable[[str], object]
) -> Iterator[dict[str, Any]]:
    """Run the Function on each example and yield, per example, the inputs and inner values with these names."""
    programs: dict[tuple[str, ...], Program] = {}

    def run(values: Sequence[Any], fetch: tuple[str, ...]) -> list[Any]:
        if fetch not in programs:
            observed = function.replace(outputs=tuple(function.value(name) for name in fetch))
            programs[fetch] = bench.compile(bench.plan_exact(observed), is_scratch=True)
        return run_once(programs[fetch], values)

    try:
        for number, item in enumerate(examples.items):
            report(f"calibrating on batch {number + 1} of {len(examples)}")
            inputs = {value.name: array for value, array in zip(function.inputs, item.values, strict=True)}
            yield read_values(function, names, inputs, partial(run, item.values))
    finally:
        for program in programs.values():
            program.close()


METRIC_TARGETS = (0.05, 0.02, 0.005)
"""Relative errors to aim at when nodes stay in float32, for a budget with the caller's metric, which cannot be predicted."""
MAX_SELECTIONS_PER_FORM = 3
"""Maximum number of selections of float32 nodes that are tried per quantized form."""
MAX_EXACT_SHARE = 0.75
"""Maximum share of the quantizable nodes that may stay in float32. With more, there is little left to gain."""
SENSITIVITY_EXAMPLES = 2
"""Number of examples on which the error of each node is measured."""


@dataclass(eq=False)
class CandidateSearch:
    """The state of one search; `attempts` lists the plans it tried."""

    bench: Workbench
    options: PrecisionOptions
    function: Function
    exact: Attempt
    calibrate: Examples
    validate: Examples
    is_in_time: Callable[[], bool]
    report: Callable[[str], object]
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_cut_off: bool = False
    _errors: dict[bool, dict[str, float]] = field(default_factory=dict)
    """The error of quantizing each node alone, by whether channels are balanced."""

    def run(self) -> None:
        """Try 16-bit floats, then int8 for all nodes, for products only, and with some nodes in float32, until time runs out."""
        try:
            # Floats of 16 bits come first because they need no calibration.
            for precision, engine in self._list_reduced_engines(("bf16", "fp16")):
                exact_nodes = {node.name for node in self.function.nodes if self.options.is_exact(node.name, self.function)}
                self._try(Attempt(self.bench.plan_on(self.function, engine, exact_nodes), precision, (engine,)))
            self._try_integers()
        except OutOfTime:
            self.notes.append("the budget of time ended before all precisions were tried")
            self.is_cut_off = True
        except KeyboardInterrupt:
            self.notes.append("it was interrupted before all precisions were tried")
        self._note_nearest()

    @cached_property
    def expected(self) -> list[list[Any]]:
        assert self.exact.program is not None  # compiled before the search
        outputs, self.exact.first_calls = self.bench.run(self.exact.program, self.validate)
        return outputs

    def _try(self, attempt: Attempt) -> Attempt:
        """Add an attempt to `attempts`, run its plan, and set its error and outcome. Raises OutOfTime if no time is left."""
        if not self.is_in_time():
            raise OutOfTime
        self.attempts.append(attempt)
        self.report(f"measuring the error of {attempt.precision} on {describe_plan(attempt.plan)}")
        if not is_allowed(attempt.plan, [*self.bench.engines, *attempt.engines], self.bench.request.clustering):
            attempt.outcome, attempt.note = "failed", "the options of clustering or pins do not allow it"
            return attempt
        try:
            attempt.program = self.bench.compile(attempt.plan, attempt.engines)
            # After the compile: the first access runs the exact plan, which is not needed for a plan that does not compile.
            expected = self.expected
            outputs, attempt.first_calls = self.bench.run(attempt.program, self.validate)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            attempt.outcome, attempt.note = "failed", " ".join(str(error).split())
            attempt.close()
            return attempt
        if fault := find_fault(expected, outputs):
            # Even a large budget must not admit outputs that are constant or not finite.
            attempt.outcome, attempt.note, attempt.error = "wrong", fault, MeasuredError(np.inf)
        else:
            attempt.error = measure_plan_error(self.options, self.validate, expected, outputs)
            attempt.outcome = "lost" if attempt.error.bound <= self.options.budget.limit else "over"
        if not attempt.is_in_budget:
            attempt.close()
        return attempt

    def _list_reduced_engines(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, GraphCompiler]]:
        """Yield each allowed precision with each engine that computes in it, fastest engine first."""
        for precision in precisions:
            if precision not in self.options.allowed:
                continue
            for engine in self.bench.engines:
                reduced_engine = engine.with_precision(precision)
                if reduced_engine is None:
                    continue
                if reason := reduced_engine.unsupported_options(self.bench.request.context):
                    self.notes.append(f"{precision} on {engine.spec} was not tried: {reason}")
                else:
                    yield precision, reduced_engine

    def _note_nearest(self) -> None:
        """If all plans are over the budget, add a note with the plan of the smallest error."""
        over_budget = [attempt for attempt in self.attempts if attempt.outcome == "over"]
        if not over_budget or any(attempt.is_in_budget for attempt in self.attempts):
            return
        nearest = min(over_budget, key=lambda attempt: attempt.error.bound)
        name = self.options.budget.name
        self.notes.append(
            f"no reduced precision is within the budget: the nearest is {nearest.precision} on {describe_plan(nearest.plan)}, "
            f"{format_error(nearest.error.bound, name)} of {format_error(self.options.budget.limit, name)}; float32 is kept"
        )

    @cached_property
    def prepared(self) -> Function:
        return prepare_for_quantization(self.function)

    @cached_property
    def _quantizable_nodes(self) -> dict[str, int]:
        """Maps the name of each node that may be quantized to its index in ``prepared.nodes``."""
        return {name: i for i, name in list_quantizable_nodes(self.prepared) if not self.options.is_exact(name, self.prepared)}

    @cached_property
    def fixed(self) -> frozenset[int]:
        """Indices into ``prepared.nodes`` of the quantizable nodes that the caller keeps in float32."""
        return frozenset(i for i, _ in list_quantizable_nodes(self.prepared)) - set(self._quantizable_nodes.values())

    def _why_not_quantized(self) -> str:
        if "int8" not in self.options.allowed:
            return "int8 is not among the precisions that are allowed"
        # The author of a quantized model has chosen its nodes and ranges; XRT does not change them.
        if any("quantize" in node.op.lower() or "QLinear" in node.op for node in self.function.nodes):
            return "int8 was not tried: the model is quantized already"
        if not self._quantizable_nodes:
            return "int8 was not tried: no product or convolution with constant weights may be quantized"
        return ""

    def _try_integers(self) -> None:
        """Try the int8 forms on each engine, with the other nodes in float32 and, if allowed, in bf16.

        1. If there are ranges, static int8 in all quantizable nodes.
        2. int8 in matrix products only.
        3. The attempts of step 1, with the nodes of the largest errors in float32.
        """
        if reason := self._why_not_quantized():
            self.notes.append(reason)
            return
        integer_engines = [engine for _, engine in self._list_reduced_engines(("int8",))]
        engines = [(engine, False) for engine in integer_engines]
        if "bf16" in self.options.allowed and not self.options.exact_nodes:
            # Last, because bf16 gains little once the products are quantized.
            mixed_engines = (engine.with_precision("bf16") for engine in integer_engines)
            engines += [(engine, True) for engine in mixed_engines if engine is not None]

        full_attempts = []
        if self.calibrate.items or self.options.table is not None:
            # It depends on the model whether balanced channels reduce the error.
            for balance in dict.fromkeys(((), self.balance)):
                for engine, has_bf16 in engines:
                    form = QuantizedForm(self.table, self.fixed, "static", balance, needs_reduced_range([engine]))
                    full_attempts.append(self._try_form(engine, form, has_bf16))
        else:
            self.notes.append("static int8 was not tried: it needs calibrate=, examples to measure ranges on")

        # `with_precision("int8")` returns the engine itself if it has integer kernels.
        integer_kernel_specs = {engine.spec for engine in self.bench.engines}
        names = list(self._quantizable_nodes)
        for engine, has_bf16 in engines:
            has_kernels = engine.spec in integer_kernel_specs
            for form, model in list_product_forms(self.prepared, names, self.fixed, engine, has_kernels=has_kernels):
                self._try_form(engine, form, has_bf16, model=model)
        self._note_unquantizable_nodes()
        self._try_exact_nodes(full_attempts)

    def _try_form(
        self, engine: GraphCompiler, form: QuantizedForm, has_bf16: bool, exact: Sequence[str] = (), model: Function | None = None
    ) -> Attempt:
        """Try a form on an engine, with the nodes ``exact`` in float32. ``model`` is the quantized model, if built already."""
        form = form.replace(exact_nodes=form.exact_nodes | {self._quantizable_nodes[name] for name in exact})
        self.report(f"quantizing, with {len(form.exact_nodes)} nodes in float32")
        plan = self.bench.plan_on(quantize_form(self.prepared, form) if model is None else model, engine)
        precision = f"{describe_form(form)} and bf16" if has_bf16 else describe_form(form)
        return self._try(Attempt(plan, precision, (engine,), form, has_bf16, tuple(exact)))

    def _note_unquantizable_nodes(self) -> None:
        """Add notes with the number of products and convolutions that cannot be quantized, by reason."""
        counts: Counter[tuple[str, str]] = Counter()
        for node in self.prepared.nodes:
            if node.op in _WITH_WEIGHTS and (reason := why_not_quantized(node, self.prepared, DEFAULT_OPTIONS)) is not None:
                counts[node.op, reason] += 1
        self.notes += [f"float32 in any plan: {count} {op}, {reason}" for (op, reason), count in counts.items()]

    @cached_property
    def _observed_ranges(self) -> tuple[CalibrationTable, dict[str, tuple[Any, Any]]]:
        """The table of ranges, and the extremes per channel of values that can be balanced."""
        hashes, observer = hash_values(self.prepared), Observer()
        keys = {name: hashes[name] for name in list_calibrated_values(self.prepared, DEFAULT_OPTIONS)}
        balanceable = list_balanced_values(self.prepared)
        extremes: dict[str, tuple[Any, Any]] = {}
        names = dict.fromkeys([*keys, *balanceable])
        for values in observe_values(self.bench, self.prepared, self.calibrate, names, self.report):
            observer.add(keys, values)
            for name in balanceable:
                array = np.asarray(values[name])
                rows = array.reshape(-1, array.shape[-1])  # the last axis has the channels
                low, high = extremes.get(name, (np.inf, -np.inf))
                extremes[name] = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        return observer.make_table(), extremes

    @cached_property
    def table(self) -> CalibrationTable:
        """The caller's ranges or the measured ranges, plus the ranges of balanced values after balancing."""
        if self.options.table is not None:
            original = self.options.original() if self.options.original is not None else self.function
            table = fit_table(self.options.table, self.prepared, original)
        else:
            table, _ = self._observed_ranges
        if not self.balance:
            return table
        _, channel_extremes = self._observed_ranges
        extremes = {}
        for value in self.balance:
            low, high = channel_extremes[value.name]
            divisors = np.exp2(np.array(value.exponents, np.float32))
            extremes[value.name] = low / divisors, high / divisors
        return fit_balanced_table(table, self.prepared, balance_values(self.prepared, self.balance), extremes)

    @cached_property
    def balance(self) -> tuple[BalancedValue, ...]:
        """The values whose channels are balanced, with a divisor per channel. Empty without calibration examples."""
        extremes: dict[str, tuple[Any, Any]] = {}
        if self.calibrate.items:
            _, extremes = self._observed_ranges
        return find_balance(self.prepared, {name: np.maximum(-low, high) for name, (low, high) in extremes.items()})

    def _try_exact_nodes(self, full_attempts: Sequence[Attempt]) -> None:
        """Keep the nodes with the largest errors in float32 until the error is within the limit.

        ``full_attempts`` are the attempts with all nodes in int8. The search continues from the fastest one of them, and from
        the fastest one with its other nodes in bf16.
        """
        best_by_engine: dict[str, Attempt] = {}
        for full_attempt in sorted(full_attempts, key=lambda attempt: attempt.error.bound):
            # Of the forms with and without balanced channels, the more exact one needs fewer nodes in float32.
            if full_attempt.outcome != "failed":
                best_by_engine.setdefault(full_attempt.engines[0].spec, full_attempt)
        fastest: dict[bool, Attempt] = {}
        for full_attempt in sorted(best_by_engine.values(), key=lambda attempt: attempt.first_calls):
            fastest.setdefault(full_attempt.has_bf16, full_attempt)

        budget = self.options.budget
        for base in fastest.values():
            if callable(budget.measure):
                for target in METRIC_TARGETS:
                    self._try_exact(base, NodeSelection(self._measure_nodes(base), target))
            elif base.error.bound > budget.limit:
                error = self._to_relative(base.error.bound)
                selection = NodeSelection(self._measure_nodes(base), self._to_relative(budget.limit), error)
                for _ in range(MAX_SELECTIONS_PER_FORM):
                    attempt = self._try_exact(base, selection)
                    if attempt is None or attempt.outcome == "failed" or attempt.error.bound <= budget.limit:
                        break
                    selection.correct(self._to_relative(attempt.error.bound))

    def _to_relative(self, error: float) -> float:
        """Convert an error in the budget's measure to a relative error, by which nodes are selected."""
        # A cosine distance is about half the square of the relative error.
        return math.sqrt(2 * error) if self.options.budget.measure == "cosine" else error

    def _try_exact(self, base: Attempt, selection: NodeSelection) -> Attempt | None:
        """Try the form of ``base`` with the selected nodes in float32. Return None if no node or too many are selected."""
        exact_nodes = selection.choose()
        if base.form is None or not exact_nodes or len(exact_nodes) > MAX_EXACT_SHARE * len(self._quantizable_nodes):
            return None
        return self._try_form(base.engines[0], base.form, base.has_bf16, exact_nodes)

    def get_node_errors(self, form: QuantizedForm) -> Mapping[str, float]:
        return self._errors.get(bool(form.balance), {})

    def _measure_nodes(self, base: Attempt) -> Mapping[str, float]:
        """Measure the error of quantizing each node alone, by node name.

        It depends on ``base`` only in whether channels are balanced, so each of the two cases is measured once.
        """
        is_balanced = base.form is not None and bool(base.form.balance)
        if is_balanced in self._errors:
            return self._errors[is_balanced]
        # Not the validation examples, if possible: nodes selected on them would have a smaller error there than elsewhere.
        examples = self.calibrate if self.calibrate.items else self.validate
        items = examples.items[:SENSITIVITY_EXAMPLES]
        names = list(self._quantizable_nodes)
        balanced_model = balance_values(self.prepared, self.balance if is_balanced else ())
        model = make_switchable_model(balanced_model, self.table, names)
        program = self.bench.compile(self.bench.plan_exact(model), is_scratch=True)
        # The same program with all switches off, so that differences between engines do not count as errors.
        exact = [run_once(program, (*item.values, np.zeros(len(names), bool))) for item in items]

        def measure_group(group: Sequence[str]) -> float:
            self.report(f"measuring the error of {len(group)} of {len(names)} nodes alone")
            switches = np.isin(names, group)
            outputs = [run_once(program, (*item.values, switches)) for item in items]
            return measure_relative_error(exact, outputs)

        try:
            self._errors[is_balanced] = find_node_errors(names, measure_group, self.is_in_time)
        finally:
            program.close()
        return self._errors[is_balanced]


def measure_plan_error(
    options: PrecisionOptions, examples: Examples, expected: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]
) -> MeasuredError:
    """Measure the error of outputs. For a metric, examples that are rows of one batch are joined again."""
    if not callable(options.budget.measure):
        return options.budget.measure_error(expected, outputs, [item.example for item in examples.items])
    # A metric such as an accuracy expects the batches that the caller passed, with their labels.
    batches: dict[int, list[int]] = {}
    for index, item in enumerate(examples.items):
        batches.setdefault(item.batch, []).append(index)
    items = [examples.items[indices[0]].example for indices in batches.values()]
    joined_expected = [_join([expected[index] for index in indices]) for indices in batches.values()]
    joined_outputs = [_join([outputs[index] for index in indices]) for indices in batches.values()]
    return options.budget.measure_error(joined_expected, joined_outputs, items)


def _join(examples: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Concatenate each output over the examples of a batch. A scalar output is taken from the first example."""
    if len(examples) == 1:
        return examples[0]
    return [np.concatenate(arrays) if arrays[0].ndim else arrays[0] for arrays in zip(*examples, strict=True)]


MIN_MATRIX_SHARE = 0.1
"""Products (Gemm, MatMul) are quantized without convolutions if their matrices have at least this share of all weight bytes."""
MAX_STORED8_ROWS = 16
"""The form ``stored8`` is tried if no product has more rows. With more, reading the weights no longer limits the speed."""
_WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_FORM_NAMES = {"static": "int8", "dynamic": "dynamic int8", "packed8": "int8 weights", "stored8": "int8 weights"}


def describe_form(form: QuantizedForm) -> str:
    """Describe a quantized form as reports print it.

    >>> describe_form(QuantizedForm(kind="dynamic"))
    'dynamic int8'
    """
    return ("balanced " if form.balance else "") + _FORM_NAMES[form.kind]


def list_product_forms(
    prepared: Function, names: Sequence[str], fixed: frozenset[int], engine: GraphCompiler, *, has_kernels: bool
) -> Iterator[tuple[QuantizedForm, Function]]:
    """Yield the forms that quantize matrix products only and that the engine supports, each with the quantized model.

    ``names`` are the nodes that may be quantized, ``fixed`` the indices of nodes that stay in float32. ``has_kernels`` tells
    whether the engine has integer kernels beyond pairs of QuantizeLinear and DequantizeLinear.
    """
    products = [node for node in map(prepared.node, names) if why_not_matrix(node, prepared, DEFAULT_OPTIONS) is None]
    matrices = {node.inputs[1] for node in products}
    weights = {node.inputs[1] for node in prepared.nodes if node.op in _WITH_WEIGHTS and node.inputs[1] in prepared.constants}
    matrix_bytes = sum(prepared.constants[name].nbytes for name in matrices)
    weight_bytes = sum(prepared.constants[name].nbytes for name in weights)
    # In a model of convolutions, integer products save too little to be worth a trial.
    if not matrices or matrix_bytes < MIN_MATRIX_SHARE * weight_bytes:
        return
    kinds: list[FormKind] = ["packed8"]
    if has_kernels:  # without, MatMulInteger of the dynamic form took 16 times as long
        kinds.insert(0, "dynamic")
    if all(_count_rows(node, prepared) <= MAX_STORED8_ROWS for node in products):
        kinds.append("stored8")
    for kind in kinds:
        form = QuantizedForm(None, fixed, kind, reduce_range=kind == "dynamic" and needs_reduced_range([engine]))
        model = quantize_form(prepared, form)
        changed = (node for node in model.nodes if prepared.producer(node.outputs[0]) != node)
        if all(engine.why_not(node, model) is None for node in changed):
            yield form, model
            if kind == "packed8":
                return  # stored8 would have the same weights


def _count_rows(node: Node, function: Function) -> float:
    """Count the rows of a product's left operand; infinity if its shape is not static."""
    type_ = function.get_type(node.inputs[0])
    shape = type_.shape if isinstance(type_, TensorType) else None
    if not shape:
        return math.inf
    return math.prod(extent if isinstance(extent, int) else math.inf for extent in shape[:-1])


def check_error(
    setup: RegressionSetup, plan: Plan, record: PrecisionRecord, validate: Sequence[Any] | None, inputs: Sequence[Value]
) -> None:
    """Measure the error of a locked plan again, and raise LockError if it exceeds the budget in the lockfile.

    The plan is compared with the reference engine on the validation examples that the lockfile was written with. Raises LockError
    too if these examples are missing or differ.
    """
    if record.measure not in get_args(Measure):
        raise LockError(f"the error in the lockfile was measured by the metric {record.measure!r}, which is not stored in it")
    if validate is None:
        raise LockError(
            f"the lockfile has a plan in {record.precision}, whose error must be measured again, and the validation examples are "
            "missing; pass --validate"
        )
    examples = read_examples(validate, "validate", inputs)
    if record.validation and examples.digest != record.validation:
        raise LockError("the validation examples differ from those of the lockfile; write it again with `xrt lock`")
    budget = ErrorBudget(record.limit, record.measure)  # type: ignore[arg-type]  # it was compared with the names above
    request = setup.request
    fitted = examples.fit(request.function, inputs)
    bench = Workbench(request, setup.cache, request.engines)
    program = bench.compile(plan)
    try:
        outputs, _ = bench.run(program, fitted)
    finally:
        program.close()
    # Without aliases the reference does not update the examples, which the next call reads too.
    without_aliases = request.function.replace(aliases=())
    expected = [list(setup.reference(without_aliases, list(item.values))) for item in fitted.items]
    if fault := find_fault(expected, outputs):
        raise LockError(f"the plan in {record.precision} computes wrong results: {fault}")
    error = budget.measure_error(expected, outputs, [item.example for item in fitted.items])
    if error.bound > record.limit:
        raise LockError(
            f"the error of the plan in {record.precision} is over the budget: up to {format_error(error.bound, record.measure)}, "
            f"and {format_error(record.limit, record.measure)} is allowed; it was {format_error(record.error, record.measure)} "
            "when it was locked"
        )
