"""Precision as an option of a module: names, lists, constraints, int8 by a table or batches, and an error budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from xrt.errors import CalibrationError, OptionError
from xrt.graph import Function
from xrt.models import load, sample_inputs

pytestmark = pytest.mark.sample(3)

MODEL = load("mlp", features=64, hidden=128, classes=10)
BATCHES = [sample_inputs(MODEL, seed) for seed in range(16)]
AUTO: dict[str, Any] = {"engine": ["ort", "auto"], "threads": 1, "progress": False}


def compute_error(module: xrt.XRTModule, model: Function = MODEL) -> float:
    with xrt.XRTModule(model, engine="ort") as exact, module:
        pairs = [(exact(**batch), module(**batch)) for batch in BATCHES[8:]]
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in pairs))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"max_error": 0.01, "engine": "ort", "validate": BATCHES},
            OptionError,
            "max_error= needs placement by measurement; pass engine='auto', or a list with 'auto' in it",
        ),
        (
            {"max_error": 0.01},
            OptionError,
            (
                "max_error= needs examples on which the error is measured: pass validate=, a list of batches and, for int8, also "
                "calibrate=, a list of other batches"
            ),
        ),
        (
            {"max_error": 0.01, "validate": BATCHES[:1]},
            CalibrationError,
            "validate= has one example, and the interval of an error needs at least two; pass more",
        ),
        (
            {"max_error": 0.01, "validate": BATCHES[:4], "calibrate": BATCHES[:4]},
            CalibrationError,
            "validate= has the same batches as calibrate=; pass others to measure the error",
        ),
        (
            {"validate": BATCHES},
            OptionError,
            "validate= has examples for an error budget; pass max_error= too, such as max_error=0.01",
        ),
        (
            {"precision": ["bf16", "int8"], "engine": "ort"},
            OptionError,
            (
                "precision=['bf16', 'int8'] has several precisions, from which XRT chooses by measurement: pass "
                "engine='auto', max_error=0.01 and validate=, or one precision"
            ),
        ),
        (
            {"precision": "int8", "engine": "ort"},
            OptionError,
            (
                "int8 needs the ranges of the model's values: pass calibrate=, a list of batches or the path of a table that "
                "m.calibrate(batches).save(path) has written"
            ),
        ),
        (
            {"calibrate": BATCHES, "engine": "ort"},
            OptionError,
            "calibrate= is for int8; pass precision='int8' too, or max_error= with engine='auto'",
        ),
        (
            {"precision": "Softmax=fp32", "engine": "ort"},
            OptionError,
            "a constraint on precision needs a reduced precision for the other nodes; add 'int8'",
        ),
        (
            {"precision": "Softmax=int8", "engine": "ort"},
            OptionError,
            (
                "the constraint 'Softmax=int8' is not supported: a constraint keeps nodes in fp32, as 'Softmax=fp32'; pass the "
                "reduced precision without nodes: precision=['int8', 'Softmax=fp32']"
            ),
        ),
        (
            {"precision": ["bf16", "Softmax=fp32"], "engine": "ort"},
            OptionError,
            (
                "a constraint on precision is for int8 or an error budget; for bf16 or fp16 list an engine in both precisions, "
                "and pin the nodes: engine=['openvino{precision=bf16}', 'openvino'], pins='Softmax!=openvino{precision=bf16}'"
            ),
        ),
        ({"precision": 16}, OptionError, "precision is a name, a constraint such as 'Softmax=fp32', or a list of these; got 16"),
        ({"precision": "bf17"}, OptionError, "precision must be one of fp32, fp16, bf16, int8; got 'bf17'. Did you mean 'bf16'?"),
    ],
)
def test_options_that_cannot_be_kept(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with raises_exactly(kind, text):
        xrt.XRTModule(MODEL, **{**AUTO, **options})


@pytest.mark.parametrize("engine", ["ort", "openvino", "toy"])
def test_int8_by_batches_or_by_a_table_of_the_model(engine: str, tmp_path: Path) -> None:
    with xrt.XRTModule(MODEL, engine="ort") as module:
        table = module.calibrate(BATCHES[:8])
    table.save(tmp_path / "table.json")
    by_batches = compute_error(xrt.XRTModule(MODEL, engine, precision="int8", calibrate=BATCHES[:8]))
    by_table = compute_error(xrt.XRTModule(MODEL, engine, precision="int8", calibrate=str(tmp_path / "table.json")))
    assert 0.001 < by_table < 0.2
    assert by_batches == pytest.approx(by_table, rel=0.02)


@pytest.mark.full
def test_int8_keeps_the_nodes_of_constraints() -> None:
    module = xrt.XRTModule(MODEL, "ort", precision=["int8", "name:matmul_1|matmul_2|matmul_3=fp32"], calibrate=BATCHES[:8])
    with module:
        module(**BATCHES[0])
        names = [node.op for node in module.plan.launches[0].function.nodes]
    assert names.count("QuantizeLinear") == 1
    with raises_exactly(OptionError, "nothing of model 'mlp' is quantized: the constraints keep all 4 nodes in float32"):
        xrt.XRTModule(MODEL, "ort", precision=["int8", "Gemm=fp32"], calibrate=BATCHES[:8])(**BATCHES[0])


@pytest.mark.full
def test_without_max_error_precision_is_not_reduced() -> None:
    with xrt.XRTModule(MODEL, **AUTO, budget=2) as module:
        module(**BATCHES[0])
        assert module.tuned is not None and module.tuned.precision is None
        assert module.plan.engines == ("ort",)
        assert all(node.op != "QuantizeLinear" for node in module.plan.launches[0].function.nodes)


@pytest.mark.slow
def test_a_module_with_a_budget_keeps_it_and_a_later_one_uses_the_decision(tmp_path: Path) -> None:
    options = {**AUTO, "max_error": 0.2, "calibrate": BATCHES[:4], "validate": BATCHES[4:8], "cache": tmp_path}
    with xrt.XRTModule(MODEL, **options, budget=20) as module:
        module(**BATCHES[0])
        first, text = module.tuned, str(module.explain())
    assert first is not None and first.precision is not None and "measured on 4 items, calibrated on 4 others" in text
    assert first.precision.error <= 0.2
    later = xrt.XRTModule(MODEL, **options, budget=20)
    later(**BATCHES[0])
    assert later.tuned is not None and later.tuned.how in ("remembered", "measured")
    assert compute_error(later) < 0.4
    assert "int8" in json.dumps(first.to_dict())
