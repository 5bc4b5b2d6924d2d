"""The demonstration, on its smallest model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160", "PYTHONWARNINGS": "error::UserWarning"}
    return subprocess.run([sys.executable, str(DEMO), *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_demonstration_shows_each_engine_and_a_true_mixture() -> None:
    completed = demo("squeezenet")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    rows = re.findall(r"^squeezenet +(toy|ort|tvm \+ ort) +(\S.*?)  +[\d.]+ s +[\d.]+ ms +(\S+)", completed.stdout, re.MULTILINE)
    assert [engine for engine, _, _ in rows] == ["toy", "ort", "tvm + ort"]
    assert rows[1][1] == "1 ort"
    assert re.fullmatch(r"\d+ ort, \d+ tvm", rows[2][1])
    assert all(float(difference) < 1e-5 for _, _, difference in rows)


def test_an_unknown_model_is_reported() -> None:
    completed = demo("resnet51")
    assert completed.returncode == 2
    assert completed.stderr.startswith("no model resnet51; there are bvlc_alexnet, ")
