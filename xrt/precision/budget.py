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

MAX_JACKKNIFE_GROUPS = 20
"""The jackknife of a metric leaves out one of at most this many groups of items at a time."""
# The 97.5 % quantile of the normal distribution, and of Student's t with 1 to 20 degrees of freedom.
NORMAL_QUANTILE = 1.959964
_T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)


def compute_t_quantile(degrees_of_freedom: int) -> float:
    """Compute the 97.5 % quantile of Student's t distribution, to three digits."""
    if degrees_of_freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[degrees_of_freedom - 1]
    return NORMAL_QUANTILE + 2.3722 / degrees_of_freedom + 2.8225 / degrees_of_freedom**2  # Abramowitz and Stegun 26.7.5


def compute_mean_half_width(values: Sequence[float]) -> float:
    """Compute the half-width of the mean's 95 % interval, by Student's t; 0 for a single value or if one is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return compute_t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def compute_share_bound(shares: Sequence[tuple[int, int]]) -> float:
    """Compute the upper end of the 95 % interval of the share of changed rows. ``shares``: changed rows and all rows, per item.

    The result is the larger of two bounds. Wilson's bound assumes independent rows, and is above 0 even if no row changed. The
    other is Student's t on the shares of the items, since rows of one item may be correlated.
    """
    changed_rows = sum(changed for changed, _ in shares)
    rows = sum(count for _, count in shares)
    share = changed_rows / rows
    square = NORMAL_QUANTILE**2
    middle = share + square / (2 * rows)
    spread = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    # Rows of one item, such as the words of a sentence, fail together more often than independent ones.
    by_items = share + compute_mean_half_width([changed / count for changed, count in shares if count])
    return min(1.0, max((middle + spread) / (1 + square / rows), by_items))


def compute_metric_bound(loss: Callable[[Sequence[int]], float], items: int) -> float | None:
    """Compute the upper end of the 95 % interval of a metric's loss, by the jackknife (Quenouille 1956, Tukey 1958).

    ``items`` is the number of items. ``loss`` computes the loss on the items of the passed indices; it is called once without
    each of at most 20 groups of items. Return None for one item, or if ``loss`` raises CalibrationError for some groups. For a
    mean over items this is Student's interval; for a discontinuous metric, such as a median, it may be too wide or too narrow.
    """
    # The number of groups is limited because each one calls the metric again, which may be slow.
    groups = min(items, MAX_JACKKNIFE_GROUPS)
    if groups < 2:
        return None
    try:
        parts = [loss([index for index in range(items) if index % groups != group]) for group in range(groups)]
        total = loss(range(items))
    except CalibrationError:
        return None
    # The jackknife's estimate of the standard error: subsets that share all but one group vary less than independent samples.
    spread = math.sqrt((groups - 1) * float(np.var(parts)))
    return total + compute_t_quantile(groups - 1) * spread


Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = Sequence[Sequence[Any]]
"""The outputs of a model, in order, for each item."""
Measure: TypeAlias = Literal["relative", "cosine", "top1"]
Metric: TypeAlias = Callable[[list[Any], list[Any]], float]
WRONG_RELATIVE_ERROR = 0.5
"""Outputs with a larger relative error are rejected as wrong, even if the budget allows it."""


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """The error of a plan over a set of items."""

    error: float
    high: float | None = None
    """Upper end of the 95 % interval of ``error``; None if a metric cannot be computed on parts of the examples."""
    worst: float | None = None
    """The error of the worst item; None for a metric."""

    @property
    def bound(self) -> float:
        """The error to compare with the budget: the upper end of the interval, if there is one."""
        return self.error if self.high is None else max(self.error, self.high)


@dataclass(frozen=True)
class ErrorBudget:
    """The largest error that a plan may have, compared with the model in float32.

    ``measure`` is ``"relative"`` (norm of the difference divided by the norm of the output), ``"cosine"`` (1 minus the cosine
    similarity), ``"top1"`` (share of rows whose argmax changes), or your own metric. A metric is called with the outputs of all
    examples and with the examples as you passed them. It returns a number such as an accuracy, which may drop by ``limit``, or
    rise by it with ``higher_is_better=False``. If the model has several outputs, the largest error counts.
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
        """Compare outputs; ``items`` are the examples, for a metric. Raises CalibrationError if the metric fails."""
        if callable(self.measure):
            return self._measure_loss(self.measure, expected, actual, items)
        if self.measure == "top1":
            return _measure_top1_changes(expected, actual)
        distances = [_DISTANCES[self.measure](a, b) for a, b in zip(expected, actual, strict=True)]
        outputs = range(len(distances[0]) if distances else 0)
        return max((_summarize([item[index] for item in distances]) for index in outputs), key=lambda error: error.bound)

    def _measure_loss(self, metric: Metric, expected: Outputs, actual: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Measure how much the metric worsens from the expected to the actual outputs, with its upper bound."""
        sign = 1.0 if self.higher_is_better else -1.0

        def measure_loss(indices: Sequence[int]) -> float:
            selected = [items[index] for index in indices]
            before, after = (self._call(metric, [outputs[i] for i in indices], selected) for outputs in (expected, actual))
            return sign * (before - after)

        loss = measure_loss(range(len(items)))
        # A sample without a loss does not prove that there is none, so the bound may be above a loss of 0.
        high = compute_metric_bound(measure_loss, len(items))
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
    """Convert the option ``max_error``: a relative error, an ErrorBudget or None. Raises OptionError for anything else."""
    if value is None or isinstance(value, ErrorBudget):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"max_error is a share such as 0.01, an xrt.ErrorBudget or None; got {value!r}")
    if not 0 <= value < WRONG_RELATIVE_ERROR:
        hint = f"; did you mean {value / 100:g}?" if WRONG_RELATIVE_ERROR <= value < 100 * WRONG_RELATIVE_ERROR else ""
        raise OptionError(f"max_error is a share of 0 to below {WRONG_RELATIVE_ERROR}, such as 0.01 for 1 %; got {value!r}{hint}")
    return ErrorBudget(float(value))


# ---------------------------------------------------------------------- distances


def _pair_float_outputs(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Pair expected and actual outputs, as float64: the float outputs, or all numeric ones if no output is a float."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True)]
    floats = [(a, b) for a, b in pairs if a.dtype.kind == "f"]
    return [(a.astype(np.float64), b.astype(np.float64)) for a, b in floats or pairs if a.dtype.kind in "fiub"]


def _measure_relative(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[float, float]]:
    """Return, per output, the squared norm of the difference and the squared norm of the expected output."""
    return [_sum_squares(a, b) for a, b in _pair_float_outputs(expected, actual)]


def _sum_squares(a: Array, b: Array) -> tuple[float, float]:
    """Sum the squares of ``a - b`` and ``a`` over the finite elements of ``a``; (infinity, 1) if ``b`` is not finite there."""
    usable = np.isfinite(a)
    # Infinities and NaN of the exact model, as in masks, must be reproduced; the error is measured on the finite numbers.
    if not np.array_equal(a[~usable], b[~usable], equal_nan=True) or not np.isfinite(b[usable]).all():
        return math.inf, 1.0
    return float(((a[usable] - b[usable]) ** 2).sum()), float((a[usable] ** 2).sum())


def _measure_cosine(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[float, float]]:
    """Return, per output, the squared cosine distance and 1 as its weight, so that all items have the same weight."""
    distances = []
    for a, b in _pair_float_outputs(expected, actual):
        norm = math.sqrt(float((a**2).sum()) * float((b**2).sum()))
        equal = np.array_equal(a, b, equal_nan=True)
        distances.append(0.0 if equal else 1.0 - float((a * b).sum()) / norm if norm > 0 and math.isfinite(norm) else math.inf)
    return [(max(0.0, distance) ** 2, 1.0) for distance in distances]


_DISTANCES = {"relative": _measure_relative, "cosine": _measure_cosine}


def _summarize(squares: Sequence[tuple[float, float]]) -> MeasuredError:
    """Combine the errors of one output over all items.

    ``squares`` has, per item, the squared error and its denominator: the squared norm of the expected output, or 1 for the cosine
    distance, so that all items count equally.
    """
    total, norm = (sum(column) for column in zip(*squares, strict=True))
    if not math.isfinite(total) or (total and not norm):
        return MeasuredError(math.inf, math.inf, math.inf)
    error = math.sqrt(total / norm) if total else 0.0
    errors = [math.sqrt(a / b) if b else (math.inf if a else 0.0) for a, b in squares]
    return MeasuredError(error, error + compute_mean_half_width(errors), max(errors))


def _measure_top1_changes(expected: Outputs, actual: Outputs) -> MeasuredError:
    """Measure the share of rows whose argmax differs. Raises CalibrationError if no output has rows of floats."""
    shares = [_count_top1_changes(a, b) for a, b in zip(expected, actual, strict=True)]
    rows = sum(count for _, count in shares)
    if not rows:
        raise CalibrationError(
            "measure='top1' compares the largest elements of rows, and no output has rows of floats; use measure='relative' or a "
            "metric of your own"
        )
    worst = max(changed / count for changed, count in shares if count)
    return MeasuredError(sum(changed for changed, _ in shares) / rows, compute_share_bound(shares), worst)


def _count_top1_changes(expected: Sequence[Any], actual: Sequence[Any]) -> tuple[int, int]:
    """Count two things in the first float output: rows whose argmax differs, and all rows."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True)]
    a, b = next(((a, b) for a, b in pairs if a.dtype.kind == "f" and a.ndim), (np.zeros((0, 1)), np.zeros((0, 1))))
    if not a.size:
        return 0, 0
    rows = a.reshape(-1, a.shape[-1])
    same = rows.argmax(-1) == b.reshape(-1, a.shape[-1]).argmax(-1)
    return int((~same).sum()), len(rows)


# ---------------------------------------------------------------------- faults that no budget allows


def find_fault(expected: Outputs, actual: Outputs) -> str:
    """Describe why the outputs are rejected under any budget, or return an empty string.

    Rejected outputs have NaN or infinities that the expected ones do not have, are constant where the expected ones vary, or
    have a relative error above `WRONG_RELATIVE_ERROR`.
    """
    for exact, approximate in zip(expected, actual, strict=True):
        for output_index, (a, b) in enumerate(zip(exact, approximate, strict=True)):
            if (reason := _find_fault(np.asarray(a), np.asarray(b))) is not None:
                return f"output {output_index} {reason}"
    relative = ErrorBudget(1.0).measure_error(expected, actual, []).error if len(expected) else 0.0
    return f"it differs by {relative:.0%} of the output" if relative > WRONG_RELATIVE_ERROR else ""


def _find_fault(a: Array, b: Array) -> str | None:
    if a.dtype.kind != "f" or not a.size:
        return None
    not_finite = int((np.isfinite(a) & ~np.isfinite(b)).sum())
    if not_finite:
        return f"has {not_finite} NaN or infinities where the reference has finite numbers"
    usable = np.isfinite(a)
    # A quantized model whose activations all saturate is constant, with a small error if the output varies little.
    if a[usable].size > 1 and np.ptp(a[usable]) > 0 and np.ptp(b[usable]) == 0:
        return f"is {b[usable].flat[0]:g} everywhere, where the reference is not constant"
    return None


def check_entry_names(item: Mapping[str, Any], names: Sequence[str], budget: ErrorBudget | None) -> None:
    """Raise OptionError if an example, a mapping, has a key that is not an input. A metric may read such entries, as labels."""
    other = [name for name in item if name not in names]
    if other and not (budget is not None and callable(budget.measure)):
        raise OptionError(
            f"an example has {other[0]!r}, which is not an input.{did_you_mean(other[0], names)} Inputs: {', '.join(names)}. "
            "Additional entries, such as labels, need your own metric: max_error=xrt.ErrorBudget(limit, metric)"
        )


MAX_ITEMS = 512
"""At most this many examples are made when the rows of batches become separate examples."""


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    """The inputs of one example."""

    example: Any
    """The example as the caller passed it, for a metric."""
    batch: int
    """Index of the batch in the caller's list. Several examples may be rows of one batch."""
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
        """The SHA-256 of the dtypes, shapes and data of all values, in hexadecimal."""
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
        """Split into examples for calibration and, from the last fifth, for validation (at least two).

        Raises CalibrationError for fewer than four examples: the confidence interval of an error needs two, calibration the rest.
        """
        if len(self) < 4:
            raise CalibrationError(
                f"{self.purpose}= has {len(self)} batch{'es' * (len(self) != 1)}; the error must be measured on two or more "
                "batches that are not used for calibration. Pass validate= too, or four batches or more"
            )
        # The last ones instead of random ones, so that every run splits alike.
        count = max(2, len(self) // 5)
        return Examples(self.purpose, self.items[:-count]), Examples("validate", self.items[-count:])

    def fit(self, function: Function, declared: Sequence[Value]) -> Examples:
        """Cut or repeat the examples along symbolic dims until they have the static shapes of ``function``'s inputs.

        ``declared`` are the model's inputs, with symbolic dims. A batch with more rows than the Function takes becomes several
        examples. Raises InputError if a dim that is not symbolic has another size.
        """
        if all(_matches(value, array) for item in self.items for value, array in zip(function.inputs, item.values, strict=True)):
            return self
        fitted = islice((example for item in self.items for example in _fit(item, function, declared, self.purpose)), MAX_ITEMS)
        return Examples(self.purpose, tuple(fitted))


def read_examples(data: Any, purpose: str, inputs: Sequence[Value], budget: ErrorBudget | None = None) -> Examples:
    """Convert the caller's examples, a list with the arguments of one call each. None gives no examples.

    ``purpose``, ``calibrate`` or ``validate``, is the option that errors name. Raises CalibrationError for one array or string
    instead of a list, for an empty list, and for NaN or infinity; InputError for values that do not fit the model's ``inputs``.
    """
    if data is None:
        return Examples(purpose)
    if isinstance(data, Mapping | np.ndarray | str | bytes) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise CalibrationError(f"{purpose}= must be a list of batches, each the arguments of one call; got one {kind}: pass [x]")
    items = tuple(_read_example(example, purpose, index, inputs, budget) for index, example in enumerate(data))
    if not items:
        raise CalibrationError(f"{purpose}= has no batches; pass a list of at least two, each the arguments of one call")
    return Examples(purpose, items)


def _read_example(example: Any, purpose: str, index: int, inputs: Sequence[Value], budget: ErrorBudget | None) -> ExampleInputs:
    names = [value.name for value in inputs]
    if isinstance(example, Mapping):
        check_entry_names(example, names, budget)
        args, kwargs = (), {name: example[name] for name in names if name in example}
    else:
        args, kwargs = (tuple(example) if isinstance(example, list | tuple) else (example,)), {}
    try:
        values = tuple(to_host(read(tuple(inputs), args, kwargs)))
    except InputError as error:
        raise InputError(f"batch {index + 1} of {purpose}=: {error}") from error
    for name, array in zip(names, values, strict=True):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all():
            nans = int(np.isnan(array).sum())
            raise CalibrationError(
                f"input {name!r} of batch {index + 1} of {purpose}= has {nans} NaN and {int(np.isinf(array).sum())} infinities "
                f"among its {array.size} numbers; give examples of finite numbers"
            )
    return ExampleInputs(example, index, values)


# ---------------------------------------------------------------------- examples of other sizes


def _matches(value: Value, array: Any) -> bool:
    return not isinstance(value.type, TensorType) or value.type.shape is None or tuple(array.shape) == tuple(value.type.shape)


def _fit(item: ExampleInputs, function: Function, declared: Sequence[Value], purpose: str) -> Iterator[ExampleInputs]:
    """Split a batch into examples of the Function's static shapes. ``declared`` are the model's inputs, with symbolic dims."""
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


def _list_symbolic_axes(value: Value) -> tuple[bool, ...]:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return () if shape is None else tuple(not isinstance(extent, int) for extent in shape)


def _count_rows(item: ExampleInputs, function: Function, declared: Sequence[Value]) -> int:
    """Count how many examples of the Function's batch size fit into a batch. 1 if the inputs of the model do not agree."""
    counts = set()
    for array, value, declared_value in zip(item.values, function.inputs, declared, strict=True):
        rows = value.type.shape[0] if isinstance(value.type, TensorType) and value.type.shape else None
        if _list_symbolic_axes(declared_value)[:1] != (True,) or not isinstance(rows, int) or not rows or not array.ndim:
            return 1
        counts.add(array.shape[0] // rows)
    return max(1, counts.pop()) if len(counts) == 1 else 1


def _fit_array(array: Any, value: Value, declared: Value, row: int, rows: int) -> Any:
    """Cut or repeat an array to the shape of ``value``. From a batch of ``rows`` examples, select example ``row``."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or array.ndim != len(shape):
        return array
    for axis, (expected, is_symbolic) in enumerate(zip(shape, _list_symbolic_axes(declared), strict=False)):
        actual = array.shape[axis]
        if not is_symbolic or not actual or not isinstance(expected, int):
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
    """Builds the model as it was declared, since the table may be for that form. None if it is unknown before a call."""
    declared: tuple[Value, ...] = ()
    """The inputs of the declared model, with its symbolic dims."""

    @property
    def relative(self) -> ErrorBudget:
        """A relative error budget with the same limit. Only relative errors of single nodes can be added up."""
        return self.budget if self.budget.measure == "relative" else ErrorBudget(self.budget.limit)

    def is_exact(self, name: str, function: Function) -> bool:
        """Whether the caller keeps a node in float32."""
        return any(pattern.matches(function.node(name)) for pattern in self.exact_nodes)

    @property
    def digest(self) -> str:
        """The SHA-256 of the examples and of the calibration table, in hexadecimal."""
        parts = [self.calibrate.digest, self.validate.digest, self.table.dumps() if self.table is not None else ""]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def fit(self, function: Function) -> tuple[Examples, Examples]:
        """Fit the examples for calibration and for validation to a Function with static shapes."""
        declared: Sequence[Value] = self.declared if len(self.declared) == len(function.inputs) else function.inputs
        return self.calibrate.fit(function, declared), self.validate.fit(function, declared)

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """Names and values for the cache key of a decision. None, if a metric cannot be hashed: it is not stored."""
        measure = hash_metric(self.budget.measure) if callable(self.budget.measure) else self.budget.measure
        if measure is None:
            return None
        criterion = ("measure", f"{measure} {self.budget.higher_is_better}"), ("limit", repr(float(self.budget.limit)))
        allowed = f"{','.join(self.allowed)} but {'; '.join(map(str, self.exact_nodes))}"
        return (*criterion, ("precisions", allowed), ("data", self.digest))


def hash_metric(metric: object) -> str | None:
    """Hash a function's code and its constants. None if its result may depend on more: defaults, a closure, an object's state."""
    code = getattr(metric, "__code__", None)
    # Defaults and captured values are not part of the code, and may change unnoticed.
    if code is None or getattr(metric, "__closure__", None) or getattr(metric, "__defaults__", None):
        return None
    return hashlib.sha256(_describe_code(code).encode()).hexdigest()


def _describe_code(code: CodeType) -> str:
    """Format the instructions, names and constants of a function and of nested functions. Equal in every process."""
    # A frozenset is sorted: its order differs between processes.
    constants = [sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant for constant in code.co_consts]
    parts = [_describe_code(constant) if isinstance(constant, CodeType) else repr(constant) for constant in constants]
    return f"{code.co_code!r} {code.co_names} {parts}"
