"""Error budgets: compare the outputs of a plan with those of the exact plan, and limit the difference."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from xrt.engines.contract.options import REDUCED_PRECISIONS, Precision
from xrt.errors import CalibrationError, InputError, OptionError, did_you_mean
from xrt.graph import Function, NodePattern, Shape, TensorType, Value
from xrt.placement.report import describe_budget
from xrt.runtime import to_host
from xrt.runtime.inputs import read

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable

MAX_JACKKNIFE_GROUPS = 20
"""Maximum number of groups of items in the jackknife of a metric, which is called once without each group."""
NORMAL_QUANTILE = 1.959964
"""The 97.5 % quantile of the normal distribution."""
# The 97.5 % quantiles of Student's t with 1 to 20 degrees of freedom.
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
    """Compute the half-width of the 95 % interval of the mean, by Student's t. 0 for one value, or if a value is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    return compute_t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def compute_share_bound(shares: Sequence[tuple[int, int]]) -> float:
    """Compute the upper end of the 95 % interval of the share of changed rows. ``shares`` has changed and all rows per item."""
    changed_rows = sum(changed for changed, _ in shares)
    rows = sum(count for _, count in shares)
    share = changed_rows / rows
    # Wilson's bound assumes independent rows. It is above 0 even if no row changed.
    square = NORMAL_QUANTILE**2
    center = share + square / (2 * rows)
    spread = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    wilson_bound = (center + spread) / (1 + square / rows)
    # Rows of one item, such as the words of a sentence, often change together. Student's t on the items accounts for this.
    item_bound = share + compute_mean_half_width([changed / count for changed, count in shares if count])
    return min(1.0, max(wilson_bound, item_bound))


def compute_metric_bound(loss: Callable[[Sequence[int]], float], items: int) -> float | None:
    """Compute the upper end of the 95 % interval of a metric's loss, by the jackknife (Quenouille 1956, Tukey 1958).

    ``items`` is the number of items. ``loss`` computes the loss on the items with the passed indices. It is called without each
    of at most `MAX_JACKKNIFE_GROUPS` groups of items, since a metric may be slow. Return None for one item, or if ``loss`` raises
    CalibrationError. The interval of a discontinuous metric, such as a median, may be too wide or too narrow.
    """
    groups = min(items, MAX_JACKKNIFE_GROUPS)
    if groups < 2:
        return None
    try:
        losses = [loss([index for index in range(items) if index % groups != group]) for group in range(groups)]
        total_loss = loss(range(items))
    except CalibrationError:
        return None
    # The factor groups - 1 is the jackknife's: subsets that share most items vary less than independent samples.
    standard_error = math.sqrt((groups - 1) * float(np.var(losses)))
    return total_loss + compute_t_quantile(groups - 1) * standard_error


Array: TypeAlias = np.ndarray[Any, Any]
Outputs: TypeAlias = Sequence[Sequence[Any]]
"""The outputs of a model, in order, for each item."""
Measure: TypeAlias = Literal["relative", "cosine", "top1"]
Metric: TypeAlias = Callable[[list[Any], list[Any]], float]
WRONG_RELATIVE_ERROR = 0.5
"""Outputs with a larger relative error are rejected as wrong, even if the budget allows it."""


@dataclass(frozen=True, slots=True)
class MeasuredError:
    error: float
    high: float | None = None
    """Upper end of the 95 % interval of ``error``; None if it is unknown because a metric fails on a subset of the items."""
    worst: float | None = None
    """The largest error of one item; None for a metric."""

    @property
    def bound(self) -> float:
        """The error that must be within the budget: the upper end of the interval, if it is known."""
        return self.error if self.high is None else max(self.error, self.high)


@dataclass(frozen=True)
class ErrorBudget:
    """The largest error that a plan may have, compared with the model in float32.

    ``measure`` is ``"relative"`` (norm of the difference divided by the norm of the output), ``"cosine"`` (1 minus the cosine
    similarity), ``"top1"`` (share of rows whose argmax changes), or your own metric. If the model has several outputs, the
    largest error counts.

    A metric is called with the outputs of all examples, and the examples as you passed them. It returns a number such as an
    accuracy, which may drop by ``limit``. With ``higher_is_better=False`` the number may rise by ``limit``.
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
        if isinstance(self.measure, str):
            return self.measure
        return str(getattr(self.measure, "__qualname__", type(self.measure).__qualname__))

    def __str__(self) -> str:
        return describe_budget(self.name, self.limit)

    def measure_error(self, expected: Outputs, actual: Outputs, items: Sequence[Any]) -> MeasuredError:
        """Measure the error of outputs. ``items`` are the examples, for a metric. Raises CalibrationError if the metric fails."""
        if callable(self.measure):
            return self._measure_loss(self.measure, expected, actual, items)
        if self.measure == "top1":
            return _measure_top1_changes(expected, actual)
        distance = _measure_cosine if self.measure == "cosine" else _measure_relative
        distances = []
        for expected_outputs, actual_outputs in zip(expected, actual, strict=True):
            distances.append([distance(a, b) for a, b in _pair_float_outputs(expected_outputs, actual_outputs)])
        # Combine the items of each output, then choose the output with the largest error.
        errors = [_summarize(items_of_output) for items_of_output in zip(*distances, strict=True)]
        return max(errors, key=lambda error: error.bound)

    def _measure_loss(self, metric: Metric, expected: Outputs, actual: Outputs, items: Sequence[Any]) -> MeasuredError:
        sign = 1.0 if self.higher_is_better else -1.0

        def measure_loss(indices: Sequence[int]) -> float:
            selected = [items[index] for index in indices]
            before = self._call(metric, [expected[index] for index in indices], selected)
            after = self._call(metric, [actual[index] for index in indices], selected)
            return sign * (before - after)

        loss = measure_loss(range(len(items)))
        # The bound may be above 0 even if the loss on these items is 0.
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


def measure_relative_error(expected: Outputs, actual: Outputs) -> float:
    """Measure the error as a budget with ``measure="relative"`` does. For several outputs, return the largest error."""
    return ErrorBudget(0.0).measure_error(expected, actual, []).error


def parse_budget(value: Any) -> ErrorBudget | None:
    """Convert the option ``max_error``: a relative error, an ErrorBudget or None. Raises OptionError for another value."""
    if value is None or isinstance(value, ErrorBudget):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"max_error is a share such as 0.01, an xrt.ErrorBudget or None; got {value!r}")
    if not 0 <= value < WRONG_RELATIVE_ERROR:
        # The caller may have written a percentage.
        hint = f"; did you mean {value / 100:g}?" if WRONG_RELATIVE_ERROR <= value < 100 * WRONG_RELATIVE_ERROR else ""
        raise OptionError(f"max_error is a share of 0 to below {WRONG_RELATIVE_ERROR}, such as 0.01 for 1 %; got {value!r}{hint}")
    return ErrorBudget(float(value))


def _pair_float_outputs(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[Array, Array]]:
    """Pair the expected and actual float outputs, as float64. If no output is a float, pair integers and booleans."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, actual, strict=True)]
    float_pairs = [(a, b) for a, b in pairs if a.dtype.kind == "f"]
    number_pairs = float_pairs or [(a, b) for a, b in pairs if a.dtype.kind in "iub"]
    return [(a.astype(np.float64), b.astype(np.float64)) for a, b in number_pairs]


def _measure_relative(expected: Array, actual: Array) -> tuple[float, float]:
    """Compute the squared norms of the difference and of the expected output, over the finite expected elements.

    Return (infinity, 1) if ``actual`` differs from an expected infinity or NaN, or is not finite where ``expected`` is.
    """
    is_finite = np.isfinite(expected)
    # Infinities and NaN of the exact model, as in masks, must be reproduced; the error is measured on the finite numbers.
    has_same_special_values = np.array_equal(expected[~is_finite], actual[~is_finite], equal_nan=True)
    if not has_same_special_values or not np.isfinite(actual[is_finite]).all():
        return math.inf, 1.0
    difference = expected[is_finite] - actual[is_finite]
    return float((difference**2).sum()), float((expected[is_finite] ** 2).sum())


def _measure_cosine(expected: Array, actual: Array) -> tuple[float, float]:
    """Compute the squared cosine distance of one output, with weight 1: all items count equally."""
    if np.array_equal(expected, actual, equal_nan=True):
        return 0.0, 1.0
    norm = math.sqrt(float((expected**2).sum()) * float((actual**2).sum()))
    if norm == 0 or not math.isfinite(norm):
        return math.inf, 1.0
    distance = 1.0 - float((expected * actual).sum()) / norm
    return max(0.0, distance) ** 2, 1.0  # rounding may make it negative


def _summarize(squares: Sequence[tuple[float, float]]) -> MeasuredError:
    """Combine the errors of one output over all items.

    ``squares`` has, per item, the squared error and its denominator, from `_measure_relative` or `_measure_cosine`.
    """
    total_error, total_weight = (sum(column) for column in zip(*squares, strict=True))
    if not math.isfinite(total_error) or (total_error and not total_weight):
        return MeasuredError(math.inf, math.inf, math.inf)
    error = math.sqrt(total_error / total_weight) if total_error else 0.0
    item_errors = []
    for square, weight in squares:
        if square == 0:
            item_errors.append(0.0)
        else:
            item_errors.append(math.sqrt(square / weight) if weight else math.inf)
    return MeasuredError(error, error + compute_mean_half_width(item_errors), max(item_errors))


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
    """Count the rows whose argmax differs, and all rows, in the first float output that is not a scalar."""
    for a, b in zip(map(np.asarray, expected), map(np.asarray, actual), strict=True):
        if a.dtype.kind == "f" and a.ndim:
            if not a.size:
                break
            rows, actual_rows = a.reshape(-1, a.shape[-1]), b.reshape(-1, a.shape[-1])
            is_changed = rows.argmax(-1) != actual_rows.argmax(-1)
            return int(is_changed.sum()), len(rows)
    return 0, 0


def find_fault(expected: Outputs, actual: Outputs) -> str:
    """Describe why the outputs are rejected under any budget, or return an empty string.

    Rejected outputs have NaN or infinities that the expected ones do not have, are constant where the expected ones vary, or
    have a relative error above `WRONG_RELATIVE_ERROR`.
    """
    for exact, approximate in zip(expected, actual, strict=True):
        for output_index, (a, b) in enumerate(zip(exact, approximate, strict=True)):
            if reason := _find_array_fault(np.asarray(a), np.asarray(b)):
                return f"output {output_index} {reason}"
    relative = measure_relative_error(expected, actual) if expected else 0.0
    return f"it differs by {relative:.0%} of the output" if relative > WRONG_RELATIVE_ERROR else ""


def _find_array_fault(expected: Array, actual: Array) -> str:
    if expected.dtype.kind != "f":
        return ""
    is_finite = np.isfinite(expected)
    not_finite_count = int((is_finite & ~np.isfinite(actual)).sum())
    if not_finite_count:
        return f"has {not_finite_count} NaN or infinities where the reference has finite numbers"
    # If all activations saturate, a quantized model is constant. Its error is small if the exact output varies little.
    if is_finite.sum() > 1 and np.ptp(expected[is_finite]) > 0 and np.ptp(actual[is_finite]) == 0:
        return f"is {actual[is_finite].flat[0]:g} everywhere, where the reference is not constant"
    return ""


MAX_ITEMS = 512
"""Maximum number of examples when the rows of batches become separate examples."""


@dataclass(frozen=True, slots=True)
class ExampleInputs:
    example: Any
    """The example as the caller passed it, for a metric."""
    batch: int
    """Index of its batch in the caller's list. Several examples may be rows of one batch."""
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Examples:
    purpose: str
    items: tuple[ExampleInputs, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the dtypes, shapes and data of all values, in hexadecimal."""
        digest = hashlib.sha256()
        for item in self.items:
            for value in item.values:
                array = np.ascontiguousarray(value)
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def split(self) -> tuple[Examples, Examples]:
        """Split into examples for calibration and for validation: the last fifth, but at least two for a confidence interval.

        Raises CalibrationError for fewer than four examples.
        """
        if len(self) < 4:
            batches = "1 batch" if len(self) == 1 else f"{len(self)} batches"
            raise CalibrationError(
                f"{self.purpose}= has {batches}; the error must be measured on two or more batches that are not used for "
                "calibration. Pass validate= too, or four batches or more"
            )
        # Not at random, so that every run splits them alike.
        count = max(2, len(self) // 5)
        return Examples(self.purpose, self.items[:-count]), Examples("validate", self.items[-count:])

    def fit(self, function: Function, declared: Sequence[Value]) -> Examples:
        """Cut or repeat the examples along symbolic dims, so that they have the static shapes of ``function``'s inputs.

        ``declared`` are the model's inputs, with symbolic dims. A batch with more rows than the Function's inputs becomes several
        examples. Raises InputError if a dim that is not symbolic has another size.
        """
        pairs = chain.from_iterable(zip(function.inputs, item.values, strict=True) for item in self.items)
        if all(_matches(value, array) for value, array in pairs):
            return self
        fitted = chain.from_iterable(_fit(item, function, declared, self.purpose) for item in self.items)
        return Examples(self.purpose, tuple(islice(fitted, MAX_ITEMS)))


def read_examples(data: Any, purpose: str, inputs: Sequence[Value], budget: ErrorBudget | None = None) -> Examples:
    """Convert the caller's examples as in `iter_examples`; None is no examples. Raises CalibrationError for an empty list."""
    if data is None:
        return Examples(purpose)
    items = tuple(iter_examples(data, purpose, inputs, budget))
    if not items:
        raise CalibrationError(f"{purpose}= has no batches; pass a list of at least two, each the arguments of one call")
    return Examples(purpose, items)


def iter_examples(data: Any, purpose: str, inputs: Sequence[Value], budget: ErrorBudget | None = None) -> Iterator[ExampleInputs]:
    """Convert the caller's examples one by one: a list or iterator with the arguments of one call each.

    ``purpose`` is the option that errors name, such as ``validate``. Raises CalibrationError if ``data`` is not a list or has NaN
    or infinity; InputError for values that do not match the model's ``inputs``.
    """
    if isinstance(data, Mapping | np.ndarray | str | bytes) or not isinstance(data, Iterable):
        kind = type(data).__name__
        raise CalibrationError(f"{purpose}= must be a list of batches, each the arguments of one call; got one {kind}: pass [x]")
    for index, example in enumerate(data):
        yield _read_example(example, purpose, index, inputs, budget)


def _read_example(example: Any, purpose: str, index: int, inputs: Sequence[Value], budget: ErrorBudget | None) -> ExampleInputs:
    """Read an example: a mapping by input name, a list or tuple by position, or the only input. Its floats must be finite."""
    names = [value.name for value in inputs]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(example, Mapping):
        unknown = next((name for name in example if name not in names), None)
        # A metric may read additional entries, such as labels.
        if unknown is not None and (budget is None or not callable(budget.measure)):
            raise OptionError(
                f"an example has {unknown!r}, which is not an input.{did_you_mean(unknown, names)} Inputs: {', '.join(names)}. "
                "Additional entries, such as labels, need your own metric: max_error=xrt.ErrorBudget(limit, metric)"
            )
        kwargs = {name: example[name] for name in names if name in example}
    else:
        args = tuple(example) if isinstance(example, list | tuple) else (example,)
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


def _get_shape(value: Value) -> Shape | None:
    return value.type.shape if isinstance(value.type, TensorType) else None


def _matches(value: Value, array: Any) -> bool:
    shape = _get_shape(value)
    return shape is None or tuple(array.shape) == tuple(shape)


def _fit(item: ExampleInputs, function: Function, declared: Sequence[Value], purpose: str) -> Iterator[ExampleInputs]:
    """Split a batch into examples of the Function's static shapes. ``declared`` are the model's inputs, with symbolic dims."""
    count = _count_examples(item, function, declared)
    for index in range(count):
        inputs = zip(item.values, function.inputs, declared, strict=True)
        values = [_fit_array(array, value, declared_value, index, count) for array, value, declared_value in inputs]
        for value, array in zip(function.inputs, values, strict=True):
            if not _matches(value, array):
                raise InputError(
                    f"an example of {purpose}= has shape {list(array.shape)} for input {value.name!r}, "
                    f"and the call has {value.type}"
                )
        yield ExampleInputs(item.example, item.batch, tuple(values))


def _count_examples(item: ExampleInputs, function: Function, declared: Sequence[Value]) -> int:
    """Count how many examples of the Function's batch size a batch has; 1 if the inputs of the model do not agree."""
    counts = set()
    for array, value, declared_value in zip(item.values, function.inputs, declared, strict=True):
        shape, declared_shape = _get_shape(value), _get_shape(declared_value)
        if not shape or not declared_shape or isinstance(declared_shape[0], int):
            return 1
        if not isinstance(shape[0], int) or shape[0] == 0 or array.ndim == 0:
            return 1
        counts.add(array.shape[0] // shape[0])
    return max(1, counts.pop()) if len(counts) == 1 else 1


def _fit_array(array: Any, value: Value, declared: Value, index: int, count: int) -> Any:
    """Cut or repeat an array to the shape of ``value``. From a batch of ``count`` examples, select the one at ``index``."""
    shape = _get_shape(value)
    if shape is None or array.ndim != len(shape):
        return array
    for axis, (size, declared_size) in enumerate(zip(shape, _get_shape(declared) or (), strict=False)):
        is_symbolic = not isinstance(declared_size, int)
        if not is_symbolic or not isinstance(size, int) or array.shape[axis] in (0, size):
            continue
        # Examples are consecutive rows of the first axis.
        begin = index * size if axis == 0 else 0
        # Indices wrap around, so that an array that is too short is repeated.
        array = np.take(array, np.arange(begin, begin + size) % array.shape[axis], axis=axis)
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PrecisionOptions:
    budget: ErrorBudget
    validate: Examples
    calibrate: Examples = field(default_factory=lambda: Examples("calibrate"))
    allowed: tuple[Precision, ...] = REDUCED_PRECISIONS
    exact_nodes: tuple[NodePattern, ...] = ()
    table: CalibrationTable | None = None
    original: Callable[[], Function] | None = field(default=None, compare=False)
    """Builds the declared model, on which the table may have been measured. None if the model is only known in a call."""
    declared: tuple[Value, ...] = ()

    def is_exact(self, name: str, function: Function) -> bool:
        return any(pattern.matches(function.node(name)) for pattern in self.exact_nodes)

    @property
    def digest(self) -> str:
        texts = [self.calibrate.digest, self.validate.digest, self.table.dumps() if self.table is not None else ""]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def fit(self, function: Function) -> tuple[Examples, Examples]:
        """Fit the examples for calibration and for validation to a Function with static shapes."""
        declared: Sequence[Value] = self.declared if len(self.declared) == len(function.inputs) else function.inputs
        return self.calibrate.fit(function, declared), self.validate.fit(function, declared)

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...] | None:
        """Names and values for the cache key of a decision; None if the decision cannot be stored, for the metric has no hash."""
        measure = hash_metric(self.budget.measure) if callable(self.budget.measure) else self.budget.measure
        if measure is None:
            return None
        return (
            ("measure", f"{measure} {self.budget.higher_is_better}"),
            ("limit", repr(float(self.budget.limit))),
            ("precisions", f"{','.join(self.allowed)} but {'; '.join(map(str, self.exact_nodes))}"),
            ("data", self.digest),
        )


def hash_metric(metric: object) -> str | None:
    """Hash a function's code. None if its result may depend on more than the code: on defaults, a closure or an object."""
    code = getattr(metric, "__code__", None)
    if code is None or getattr(metric, "__closure__", None) or getattr(metric, "__defaults__", None):
        return None
    return hashlib.sha256(_describe_code(code).encode()).hexdigest()


def _describe_code(code: CodeType) -> str:
    """Format the instructions, names and constants of a function and its nested functions, the same in every process."""
    # The order of a frozenset differs between processes.
    constants = [sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant for constant in code.co_consts]
    texts = [_describe_code(constant) if isinstance(constant, CodeType) else repr(constant) for constant in constants]
    return f"{code.co_code!r} {code.co_names} {texts}"
