"""The benchmark of growth runs, small, and tells every stage of every graph."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def ran(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--rounds", "1", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True, env=environment).stdout


@pytest.mark.slow
def test_every_stage_is_measured_at_every_size() -> None:
    rows: list[dict[str, Any]] = json.loads(ran("--sizes", "40,80", "--written", "40", "--json"))["stages"]
    stages = {(row["graph"], row["stage"]) for row in rows if row["nodes"] == 80}
    assert {graph for graph, _ in stages} == {"chain", "residual", "random"}
    assert {stage for _, stage in stages} == {
        *("make", "verify", "infer", "simplify", "fingerprint", "partition", "print the plan", "explain")
    }
    written = {row["stage"] for row in rows if row["nodes"] == 40} - {stage for _, stage in stages}
    assert written == {"write text", "read text", "write ONNX", "read ONNX", "store the plan", "read the plan"}
    assert all(row["growth"] == 1 for row in rows if row["nodes"] == 40)


@pytest.mark.slow
def test_the_report_has_a_line_per_stage() -> None:
    lines = ran("--sizes", "40", "--graphs", "chain").splitlines()
    assert len([line for line in lines if line.startswith("  chain ")]) == 14
