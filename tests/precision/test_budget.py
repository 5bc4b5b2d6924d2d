"""Error budgets, the examples that they are judged on, and the outputs that are wrong whatever the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.exact_errors import raises_exactly
from xrt.errors import CalibrationError, InputError, OptionError
from xrt.graph import DType, Function, TensorType, Value
from xrt.precision.budget import ErrorBudget, find_fault, hash_metric, parse_budget, read_examples

RANDOM = np.random.default_rng(0)
EXACT = [[RANDOM.normal(size=(4, 10)).astype("float32")] for _ in range(5)]
INPUTS = (Value("x", TensorType(DType.FLOAT32, (1, 2))),)


def scale(share: float) -> list[list[Any]]:
    return [[output * np.float32(1 + share) for output in item] for item in EXACT]


@pytest.mark.slow
@given(st.floats(1e-4, 0.4))
def test_the_relative_error_of_a_scaled_output_is_the_share(share: float) -> None:
    error = ErrorBudget(1.0).measure_error(EXACT, scale(share), EXACT)
    assert error.error == pytest.approx(share, rel=1e-3)
    assert error.high == pytest.approx(share, rel=1e-3)
    assert error.worst == pytest.approx(share, rel=1e-3)
    assert ErrorBudget(1.0, "cosine").measure_error(EXACT, scale(share), EXACT).error < 1e-6
    assert ErrorBudget(1.0, "top1").measure_error(EXACT, scale(share), EXACT).error == 0


def test_the_interval_is_wider_where_items_differ_and_the_worst_item_is_known() -> None:
    error = ErrorBudget(1.0).measure_error(EXACT, [*scale(0.1)[:1], *scale(0.001)[1:]], EXACT)
    assert error.worst == pytest.approx(0.1, rel=1e-3)
    assert error.high is not None and error.error < error.high == error.bound


def test_other_answers_are_counted_by_rows() -> None:
    other = [[output.copy() for output in item] for item in EXACT]
    other[0][0][0] = -other[0][0][0]
    assert ErrorBudget(0.1, "top1").measure_error(EXACT, other, EXACT).error == pytest.approx(1 / 20)


def test_a_metric_receives_outputs_and_items_and_its_loss_is_the_error() -> None:
    items = list(range(5))

    def accuracy(outputs: list[Any], data: list[Any]) -> float:
        assert data == items and outputs[0].shape == (4, 10)
        return float(np.mean([output.mean() for output in outputs]))

    before, after = accuracy([item[0] for item in EXACT], items), accuracy([item[0] for item in scale(0.1)], items)
    lower, higher = ErrorBudget(0.1, accuracy), ErrorBudget(0.1, accuracy, higher_is_better=False)
    assert lower.measure_error(EXACT, scale(0.1), items).error == pytest.approx(max(0.0, before - after))
    assert higher.measure_error(EXACT, scale(0.1), items).error == pytest.approx(max(0.0, after - before))


def raise_error(outputs: Any, items: Any) -> float:
    raise KeyError("label")


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (raise_error, "the metric raise_error raised KeyError: 'label'"),
        (lambda outputs, items: math.nan, "the metric <lambda> returned nan; it must return a finite number"),
        (lambda outputs, items: math.inf, "the metric <lambda> returned inf; it must return a finite number"),
        (lambda *_: "high", "the metric <lambda> raised ValueError: could not convert string to float: 'high'"),
        (
            lambda *_: None,
            "the metric <lambda> raised TypeError: float() argument must be a string or a real number, not 'NoneType'",
        ),
    ],
)
def test_a_metric_that_fails_is_one_error(metric: Any, text: str) -> None:
    with raises_exactly(CalibrationError, text):
        ErrorBudget(0.1, metric).measure_error(EXACT, EXACT, EXACT)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda x: x * 0, "output 0 is 0 everywhere, where the reference is not constant"),
        (lambda x: x * np.nan, "output 0 has 40 NaN or infinities where the reference has finite numbers"),
        (lambda x: x * 2, "it differs by 100% of the output"),
        (lambda x: x * np.float32(1.4), ""),
    ],
)
def test_what_is_wrong_whatever_the_budget(spoil: Any, text: str) -> None:
    assert find_fault(EXACT, [[spoil(output) for output in item] for item in EXACT]) == text


def test_a_constant_reference_may_have_constant_results() -> None:
    zeros = [[np.zeros((2, 2), "float32")]]
    assert find_fault(zeros, zeros) == ""
    assert find_fault([[np.array([1, 2])]], [[np.array([1, 2])]]) == ""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (1, "max_error is a share of 0 to below 0.5, such as 0.01 for 1 %; got 1; did you mean 0.01?"),
        (-0.1, "max_error is a share of 0 to below 0.5, such as 0.01 for 1 %; got -0.1"),
        ("1%", "max_error is a share such as 0.01, an xrt.ErrorBudget or None; got '1%'"),
        (True, "max_error is a share such as 0.01, an xrt.ErrorBudget or None; got True"),
    ],
)
def test_what_is_no_budget(given: Any, text: str) -> None:
    with raises_exactly(OptionError, text):
        parse_budget(given)


def test_budgets_print_and_refuse_other_measures() -> None:
    assert str(parse_budget(0.01)) == "relative error at most 1%"
    assert str(xrt.ErrorBudget(0.005, raise_error)) == "loss of raise_error at most 0.005"
    with raises_exactly(
        OptionError,
        "measure must be one of relative, cosine, top1, or a function of outputs and items; got 'cosin'. Did you mean 'cosine'?",
    ):
        ErrorBudget(0.1, "cosin")  # type: ignore[arg-type]  # a mistake
    with pytest.raises(OptionError, match=r"the limit of an ErrorBudget is a number, 0 or more, such as 0.01; got nan"):
        ErrorBudget(math.nan)


X = np.ones((1, 2), "float32")


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (X, CalibrationError, "validate= must be a list of batches, each the arguments of one call; got one ndarray: pass [x]"),
        ([], CalibrationError, "validate= has no batches; pass a list of at least two, each the arguments of one call"),
        (
            [X, X * np.float32(np.nan)],
            CalibrationError,
            "input 'x' of batch 2 of validate= has 2 NaN and 0 infinities among its 2 numbers; give examples of finite numbers",
        ),
        (
            [{"x": X, "label": 3}],
            OptionError,
            (
                "an example has 'label', which is not an input. Inputs: x. Additional entries, such as labels, need your own "
                "metric: max_error=xrt.ErrorBudget(limit, metric)"
            ),
        ),
        ([{}], InputError, "batch 1 of validate=: no value for input 'x'; the model takes 1 input (x)"),
    ],
)
def test_examples_that_do_not_serve(given: Any, kind: type[Exception], text: str) -> None:
    with raises_exactly(kind, text):
        read_examples(given, "validate", INPUTS)


def test_examples_come_by_position_or_name_and_labels_go_to_a_metric() -> None:
    results = [X, [X], {"x": X}]
    result = read_examples(results, "validate", INPUTS)
    assert len(result) == 3 and all(np.array_equal(item.values[0], X) for item in result.items)
    labelled = [{"x": X, "label": 3}]
    assert read_examples(labelled, "validate", INPUTS, ErrorBudget(0.1, raise_error)).items[0].example is labelled[0]
    assert read_examples(iter(results), "validate", INPUTS).digest == result.digest
    assert read_examples([X + 1], "validate", INPUTS).digest != result.digest


def test_rows_of_a_symbolic_batch_become_examples() -> None:
    declared = (Value("x", TensorType(DType.FLOAT32, ("n", "s"))),)
    function = Function((Value("x", TensorType(DType.FLOAT32, (2, 3))),), (Value("x"),), name="f")
    rows = np.arange(24, dtype="float32").reshape(4, 6)
    result = read_examples([rows], "validate", declared).fit(function, declared)
    assert [item.values[0].tolist() for item in result.items] == [rows[:2, :3].tolist(), rows[2:, :3].tolist()]
    assert [item.batch for item in result.items] == [0, 0]
    fixed = (Value("x", TensorType(DType.FLOAT32, (4, 6))),)
    with pytest.raises(InputError, match=r"an example of validate= has shape \[4, 6\] for input 'x', and the call has float32"):
        read_examples([rows], "validate", fixed).fit(function, fixed)


def test_metrics_that_differ_in_any_constant_have_different_hashes() -> None:
    metrics = [
        lambda outputs, items: float(items[0] in (1, 2)),
        lambda outputs, items: float(items[0] in (3, 4)),
        lambda outputs, items: float(items[0] in {"a", "b"}),
        lambda outputs, items: sum(1.0 for item in items if item > 1),
        lambda outputs, items: sum(1.0 for item in items if item > 2),
    ]
    assert len({hash_metric(metric) for metric in metrics}) == len(metrics)
