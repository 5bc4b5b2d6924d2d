"""The search for plans of lower precision: try candidates by expected gain, and measure the error of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from xrt.cache import CompileCache
from xrt.errors import CompileRefused, LockError
from xrt.formats.placement_file import LoweredOutcome, LoweredPlanRecord
from xrt.graph import Function, Node, TensorType, hash_values
from xrt.measure.timing import time_call
from xrt.partition import partition
from xrt.partition.partitioner import plan_from_assignment
from xrt.passes.quantize import list_balanced_values, list_calibrated_values, why_not_quantized
from xrt.passes.quantize.form import (
    OPTIONS,
    QuantizedForm,
    balance_values,
    find_balance,
    fit_balanced_table,
    fit_table,
    list_quantizable_nodes,
    prepare_for_quantization,
)
from xrt.passes.quantize.packed import why_not_matrix
from xrt.placement.profiler import run_once
from xrt.placement.race import is_allowed
from xrt.placement.report import format_error
from xrt.placement.result import describe_plan
from xrt.precision.budget import ErrorBudget, Measure, MeasuredError, find_fault, read_examples
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.collectors import Observer, group_by_bytes
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

MOST_NAMED = 32
"""Maximum float32 nodes named in the record of a plan."""


@dataclass(eq=False)
class Attempt:
    """A plan of lower precision, or the exact one."""

    plan: Plan
    precision: str
    engines: tuple[GraphCompiler, ...] = ()
    """The engines that only plans of lower precision use."""
    form: QuantizedForm | None = None
    """How the model is quantized; None if it is not."""
    exact_nodes: tuple[str, ...] = ()
    """The nodes in float32 to meet the budget, worst first."""
    program: Program | None = None
    error: MeasuredError = field(default_factory=lambda: MeasuredError(0.0))
    outcome: LoweredOutcome = "lost"
    note: str = ""
    seconds: float | None = None
    first_calls: float = 0.0
    """Seconds of the fastest call on a validation example."""

    @property
    def is_in_budget(self) -> bool:
        """Whether the plan may race: it ran, and its error is within the budget."""
        return self.program is not None and self.outcome not in ("over", "wrong", "failed")

    @property
    def title(self) -> str:
        return describe_plan(self.plan)

    def close(self) -> None:
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def to_record(self) -> LoweredPlanRecord:
        """Convert to a record for storage."""
        errors = {name: getattr(self.error, name) for name in ("error", "high", "worst")}
        return LoweredPlanRecord(
            self.title,
            self.precision,
            self.outcome,
            **{name: value if value is not None and math.isfinite(value) else None for name, value in errors.items()},
            seconds=self.seconds,
            exact_count=len(self.exact_nodes),
            nodes=tuple(name[:400] for name in self.exact_nodes[:MOST_NAMED]),
            note=self.note[:1000],
        )


@dataclass
class Workbench:
    """Compiles plans and runs them on examples."""

    request: PlacementRequest
    cache: CompileCache
    """The cache for plans that may be chosen."""
    engines: Sequence[GraphCompiler]
    """The exact engines, fastest first, the implicit one last."""
    scratch: CompileCache = field(default_factory=CompileCache)
    """The cache for models that are only used to measure."""

    def plan_exact(self, function: Function) -> Plan:
        """Plan on the fastest exact engine that supports the whole Function, else by priority."""
        for engine in self.engines:
            # One region is compiled once, and needs no transfers; its time does not matter here.
            if all(engine.why_not(node, function) is None for node in function.nodes):
                return self._partition(function, [engine])
        return self._partition(function, self.engines)

    def plan_on(self, function: Function, engine: GraphCompiler, exact_nodes: Collection[str] = ()) -> Plan:
        """Plan the supported nodes on ``engine``, except ``exact_nodes``; the others run on exact engines."""
        supported = {node.name for node in function.nodes if engine.why_not(node, function) is None}
        if not exact_nodes and len(supported) == len(function.nodes):
            return self._partition(function, [engine])
        others = [other for other in self.engines if other.spec != engine.spec]
        if not exact_nodes:
            return self._partition(function, [engine, *others])
        # Each node is assigned: `partition` would place all nodes on the engine that it supports.
        by_priority = self._partition(function, others)
        homes = {name: launch.engine for launch in by_priority.launches for name in launch.nodes}
        homes |= dict.fromkeys(supported - set(exact_nodes), engine.spec)
        implicit, device = self._find_implicit(others), self.request.device_map
        return plan_from_assignment(function, [engine, *others], homes, implicit=implicit, device=device)

    def _partition(self, function: Function, engines: Sequence[GraphCompiler]) -> Plan:
        request = self.request
        return partition(
            function,
            engines,
            # Limits and pins are checked when the plan is tried, with a note; partitioning must not fail here.
            replace(request.clustering, minimum_nodes=1, maximum_nodes=None, pins=()),
            implicit=self._find_implicit(engines),
            device=request.device_map,
        )

    def _find_implicit(self, engines: Sequence[GraphCompiler]) -> str | None:
        implicit = self.request.implicit
        return implicit if any(engine.spec == implicit for engine in engines) and len(engines) > 1 else None

    def compile(self, plan: Plan, extra: Sequence[GraphCompiler] = (), *, is_scratch: bool = False) -> Program:
        """Compile a plan; raises CompileRefused if an engine refuses a part of it."""
        engines = {engine.spec: engine for engine in (*self.engines, *extra)}
        compiled = compile_plan(plan, engines, self.request.context, self.scratch if is_scratch else self.cache)
        if not isinstance(compiled, Program):
            raise CompileRefused("; ".join(dict.fromkeys(refusal.reason for refusal in compiled)))
        return compiled

    def run(self, program: Program, examples: Examples) -> tuple[list[list[Any]], float]:
        """Run all examples; return the outputs of each, and the seconds of the fastest call."""
        timed = [time_call(partial(run_once, program, item.values)) for item in examples.items]
        return [outputs for outputs, _ in timed], min((seconds for _, seconds in timed), default=0.0)


def observe(
    bench: Workbench, function: Function, examples: Examples, names: Sequence[str], report: Callable[[str], object]
) -> Iterator[dict[str, Any]]:
    """Yield the named values for each example."""
    inputs = [value.name for value in function.inputs]
    with ExitStack() as stack:
        programs = []
        for group in group_by_bytes([name for name in names if name not in inputs], function) or [()]:
            # Inner values become outputs, in groups that fit into memory.
            observed = function.replace(outputs=tuple(function.value(name) for name in group) or function.outputs)
            programs.append((group, bench.compile(bench.plan_exact(observed), is_scratch=True)))
            stack.callback(programs[-1][1].close)
        for number, item in enumerate(examples.items):
            report(f"calibrating on batch {number + 1} of {len(examples)}")
            values = {name: value for name, value in zip(inputs, item.values, strict=True) if name in names}
            for group, program in programs:
                values.update(zip(group, run_once(program, item.values), strict=False))
            yield values


# ---------------------------------------------------------------------- the search

METRIC_TARGETS = (0.05, 0.02, 0.005)
"""Relative errors to aim at by keeping nodes in float32, if the budget uses the caller's metric."""
MOST_ATTEMPTS = 3
"""Maximum selections of float32 nodes to try, for each base form."""
MOST_EXACT = 0.75
"""Maximum share of the nodes that may stay in float32: with more there is little left to gain."""
SENSED_ITEMS = 2
"""Number of examples on which the error of each node is measured."""


@dataclass(eq=False)
class PrecisionSearch:
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
        """Try while there is time: 16-bit floats, full int8 forms, products only, then forms with some nodes in float32."""
        try:
            # Floats of 16 bits need no calibration, so that they come first.
            for precision, engine in self._list_lowered(("bf16", "fp16")):
                exact_nodes = {node.name for node in self.function.nodes if self.options.is_exact(node.name, self.function)}
                self._try(Attempt(self.bench.plan_on(self.function, engine, exact_nodes), precision, (engine,)))
            self._try_integers()
        except OutOfTime:
            self.notes.append("the budget of time ended before all precisions were tried")
            self.is_cut_off = True

    @cached_property
    def expected(self) -> list[list[Any]]:
        """The outputs of the exact plan on the validation examples."""
        assert self.exact.program is not None  # it is compiled before the search
        outputs, self.exact.first_calls = self.bench.run(self.exact.program, self.validate)
        return outputs

    def _try(self, attempt: Attempt) -> Attempt:
        """Compile a plan, run it on the validation examples, and record its error and its outcome.

        Raises OutOfTime if there is no time left.
        """
        if not self.is_in_time():
            raise OutOfTime
        self.attempts.append(attempt)
        self.report(f"measuring the error of {attempt.precision} on {attempt.title}")
        if not is_allowed(attempt.plan, [*self.bench.engines, *attempt.engines], self.bench.request.clustering):
            attempt.outcome, attempt.note = "failed", "the options of clustering or pins do not allow it"
            return attempt
        try:
            attempt.program = self.bench.compile(attempt.plan, attempt.engines)
            # After the compile: a plan that is refused needs no outputs of the exact plan.
            expected = self.expected
            outputs, attempt.first_calls = self.bench.run(attempt.program, self.validate)
        except Exception as error:  # noqa: BLE001  # whatever an engine raises
            attempt.outcome, attempt.note = "failed", " ".join(str(error).split())
            attempt.close()
            return attempt
        if fault := find_fault(expected, outputs):
            # A large budget must not admit outputs that are constant or not finite.
            attempt.outcome, attempt.note, attempt.error = "wrong", fault, MeasuredError(np.inf)
        else:
            attempt.error = measure(self.options, self.validate, expected, outputs)
            attempt.outcome = "lost" if attempt.error.bound <= self.options.budget.limit else "over"
        if not attempt.is_in_budget:
            attempt.close()
        return attempt

    def _list_lowered(self, precisions: Sequence[Precision]) -> Iterator[tuple[Precision, GraphCompiler]]:
        """Yield the lower precisions that the exact engines offer, fastest engine first."""
        for precision in precisions:
            for engine in self.bench.engines if precision in self.options.allowed else ():
                lowered = engine.lower_precision(precision)
                if lowered is None:
                    continue
                if reason := lowered.unsupported_options(self.bench.request.context):
                    self.notes.append(f"{precision} on {engine.spec} was not tried: {reason}")
                else:
                    yield precision, lowered

    def describe_nearest(self) -> str:
        """Describe how close the plans over the budget came; empty if a plan is within it, or none was measured."""
        measured = [attempt for attempt in self.attempts if attempt.outcome == "over"]
        if not measured or any(attempt.is_in_budget for attempt in self.attempts):
            return ""
        best = min(measured, key=lambda attempt: attempt.error.bound)
        name, bound = self.options.budget.name, best.error.bound
        return (
            f"no lower precision is within the budget: the nearest is {best.precision} on {best.title}, "
            f"{format_error(bound, name)} of {format_error(self.options.budget.limit, name)}; float32 is kept"
        )

    # ------------------------------------------------------------------ integers

    @cached_property
    def prepared(self) -> Function:
        """The model, prepared for quantization."""
        return prepare_for_quantization(self.function)

    @cached_property
    def _choices(self) -> dict[str, int]:
        """The positions of the nodes that may be quantized, by name."""
        return {name: i for i, name in list_quantizable_nodes(self.prepared) if not self.options.is_exact(name, self.prepared)}

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The positions of the quantizable nodes that the caller keeps in float32."""
        return frozenset(i for i, _ in list_quantizable_nodes(self.prepared)) - set(self._choices.values())

    def _why_not_quantized(self) -> str:
        """Explain why the model is not quantized; empty if it can be."""
        if "int8" not in self.options.allowed:
            return "int8 is not among the precisions that are allowed"
        # Its author has chosen the ranges and the nodes, and XRT does not change a quantized model.
        if any("quantize" in node.op.lower() or "QLinear" in node.op for node in self.function.nodes):
            return "int8 was not tried: the model is quantized already"
        if not self._choices:
            return "int8 was not tried: no product or convolution with constant weights may be quantized"
        return ""

    def _try_integers(self) -> None:
        if reason := self._why_not_quantized():
            self.notes.append(reason)
            return
        engines = []
        for _, engine in self._list_lowered(("int8",)):
            engines.append((engine, ""))
            halved = engine.lower_precision("bf16") if "bf16" in self.options.allowed and not self.options.exact_nodes else None
            engines += [] if halved is None else [(halved, " and bf16")]
        engines.sort(key=lambda pair: bool(pair[1]))  # try those with the rest in bf16 last: they gain least
        wholes = []
        if self.calibrate.items or self.options.table is not None:
            # Without and with balanced channels: which of them has the lower error depends on the model.
            for balance in dict.fromkeys(((), self.balance)):
                for engine, rest in engines:
                    form = QuantizedForm(self.table, self.fixed, "static", balance, needs_reduced_range([engine]))
                    wholes.append(self._try_form(engine, rest, form))
        else:
            self.notes.append("static int8 was not tried: it needs calibrate=, examples to measure ranges on")
        # An engine that is its own int8 variant has integer kernels.
        exact = {engine.spec for engine in self.bench.engines}
        for engine, rest in engines:
            names = list(self._choices)
            for form, model in list_product_forms(self.prepared, names, self.fixed, engine, has_kernels=engine.spec in exact):
                self._try_form(engine, rest, form, model=model)
        self._note_other_products()
        self._try_exact_nodes(wholes)

    def _try_form(
        self, engine: GraphCompiler, rest: str, form: QuantizedForm, exact: Sequence[str] = (), model: Function | None = None
    ) -> Attempt:
        form = replace(form, exact_nodes=form.exact_nodes | {self._choices[name] for name in exact})
        self.report(f"quantizing, with {len(form.exact_nodes)} nodes in float32")
        plan = self.bench.plan_on(form.apply(self.prepared) if model is None else model, engine)
        return self._try(Attempt(plan, f"{describe_form(form)}{rest}", (engine,), form, tuple(exact)))

    def _note_other_products(self) -> None:
        """Note the products and convolutions that cannot be quantized."""
        reasons = [
            (node.op, reason)
            for node in self.prepared.nodes
            if node.op in _WITH_WEIGHTS and (reason := why_not_quantized(node, self.prepared, OPTIONS)) is not None
        ]
        for (op, reason), count in Counter(reasons).items():
            self.notes.append(f"float32 in any plan: {count} {op}, {reason}")

    # ------------------------------------------------------------------ ranges

    @cached_property
    def _observed_ranges(self) -> tuple[CalibrationTable | None, dict[str, tuple[Any, Any]]]:
        """The ranges of the values to quantize, and the extremes per channel of the values that can be balanced."""
        names = list_calibrated_values(self.prepared, OPTIONS) if self.options.table is None else []
        balanced, keys, observer = list_balanced_values(self.prepared), hash_values(self.prepared), Observer()
        channels: dict[str, tuple[Any, Any]] = {}
        if names or balanced:
            observed = list(dict.fromkeys([*names, *balanced]))
            for values in observe(self.bench, self.prepared, self.calibrate, observed, self.report):
                observer.add({keys[name]: (name, np.asarray(values[name])) for name in names})
                for name in balanced:
                    rows = np.asarray(values[name]).reshape(-1, np.shape(values[name])[-1])
                    low, high = channels.get(name, (np.inf, -np.inf))
                    # Extremes instead of a histogram: balancing needs the largest magnitude of each channel only.
                    channels[name] = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        return observer.make_table() if names else None, channels

    @cached_property
    def table(self) -> CalibrationTable:
        """The ranges, given or measured on the calibration examples, including those of the balanced model."""
        if self.options.table is not None:
            original = self.options.original() if self.options.original is not None else self.function
            table = fit_table(self.options.table, self.prepared, original)
        else:
            assert self._observed_ranges[0] is not None  # some node is quantized
            table = self._observed_ranges[0]
        if not self.balance:
            return table
        factors = {value.name: np.exp2(np.array(value.exponents, np.float32)) for value in self.balance}
        observed = self._observed_ranges[1]
        channels = {name: (observed[name][0] / factor, observed[name][1] / factor) for name, factor in factors.items()}
        return fit_balanced_table(table, self.prepared, balance_values(self.prepared, self.balance), channels)

    @cached_property
    def balance(self) -> tuple[BalancedValue, ...]:
        """The channel divisors; empty without calibration examples, or without values that can be balanced."""
        channels = self._observed_ranges[1] if self.calibrate.items else {}
        return find_balance(self.prepared, {name: np.maximum(-low, high) for name, (low, high) in channels.items()})

    # ------------------------------------------------------------------ nodes in float32

    def _try_exact_nodes(self, wholes: Sequence[Attempt]) -> None:
        """Keep the nodes with the largest errors in float32 until the error is within the limit.

        Start from the fastest engine, and from the fastest with bf16 for the rest, each with its more exact form.
        """
        best: dict[str, Attempt] = {}
        for whole in sorted(wholes, key=lambda whole: whole.error.bound):
            if whole.outcome != "failed":
                # The more exact form needs fewer nodes in float32.
                best.setdefault(whole.engines[0].spec, whole)
        bases: dict[bool, Attempt] = {}
        for whole in sorted(best.values(), key=lambda whole: whole.first_calls):
            bases.setdefault(whole.precision.endswith("bf16"), whole)
        budget = self.options.budget
        # Nodes are selected by relative error; a cosine distance is half its square.
        convert = (lambda error: math.sqrt(2 * error)) if budget.measure == "cosine" else float
        for base in bases.values():
            if callable(budget.measure):
                for target in METRIC_TARGETS:
                    self._try_exact(base, NodeSelection(self._measure_nodes(base), target))
            # A base within the limit races as it is.
            elif base.error.bound > budget.limit:
                selection = NodeSelection(self._measure_nodes(base), convert(budget.limit), convert(base.error.bound))
                for _ in range(MOST_ATTEMPTS):
                    attempt = self._try_exact(base, selection)
                    if attempt is None or attempt.outcome == "failed" or attempt.error.bound <= budget.limit:
                        break
                    selection.correct(convert(attempt.error.bound))

    def _try_exact(self, base: Attempt, selection: NodeSelection) -> Attempt | None:
        """Try a form with more nodes in float32; None if no node or too many are selected."""
        exact_nodes = selection.choose()
        if base.form is None or not exact_nodes or len(exact_nodes) > MOST_EXACT * len(self._choices):
            return None
        return self._try_form(base.engines[0], " and bf16" if base.precision.endswith("bf16") else "", base.form, exact_nodes)

    def find_errors(self, form: QuantizedForm) -> Mapping[str, float]:
        """The measured errors of quantizing each node alone, by name."""
        return self._errors.get(bool(form.balance), {})

    def _measure_nodes(self, base: Attempt) -> Mapping[str, float]:
        """Measure the error of quantizing each node alone; later calls reuse it."""
        is_balanced = base.form is not None and bool(base.form.balance)
        if is_balanced in self._errors:
            return self._errors[is_balanced]
        # Nodes are chosen on calibration data, so that the error on the validation data stays unbiased.
        items = (self.calibrate if self.calibrate.items else self.validate).items[:SENSED_ITEMS]
        names = list(self._choices)
        model = make_switchable_model(balance_values(self.prepared, self.balance if is_balanced else ()), self.table, names)
        program = self.bench.compile(self.bench.plan_exact(model), is_scratch=True)
        # The same program with all switches off: differences between engines do not count as errors.
        exact = [run_once(program, (*item.values, np.zeros(len(names), bool))) for item in items]

        def measure_part(part: Sequence[str]) -> float:
            self.report(f"measuring the error of {len(part)} of {len(names)} nodes alone")
            switches = np.isin(names, part)
            outputs = [run_once(program, (*item.values, switches)) for item in items]
            return self.options.relative.measure_error(exact, outputs, []).error

        try:
            self._errors[is_balanced] = find_node_errors(names, measure_part, self.is_in_time)
        finally:
            program.close()
        return self._errors[is_balanced]


def measure(
    options: PrecisionOptions, examples: Examples, expected: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]
) -> MeasuredError:
    """Measure the error; a metric gets whole batches, merged from the examples made of their rows."""
    if not callable(options.budget.measure):
        return options.budget.measure_error(expected, outputs, [item.example for item in examples.items])
    # A metric such as an accuracy expects the batches that the caller passed, with their labels.
    batches: dict[int, list[int]] = {}
    for place, item in enumerate(examples.items):
        batches.setdefault(item.batch, []).append(place)
    items = [examples.items[places[0]].example for places in batches.values()]
    merged = [[_merge([side[place] for place in places]) for places in batches.values()] for side in (expected, outputs)]
    return options.budget.measure_error(merged[0], merged[1], items)


def _merge(outputs: Sequence[Sequence[Any]]) -> Sequence[Any]:
    if len(outputs) == 1:
        return outputs[0]
    return [np.concatenate(column) if column[0].ndim else column[0] for column in zip(*outputs, strict=True)]


# ---------------------------------------------------------------------- forms of products alone

LEAST_SHARE = 0.1
"""Minimum share of the model's weights in matrices of products, for forms that quantize products only."""
FEW_ROWS = 16
"""A product with more rows is not bound by reading its weights: storing them in fewer bits saves no time."""
_WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_WORDS = {"static": "int8", "dynamic": "dynamic int8", "packed8": "int8 weights", "stored8": "int8 weights"}


def describe_form(form: QuantizedForm) -> str:
    """Describe the numeric type that a form computes in.

    >>> describe_form(QuantizedForm(kind="dynamic"))
    'dynamic int8'
    """
    return ("balanced " if form.balance else "") + _WORDS[form.kind]


def list_product_forms(
    prepared: Function, names: Sequence[str], fixed: frozenset[int], engine: GraphCompiler, *, has_kernels: bool
) -> Iterator[tuple[QuantizedForm, Function]]:
    """Yield the product-only forms that may be faster on an engine that supports them, each with its model.

    ``names`` are the nodes that may be quantized. Matrices are packed for an engine with a packed product, else stored as
    integers if reading them dominates. ``has_kernels``: whether the engine has integer kernels beyond pairs of QuantizeLinear and
    DequantizeLinear; MatMulInteger took 16 times as long on an engine without.
    """
    weights = {node.inputs[1] for node in prepared.nodes if node.op in _WITH_WEIGHTS and node.inputs[1] in prepared.constants}
    products = [node for node in map(prepared.node, names) if why_not_matrix(node, prepared, OPTIONS) is None]
    matrices = {node.inputs[1] for node in products}
    # In a model of convolutions, integer products save too little to be worth a trial.
    if sum(prepared.constants[m].nbytes for m in matrices) < LEAST_SHARE * sum(prepared.constants[w].nbytes for w in weights):
        return
    kinds: list[FormKind] = ["dynamic", "packed8"] if has_kernels else ["packed8"]
    if all(_count_rows(node, prepared) <= FEW_ROWS for node in products):
        kinds.append("stored8")
    has_weights = False
    for kind in kinds if matrices else ():
        if kind == "stored8" and has_weights:  # the packed form has the same weights
            continue
        form = QuantizedForm(None, fixed, kind, reduce_range=kind == "dynamic" and needs_reduced_range([engine]))
        model = form.apply(prepared)
        changed = (node for node in model.nodes if prepared.producer(node.outputs[0]) != node)
        if all(engine.why_not(node, model) is None for node in changed):
            has_weights = kind == "packed8"
            yield form, model


def _count_rows(node: Node, function: Function) -> float:
    type_ = function.get_type(node.inputs[0])
    shape = type_.shape if isinstance(type_, TensorType) else None
    return math.prod(extent if isinstance(extent, int) else math.inf for extent in shape[:-1]) if shape else math.inf


RACING = 3
"""Maximum plans that race with the exact one: the fastest by their first calls."""
FAR = 1.25
"""A plan does not race if its first call takes more than this many times that of the exact plan."""


def list_contenders(attempts: Sequence[Attempt], exact: float) -> list[Attempt]:
    """Select the plans to race with the exact one, whose first call took ``exact`` seconds."""
    return sorted((x for x in attempts if x.first_calls <= FAR * exact), key=lambda x: x.first_calls)[:RACING]


# ---------------------------------------------------------------------- the error of a locked plan


def check_error(
    setup: RegressionSetup, plan: Plan, record: PrecisionRecord, validate: Sequence[Any] | None, inputs: Sequence[Value]
) -> None:
    """Raise LockError if the error of a plan on the examples of its lock exceeds the lock's budget.

    The reference engine computes the expected outputs. Raises LockError too if the examples are missing or are others.
    """
    if record.measure not in get_args(Measure):
        raise LockError(
            f"the lock's error was measured by the metric {record.measure!r}, which only its own code can measure again"
        )
    if validate is None:
        raise LockError(
            f"the lock has a plan in {record.precision}, whose error must be measured again, and the examples of validation are "
            "not to be found; pass --validate"
        )
    examples = read_examples(validate, "validate", inputs)
    if record.validation and examples.digest != record.validation:
        raise LockError("the examples of validation are others than those of the lock; write the lock again with `xrt lock`")
    budget = ErrorBudget(record.limit, record.measure)  # type: ignore[arg-type]  # it was compared with the names above
    request = setup.request
    fitted = examples.fit(request.function, inputs)
    bench = Workbench(request, setup.cache, request.engines)
    program = bench.compile(plan)
    try:
        outputs, _ = bench.run(program, fitted)
    finally:
        program.close()
    # The reference must not update the examples, which the plan reads too.
    plain = request.function.replace(aliases=())
    expected = [list(setup.reference(plain, list(item.values))) for item in fitted.items]
    if fault := find_fault(expected, outputs):
        raise LockError(f"the plan in {record.precision} computes wrongly: {fault}")
    error = budget.measure_error(expected, outputs, [item.example for item in fitted.items])
    if error.bound > record.limit:
        now, limit, was = (format_error(number, record.measure) for number in (error.bound, record.limit, record.error))
        raise LockError(
            f"the error of the plan in {record.precision} is over the budget: up to {now}, and {limit} is allowed; it was {was} "
            "when it was locked"
        )
