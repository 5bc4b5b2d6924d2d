"""``--max-error`` of `xrt tune` and `xrt lock`, and a check of the error that a lock holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xrt
from tests.cli.commands import Command
from tests.exact_errors import raises_exactly
from tests.precision.lossy import Lossy
from xrt.cache import CompileCache
from xrt.engines import CompileContext
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import LockError
from xrt.formats import onnx
from xrt.formats.placement_file import PrecisionRecord
from xrt.models import load, sample_inputs
from xrt.partition import partition
from xrt.placement.race import RegressionSetup
from xrt.placement.result import PlacementRequest
from xrt.precision.budget import read_examples
from xrt.precision.search import check_error

pytestmark = [pytest.mark.filterwarnings("ignore::xrt.errors.NativeWarning"), pytest.mark.sample(3)]

MODEL = load("mlp", features=64, hidden=128, classes=10)
BATCHES = [sample_inputs(MODEL, seed) for seed in range(12)]


def check(fault: str = "0.04", validate: Any = BATCHES[:4], **changes: Any) -> None:
    engine = Lossy(fault=fault)
    request = PlacementRequest(MODEL, (engine,), CompileContext(threads=1))
    setup = RegressionSetup(request, CompileCache(), list(BATCHES[0].values()), evaluate, 1.0)
    results = {"measure": "relative", "limit": 0.05, "precision": "bf16", "data": "", "items": 4, "error": 0.04}
    results["validation"] = read_examples(BATCHES[:4], "validate", MODEL.inputs).digest
    check_error(setup, partition(MODEL, [engine]), PrecisionRecord(**results | changes), validate, MODEL.inputs)


@pytest.mark.slow
def test_an_error_within_the_budget_of_the_lock_passes() -> None:
    check()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"fault": "0.06"},
            "the error of the plan in bf16 is over the budget: up to 6%, and 5% is allowed; it was 4% when it was locked",
        ),
        (
            {"fault": "zeros"},
            "the plan in bf16 computes wrong results: output 0 is 0 everywhere, where the reference is not constant",
        ),
        (
            {"validate": BATCHES[1:5]},
            "the validation examples differ from those of the lockfile; write it again with `xrt lock`",
        ),
        (
            {"validate": None},
            (
                "the lockfile has a plan in bf16, whose error must be measured again, and the validation examples are "
                "missing; pass --validate"
            ),
        ),
        (
            {"measure": "accuracy"},
            "the error in the lockfile was measured by the metric 'accuracy', which is not stored in it",
        ),
    ],
)
def test_what_fails_a_check(changes: dict[str, Any], text: str) -> None:
    with raises_exactly(LockError, text):
        check(**changes)


@pytest.mark.full
def test_the_commands_keep_a_budget_and_a_check_fails_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "model.onnx")
    for name, several in (("calibrate", BATCHES[:6]), ("validate", BATCHES[6:12])):
        Path(name).mkdir()
        for number, batch in enumerate(several):
            np.savez(f"{name}/{number}.npz", **batch)
    data = ["--max-error", "30%", "--calibrate", "calibrate", "--validate", "validate", "-e", "ort", "--threads", "1"]
    tuned = command("tune", "model.onnx", *data, "--budget", "10s", "-v", "--html", "page.html")
    assert tuned[0] == 0 and "relative error at most 30%" in tuned[1]
    assert "relative error at most 30%" in Path("page.html").read_text()
    locked = command("lock", "model.onnx", *data, "--budget", "10s", "--gate", "1s", "-o", "model.lock")
    assert locked[0] == 0
    lock = json.loads(Path("model.lock").read_text())
    assert lock["precision"]["limit"] == 0.3 and lock["model"]["validate"] == "validate"
    assert command("check", "model.lock", "--budget", "1s", "--max-regress", "900%")[0] == 0
    if lock["precision"]["precision"] == "int8":  # the race may have gone the other way
        lock["precision"]["limit"] = 0.0001
        Path("tight.lock").write_text(json.dumps(lock))
        failed = command("check", "tight.lock", "--budget", "1s")
        assert failed[0] == 1 and "is over the budget: up to" in failed[1]
        with pytest.raises(LockError, match="its error was measured to be up to"):
            xrt.XRTModule("model.onnx", "auto", lock="model.lock", max_error=0.0001, strict=True, threads=1)(**BATCHES[0])
    refused = command("tune", "model.onnx", "--validate", "validate")
    assert refused[0] == 2 and "pass --max-error too" in refused[2]
