"""Quantized forms: which are made for a model, what they are worth on a hard one, and that each is made again from a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.passes.quantize.models import prepare
from tests.passes.quantize.test_quantize import make_hard
from tests.precision.test_reduced_precision import place_exactly
from xrt import OpTable
from xrt.cache import CompileCache
from xrt.engines import CompileContext, GraphCompiler, Precision
from xrt.engines.contract import registry
from xrt.engines.toy import KernelContext, Run, Toy
from xrt.errors import CalibrationError
from xrt.formats.placement_file import BalancedValue, FormKind, PrecisionRecord, QuantizedForm
from xrt.graph import DType, Function, Node
from xrt.models import load, sample_inputs
from xrt.passes.quantize import list_balanced_values
from xrt.passes.quantize.form import (
    balance_values,
    fit_table,
    list_quantizable_nodes,
    make_planned_function,
    prepare_for_quantization,
    quantize_form,
)
from xrt.placement import CostStore
from xrt.placement.records import load_decision, store_decision
from xrt.placement.result import PlacementRequest, TuningResult
from xrt.precision import byte_sums
from xrt.precision.budget import ErrorBudget, PrecisionOptions, read_examples
from xrt.precision.placement import ReducedPrecisionSearch
from xrt.precision.search import list_product_forms
from xrt.testing.fault_injection import FaultyEngine

ORT = registry.create("ort")
HARD = make_hard(prepare(load("gpt", layers=1, hidden=64, heads=2, tokens=8, vocabulary=50)))
BATCHES = [sample_inputs(HARD, seed) for seed in range(10)]
MLP = load("mlp", features=64, hidden=128, classes=10)


def make_options(limit: float) -> PrecisionOptions:
    examples = read_examples(BATCHES[4:], "validate", HARD.inputs), read_examples(BATCHES[:4], "calibrate", HARD.inputs)
    return PrecisionOptions(ErrorBudget(limit), *examples, ("int8",))


def reduce_precision(reducer: ReducedPrecisionSearch) -> tuple[PlacementRequest, TuningResult]:
    request = PlacementRequest(HARD, (ORT,), CompileContext(threads=1))
    return request, reducer.reduce_precision(request, place_exactly(request), CompileCache(), 120.0, lambda progress: None)


@pytest.mark.slow
def test_balanced_channels_keep_a_budget_that_int8_breaks_with_no_node_in_float32(tmp_path: Path) -> None:
    reducer = ReducedPrecisionSearch(make_options(0.05))
    request, result = reduce_precision(reducer)
    record = result.precision
    plain, balanced = (
        next(candidate for candidate in record.plans if candidate.precision == name) for name in ("int8", "balanced int8")
    )
    assert plain.outcome == "over" and plain.error is not None and balanced.error is not None
    assert balanced.error < 0.2 * plain.error and not balanced.exact_count and balanced.outcome in ("won", "tie", "lost")
    assert not any(
        candidate.precision == "int8" and candidate.exact_count for candidate in record.plans
    )  # nodes are kept in the better form
    if record.form is not None and record.form.balance:
        store = CostStore(tmp_path)
        store_decision(result, request, store, reducer.ingredients)
        decision = load_decision(request, store, reducer.ingredients)
        assert decision is not None and decision.precision == record
        assert decision.plan.launches[0].function.fingerprint == result.plan.launches[0].function.fingerprint


@pytest.mark.parametrize("kind", ["static", "dynamic", "packed8", "stored8"])
def test_each_form_is_made_again_from_the_record(kind: FormKind) -> None:
    prepared = prepare_for_quantization(MLP)
    batches = [sample_inputs(MLP, seed) for seed in range(4)]
    table = fit_table(xrt.calibrate(MLP, batches), prepared, MLP) if kind == "static" else None
    form = QuantizedForm(table, frozenset(), kind)
    results: dict[str, Any] = {"measure": "relative", "limit": 0.1, "precision": "int8", "data": "", "items": 4}
    record = PrecisionRecord(**results, form=form)
    planned = make_planned_function(MLP, record)
    assert planned.fingerprint == quantize_form(prepared, form).fingerprint
    saved = quantize_form(prepared, form.replace(exact_nodes=frozenset({list_quantizable_nodes(prepared)[0][0]})))
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


def test_only_forms_that_can_pay_are_made() -> None:
    assert list_forms(MLP) == ["dynamic", "packed8"]
    assert list_forms(MLP, has_kernels=False) == ["stored8"]
    many_rows = load("mlp", features=64, hidden=128, classes=10, batch=32)
    assert list_forms(many_rows) == ["dynamic", "packed8"]
    assert list_forms(many_rows, has_kernels=False) == []  # stored weights pay where reading them takes the time
    convolutions = load("mobilenet", image=32, width=25, classes=2)
    assert list_forms(convolutions) == []


ops: OpTable[Any] = Toy.kernels.extend("saturating")


@ops("MatMul", priority=9)
def matmul(node: Node, ctx: KernelContext) -> Run:
    """Add pairs of products in 16 bits, as processors without VNNI do."""
    return lambda a, b: np.minimum(a[..., ::2] @ b[::2] + a[..., 1::2] @ b[1::2], 32767 * a.shape[-1] / 2)


@dataclass(frozen=True)
class Saturating(Toy):
    name: ClassVar[str] = "saturating"
    kernels: ClassVar[OpTable[Any]] = ops

    def with_precision(self, precision: Precision) -> GraphCompiler | None:
        return self if precision == "int8" else None


def test_sums_that_saturate_are_found() -> None:
    assert not byte_sums.sums_bytes_exactly(Saturating(native="off"))
    assert byte_sums.sums_bytes_exactly(registry.create("toy"))
    assert byte_sums.sums_bytes_exactly(FaultyEngine(where="compile", how="refuse"))


@dataclass(frozen=True)
class WithoutConvolutions(Saturating):
    name: ClassVar[str] = "without_convolutions"

    def why_not(self, node: Node, function: xrt.Function) -> str | None:
        return "it has none" if node.op == "Conv" else super().why_not(node, function)


def test_an_engine_that_declines_one_operator_is_tried_on_the_other() -> None:
    assert not byte_sums.sums_bytes_exactly(WithoutConvolutions(native="off"))


def test_an_engine_that_fails_is_not_trusted() -> None:
    assert not byte_sums.sums_bytes_exactly(FaultyEngine(where="run", how="raise"))


def test_only_engines_that_compute_in_integers_count() -> None:
    assert byte_sums.needs_reduced_range([registry.create("toy"), Saturating(native="off")])
    assert not byte_sums.needs_reduced_range([registry.create("toy"), registry.create("ort")])


def widest(function: xrt.Function) -> int:
    weights = [c.array for c in function.constants.values() if c.dtype is DType.INT8 and c.array.ndim > 1]
    return max(int(np.abs(weight.astype(int)).max()) for weight in weights)


@pytest.mark.parametrize(("is_exact", "most"), [(True, 127), (False, 64)])
def test_int8_has_weights_of_7_bits_where_sums_saturate(is_exact: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_sums, "sums_bytes_exactly", lambda engine: is_exact)
    model = load("mlp", features=16, hidden=16, classes=4)
    batches = [sample_inputs(model, seed) for seed in range(3)]
    with xrt.XRTModule(model, engine="ort", precision="int8", calibrate=batches) as module:
        module(**batches[0])
        assert max(widest(launch.function) for launch in module.plan.launches) == most


@pytest.mark.parametrize(("reduce_range", "most"), [(False, 127), (True, 64)])
def test_a_record_makes_the_same_weights_on_every_machine(reduce_range: bool, most: int) -> None:
    model = load("mlp", features=16, hidden=16, classes=4)
    prepared = prepare_for_quantization(model)
    table = fit_table(xrt.calibrate(model, [sample_inputs(model, 0)]), prepared, model)
    results: dict[str, Any] = {"measure": "relative", "limit": 0.1, "precision": "int8", "data": "", "items": 4}
    form = QuantizedForm(table, reduce_range=reduce_range)
    result = make_planned_function(model, PrecisionRecord(**results, form=form))
    assert result.fingerprint == quantize_form(prepared, form).fingerprint
    assert widest(result) == most
