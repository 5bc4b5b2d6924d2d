"""Quantized forms: which are made for a model, what they are worth on a hard one, and that each is made again from a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.passes.quantize.models import prepare
from tests.passes.quantize.test_quantize import make_hard
from tests.precision.test_lowering import place_exactly
from xrt.cache import CompileCache
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.errors import CalibrationError
from xrt.formats.placement_file import BalancedValue, FormKind, PrecisionRecord
from xrt.graph import Function
from xrt.models import load, sample_inputs
from xrt.passes.quantize import list_balanced_values
from xrt.passes.quantize.form import (
    QuantizedForm,
    balance_values,
    fit_table,
    list_quantizable_nodes,
    make_planned_function,
    prepare_for_quantization,
)
from xrt.placement import CostStore
from xrt.placement.records import load_decision, store_decision
from xrt.placement.result import PlacementRequest, TuningResult
from xrt.precision.budget import ErrorBudget, PrecisionOptions, read_examples
from xrt.precision.lowering import LoweringWithinBudget
from xrt.precision.search import list_product_forms

pytestmark = pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning")

ORT = registry.create("ort")
HARD = make_hard(prepare(load("gpt", layers=1, hidden=64, heads=2, tokens=8, vocabulary=50)))
BATCHES = [sample_inputs(HARD, seed) for seed in range(10)]
MLP = load("mlp", features=64, hidden=128, classes=10)


def make_options(limit: float) -> PrecisionOptions:
    examples = read_examples(BATCHES[4:], "validate", HARD.inputs), read_examples(BATCHES[:4], "calibrate", HARD.inputs)
    return PrecisionOptions(ErrorBudget(limit), *examples, ("int8",))


def lower(lowering: LoweringWithinBudget) -> tuple[PlacementRequest, TuningResult]:
    request = PlacementRequest(HARD, (ORT,), CompileContext(threads=1))
    return request, lowering.lower(request, place_exactly(request), CompileCache(), 120.0, lambda progress: None)


@pytest.mark.slow
def test_balanced_channels_keep_a_budget_that_int8_breaks_with_no_node_in_float32(tmp_path: Path) -> None:
    lowering = LoweringWithinBudget(make_options(0.05))
    request, result = lower(lowering)
    record = result.precision
    assert record is not None
    plain, balanced = (
        next(candidate for candidate in record.plans if candidate.precision == name) for name in ("int8", "balanced int8")
    )
    assert plain.outcome == "over" and plain.error is not None and balanced.error is not None
    assert balanced.error < 0.2 * plain.error and not balanced.exact_count and balanced.outcome in ("won", "tie", "lost")
    assert not any(
        candidate.precision == "int8" and candidate.exact_count for candidate in record.plans
    )  # nodes are kept in the better form
    if record.balance:
        store = CostStore(tmp_path)
        store_decision(result, request, store, lowering.ingredients)
        decision = load_decision(request, store, lowering.ingredients)
        assert decision is not None and decision.precision == record
        assert decision.plan.launches[0].function.fingerprint == result.plan.launches[0].function.fingerprint


@pytest.mark.parametrize("kind", ["static", "dynamic", "packed8", "stored8"])
def test_each_form_is_made_again_from_the_record(kind: FormKind) -> None:
    prepared = prepare_for_quantization(MLP)
    batches = [sample_inputs(MLP, seed) for seed in range(4)]
    table = fit_table(xrt.calibrate(MLP, batches), prepared, MLP) if kind == "static" else None
    form = QuantizedForm(table, frozenset({list_quantizable_nodes(prepared)[0][0]}), kind)
    results: dict[str, Any] = {"measure": "relative", "limit": 0.1, "precision": "int8", "data": "", "items": 4}
    record = PrecisionRecord(**results, is_quantized=True, form=kind, table=table)
    planned = make_planned_function(MLP, record)
    assert planned.fingerprint == QuantizedForm(table, frozenset(), kind).apply(prepared).fingerprint
    saved = form.apply(prepared)
    assert saved.fingerprint != planned.fingerprint
    with xrt.XRTModule(MLP, engine="ort") as exact, xrt.XRTModule(planned, engine="ort") as near:
        a, b = exact(**batches[0]), near(**batches[0])
    assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a)


def test_balancing_needs_the_values_of_the_model() -> None:
    (name, *_) = list_balanced_values(HARD)
    for wrong in (BalancedValue("other", (1, 2)), BalancedValue(name, (1, 2))):
        with pytest.raises(CalibrationError) as caught:
            balance_values(HARD, [wrong])
        assert str(caught.value) == f"the model has no value {wrong.name!r} of 2 channels that can be balanced"


def list_forms(function: Function, *, has_kernels: bool = True) -> list[str]:
    prepared = prepare_for_quantization(function)
    names = [name for _, name in list_quantizable_nodes(prepared)]
    engine = ORT if has_kernels else registry.create("openvino")
    return [form.kind for form, _ in list_product_forms(prepared, names, frozenset(), engine, has_kernels=has_kernels)]


def test_forms_that_cannot_pay_are_not_made() -> None:
    assert list_forms(MLP) == ["dynamic", "packed8"]
    many_rows = load("mlp", features=64, hidden=128, classes=10, batch=32)
    assert list_forms(many_rows) == ["dynamic", "packed8"]
    assert list_forms(many_rows, has_kernels=False) == []  # stored weights pay where reading them takes the time
    convolutions = load("mobilenet", image=32, width=25, classes=2)
    assert list_forms(convolutions) == []


@pytest.mark.slow
def test_an_engine_without_packed_products_gets_weights_as_they_are_stored() -> None:
    assert list_forms(MLP, has_kernels=False) == ["stored8"]
