"""Plans in integers: the quantized forms of the whole model first, then those with nodes in float32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.calibration.collectors import Observer, group_by_bytes
from xrt.graph import DType, Function, Node, TensorType, Value, hash_values
from xrt.passes import infer_shapes
from xrt.passes.quantize import list_balanced_values, list_calibrated_values, why_not_quantized
from xrt.passes.quantize.candidates import QuantizationOptions, find_root
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
from xrt.passes.quantize.weights import Emission, find_channel_axis, fit_activation, quantize_channels, require_opset
from xrt.precision.byte_sums import needs_reduced_range
from xrt.precision.execution import Attempt, Workbench, run_once

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.formats.placement_file import BalancedValue, FormKind, PrecisionRecord
    from xrt.precision.budget import Examples, PrecisionTerms

__all__ = [
    "IntegerForms",
    "NodeErrors",
    "ObservedValues",
    "ProductShape",
    "choose_kept_nodes",
    "describe_form",
    "find_node_errors",
    "list_contenders",
    "list_product_forms",
    "list_targets",
    "make_switchable_model",
    "measure_products",
]


@dataclass(eq=False)
class ObservedValues:
    """The values of a prepared model over the examples of calibration."""

    bench: Workbench
    prepared: Function
    examples: Examples
    tell: Callable[[str], object]
    channels: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The least and the greatest number of each channel of the values that can be balanced, once they were observed."""

    def measure_ranges(self) -> CalibrationTable:
        """Return the range of each value that is quantized; the channels are known then too."""
        names, keys = list_calibrated_values(self.prepared, OPTIONS), hash_values(self.prepared)
        observer = Observer()
        for values in self._run(list(dict.fromkeys([*names, *list_balanced_values(self.prepared)]))):
            observer.add({keys[name]: (name, np.asarray(values[name])) for name in names})
            self._add_channels(values)
        return observer.make_table()

    def measure_channels(self) -> dict[str, tuple[Any, Any]]:
        """Return the channels of the values that can be balanced; nothing runs where they are known."""
        names = list_balanced_values(self.prepared)
        if not self.channels and names:
            for values in self._run(names):
                self._add_channels(values)
        return self.channels

    def _add_channels(self, values: dict[str, Any]) -> None:
        for name in list_balanced_values(self.prepared):
            rows = np.asarray(values[name]).reshape(-1, np.shape(values[name])[-1])
            low, high = rows.min(axis=0), rows.max(axis=0)
            if name in self.channels:
                low, high = np.minimum(low, self.channels[name][0]), np.maximum(high, self.channels[name][1])
            self.channels[name] = low, high

    def _run(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of those names for each example."""
        given, outputs = [value.name for value in self.prepared.inputs], self.prepared.outputs
        programs = []
        for group in group_by_bytes([name for name in names if name not in given], self.prepared) or [()]:
            observed = self.prepared.replace(outputs=tuple(self.prepared.value(name) for name in group) or outputs)
            programs.append((group, self.bench.compile(self.bench.plan_exact(observed), is_kept=False)))
        for number, item in enumerate(self.examples.items):
            self.tell(f"calibrating on batch {number + 1} of {len(self.examples)}")
            found = {name: value for name, value in zip(given, item.values, strict=True) if name in names}
            for group, program in programs:
                found.update(zip(group, run_once(program, item.values), strict=False))
            yield found
        for _, program in programs:
            program.close()


SWITCH = "xrt_switches"
"""The input that says which nodes read rounded operands."""
MOST_PARTS = 32
"""How many parts are measured at first; those of larger models have several nodes."""
LARGE = 0.1
"""A part is divided where its error is a larger share of that of all parts together."""


def make_switchable_model(prepared: Function, table: CalibrationTable, names: Sequence[str]) -> Function:
    """Return the model with one more input, a boolean for each of those nodes: whether it reads rounded operands."""
    function, options, ranges = require_opset(prepared), QuantizationOptions(), table.bind(prepared)
    emission, places = Emission(function), {name: at for at, name in enumerate(names)}
    made: list[Node] = []
    for node in function.nodes:
        if node.name not in places:
            made.append(node)
            continue
        known = ranges[find_root(node.inputs[0], prepared)]
        found = fit_activation(known.low, known.high, options.activation_dtype, symmetric=options.symmetric_activations)
        floats = function.constants[node.inputs[1]].array
        weight = quantize_channels(floats, find_channel_axis(node, floats), options)
        rounded = (
            node.inputs[0] if found is None else emission.quantize(node.inputs[0], found),
            emission.dequantize(node.inputs[1], weight, (node.inputs[1], weight.axis)),
        )
        switch = f"{SWITCH}_{places[node.name]}"
        index = emission.add_constant(f"{switch}_at", np.array(places[node.name], np.int64))
        made.append(Node("Gather", (SWITCH, index), (switch,), name=switch))
        chosen = []
        for slot, near in enumerate(rounded):
            name = f"{switch}_{slot}"
            made.append(Node("Where", (switch, near, node.inputs[slot]), (name,), name=name))
            chosen.append(name)
        made.append(replace(node, inputs=(*chosen, *node.inputs[2:])))
    inputs = (*function.inputs, Value(SWITCH, TensorType(DType.BOOL, (len(names),))))
    return infer_shapes(emission.finish(made).replace(inputs=inputs))


@dataclass(frozen=True, slots=True)
class NodeErrors:
    """The error of each node alone; those of a part that was not divided share that of the part."""

    errors: dict[str, float]
    runs: int


def find_node_errors(
    names: Sequence[str], measure: Callable[[np.ndarray[Any, Any]], float], is_in_time: Callable[[], bool]
) -> NodeErrors:
    """Return the error of each node by runs with some of them switched on.

    Parts of consecutive nodes come first. Those with a large share of the error are divided while there is time, the worst first.
    """
    size = -(-len(names) // MOST_PARTS)
    parts = [tuple(range(at, min(at + size, len(names)))) for at in range(0, len(names), size)]
    known: dict[tuple[int, ...], float] = {}
    runs = 0

    def measure_part(part: tuple[int, ...]) -> None:
        nonlocal runs
        switches = np.zeros(len(names), bool)
        switches[list(part)] = True
        known[part], runs = measure(switches), runs + 1

    for part in parts:
        if not is_in_time() and known:
            known[part] = max(known.values())  # taken for as bad as the worst
        else:
            measure_part(part)
    largest = LARGE * math.sqrt(sum(error**2 for error in known.values() if math.isfinite(error)))
    while is_in_time() and (wide := [part for part in known if len(part) > 1 and known[part] > largest]):
        worst = max(wide, key=known.__getitem__)
        del known[worst]
        middle = len(worst) // 2
        measure_part(worst[:middle])
        measure_part(worst[middle:])
    return NodeErrors({names[at]: error / math.sqrt(len(part)) for part, error in known.items() for at in part}, runs)


def choose_kept_nodes(errors: Mapping[str, float], largest: float) -> list[str]:
    """Return the nodes to keep, worst first: the root of the sum of the squares of the others' errors is then within a limit."""
    order = sorted(errors, key=lambda name: -errors[name])
    rest = math.fsum(errors[name] ** 2 for name in order if math.isfinite(errors[name]))
    kept = []
    for name in order:
        if rest <= largest**2 and math.isfinite(errors[name]):
            break
        kept.append(name)
        rest -= errors[name] ** 2 if math.isfinite(errors[name]) else 0.0
    return kept


LEAST_SHARE = 0.1
"""Share of a model's weights that matrices of products must have for forms of products alone."""
FEW_ROWS = 16
"""A product of more rows is not bound by reading its weights: to store them in fewer bits alone saves it no time."""
_WORDS: Mapping[FormKind, str] = {
    "static": "int8",
    "dynamic": "dynamic int8",
    "packed8": "int8 weights",
    "stored8": "int8 weights",
    "packed4": "int4 weights",
    "stored4": "int4 weights",
}


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The products by constant matrices of a model."""

    share: float
    """Of the bytes of all weights of products and convolutions, those of these matrices."""
    rows: int
    """Of the operand with most rows; a large number where they are unknown."""

    @property
    def can_pay(self) -> bool:
        """Whether forms of products alone may be faster."""
        return self.share >= LEAST_SHARE


def measure_products(prepared: Function, names: Sequence[str]) -> ProductShape:
    """Return what matrices the nodes of those names have."""
    own, rows = 0, 0
    everything = sum(
        {
            node.inputs[1]: prepared.constants[node.inputs[1]].nbytes
            for node in prepared.nodes
            if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul") and node.inputs[1] in prepared.constants
        }.values()
    )
    seen: set[str] = set()
    for node in (prepared.node(name) for name in names):
        if why_not_matrix(node, prepared, OPTIONS) is None:
            own += 0 if node.inputs[1] in seen else prepared.constants[node.inputs[1]].nbytes
            seen.add(node.inputs[1])
            rows = max(rows, _count_rows(node, prepared))
    return ProductShape(own / everything if everything else 0.0, rows)


def _count_rows(node: Node, function: Function) -> int:
    type_ = function.get_type(node.inputs[0])
    count = 1
    for extent in (type_.shape or (None, None))[:-1] if isinstance(type_, TensorType) else (None,):
        if not isinstance(extent, int):
            return 1 << 30
        count *= extent
    return count


def describe_form(form: QuantizedForm, *, is_halved: bool = False) -> str:
    """Return what a form is computed in.

    >>> describe_form(QuantizedForm(kind="packed4"), is_halved=True)
    'int4 weights and bf16'
    """
    words = ("balanced " if form.balance else "") + _WORDS[form.kind]
    return f"{words} and bf16" if is_halved else words


def list_product_forms(
    prepared: Function,
    shape: ProductShape,
    fixed: frozenset[int],
    allowed: Sequence[str],
    engine: GraphCompiler,
    *,
    has_kernels: bool,
) -> Iterator[tuple[QuantizedForm, Function]]:
    """Yield the forms of products alone that may be faster on an engine that takes them whole, each with the model in it.

    Matrices are packed for an engine that has a product with packed ones. Another engine gets them as they are stored, where
    reading them is what takes time. ``has_kernels`` says whether the engine computes with integers that are no pairs of
    QuantizeLinear and DequantizeLinear: MatMulInteger took 16 times as long on one that does not.
    """
    few = shape.rows <= FEW_ROWS
    kinds: list[FormKind] = []
    if "int8" in allowed:
        kinds += ["dynamic"] if has_kernels else []
        kinds += ["packed8", "stored8"] if few else ["packed8"]
    if "int4" in allowed and few:
        kinds += ["packed4", "stored4"]
    done: set[str] = set()
    for kind in kinds if shape.can_pay else ():
        form = QuantizedForm(None, fixed, kind, reduce_range=kind == "dynamic" and needs_reduced_range([engine]))
        words = describe_form(form)
        if words in done:  # the packed form of the same weights
            continue
        made = form.apply(prepared)
        if all(engine.why_not(node, made) is None for node in made.nodes if prepared.producer(node.outputs[0]) != node):
            done.add(words)
            yield form, made


TARGETS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
"""Errors for which nodes are kept in float32."""
LAYERS = 3
"""How many plans that are both faster and as exact put another out of the race."""
FAR = 1.25
"""A plan whose first calls take so many times those of the exact plan does not race."""


def list_targets(limit: float, measure: str) -> tuple[float, ...]:
    """Return the errors that forms with nodes in float32 are made for, in the unit of the measure, the largest first.

    Those of a smaller limit are among them.

    >>> list_targets(0.012, "relative")
    (0.01, 0.005, 0.002, 0.001, 0.0005)
    """
    targets = (one**2 / 2 if measure == "cosine" else one for one in TARGETS)
    return tuple(one for one in targets if one <= limit)


def list_contenders(plans: Sequence[Attempt], limit: float, exact: float) -> list[Attempt]:
    """Return the plans within a limit that race with the exact one, whose first calls took ``exact`` seconds.

    Each has less than three others that are as exact and were faster. So a plan that races under a smaller limit races under a
    larger one too: what only the larger limit admits is less exact.
    """
    within = [one for one in plans if one.bound <= limit and one.first_calls <= FAR * exact]
    ranks = {id(one): (one.bound, one.first_calls, place) for place, one in enumerate(within)}

    def is_put_out(one: Attempt) -> bool:
        bound, seconds, place = ranks[id(one)]
        better = sum(b <= bound and (s, p) < (seconds, place) for b, s, p in ranks.values())
        return better >= LAYERS

    return [one for one in within if not is_put_out(one)]


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
class IntegerForms:
    """The quantized forms that may pay. Nothing depends on the limit of the budget but which targets nodes are kept for."""

    bench: Workbench
    terms: PrecisionTerms
    function: Function
    calibrate: Examples
    validate: Examples
    is_in_time: Callable[[], bool]
    tell: Callable[[str], object]
    notes: list[str]
    engines: Sequence[tuple[GraphCompiler, bool]]
    """Those that keep integers, each with whether the rest is in bf16."""
    known: PrecisionRecord | None = None
    """What searches with other budgets on the same examples have found."""
    _tried: dict[_Key, Attempt] = field(default_factory=dict)
    _sensed: dict[bool, dict[str, float]] = field(default_factory=dict)

    def propose(self) -> Iterator[Attempt]:
        """Yield forms of the whole model, those that earlier searches found within a budget, and forms with nodes in float32.

        Each is judged before the next one is requested.
        """
        if reason := self._why_not_quantized():
            self.notes.append(reason)
            return
        wholes = []
        for engine, is_halved, form in self._list_static():
            wholes.append((yield from self._propose_once(engine, is_halved, form)))
        yield from self._propose_products()
        self._note_other_products()
        yield from self._propose_known()
        yield from self._propose_kept(wholes)

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

    def _propose_products(self) -> Iterator[Attempt]:
        """Yield the forms of products alone, which leave convolutions in float32."""
        exact = {engine.spec for engine in self.bench.engines}
        for engine, is_halved in self.engines:
            given = self.prepared, self._products, self.fixed, self.terms.allowed, engine
            for form, made in list_product_forms(*given, has_kernels=engine.spec in exact):
                yield from self._propose_once(engine, is_halved, form, made=made)

    def _propose_once(
        self,
        engine: GraphCompiler,
        is_halved: bool,
        form: QuantizedForm,
        kept: Sequence[str] = (),
        made: Function | None = None,
    ) -> Generator[Attempt, None, Attempt]:
        """Yield the plan of a form unless it was yielded before; return it, judged."""
        form = replace(form, kept=form.kept | {at for at, name in self._choices if name in set(kept)})
        key = engine.spec, form.kind, bool(form.balance), form.kept
        if key not in self._tried:
            self.tell(f"quantizing, with {len(form.kept)} nodes in float32")
            plan = self.bench.plan_on(form.apply(self.prepared) if made is None else made, engine)
            words = describe_form(form, is_halved=is_halved)
            self._tried[key] = Attempt(plan, words, (engine,), form, kept=tuple(kept))
            yield self._tried[key]
        return self._tried[key]

    def _propose_known(self) -> Iterator[Attempt]:
        """Yield the forms that searches with other budgets found: more budget is then never slower."""
        names = dict(self._choices)
        for one in self.known.forms if self.known is not None else ():
            kept = [names[at] for at in one.kept if at in names]
            plain = QuantizedForm(None, self.fixed, one.form, self.balance if one.is_balanced else ())
            for engine, is_halved in self.engines:
                form = replace(plain, reduce_range=one.form in ("static", "dynamic") and needs_reduced_range([engine]))
                words = describe_form(form, is_halved=is_halved)
                is_it = (words, engine.spec) == (one.precision, one.engine) and one.is_balanced == bool(form.balance)
                if is_it and kept and one.bound <= self.terms.budget.limit:
                    own = replace(form, table=self.table) if one.form == "static" else form
                    yield from self._propose_once(engine, is_halved, own, kept)

    # ------------------------------------------------------------------ which nodes stay in float32

    def _propose_kept(self, wholes: Sequence[Attempt]) -> Iterator[Attempt]:
        """Yield forms that keep the nodes that cost most in float32 until the error is within each target."""
        bases, is_metric = self._choose_bases(wholes), callable(self.terms.budget.measure)
        targets = METRIC_TARGETS if is_metric else list_targets(self.terms.budget.limit, self.terms.budget.name)
        for target in targets if bases else ():
            for base in bases:
                if is_metric or base.found.bound > target:
                    yield from self._propose_within(base, target, is_metric=is_metric)

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

    def _propose_within(self, whole: Attempt, target: float, *, is_metric: bool) -> Iterator[Attempt]:
        """Yield forms of an engine that keep more and more nodes until one is within a target."""
        form = whole.form
        assert form is not None  # it is quantized
        errors = self._sense(is_balanced=bool(form.balance))
        predicted = float(np.sqrt(sum(error**2 for error in errors.values() if np.isfinite(error))))
        bound, is_halved = whole.found.bound, whole.precision.endswith("bf16")
        factor = max(0.5, bound / predicted) if predicted and np.isfinite(bound) and not is_metric else 1.0
        floor = 0
        for _ in range(1 if is_metric else MOST_ATTEMPTS):
            listed = choose_kept_nodes(errors, target / factor)
            listed = sorted(errors, key=lambda name: -errors[name])[: max(len(listed), floor)]
            if not listed or len(listed) > MOST_KEPT * len(errors):
                return
            found = yield from self._propose_once(whole.engines[0], is_halved, form, listed)
            if found.outcome == "failed" or found.found.bound <= target:
                return
            floor = 2 * len(listed) + 1
            factor *= max(1.2, found.found.bound / target) if np.isfinite(found.found.bound) else 2
