"""The example of training runs, and each engine's curve is PyTorch's."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import xrt

EXAMPLE = Path(xrt.__file__).parents[1] / "examples" / "train_mnist_like.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::xrt.errors.PlacementWarning")  # on a slow machine the budget measures little
def test_digits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["train_mnist_like.py", "--steps", "20", "--svg", str(tmp_path / "curves.svg")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [
        [n, e] for n in ("convolutional", "transformer") for e in ("toy", "ort", "toy + ort", "auto")
    ]
    assert all(float(row[4]) < 1e-3 for row in rows)
    assert [row[2] for row in rows if row[1] == "toy + ort"] == ["ort, toy"] * 2
    for name in ("convolutional", "transformer"):
        picture = (tmp_path / f"curves-{name}.svg").read_text(encoding="utf-8")
        assert picture.count("<polyline") == 5
