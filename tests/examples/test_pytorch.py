"""The examples for PyTorch run, and print what they should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import xrt

FOLDER = Path(xrt.__file__).parents[1] / "examples" / "pytorch"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of PyTorch about itself
def test_the_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "transformer.py"), run_name="__main__")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "XRTModule returns a SequenceClassifierOutput with what PyTorch computes"
    assert second.endswith(" nodes on toy")
    assert third == "torch.compile gives what PyTorch gives"


@pytest.mark.slow
def test_the_custom_operator(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "custom_operator.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["ort", "torch", "ort", "example.clip_norm.default:"]
    assert lines[-1] == "example.clip_norm.default: the operator has no ONNX form here"
