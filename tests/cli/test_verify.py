"""``xrt verify`` and ``xrt bisect`` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.verify.wrong import Wrong, long_model, numbers
from xrt.cli import main
from xrt.formats import onnx

pytestmark = pytest.mark.sample(3)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Twenty nodes, of which one is an Atan."""
    path = tmp_path / "model.onnx"
    onnx.save(long_model(count=20, at=9), path)
    return str(path)


def left(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


@pytest.mark.full
def test_a_right_engine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert left("verify", model, "--engine", "ort") == 0
    assert capsys.readouterr().out == "xrt_ort_0 (ort, 20 nodes): agrees\nthe whole: agrees\n"
    assert left("bisect", model, "--engine", "ort") == 0
    assert capsys.readouterr().out == "no region differs from the reference engine\n"


@pytest.mark.full
def test_a_wrong_engine(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("xrt.cli.options.split_specs", lambda text: [Wrong(native="off")])
    np.save(tmp_path / "x.npy", numbers())
    assert left("verify", model, "-e", "wrong", "--json", "-i", str(tmp_path / "x.npy")) == 1
    (region,) = json.loads(capsys.readouterr().out)["regions"]
    assert next(v["node"] for v in region["inner"] if v["judgement"]["verdict"] == "disagrees") == "n9"
    assert left("verify", model, "-e", "wrong", "--outputs-only") == 1
    assert "inside" not in capsys.readouterr().out
    assert left("bisect", model, "-e", "wrong", "--output", str(tmp_path / "case")) == 1
    shown = capsys.readouterr().out
    assert "differs on 1 node: 'n9' (Atan)" in shown and shown.endswith(f"written to {tmp_path / 'case'}\n")
    assert (tmp_path / "case" / "test_data_set_0" / "input_0.pb").exists()


@pytest.mark.full
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert left("bisect", model, "-e", "ort", "--output", str(tmp_path / "no" / "case")) == 2
    assert capsys.readouterr().err == f"error: cannot write {tmp_path}/no/case: there is no folder {tmp_path}/no\n"


def test_the_default_engine_is_compared(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert left("verify", model) == 0
    assert capsys.readouterr().out == "xrt_ort_0 (ort, 20 nodes): agrees\nthe whole: agrees\n"
