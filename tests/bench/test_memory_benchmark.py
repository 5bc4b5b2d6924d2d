"""benchmarks/memory.py on a model of a few megabytes: every process runs, results agree, and nothing is copied twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--megabytes", "60", "--large", "0", "--engines", "ort", "--regions", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["external", "inline"])
def test_the_peak_stays_within_the_target(figures: dict[str, Any], form: str) -> None:
    (row,) = figures["forms"][form]
    for cut in (row["xrt"]["8"], row["xrt"]["8"]["again"]):
        assert "failed" not in cut, cut
        assert cut["launches"] == 8
        assert 40e6 < cut["packed"] < 80e6  # all but the embedding
        assert cut["within"], cut
        assert cut["memory"].startswith("weights ")
        assert cut["peak"] >= cut["now"]
