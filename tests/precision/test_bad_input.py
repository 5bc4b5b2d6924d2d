"""Bad input of a search within an error budget: one error that says what to do, or float32 with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import xrt
from tests.precision.lossy import Lossy, LossyExecutable
from tests.precision.test_lowering import BATCHES, MODEL, ORT, ask, list_outcomes, lower, make_options
from xrt.cache import CompileCache
from xrt.cache.memory import wait_until_closed
from xrt.engines import RunOptions
from xrt.errors import CalibrationError, InputError, OptionError, RunFailed
from xrt.graph import Constant
from xrt.models import load, sample_inputs
from xrt.passes import infer_shapes
from xrt.precision import collectors
from xrt.precision.budget import read_examples
from xrt.precision.search import Workbench, observe

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

(NAME,) = BATCHES[0]
X = BATCHES[0][NAME]
SPOILED = [BATCHES[0], {NAME: np.where(np.arange(X.size).reshape(X.shape) == 3, np.float32(np.nan), X)}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (
            {"calibrate": [], "validate": BATCHES},
            CalibrationError,
            "calibrate= has no batches; pass at least two, as a list of what calls take",
        ),
        (
            {"calibrate": SPOILED, "validate": BATCHES},
            CalibrationError,
            (
                f"input {NAME!r} of batch 2 of calibrate= has 1 NaN and 0 infinities among its {X.size} numbers; give examples "
                "of finite numbers"
            ),
        ),
        (
            {"calibrate": BATCHES, "validate": SPOILED},
            CalibrationError,
            (
                f"input {NAME!r} of batch 2 of validate= has 1 NaN and 0 infinities among its {X.size} numbers; give examples "
                "of finite numbers"
            ),
        ),
        (
            {"calibrate": BATCHES[0], "validate": BATCHES},
            CalibrationError,
            "calibrate= takes a list of batches, each what a call takes; got one dict: pass [x]",
        ),
        (
            {"validate": [X[:, :5], X]},
            InputError,
            f"batch 1 of validate=: input {NAME!r} must be float32[1,32]; got shape [1, 5]: axis 1 is 5, not 32",
        ),
    ],
)
def test_examples_that_do_not_serve_a_module(data: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        xrt.XRTModule(MODEL, ["ort", "auto"], max_error=0.1, **data)(**BATCHES[0])
    assert str(caught.value) == text


def test_examples_come_from_a_generator_once() -> None:
    def draw() -> Iterator[Any]:
        yield from BATCHES[:3]

    assert len(read_examples(draw(), "calibrate", MODEL.inputs)) == 3


def test_three_examples_or_more_are_split() -> None:
    examples = read_examples(BATCHES[:3], "calibrate", MODEL.inputs)
    calibrate, validate = examples.split()
    assert (calibrate.items, validate.items) == (examples.items[:2], examples.items[2:])
    with pytest.raises(
        CalibrationError, match=r"^calibrate= has 2 batches, and the error is measured on two or more that nothing"
    ):
        calibrate.split()


def test_programs_of_calibration_are_closed_if_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LossyExecutable, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        raise RunFailed("the planned fault")

    closed: list[LossyExecutable] = []
    monkeypatch.setattr(LossyExecutable, "run", fail)
    monkeypatch.setattr(LossyExecutable, "close", lambda self: closed.append(self))
    monkeypatch.setattr(collectors, "MOST_BYTES", 1)  # one program per value
    bench = Workbench(ask(Lossy()), CompileCache(), (Lossy(),))
    examples = read_examples(BATCHES[:1], "calibrate", MODEL.inputs)
    with pytest.raises(RunFailed, match="the planned fault") as caught:
        list(observe(bench, MODEL, examples, [node.outputs[0] for node in MODEL.nodes], print))
    bench.scratch.clear()
    assert wait_until_closed(60) and len(closed) == len(MODEL.nodes), caught


def test_values_inside_the_model_that_are_not_finite_end_calibration_with_one_error() -> None:
    constants = {
        name: Constant(constant.array * np.float32(1e20)) if constant.array.ndim == 2 else constant
        for name, constant in MODEL.constants.items()
    }
    huge = infer_shapes(MODEL.replace(constants=constants))
    with (
        np.errstate(all="ignore"),
        pytest.raises(CalibrationError, match=r"calibration batch 1 has \d+ NaN and \d+ infinities among its"),
        xrt.XRTModule(huge, "ort") as module,
    ):
        module.calibrate(BATCHES[:2])


def test_one_example_of_validation_is_no_interval() -> None:
    options = make_options(0.1)
    first = read_examples(BATCHES[:1], "validate", MODEL.inputs)
    with pytest.raises(CalibrationError) as caught:
        lower(type(options)(options.budget, first, options.calibrate), ORT)
    assert str(caught.value) == (
        "an error budget is kept by an interval over examples, and validate= has 1 of this size; give two examples or more"
    )


def fail_on_lowered(outputs: list[Any], items: list[Any]) -> float:
    if not np.allclose(outputs[0], fail_on_lowered.expected, atol=1e-3):  # type: ignore[attr-defined]  # set by the test
        raise KeyError("label")
    return 1.0


def test_a_metric_that_raises_on_lowered_outputs_alone_is_an_error_too() -> None:
    with xrt.XRTModule(MODEL, "ort") as module:
        fail_on_lowered.expected = module(**BATCHES[4])  # type: ignore[attr-defined]
    with pytest.raises(CalibrationError) as caught:
        lower(make_options(0.1, allowed=("bf16",), measure=fail_on_lowered), Lossy(lowered="0.3"))
    assert str(caught.value) == "the metric fail_on_lowered raised KeyError: 'label'"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "the metric measure returned inf; it must return a finite number"),
        ("high", "the metric measure raised ValueError: could not convert string to float: 'high'"),
        (None, "the metric measure raised TypeError: float() argument must be a string or a real number, not 'NoneType'"),
    ],
)
def test_a_metric_that_returns_no_number(value: Any, text: str) -> None:
    def measure(outputs: Any, items: Any) -> Any:
        return value

    measure.__qualname__ = "measure"
    with pytest.raises(CalibrationError) as caught:
        lower(make_options(0.1, allowed=("bf16",), measure=measure), Lossy(lowered="0.001"))
    assert str(caught.value) == text


def test_a_table_of_another_model_is_one_error_with_the_remedy() -> None:
    other = load("mlp", features=16, hidden=8, classes=4)
    table = xrt.calibrate(other, [sample_inputs(other, 0)])
    with pytest.raises(CalibrationError) as caught:
        lower(make_options(0.3, allowed=("int8",), table=table), ORT)
    assert str(caught.value) == (
        f"the calibration table has ranges of {len(table)} values, and none is computed in this model: it was made of another "
        "model, or the weights have changed since. Calibrate this one: m.calibrate(batches)"
    )


@pytest.mark.slow
def test_a_budget_that_no_form_keeps_says_how_close_it_came_and_keeps_float32() -> None:
    result = lower(make_options(1e-6, allowed=("int8",)), ORT)
    assert result.precision is not None and result.precision.precision == "fp32" and result.plan.engines == ("ort",)
    outcomes = list_outcomes(result)
    assert outcomes.pop("fp32 on ort") == "won" and set(outcomes.values()) == {"over"}
    nearest = min(candidate.high or 1.0 for candidate in result.precision.plans if candidate.outcome == "over")
    assert result.precision.notes[-1].startswith("no lower precision is within the budget: the nearest is ")
    assert f"{100 * nearest:.3g}% of 0.0001%; float32 is kept" in result.precision.notes[-1]


@pytest.mark.slow
def test_a_budget_without_examples_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(OptionError, match=r"^max_error= is kept by measuring the outputs on examples: pass validate="):
        xrt.XRTModule(MODEL, ["ort", "auto"], max_error=0.01)
