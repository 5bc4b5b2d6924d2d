"""The benchmark of native kernels runs; how quick anything is stands in docs/performance.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "native.py"


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_small_models_run_and_agree() -> None:
    figures = json.loads(run("--small", "--rounds", "2", "--json", "--models", "chain,curves,softmax,layer norm,depthwise"))
    assert [row["model"] for row in figures["models"]] == ["chain", "curves", "softmax", "layer norm", "depthwise"]
    assert all(row["numpy_over_native"]["low"] > 0 for row in figures["models"])


@pytest.mark.slow
def test_the_report_names_each_model() -> None:
    assert "max pool" in run("--small", "--rounds", "2", "--models", "max pool")
