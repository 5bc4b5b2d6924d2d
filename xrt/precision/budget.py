"""Error budgets: compare the outputs of a plan with those of the exact plan, and limit the difference."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from xrt.engines.contract.options import LOWER_PRECISIONS, Precision
from xrt.errors import CalibrationError, InputError, OptionError, did_you_mean
from xrt.graph import Function, NodePattern, TensorType, Value
from xrt.placement.report import describe_budget
from xrt.runtime import to_host
from xrt.runtime.inputs import read

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

MOST_GROUPS = 20
"""Maximum number of groups of items in the jackknife of a metric."""
NORMAL = 1.959964
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


def find_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, to three digits."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return NORMAL + 2.3722 / freedom + 2.8225 / freedom**2  # Abramowitz and Stegun 26.7.5


def bound_mean(values: Sequence[float]) -> float:
    """Half-width of the 95 % interval of a mean, by Student's t; 0 for one value, or if one is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return find_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def bound_share(shares: Sequence[tuple[int, int]]) -> float:
    """Upper end of the 95 % interval of a share of rows, from the hits and the rows of each item.

    The larger of Wilson's bound for independent rows, which is above zero even without a hit, and the bound by Student's t on the
    shares of items, since rows of one item may be correlated.
    """
    hits, rows = sum(changed for changed, _ in shares), sum(count for _, count in shares)
    share, square = hits / rows, NORMAL**2
    middle = share + square / (2 * rows)
    spread = NORMAL * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    # Rows of one item, such as the words of a sentence, fail together more often than independent ones.
    by_items = share + bound_mean([changed / count for changed, count in shares if count])
    return min(1.0, max((middle + spread) / (1 + square / rows), by_items))


def bound_metric(loss: Callable[[Sequence[int]], float], items: int) -> float | None:
    """Upper end of the 95 % interval of a metric's loss over the items; None for one item, or if a subset has no metric.

    ``loss`` maps the positions of the items to use to a loss, and may raise CalibrationError. The interval is by the jackknife
    (Quenouille 1956, Tukey 1958): the loss is computed without each of at most 20 groups of items. For a mean over items this
    equals Student's interval; for a discontinuous metric, such as a median, it may be too wide or too narrow.
    """
    # Each group is another call of the metric, which may be slow.
    groups = min(items, MOST_GROUPS)
    if groups < 2:
        return None
    try:
        parts = [loss([index for index in range(items) if index % groups != group]) for group in range(groups)]
        total = loss(range(items))
    except CalibrationError:
        return None
    # The losses without one group vary less than those of groups, by this factor.
    spread = math.sqrt((groups - 1) * float(np.var(parts)))
    return total + find_t(groups - 1) * spread


Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = Sequence[Sequence[Any]]
"""The outputs of a model, in order, for each item."""
Measure: TypeAlias = Literal["relative", "cosine", "top1"]
Metric: TypeAlias = Callable[[list[Any], list[Any]], float]
WRONG = 0.5
"""Relative error above which outputs are wrong, whatever the budget."""


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """The error of a plan over a set of items."""

    error: float
    high: float | None = None
    """Upper end of the 95 % interval; None if a metric cannot be computed on parts of the examples."""
    worst: float | None = None
    """The error of the worst item; None for a metric."""

    @property
    def bound(self) -> float:
        """The error to compare with the budget: the upper end of the interval, if there is one."""
        return self.error if self.high is None else max(self.error, self.high)


@dataclass(frozen=True)
class ErrorBudget:
    """The largest error that a plan may have, against the model in float32.

    ``measure`` is ``"relative"``, the norm of the difference over that of the output; ``"cosine"``, one minus the cosine
    similarity; ``"top1"``, the share of rows whose largest element changes; or your metric: a function of the outputs of all
    items and of the items, as you passed them, to a number such as an accuracy, which may drop by ``limit`` (or rise by it, with
    ``higher_is_better=False``). With several outputs, the largest error counts.
    """

    limit: float
    measure: Measure | Metric = "relative"
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int | float) or not 0 <= self.limit < math.inf:
            raise OptionError(f"the limit of an ErrorBudget is a number, 0 or more, such as 0.01; got {self.limit!r}")
        if not callable(self.measure) and self.measure not in get_args(Measure):
            measures = get_args(Measure)
            raise OptionError(
                f"measure must be one of {', '.join(measures)}, or a function of outputs and items; got {self.measure!r}."
                f"{did_you_mean(str(self.measure), measures)}"
            )

    @property
    def name(self) -> str:
        """The name of the measure."""
        if isinstance(self.measure, str):
            return self.measure
        return str(getattr(self.measure, "__qualname__", type(self.measure).__qualname__))

    def __str__(self) -> str:
        return describe_budget(self.name, self.limit)

    def measure_error(self, expected: Outputs, actual: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Measure the error; ``items`` are passed to a metric. Raises CalibrationError if the metric fails."""
        if callable(self.measure):
            return self._measure_loss(self.measure, expected, actual, items)
        if self.measure == "top1":
            return _measure_other_rows(expected, actual)
        distances = [_DISTANCES[self.measure](a, b) for a, b in zip(expected, actual, strict=True)]
        places = range(len(distances[0]) if distances else 0)
        return max((_summarize([item[place] for item in distances]) for place in places), key=lambda error: error.bound)

    def _measure_loss(self, metric: Metric, expected: Outputs, actual: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Measure the loss of a metric, and its bound over the items."""
        sign = 1.0 if self.higher_is_better else -1.0

        def measure_loss(places: Sequence[int]) -> float:
            selected = [items[index] for index in places]
            before, after = (self._call(metric, [outputs[index] for index in places], selected) for outputs in (expected, actual))
            return sign * (before - after)

        loss = measure_loss(range(len(items)))
        # A sample without a loss does not prove that there is none, so that the bound counts.
        high = bound_metric(measure_loss, len(items))
        return MeasuredError(max(0.0, loss), None if high is None else max(0.0, loss, high))

    def _call(self, metric: Metric, outputs: Outputs, items: Sequence[Any]) -> float:
        """Call the metric with the outputs of each item: an array for a model of one output, else a tuple of arrays."""
        results = [item[0] if len(item) == 1 else tuple(item) for item in outputs]
        try:
            value = float(metric(results, list(items)))
        except Exception as error:
            raise CalibrationError(f"the metric {self.name} raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise CalibrationError(f"the metric {self.name} returned {value}; it must return a finite number")
        return value


def parse_budget(value: Any) -> ErrorBudget | None:
    """Parse ``max_error``: a share, an ErrorBudget or None; raises OptionError for anything else."""
    if value is None or isinstance(value, ErrorBudget):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"max_error is a share such as 0.01, an xrt.ErrorBudget or None; got {value!r}")
    if not 0 <= value < WRONG:
        hint = f"; did you mean {value / 100:g}?" if WRONG <= value < 100 * WRONG else ""
        raise OptionError(f"max_error is a share of 0 to below {WRONG}, such as 0.01 for 1 %; got {value!r}{hint}")
    return ErrorBudget(float(value))


# ---------------------------------------------------------------------- distances


def _list_floats(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Pair the float outputs, or all numeric outputs if there are none, as float64."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True)]
    floats = [(a, b) for a, b in pairs if a.dtype.kind == "f"]
    return [(a.astype(np.float64), b.astype(np.float64)) for a, b in floats or pairs if a.dtype.kind in "fiub"]


def _measure_relative(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[float, float]]:
    """Per output, the squared norms of the difference and of the expected output."""
    return [_compute_squares(a, b) for a, b in _list_floats(expected, actual)]


def _compute_squares(a: Array, b: Array) -> tuple[float, float]:
    usable = np.isfinite(a)
    # Infinities and NaN of the exact model, such as of masks, must be reproduced; the error is of the other numbers.
    if not np.array_equal(a[~usable], b[~usable], equal_nan=True) or not np.isfinite(b[usable]).all():
        return math.inf, 1.0
    return float(((a[usable] - b[usable]) ** 2).sum()), float((a[usable] ** 2).sum())


def _measure_cosine(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[float, float]]:
    """Per output, the squared cosine distance and 1, so that all items have the same weight."""
    distances = []
    for a, b in _list_floats(expected, actual):
        norm = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
        equal = np.array_equal(a, b, equal_nan=True)
        distances.append(0.0 if equal else 1.0 - float((a * b).sum()) / norm if norm > 0 and math.isfinite(norm) else math.inf)
    return [(max(0.0, distance) ** 2, 1.0) for distance in distances]


_DISTANCES = {"relative": _measure_relative, "cosine": _measure_cosine}


def _summarize(squares: Sequence[tuple[float, float]]) -> MeasuredError:
    """Combine the errors of one output over items: the root of the summed squares, its bound, and the worst item."""
    total, norm = (sum(column) for column in zip(*squares, strict=True))
    if not math.isfinite(total) or (total and not norm):
        return MeasuredError(math.inf, math.inf, math.inf)
    error = math.sqrt(total / norm) if total else 0.0
    errors = [math.sqrt(a / b) if b else (math.inf if a else 0.0) for a, b in squares]
    return MeasuredError(error, error + bound_mean(errors), max(errors))


def _measure_other_rows(expected: Outputs, actual: Outputs) -> MeasuredError:
    """Measure the share of rows whose largest element changes, its bound, and the share of the worst item."""
    shares = [_count_other_rows(a, b) for a, b in zip(expected, actual, strict=True)]
    rows = sum(count for _, count in shares)
    if not rows:
        raise CalibrationError(
            "measure='top1' compares the largest elements of rows, and no output has rows of floats; use measure='relative' or a "
            "metric of your own"
        )
    worst = max(other / count for other, count in shares if count)
    return MeasuredError(sum(other for other, _ in shares) / rows, bound_share(shares), worst)


def _count_other_rows(expected: Sequence[Any], actual: Sequence[Any]) -> tuple[int, int]:
    """Count the rows of the first float output whose largest element changes, and all its rows."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True)]
    a, b = next(((a, b) for a, b in pairs if a.dtype.kind == "f" and a.ndim), (np.zeros((0, 1)), np.zeros((0, 1))))
    if not a.size:
        return 0, 0
    rows = a.reshape(-1, a.shape[-1])
    same = rows.argmax(-1) == b.reshape(-1, a.shape[-1]).argmax(-1)
    return int((~same).sum()), len(rows)


# ---------------------------------------------------------------------- faults, whatever the budget


def find_fault(expected: Outputs, actual: Outputs) -> str:
    """Describe a fault of outputs, whatever the budget: not finite, constant, or a relative error above `WRONG`.

    Empty if there is no fault.
    """
    for exact, approximate in zip(expected, actual, strict=True):
        for place, (a, b) in enumerate(zip(exact, approximate, strict=True)):
            if (reason := _find_fault(np.asarray(a), np.asarray(b))) is not None:
                return f"output {place} {reason}"
    relative = ErrorBudget(1.0).measure_error(expected, actual, []).error if len(expected) else 0.0
    return f"it differs by {relative:.0%} of the output" if relative > WRONG else ""


def _find_fault(a: Array, b: Array) -> str | None:
    if a.dtype.kind != "f" or not a.size:
        return None
    lost = int((np.isfinite(a) & ~np.isfinite(b)).sum())
    if lost:
        return f"has {lost} NaN or infinities where numbers are due"
    usable = np.isfinite(a)
    # A quantized model whose activations all saturate is constant, with a small error if the output varies little.
    if a[usable].size > 1 and np.ptp(a[usable]) > 0 and np.ptp(b[usable]) == 0:
        return f"is {b[usable].flat[0]:g} everywhere, where the reference is not constant"
    return None


def check_labels(item: Mapping[str, Any], names: Sequence[str], budget: ErrorBudget | None) -> None:
    """Raise OptionError for an entry of an example that is not an input, unless a metric may read it."""
    other = [name for name in item if name not in names]
    if other and not (budget is not None and callable(budget.measure)):
        raise OptionError(
            f"an example has {other[0]!r}, which is no input.{did_you_mean(other[0], names)} Inputs: {', '.join(names)}. "
            "What else an example holds is for a metric of your own: max_error=xrt.ErrorBudget(limit, metric)"
        )


MOST_ITEMS = 512
"""Maximum number of examples made from the rows of batches."""


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """The inputs of one example."""

    example: Any
    """The example as the caller passed it, for a metric."""
    batch: int
    """Position in the caller's list; several examples may be rows of one batch."""
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Examples:
    """The examples for calibration or for validation."""

    purpose: str
    """``calibrate`` or ``validate``."""
    items: tuple[ExampleInputs, ...] = ()
    _digest: list[str] = field(default_factory=list, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def digest(self) -> str:
        """A hash of dtypes, shapes and data."""
        if not self._digest:
            digest = hashlib.sha256()
            for item in self.items:
                for value in item.values:
                    array = np.ascontiguousarray(value)
                    digest.update(f"{array.dtype}{array.shape}".encode())
                    digest.update(array.reshape(-1).view(np.uint8).data)
            self._digest.append(digest.hexdigest())
        return self._digest[0]

    def split(self) -> tuple[Examples, Examples]:
        """Split off the last fifth for validation, at least two examples.

        Raises CalibrationError for fewer than four examples: the interval of an error needs two, and calibration two others.
        """
        if len(self) < 4:
            raise CalibrationError(
                f"{self.purpose}= has {len(self)} batch{'es' * (len(self) != 1)}, and the error is measured on two or more that "
                "nothing is calibrated on; pass validate= too, or four batches or more"
            )
        # The last ones and not random ones, so that every run splits alike.
        held_out = max(2, len(self) // 5)
        return Examples(self.purpose, self.items[:-held_out]), Examples("validate", self.items[-held_out:])

    def fit(self, function: Function, declared: Sequence[Value]) -> Examples:
        """Fit the examples to a Function with static shapes: cut or repeat the extents of symbolic dims.

        A batch with more rows than the Function's becomes several examples. Raises InputError if another extent differs.
        """
        if all(_matches(value, array) for item in self.items for value, array in zip(function.inputs, item.values, strict=True)):
            return self
        fitted = islice((example for item in self.items for example in _fit(item, function, declared, self.purpose)), MOST_ITEMS)
        return Examples(self.purpose, tuple(fitted))


def read_examples(data: Any, purpose: str, inputs: Sequence[Value], budget: ErrorBudget | None = None) -> Examples:
    """Read the caller's examples: a list of call arguments, or None for no examples.

    Raises CalibrationError for one array or string instead of a list, for an empty list, and for NaN or infinity; InputError for
    values that do not fit the inputs of the model.
    """
    if data is None:
        return Examples(purpose)
    if isinstance(data, Mapping | np.ndarray | str | bytes) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise CalibrationError(f"{purpose}= takes a list of batches, each what a call takes; got one {kind}: pass [x]")
    items = tuple(_read_example(example, purpose, number, inputs, budget) for number, example in enumerate(data))
    if not items:
        raise CalibrationError(f"{purpose}= has no batches; pass at least two, as a list of what calls take")
    return Examples(purpose, items)


def _read_example(example: Any, purpose: str, number: int, inputs: Sequence[Value], budget: ErrorBudget | None) -> ExampleInputs:
    names = [value.name for value in inputs]
    if isinstance(example, Mapping):
        check_labels(example, names, budget)
        args, kwargs = (), {name: example[name] for name in names if name in example}
    else:
        args, kwargs = (tuple(example) if isinstance(example, list | tuple) else (example,)), {}
    try:
        values = tuple(to_host(read(tuple(inputs), args, kwargs)))
    except InputError as error:
        raise InputError(f"batch {number + 1} of {purpose}=: {error}") from error
    for name, array in zip(names, values, strict=True):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            raise CalibrationError(
                f"input {name!r} of batch {number + 1} of {purpose}= has {nans} NaN and {int(np.isinf(array).sum())} infinities "
                f"among its {array.size} numbers; give examples of finite numbers"
            )
    return ExampleInputs(example, number, values)


# ---------------------------------------------------------------------- other sizes


def _matches(value: Value, array: Any) -> bool:
    return not isinstance(value.type, TensorType) or value.type.shape is None or tuple(array.shape) == tuple(value.type.shape)


def _fit(item: ExampleInputs, function: Function, declared: Sequence[Value], purpose: str) -> Iterator[ExampleInputs]:
    """Yield the examples of the Function's sizes in a batch; ``declared`` are the inputs with symbolic dims."""
    for row in range(rows := _count_rows(item, function, declared)):
        inputs = zip(item.values, function.inputs, declared, strict=True)
        values = [_fit_array(array, value, declared_value, row, rows) for array, value, declared_value in inputs]
        for value, array in zip(function.inputs, values, strict=True):
            if not _matches(value, array):
                raise InputError(
                    f"an example of {purpose}= has shape {list(array.shape)} for input {value.name!r}, "
                    f"and the call has {value.type}"
                )
        yield ExampleInputs(item.example, item.batch, tuple(values))


def _list_open_extents(value: Value) -> tuple[bool, ...]:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return () if shape is None else tuple(not isinstance(extent, int) for extent in shape)


def _count_rows(item: ExampleInputs, function: Function, declared: Sequence[Value]) -> int:
    """Count the examples of the Function's batch size in a batch; 1 unless all inputs have the same count."""
    counts = set()
    for array, value, declared_value in zip(item.values, function.inputs, declared, strict=True):
        wanted = value.type.shape[0] if isinstance(value.type, TensorType) and value.type.shape else None
        if _list_open_extents(declared_value)[:1] != (True,) or not isinstance(wanted, int) or not wanted or not array.ndim:
            return 1
        counts.add(array.shape[0] // wanted)
    return max(1, counts.pop()) if len(counts) == 1 else 1


def _fit_array(array: Any, value: Value, declared: Value, row: int, rows: int) -> Any:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or array.ndim != len(shape):
        return array
    for axis, (expected, is_open) in enumerate(zip(shape, _list_open_extents(declared), strict=False)):
        actual = array.shape[axis]
        if not is_open or not actual or not isinstance(expected, int):
            continue
        # Rows of a batch are separate examples only along the first axis.
        begin = row * expected if axis == 0 and rows > 1 else 0  # a batch of examples: select the one at `row`
        if actual != expected:
            array = np.take(array, np.arange(begin, begin + expected) % actual, axis=axis)  # cut, or repeat cyclically
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PrecisionOptions:
    """The options of a search for lower precision."""

    budget: ErrorBudget
    validate: Examples
    calibrate: Examples = field(default_factory=lambda: Examples("calibrate"))
    allowed: tuple[Precision, ...] = LOWER_PRECISIONS
    exact_nodes: tuple[NodePattern, ...] = ()
    table: CalibrationTable | None = None
    original: Callable[[], Function] | None = field(default=None, compare=False)
    """Builds the declared model, to which the table may belong; None if it is unknown before a call."""
    declared: tuple[Value, ...] = ()
    """The inputs of the declared model, with its symbolic dims."""

    @property
    def relative(self) -> ErrorBudget:
        """The budget with the relative measure, which adds up over nodes."""
        return self.budget if self.budget.measure == "relative" else ErrorBudget(self.budget.limit)

    def is_exact(self, name: str, function: Function) -> bool:
        """Whether the caller keeps a node in float32."""
        return any(pattern.matches(function.node(name)) for pattern in self.exact_nodes)

    @property
    def digest(self) -> str:
        """A hash of the examples and of the given table."""
        parts = [self.calibrate.digest, self.validate.digest, self.table.dumps() if self.table is not None else ""]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def fit(self, function: Function) -> tuple[Examples, Examples]:
        """Fit the examples for calibration and for validation to a Function with static shapes."""
        declared: Sequence[Value] = self.declared if len(self.declared) == len(function.inputs) else function.inputs
        return self.calibrate.fit(function, declared), self.validate.fit(function, declared)

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """The parts of a decision's key; None if a metric's code is unknown, so that the decision cannot be stored."""
        measure = hash_metric(self.budget.measure) if callable(self.budget.measure) else self.budget.measure
        if measure is None:
            return None
        criterion = ("measure", f"{measure} {self.budget.higher_is_better}"), ("limit", repr(float(self.budget.limit)))
        allowed = f"{','.join(self.allowed)} but {'; '.join(map(str, self.exact_nodes))}"
        return (*criterion, ("precisions", allowed), ("data", self.digest))


def hash_metric(metric: object) -> str | None:
    """Hash a function's code and its constants; None for a callable with defaults, a closure or other state, which may change."""
    code = getattr(metric, "__code__", None)
    # Defaults and captured values are not part of the code, and may change unnoticed.
    if code is None or getattr(metric, "__closure__", None) or getattr(metric, "__defaults__", None):
        return None
    return hashlib.sha256(_describe_code(code).encode()).hexdigest()


def _describe_code(code: CodeType) -> str:
    """The instructions, names and constants of a function and of those inside it, the same in every process."""
    # A frozenset is sorted: its order differs between processes.
    constants = [sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant for constant in code.co_consts]
    parts = [_describe_code(constant) if isinstance(constant, CodeType) else repr(constant) for constant in constants]
    return f"{code.co_code!r} {code.co_names} {parts}"
