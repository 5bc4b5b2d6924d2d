"""The trial of an engine's sums of bytes, and the weights that are chosen by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from xrt import OpTable
from xrt.engines import GraphCompiler, Precision
from xrt.engines.contract import registry
from xrt.engines.toy import KernelContext, Run, Toy
from xrt.formats.placement_file import PrecisionRecord
from xrt.graph import DType, Node
from xrt.models import load, sample_inputs
from xrt.passes.quantize.form import QuantizedForm, fit_table, make_planned_function, prepare_for_quantization
from xrt.precision import byte_sums
from xrt.testing.fault_injection import FaultyEngine

ops: OpTable[Any] = Toy.kernels.extend("saturating")


@ops("MatMul", priority=9)
def matmul(node: Node, env: KernelContext) -> Run:
    """Add pairs of products in 16 bits, as processors without VNNI do."""
    return lambda a, b: np.minimum(a[..., ::2] @ b[::2] + a[..., 1::2] @ b[1::2], 32767 * a.shape[-1] / 2)


@dataclass(frozen=True)
class Saturating(Toy):
    name: ClassVar[str] = "saturating"
    kernels: ClassVar[OpTable[Any]] = ops

    def lower_precision(self, precision: Precision) -> GraphCompiler | None:
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
    record = PrecisionRecord(**results, is_quantized=True, table=table, reduce_range=reduce_range)
    result = make_planned_function(model, record)
    assert result.fingerprint == QuantizedForm(table, reduce_range=reduce_range).apply(prepared).fingerprint
    assert widest(result) == most
