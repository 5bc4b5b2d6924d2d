"""A reduced precision without a budget is a permission: an engine is measured in it and in float32, and the faster is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import xrt
from tests.module.test_faults import X, chain
from tests.placement.uneven import Uneven
from tests.precision.lossy import Lossy, LossyExecutable
from xrt.engines import CompileContext, Executable, ExecutionOptions, create
from xrt.engines.contract.options import Precision
from xrt.graph import Function
from xrt.placement.engine_list import list_available_engines

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here"), pytest.mark.sample(3)]

PAIR = chain("Exp", "Cos")
RIGHT = np.cos(np.exp(X))


@dataclass(frozen=True)
class Rounding(Uneven):
    """Computes in bf16 where that is allowed, and is slow in one of the two."""

    name: ClassVar[str] = "rounding"
    precision: str = "allowed"
    slow_in: str = ""

    def unsupported_options(self, context: CompileContext) -> str | None:
        wanted = context.options.precision
        return None if wanted in ("fp32", "bf16") and self.precision in ("allowed", wanted) else f"no {wanted} in {self.spec}"

    def with_precision(self, precision: Precision) -> Rounding | None:
        return replace(self, precision=precision) if precision in ("fp32", "bf16") else None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        precision = context.options.precision if self.precision == "allowed" else self.precision
        seconds = 0.005 if precision == self.slow_in else 0.0
        result = replace(self, slow="Exp|Cos", seconds=seconds)
        inner = super(Rounding, result).compile(function, context)
        return LossyExecutable(inner, "0.002") if precision == "bf16" else inner


@pytest.mark.parametrize(
    ("slow_in", "chosen"), [("bf16", "rounding{precision=fp32, slow_in=bf16}"), ("fp32", "rounding{slow_in=fp32}")]
)
def test_the_faster_of_both_forms_is_chosen_and_kept(slow_in: str, chosen: str, tmp_path: Path) -> None:
    engine = Rounding(slow_in=slow_in)
    options: dict[str, Any] = {"threads": 1, "progress": False, "budget": 30, "precision": "bf16"}
    with xrt.XRTModule(PAIR, [engine, "auto"], cache=tmp_path / "cache", **options) as m:
        result = m(X)
        assert m.engines == (engine.spec, replace(engine, precision="fp32").spec, "toy")
        assert m.tuned is not None and m.tuned.how == "measured"
        assert m.plan.used_engines == (chosen,)
        assert "all are placed in fp32" not in str(m.explain())
    is_exact = slow_in == "bf16"
    np.testing.assert_allclose(result, RIGHT, rtol=1e-5 if is_exact else 1e-2)
    assert bool(np.abs(result - RIGHT).max() > 1e-4) is not is_exact


def test_an_engine_that_offers_a_precision_by_another_spec_takes_part_in_both(tmp_path: Path) -> None:
    engine = Lossy(reduced="0.001")
    lower = engine.with_precision("bf16")
    with xrt.XRTModule(PAIR, [engine, "auto"], cache=tmp_path, threads=1, precision="bf16", budget=1) as m:
        np.testing.assert_allclose(m(X), RIGHT, rtol=1e-2)
        assert m.engines == (lower.spec, engine.spec, "toy")
        assert "no engine of the list computes in bf16" not in str(m.explain())


def test_one_form_takes_part_where_no_precision_is_allowed(tmp_path: Path) -> None:
    with xrt.XRTModule(PAIR, [Rounding(), "auto"], cache=tmp_path, threads=1, strict=True) as m:
        assert m.engines == ("rounding",)


@pytest.mark.full
def test_openvino_takes_part_in_both() -> None:
    openvino = create("openvino")
    context = CompileContext(ExecutionOptions(precision="bf16"), threads=1)
    result, _ = list_available_engines(["openvino", "toy", "auto"], context, None, strict=False)
    has_bf16 = openvino.with_precision("bf16") is not None
    exact = ["openvino{precision=fp32}"] if has_bf16 else []
    assert [item.spec for item in result] == ["openvino", *exact, "toy"]
    named, _ = list_available_engines(["openvino{precision=fp32}", "auto"], context, None, strict=False)
    assert [item.spec for item in named] == ["openvino{precision=fp32}"]  # who names it so wants it so
    exact_engine = create("openvino{precision=fp32}")
    assert exact_engine.with_precision("bf16") is None


@pytest.mark.full
def test_openvino_in_fp32_computes_so_whatever_is_allowed() -> None:
    rng = np.random.default_rng(0)
    function = chain("Tanh").replace(name="one")
    x = rng.standard_normal(X.shape).astype(X.dtype)
    context = CompileContext(ExecutionOptions(precision="bf16"), threads=1)
    executable = create("openvino{precision=fp32}").compile(function, context)
    executable.prepare()
    np.testing.assert_allclose(executable.run([x])[0], np.tanh(x), rtol=1e-5)
    executable.close()


@pytest.mark.full
def test_a_bundle_of_both_forms_loads(tmp_path: Path) -> None:
    """Its list has engines that do not honor the precision, which it allows and does not demand."""
    with xrt.XRTModule(PAIR, ["openvino", "toy", "auto"], cache=tmp_path / "cache", threads=1, precision="bf16", budget=1) as m:
        result = m(X)
        m.save(tmp_path / "model.xrt")
    with xrt.load(tmp_path / "model.xrt") as loaded:
        np.testing.assert_array_equal(loaded(X), result)
        assert loaded.engines == m.engines
